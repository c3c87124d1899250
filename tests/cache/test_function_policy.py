"""A policy of the user that fails, returns nonsense or never returns: a typed error, and nothing is done."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Edit,
    FunctionPolicy,
    MessageSpan,
    Moment,
    ProgramError,
    TextMessage,
    function_policy,
    make_policy,
)
from nexus_lab.errors import Cancelled


def moment(host=None):
    """Four messages of ten tokens each."""
    spans = tuple(MessageSpan("user", 10 * i, 10 * i + 10, f"message {i}") for i in range(4))
    return Moment(messages=spans, program=CacheProgram((Append(tuple(range(40))),)), host=host)


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("nobody knows")


class Unshown:
    def __repr__(self):
        raise RuntimeError("nobody knows")


def leaves(_moment):
    sys.exit(3)


def leaves_late(_moment):
    yield (0, 1)
    sys.exit(3)


def speechless(_moment):
    raise Speechless


def writes(given):
    given.state.active[:] = False


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (leaves, "SystemExit: 3"),
        (leaves_late, "SystemExit: 3"),
        (speechless, "Speechless: it does not say what"),
        (writes, "read-only"),
        (lambda _moment: [Unshown()], "returned <Unshown"),
        (lambda _moment: ["x" * 10_000], r"returned 'x{9,20}\.\.\."),
        (lambda _moment: itertools.repeat((0, 1)), "more than 10000"),
        (lambda _moment: Edit(ops=itertools.repeat((0, 1))), "more than 10000"),
        (lambda _moment: Edit(texts=itertools.repeat(TextMessage("user", ""))), "more than 10000"),
        (lambda _moment: Edit(texts=()), "no texts at all"),
        (lambda _moment: Edit(texts=(TextMessage("king", "x"),)), "for a text"),
        (lambda _moment: Edit(texts=(TextMessage(5, "x"),)), "for a text"),
        (lambda _moment: Edit(texts=(TextMessage([], "x"),)), "for a text"),
        (lambda _moment: Edit(texts=(TextMessage("user", "x", source=1.0),)), "source 1.0"),
        (lambda _moment: Edit(texts=(TextMessage("user", "x", source=True),)), "source True"),
        (lambda _moment: [(1, 2, 3)], "returned"),
        (lambda _moment: [(0, 10**30)], "returned"),
        (lambda _moment: [(float("nan"), 2)], "returned"),
    ],
)
def test_nonsense_is_a_typed_error(function, problem):
    with pytest.raises(ProgramError, match=problem) as refused:
        FunctionPolicy(function).decide(moment())
    assert refused.value.next_step


def test_a_file_that_ends_the_process_is_refused(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(ProgramError, match="SystemExit: 2"):
        make_policy(f"python(function={tmp_path}/script.py:decide)")


def for_ever(_moment):
    while True:
        pass


def for_ever_and_deaf(_moment):
    while True:
        try:
            for_ever(_moment)
        except Exception:  # noqa: BLE001, S112 - what a careless user writes
            continue


def drops_for_ever(_moment):
    yield (0, 1)
    for_ever(_moment)


@pytest.mark.parametrize("function", [for_ever, for_ever_and_deaf, drops_for_ever])
def test_one_that_does_not_return_is_ended(monkeypatch, function):
    monkeypatch.setattr(function_policy, "MOST_SECONDS", 0.2)
    with pytest.raises(ProgramError, match="did not return"):
        FunctionPolicy(function).decide(moment())


class Host:
    """A conversation whose turn can be stopped."""

    def __init__(self):
        self.stopped = False

    @contextmanager
    def aside(self):
        yield self

    def say(self, _text):
        time.sleep(0.6)


@pytest.mark.parametrize("function", [for_ever, for_ever_and_deaf])
def test_one_that_does_not_return_ends_with_its_turn(function):
    host = Host()
    timer = threading.Timer(0.1, lambda: setattr(host, "stopped", True))
    timer.start()
    with pytest.raises(Cancelled):
        FunctionPolicy(function).decide(moment(host))
    timer.join()


def test_what_the_model_says_is_none_of_its_time(monkeypatch):
    monkeypatch.setattr(function_policy, "MOST_SECONDS", 0.3)

    def asks(given):
        with given.host.aside() as aside:
            aside.say("Which ones?")
        return (0, 3) if given.host.stopped else [(0, 3)]

    assert len(FunctionPolicy(asks).decide(moment(Host())).ops) == 1


def test_nothing_is_raised_once_it_has_returned():
    host = Host()

    def stops_itself(_moment):
        host.stopped = True

    for _ in range(20):
        assert FunctionPolicy(stops_itself).decide(moment(host)) == Edit()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "nexus-policy-watch"]
