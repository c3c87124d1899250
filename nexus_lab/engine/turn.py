"""The coarse lock of a context, and the cancel request that belongs to the turn which holds it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TurnLock"]


class TurnLock:
    """A re-entrant lock whose holder can be asked to stop from any thread.

    A cancel request lasts until the outermost block is left, so that none of a turn's later operations slips
    through; without a holder it does nothing.

    Parameters
    ----------
    on_cancel, on_release
        Called when the request is made, and when the outermost block ends.
    """

    def __init__(self, *, on_cancel: Callable[[], None], on_release: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._guard = threading.Lock()
        self._depth = 0
        self._cancelled = False
        self._on_cancel = on_cancel
        self._on_release = on_release

    @property
    def cancelled(self) -> bool:
        """Whether the running turn has been asked to stop."""
        return self._cancelled

    @property
    def held(self) -> bool:
        """Whether some turn is running."""
        return self._depth > 0

    def cancel(self) -> bool:
        """Ask the running turn to stop; returns whether there was one."""
        with self._guard:
            if self._depth == 0:
                return False
            self._cancelled = True
            self._on_cancel()
            return True

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock for the block."""
        with self._lock:
            with self._guard:
                self._depth += 1
            try:
                yield
            finally:
                self._leave()

    def _leave(self) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth == 0:
                self._cancelled = False
                self._on_release()
