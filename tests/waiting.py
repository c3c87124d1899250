"""Waiting in tests: for something to come true, and never for a time to have passed.

A busy machine stalls any thread for as long as it likes, so an action that must meet a call at work is not
put off by a guess: it waits until the call is seen at work.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 120.0) -> T:
    """Wait until `condition()` holds, and return what it gave; fails after a time that no machine needs."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)
    return found


@contextmanager
def meanwhile(condition: Callable[[], object], act: Callable[[], object] | None = None) -> Iterator[None]:
    """Let the block begin, and call `act()` on another thread as soon as `condition()` holds.

    Without `act` the condition is itself what is done, again and again until it says that it was of use.
    """

    over = threading.Event()

    def watch() -> None:
        eventually(lambda: over.is_set() or condition())
        if act is not None and not over.is_set():
            act()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
