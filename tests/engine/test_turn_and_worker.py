from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from nexus_lab.engine.turn import TurnLock
from nexus_lab.engine.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_turn_is_reentrant_and_a_request_lasts_until_its_outermost_block():
    calls: list[str] = []
    turn = TurnLock(on_cancel=lambda: calls.append("cancel"), on_release=lambda: calls.append("release"))
    assert not turn.cancel()
    with turn.hold():
        with turn.hold():
            assert turn.cancel()
        assert turn.cancelled
        assert calls == ["cancel"]
    assert not turn.cancelled
    assert not turn.held
    assert calls == ["cancel", "release"]


def test_a_second_thread_waits_for_the_first():
    turn = TurnLock(on_cancel=lambda: None, on_release=lambda: None)
    order: list[str] = []

    def second() -> None:
        with turn.hold():
            order.append("second")

    with turn.hold():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_calls_run_on_one_other_thread_and_nest():
    worker = Worker(on_interrupt=lambda: None)
    inner = worker.call(lambda: worker.call(threading.get_ident))
    assert inner == worker.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError):
        worker.call(lambda: {}["missing"])
    worker.close()


def interrupt_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("interrupt", [interrupt_process, _thread.interrupt_main])
def test_an_interrupted_wait_ends_the_call_before_it_raises(interrupt: Callable[[], None]):
    stop = threading.Event()
    worker = Worker(on_interrupt=stop.set)
    ended: list[bool] = []

    def long_call() -> None:
        interrupt()  # from here, so that the caller waits already
        ended.append(stop.wait(120))

    with pytest.raises(KeyboardInterrupt):
        worker.call(long_call)
    assert ended == [True]
    worker.close()


def test_putting_in_order_ends_before_an_interruption_shows():
    worker = Worker(on_interrupt=lambda: None)
    ended: list[bool] = []

    def slow() -> None:
        interrupt_process()
        time.sleep(0.3)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        worker.call_to_end(slow)
    assert ended == [True]
    worker.close()


def test_a_closed_worker_still_puts_in_order():
    worker = Worker(on_interrupt=lambda: None)
    worker.close()
    assert worker.call_to_end(lambda: 7) == 7
