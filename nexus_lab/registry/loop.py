"""One asyncio loop on a background thread, shared by all servers, so that their face can be synchronous."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["BackgroundLoop", "background_loop"]

T = TypeVar("T")


class BackgroundLoop:
    """A running event loop on a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nexus-lab-servers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Run `coroutine` and wait for it; Ctrl-C while waiting cancels it.

        Parameters
        ----------
        timeout
            Seconds after which it is cancelled; its own limits should end it long before.

        Raises
        ------
        TimeoutError
            When it did not end in time.
        RuntimeError
            When called from the loop's own thread, which would wait for itself.
        """
        future = self.start(coroutine)
        try:
            return future.result(timeout)
        finally:
            if not future.done():
                future.cancel()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run `coroutine`; cancelling what is returned cancels it, from any thread.

        Raises
        ------
        RuntimeError
            When called from the loop's own thread, where waiting for it would never end.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a server cannot be used from its own event loop")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop call `call` soon; from any thread, without waiting."""
        self._loop.call_soon_threadsafe(call)


_shared: tuple[int, BackgroundLoop] | None = None
_lock = threading.Lock()


def background_loop() -> BackgroundLoop:
    """Return the loop of this process; a forked child gets its own, since threads do not survive a fork."""
    global _shared  # noqa: PLW0603 - one loop for the process is the point
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            _shared = (os.getpid(), BackgroundLoop())
        return _shared[1]
