"""How the tests are shared out between processes: ``make test`` runs several (pytest-xdist).

What belongs together stays in one process and in its order: a file, whose fixtures live as long as it does,
and the browser's tests, which share one sitting. What takes longest begins first, so that the processes end
together.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import pytest

# Each of these is a share of its own although its file holds more, and stands where its time puts it.
_NOTEBOOK = "tests/lab/test_notebooks.py::test_it_runs["
_FIRST = ("tests/browser/", _NOTEBOOK, "tests/demo/test_demo.py", "tests/lab/test_packaging.py")


def share_of(nodeid: str) -> str:
    """Return the name of the share that a test belongs to."""
    if nodeid.startswith("tests/browser/"):
        return "tests/browser/"
    return nodeid if nodeid.startswith(_NOTEBOOK) else nodeid.split("::", maxsplit=1)[0]


def rank_of(nodeid: str) -> int:
    """Return when a test's share begins, smallest first."""
    return next((rank for rank, start in enumerate(_FIRST) if nodeid.startswith(start)), len(_FIRST))


def keep_to_own_cores(environment: MutableMapping[str, str]) -> None:
    """Give native code in one of several processes its part of the cores, and not all of them to each.

    Threads that wait for each other at a barrier stall when there are more of them than cores.
    """
    workers = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        share = max(1, (os.cpu_count() or 1) // workers)
        environment.setdefault("OMP_THREAD_LIMIT", str(share))


class Shares(LoadScopeScheduling):
    """Hands out whole shares, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
