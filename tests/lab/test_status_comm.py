"""The status comm: what the side panel is told, when, and that it can change nothing."""

from __future__ import annotations

import time

import pytest
from waiting import eventually

from nexus_lab.lab import status_comm
from nexus_lab.lab.views import Pump

BAR = {"model": "tiny", "context_used": 3, "context_total": 10, "engine": "idle", "holder": None}
DECISION = {
    "id": "d1",
    "request": "what time is it",
    "decision": "auto",
    "tool": "clock",
    "margin": 0.2,
    "tau": 0.01,
    "turn": 1,
    "candidates": [{"tool": "clock"}],
}


class FakeDesk:
    """A desk that has parts, and takes note of what it is asked for."""

    def __init__(self, **bar):
        self.pump = Pump()
        self.bar = {**BAR, **bar}
        self.decisions = [DECISION]
        self.asked = []
        self.handled = []

    def parts(self, names):
        self.asked.append(set(names))
        everything = {"bar": self.bar, "routing": {"decisions": self.decisions}}
        return {name: everything[name] for name in names}

    def handle(self, method, _params, _reply):
        self.handled.append(method)

    def changed(self, *names):
        self.pump.mark(names)


class FakeComm:
    """The kernel's end of a comm."""

    def __init__(self):
        self.sent = []

    def on_msg(self, callback):
        self._on_msg = callback

    def on_close(self, callback):
        self._on_close = callback

    def send(self, data, buffers=()):
        assert not list(buffers)
        self.sent.append(data)

    def says(self, **data):
        self._on_msg({"content": {"data": data}})

    def closes(self):
        self._on_close({})

    def wait(self, n):
        """Return the nth message once it is there."""
        eventually(lambda: len(self.sent) >= n)
        return self.sent[n - 1]


@pytest.fixture
def office():
    return status_comm._Office()


@pytest.fixture
def make_desk():
    made = []

    def make(**bar):
        made.append(FakeDesk(**bar))
        return made[-1]

    yield make
    for desk in made:
        desk.pump.close()


def opened(office):
    comm = FakeComm()
    office.on_open(comm, {})
    comm.says(kind="hello")
    return comm


def test_hello_brings_bar_and_last_decision(office, make_desk):
    office.announce(make_desk())
    parts = opened(office).wait(1)["parts"]
    assert parts["bar"] == BAR
    assert parts["decision"] == {name: DECISION[name] for name in status_comm._SHOWN}


def test_no_decision_is_said_as_none(office, make_desk):
    desk = make_desk()
    desk.decisions = []
    office.announce(desk)
    assert opened(office).wait(1)["parts"]["decision"] is None


def test_the_next_comes_only_after_the_acknowledgement(office, make_desk):
    desk = make_desk()
    office.announce(desk)
    comm = opened(office)
    first = comm.wait(1)
    desk.bar = {**BAR, "engine": "busy"}
    for _ in range(5):
        desk.changed("bar")
    time.sleep(0.2)
    assert len(comm.sent) == 1
    comm.says(kind="ack", revision=first["revision"])
    assert comm.wait(2)["parts"] == {"bar": desk.bar}


def test_parts_that_it_does_not_show_wake_nobody(office, make_desk):
    desk = make_desk()
    office.announce(desk)
    comm = opened(office)
    comm.says(kind="ack", revision=comm.wait(1)["revision"])
    desk.asked.clear()
    desk.changed("splice", "cache", "agent")
    time.sleep(0.2)
    assert desk.asked == []
    assert len(comm.sent) == 1


def test_it_can_change_nothing(office, make_desk):
    desk = make_desk()
    office.announce(desk)
    comm = opened(office)
    comm.wait(1)
    comm.says(kind="request", id=1, method="stop", params={})
    reply = comm.wait(2)
    assert (reply["ok"], reply["error"]["type"]) == (False, "ReadOnly")
    assert desk.handled == []


def test_the_newest_desk_leads_and_the_older_takes_over(office, make_desk):
    older, newer = make_desk(model="older"), make_desk(model="newer")
    office.announce(older)
    comm = opened(office)
    comm.wait(1)
    withdraw = office.announce(newer)
    assert comm.wait(2)["parts"]["bar"]["model"] == "newer"
    withdraw()
    assert comm.wait(3)["parts"]["bar"]["model"] == "older"


def test_without_a_desk_it_says_so(office, make_desk):
    office.announce(make_desk())()
    assert opened(office).wait(1)["parts"] == {"bar": None, "decision": None}


def test_a_closed_panel_is_forgotten(office, make_desk):
    desk = make_desk()
    office.announce(desk)
    comm = opened(office)
    comm.says(kind="ack", revision=comm.wait(1)["revision"])
    comm.closes()
    desk.changed("bar")
    time.sleep(0.2)
    assert len(comm.sent) == 1
    assert not office._panels


def test_the_target_is_registered_once(office, make_desk, monkeypatch):
    import comm

    registered = []

    class Manager:
        def register_target(self, name, callback):
            registered.append((name, callback))

    manager = Manager()
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager)
    office.announce(make_desk())
    office.announce(make_desk())
    assert registered == [("nexus_lab.status", office.on_open)]
