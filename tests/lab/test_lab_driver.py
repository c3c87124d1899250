"""Jobs one after another, a queue that can be seen, and a stop that ends only what runs."""

from __future__ import annotations

import threading

import pytest
from desk_tools import eventually

from nexus_lab.errors import Cancelled
from nexus_lab.lab.driver import Driver, wait_for_all


@pytest.fixture
def driver():
    made = Driver("test")
    yield made
    made.close()


def _blocked(driver, label="long"):
    """Post a job that runs until the event is set; returns when it has begun."""
    gate = threading.Event()
    ticket = driver.submit(label, lambda: gate.wait(30))
    eventually(lambda: driver.state.label == label)
    return ticket, gate


def test_jobs_run_in_order_on_one_thread(driver):
    seen = []
    tickets = [
        driver.submit(str(n), lambda n=n: seen.append((n, threading.get_ident())) or n) for n in range(5)
    ]
    assert [ticket.get() for ticket in tickets] == list(range(5))
    assert [n for n, _ in seen] == list(range(5))
    assert len({thread for _, thread in seen}) == 1


def test_a_job_that_raises_is_told_and_survived(driver):
    ended = []
    failing = driver.submit("bad", lambda: 1 / 0, ended.append)
    with pytest.raises(ZeroDivisionError):
        failing.get()
    assert driver.submit("good", lambda: 7).get() == 7
    assert ended == [failing]


def test_an_end_that_cannot_be_told_is_survived(driver):
    driver.submit("a", lambda: None, lambda _ticket: 1 / 0).wait(30)
    assert driver.submit("b", lambda: 7).get() == 7


def test_the_queue_shows_and_a_waiting_job_can_be_withdrawn(driver):
    running, gate = _blocked(driver)
    second, third = driver.submit("second", lambda: 2), driver.submit("third", lambda: 3)
    assert driver.state.queue == ("second", "third")
    assert driver.withdraw(second)
    assert not driver.withdraw(running)
    with pytest.raises(Cancelled):
        second.get()
    gate.set()
    assert third.get() == 3


def test_stop_ends_what_runs_keeps_what_others_posted_and_drops_what_it_posted_itself():
    gate, began = threading.Event(), threading.Event()
    driver = Driver("test", on_stop=gate.set)
    children = []

    def parent():
        children.append(driver.submit("child", lambda: "child"))
        began.set()
        gate.wait(30)

    driver.submit("parent", parent)
    assert began.wait(30)
    other = driver.submit("other", lambda: "other")
    assert driver.stop()
    assert other.get() == "other"
    with pytest.raises(Cancelled):
        children[0].get()
    assert not driver.state.stopping
    assert not driver.stop()
    driver.close()


def test_progress_belongs_to_the_running_job(driver):
    _ticket, gate = _blocked(driver)
    driver.progress("reading", 3, 10)
    assert (driver.state.progress.done, driver.state.progress.total) == (3, 10)
    gate.set()
    driver.submit("next", lambda: None).get()
    eventually(lambda: driver.state.label is None)
    driver.progress("late", 1, 2)
    assert driver.state.progress is None


def test_closing_withdraws_what_waits_and_refuses_what_comes():
    gate = threading.Event()
    driver = Driver("test", on_stop=gate.set)
    driver.submit("long", lambda: gate.wait(30))
    waiting = driver.submit("waiting", lambda: 1)
    driver.close()
    for ticket in (waiting, driver.submit("late", lambda: 1)):
        with pytest.raises(Cancelled):
            ticket.get()


def test_waiting_for_all_waits_for_what_jobs_post_to_either_thread():
    lanes = Driver("one"), Driver("two")
    done = []

    def post(number):
        """Post the next job to the other thread from the end of the last, as a row of turns does."""
        if number < 6:
            lanes[number % 2].submit(str(number), lambda: done.append(number), lambda _t: post(number + 1))

    gate = threading.Event()
    lanes[1].submit("held", lambda: gate.wait(30), lambda _ticket: post(0))
    threading.Timer(0.05, gate.set).start()
    wait_for_all(lanes)
    assert done == list(range(6))
    for lane in lanes:
        lane.close()
    wait_for_all(lanes)  # harmless when closed


def test_waiting_for_all_counts_no_job_that_was_withdrawn(driver):
    _running, gate = _blocked(driver)
    ticket = driver.submit("never", lambda: 1)
    driver.withdraw(ticket)
    gate.set()
    wait_for_all((driver,))
    assert driver.state.label is None
