"""One thread that owns a llama.cpp context.

A thread inside a native call sees no signals until the call returns. So every native call runs on a worker
thread of its own, and the caller waits in Python, where Ctrl-C arrives at once; the wait then sets the abort
flag, lets the worker come to rest and only then raises. It also keeps llama.cpp's thread team in one place.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Worker"]

T = TypeVar("T")
_STEP_S = 0.1


class Worker:
    """Runs calls one after another on one thread, interruptible by whoever waits.

    Parameters
    ----------
    on_interrupt
        Called when the waiting thread is interrupted; must make the running call end soon.
    """

    def __init__(self, *, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nexus-llama", initializer=self._remember)
        self._thread: int | None = None

    def _remember(self) -> None:
        self._thread = threading.get_ident()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the worker and return its value.

        Raises
        ------
        BaseException
            What `function` raised; or what interrupted the wait, after `function` has come to rest.
        """
        if threading.get_ident() == self._thread:
            return function()
        future: Future[T] = Future()
        try:
            self._pool.submit(_run, future, function)
            return _wait(future)
        except BaseException:
            # The interruption may have come while it was being handed over; what has not begun never will.
            if not future.done() and not future.cancel():
                self._on_interrupt()
                _settle(future)
            raise

    def call_to_end(self, function: Callable[[], T]) -> T:
        """Run `function` to its end and only then let an interruption through; to put things in order."""
        if threading.get_ident() == self._thread:
            return function()
        future: Future[T] = Future()
        interrupted: KeyboardInterrupt | None = None
        while True:
            try:
                self._pool.submit(_run, future, function)
                break
            except KeyboardInterrupt as error:
                interrupted = error  # nobody knows whether it was handed over; twice does no harm
            except RuntimeError:
                # The interpreter is going and has ended the worker, so nobody else can be in the context.
                return function()
        interruption = _settle(future) or interrupted
        result = future.result()
        if interruption is not None:
            raise interruption
        return result

    def close(self) -> None:
        """Let the thread end; later calls raise RuntimeError."""
        self._pool.shutdown(wait=True)


def _run(future: Future[T], function: Callable[[], T]) -> None:
    """Run `function` for `future`, once, unless that was cancelled."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
        future.set_exception(error)


def _wait(future: Future[T]) -> T:
    """Wait in short steps: a signal that another thread received wakes nobody, but shows at a step."""
    while True:
        try:
            return future.result(_STEP_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _settle(future: Future[T]) -> KeyboardInterrupt | None:
    """Wait for `future` whatever interrupts: a second Ctrl-C must not leave a call half done."""
    interruption = None
    while not future.done():
        try:
            wait((future,), _STEP_S)
        except KeyboardInterrupt as error:
            interruption = error
    return interruption
