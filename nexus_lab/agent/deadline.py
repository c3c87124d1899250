"""The time that a turn may take, which stands still while somebody is asked."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Deadline"]


class Deadline:
    """Calls `stop` once when the time of the ``with`` block is over, and never after the block.

    Parameters
    ----------
    seconds
        ``None`` for no limit.
    stop
        Called from a thread of its own.

    Attributes
    ----------
    over
        Whether it was called.
    """

    def __init__(self, seconds: float | None, stop: Callable[[], None]) -> None:
        self.over = False
        self._left, self._stop = seconds, stop
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        self._go_on()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._halt()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the block take its time."""
        self._halt()
        try:
            yield
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._left is None:
            return
        with self._lock:
            timer = threading.Timer(max(self._left, 0.0), self._end)
            timer.args = (timer,)
            timer.daemon = True
            self._timer, self._since = timer, time.monotonic()
        timer.start()

    def _halt(self) -> None:
        with self._lock:
            if self._timer is None or self._left is None:
                return
            self._timer.cancel()
            self._timer = None
            self._left -= time.monotonic() - self._since

    def _end(self, timer: threading.Timer) -> None:
        # Under the lock, so that what comes behind the block waits for a stop that has begun.
        with self._lock:
            if self._timer is timer:
                self.over = True
                self._stop()
