"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shares
from hypothesis import settings

from nexus_lab import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.engine import Engine

# A shared machine stalls for longer than any deadline, and a suite that varies cannot be trusted.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A run that a shell put in the background inherits an ignored SIGINT, and Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A terminal's size, where one is exported, would hold for what a test prints into a wider one.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# Before any native library is loaded.
shares.keep_to_own_cores(os.environ)


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole run a home of the package of its own, which the processes of a run share.

    Only the environments of the demo's servers are those of the user, since they take a minute to install.
    """
    if not hasattr(config, "workerinput"):
        servers = paths.home() / "servers"
        home = tempfile.mkdtemp(prefix="nexus-lab-home-")
        os.environ["NEXUS_LAB_HOME"] = home
        paths.home().mkdir(parents=True)
        (paths.home() / "servers").symlink_to(servers)
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> shares.Shares:
    """Share the tests out as `shares` says, whatever ``--dist`` says."""
    return shares.Shares(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest where several processes share the tests; alone, the order stays."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: shares.rank_of(item.nodeid))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the evaluation data; tests that need it are skipped without it."""
    value = os.environ.get("NEXUS_DATA")
    if not value:
        pytest.skip("NEXUS_DATA does not name the folder of the evaluation data")
    path = Path(value)
    if not path.is_dir():
        pytest.skip(f"NEXUS_DATA={value} is no folder")
    return path


@pytest.fixture
def nexus_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the package, for a test that changes or counts what is there."""
    monkeypatch.setenv("NEXUS_LAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def bundled_engine() -> Iterator[Engine]:
    """The bundled generator in a small context; one thread, since busy machines stall two that wait in turn.

    Tests leave it as they found it: no sequence held, no cell used.
    """
    from nexus_lab.engine import Engine

    with Engine.load(n_ctx=2048, threads=1) as engine:
        yield engine
