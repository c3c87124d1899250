"""The demonstration's MCP servers, written by others: installed from PyPI, each in its own environment.

An environment of its own keeps a server's dependencies away from ours: mcp-server-sqlite needs an older
MCP SDK than this package uses.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.paths import atomic_write, home
from nexus_lab.registry import ServerConfig, ServerInstallFailed, neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = [
    "DEMO_SERVERS",
    "ServerPackage",
    "demo_server_commands",
    "install_servers",
    "missing_servers",
]


@dataclass(frozen=True, slots=True)
class ServerPackage:
    """A server to install.

    Attributes
    ----------
    name
        Short name, and name of the server in the registry.
    package, version
        Distribution on PyPI.
    sdk
        Requirement that pins the MCP SDK it runs with.
    """

    name: str
    package: str
    version: str
    sdk: str

    @property
    def folder(self) -> Path:
        """Folder of its environment."""
        return home() / "servers" / f"{self.package}-{self.version}"

    @property
    def program(self) -> Path:
        """The program that its environment provides."""
        return self.folder / "bin" / self.package

    @property
    def requirements(self) -> tuple[str, str]:
        """What pip is asked for."""
        return f"{self.package}=={self.version}", self.sdk

    @property
    def ready(self) -> bool:
        """Whether the whole environment is there, with these versions and a Python that still exists."""
        try:
            made = json.loads(self._marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        wanted = list(self.requirements)
        return made == {"requirements": wanted} and self.program.exists() and self.python.exists()

    @property
    def _marker(self) -> Path:
        return self.folder / "ready.json"

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.folder / "bin" / "python"

    def install(self, progress: Callable[[str], None], *, timeout: float = 900.0) -> None:
        """Make the environment; what a killed run left is removed first, and no half counts as ready.

        Raises
        ------
        ServerInstallFailed
            When the network or the package is missing, or another run takes too long.
        """
        with _install_lock(self.folder, timeout=timeout):
            if self.ready:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            progress(f"{self.package} {self.version}: making its environment")
            pip = _make_environment(self, progress, timeout)
            _run([*pip, "install", *_PIP_OPTIONS, *self.requirements], self, progress, timeout)
            marker = json.dumps({"requirements": list(self.requirements)})
            atomic_write(self._marker, marker.encode())
            progress(f"{self.package} {self.version}: ready")


DEMO_SERVERS = (
    ServerPackage("time", "mcp-server-time", "2026.10.19", sdk="mcp==2.3.0"),
    ServerPackage("git", "mcp-server-git", "2026.10.19", sdk="mcp==2.3.0"),
    ServerPackage("sqlite", "mcp-server-sqlite", "2025.4.25", sdk="mcp[cli]==1.30.0"),
)


def missing_servers() -> tuple[ServerPackage, ...]:
    """Return the servers whose environment is not made yet."""
    return tuple(server for server in DEMO_SERVERS if not server.ready)


def install_servers(progress: Callable[[str], None] | None = None) -> tuple[Path, ...]:
    """Install what is missing of the demonstration's servers; when all are there, no network is needed.

    Parameters
    ----------
    progress
        Called with one line at a time, from several threads: stages, and what pip collects and installs.

    Returns
    -------
    The environments' folders.

    Raises
    ------
    ServerInstallFailed
        When an environment cannot be made; the others stay.
    """
    tell = progress or (lambda _line: None)
    missing = missing_servers()
    if missing:
        with ThreadPoolExecutor(max_workers=len(missing)) as pool:
            list(pool.map(lambda server: server.install(tell), missing))
    return tuple(server.folder for server in DEMO_SERVERS)


def demo_server_commands(repository: Path, database: Path) -> tuple[ServerConfig, ...]:
    """Return how the demonstration's servers are started; nothing is started.

    Parameters
    ----------
    repository
        Git repository of the git server (see `scratch.make_scratch_repository`).
    database
        Database of the sqlite server (see `scratch.make_scratch_database`).

    Raises
    ------
    ServerInstallFailed
        When one is not installed.
    """
    missing = missing_servers()
    if missing:
        names = ", ".join(server.package for server in missing)
        raise ServerInstallFailed(
            f"not installed: {names}", next_step="run `nexus-lab demo --setup` once while online"
        )
    arguments = {
        "time": ("--local-timezone", "UTC"),
        "git": ("--repository", str(repository)),
        "sqlite": ("--db-path", str(database)),
    }
    return tuple(
        ServerConfig(server.name, command=str(server.program), args=arguments[server.name])
        for server in DEMO_SERVERS
    )


@contextmanager
def _install_lock(folder: Path, *, timeout: float) -> Iterator[None]:
    """Let one process at a time work on `folder`; the lock ends with its process, however that ends."""
    import fcntl
    import time

    folder.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    with (folder.parent / f".{folder.name}.lock").open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerInstallFailed(
                        f"another run has been installing {folder.name} for {timeout:g} s",
                        next_step="wait for it, or end it",
                    ) from None
                time.sleep(0.2)
        yield


_PIP_OPTIONS = ("--progress-bar", "off", "--no-input", "--disable-pip-version-check")
_OFFLINE = re.compile(
    r"(?i)connection|resolv|network|timed? ?out|no matching distribution|could not find a version|proxy|ssl"
)
_WORTH_TELLING = ("Collecting", "Installing")
# Settings that would send pip's work elsewhere than into the environment.
_STRAY_SETTINGS = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
)


def _make_environment(server: ServerPackage, progress: Callable[[str], None], timeout: float) -> list[str]:
    """Make an empty environment, and return the pip that installs into it: ours where there is one."""
    venv = [sys.executable, "-m", "venv", str(server.folder)]
    if importlib.util.find_spec("pip") is None:
        _run(venv, server, progress, timeout)
        return [str(server.python), "-m", "pip"]
    _run([*venv, "--without-pip"], server, progress, timeout)
    return [sys.executable, "-m", "pip", "--python", str(server.python)]


def _run(command: list[str], server: ServerPackage, progress: Callable[[str], None], timeout: float) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in _STRAY_SETTINGS}
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(  # noqa: S603 - our own Python, with pinned requirements
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        watchdog = threading.Timer(timeout, process.kill)
        watchdog.start()
        try:
            for raw in process.stdout or ():
                line = neutralise(raw.strip(), limit=200)
                if line:
                    tail.append(line)
                if line.startswith(_WORTH_TELLING):
                    progress(f"{server.package}: {neutralise(line, limit=100)}")
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    if process.returncode:
        raise _install_error(server, list(tail))


def _install_error(server: ServerPackage, tail: list[str]) -> ServerInstallFailed:
    last = next(
        (line for line in reversed(tail) if line.startswith("ERROR")), tail[-1] if tail else "no output"
    )
    offline = any(_OFFLINE.search(line) for line in tail)
    return ServerInstallFailed(
        f"{server.package} {server.version} could not be installed: {last}",
        next_step=(
            "check the network, then run the same command again; once installed, it works offline"
            if offline
            else f"try `pip install {' '.join(server.requirements)}` by hand to see all that it says"
        ),
    )
