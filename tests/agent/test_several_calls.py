"""A request for several things is as many turns, and a turn that takes too long is ended."""

from __future__ import annotations

import threading
import time

import pytest

from nexus_lab.agent import EventKind, TurnOutcome
from nexus_lab.agent.loop import TurnTooLong
from nexus_lab.errors import Cancelled, NexusError

pytestmark = pytest.mark.model


def test_each_thing_asked_for_is_a_turn_of_its_own(make_agent):
    agent = make_agent("hello")
    heard, told = [], []

    class Listener:
        def on_event(self, event):
            if event.kind is EventKind.TURN and event.duration_ns is not None:
                heard.append((event.attributes["turn"], event.contents["request"]))

    agent.emitter.add(Listener())
    turn = agent.ask(
        "Say hello, then say it once more. Finally, say hello for the last time", on_turn=told.append
    )
    assert heard == [(1, "Say hello"), (2, "say it once more"), (3, "say hello for the last time")]
    assert [each.outcome for each in (*turn.earlier, turn)] == [TurnOutcome.CALLED] * 3
    assert tuple(told) == turn.earlier
    assert turn.left == ()
    assert turn.number == 3
    assert [message["role"] for message in agent.history].count("user") == 3


LONGER = "say hello to everybody who is here"  # refers to nothing before it


def test_a_part_is_routed_once_and_what_that_took_is_its_turns(make_agent):
    agent = make_agent("hello")
    turn = agent.ask(f"Say hello, then {LONGER}, then {LONGER} today")
    assert [each.request for each in (*turn.earlier, turn)] == ["Say hello", LONGER, f"{LONGER} today"]
    assert agent.router.asked == ["Say hello", LONGER, f"{LONGER} today"]
    assert [each.times_ms["route"] // 2_000 for each in (*turn.earlier, turn)] == [1, 1, 1]
    assert turn.ttft_s > 2
    agent.ask(LONGER)
    assert agent.router.asked[3:] == [LONGER]


def test_a_part_that_refers_back_or_whose_router_has_learned_is_routed_anew(make_agent):
    agent = make_agent("hello")
    agent.ask("Say hello, then say it once more")
    assert agent.router.asked == ["Say hello", "say it once more", "say it once more"]
    del agent.router.asked[:]

    def learn(_turn):
        agent.router.examples = (("say hello", "echo"),)

    agent.ask(f"{LONGER}, then {LONGER} today", on_turn=learn)
    assert agent.router.asked == [LONGER, f"{LONGER} today", f"{LONGER} today"]


def test_a_part_that_fails_leaves_those_before_it_and_begins_none_after_it(make_agent):
    agent = make_agent("hello", read_only=False, approve=lambda *_call: next(answers))
    answers = iter([True, False])
    turn = agent.ask("Say hello, then say hello, then say hello")
    assert turn.outcome is TurnOutcome.REFUSED
    assert [each.outcome for each in turn.earlier] == [TurnOutcome.CALLED]
    assert turn.left == ("say hello",)
    assert [message["role"] for message in agent.history].count("user") == 1


def test_a_request_stays_whole_where_a_part_is_no_tools_work_or_one_call_is_allowed(make_agent, monkeypatch):
    agent = make_agent("hello", max_calls=1)
    assert agent.ask("Say hello, then say hello").earlier == ()
    agent.profile = agent.profile.changed(max_calls=4)
    route = agent.router.route

    def no_dance(request, context=()):
        agent.router.tool = None if request == "dance a little" else "echo"
        return route(request, context)

    monkeypatch.setattr(agent.router, "route", no_dance)
    turn = agent.ask("Say hello, then dance a little")
    assert (turn.earlier, turn.request) == ((), "Say hello, then dance a little")


def test_a_request_for_more_than_is_allowed_is_one_turn_and_says_so(make_agent):
    declined = []

    class Listener:
        def on_event(self, event):
            if event.attributes.get("code") == "too_many_things":
                declined.append(event)

    agent = make_agent("hello", max_calls=2)
    agent.emitter.add(Listener())
    turn = agent.ask("Say hello, then say hello, then say hello")
    assert (turn.outcome, turn.earlier, turn.left) == (TurnOutcome.CALLED, (), ())
    (event,) = declined
    assert "asks for 3 things, and the profile allows 2 calls" in event.attributes["reason"]
    assert event.parent is not None
    agent.ask("Say hello, then say hello")
    agent.profile = agent.profile.changed(max_calls=1)  # whoever allows one call knows that it is one
    agent.ask("Say hello, then say hello, then say hello")
    assert len(declined) == 1


def test_a_turn_that_takes_too_long_is_ended_and_says_so(make_agent):
    agent = make_agent("hello", turn_seconds=0.05)
    turn = agent.ask("Say hello " * 250)
    assert turn.outcome is TurnOutcome.FAILED
    assert isinstance(turn.problem, TurnTooLong)
    assert not isinstance(turn.problem, Cancelled)
    assert "turn_seconds" in turn.problem.next_step
    agent.profile = agent.profile.changed(turn_seconds=600.0)
    assert agent.ask("Say hello").outcome is TurnOutcome.CALLED


def test_stopping_between_two_turns_begins_no_other(make_agent):
    agent = make_agent("hello")
    turn = agent.ask("Say hello, then say hello", on_turn=lambda _turn: agent.stop())
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.left == ("say hello",)
    assert agent.ask("Say hello, then say hello").left == ()
    assert agent.ask("Say hello, then say hello", whole=True).earlier == ()


def test_a_router_that_fails_is_told_by_the_turn(make_agent, monkeypatch):
    agent = make_agent("hello")

    def fail(*_arguments):
        raise NexusError("no index", next_step="make one")

    monkeypatch.setattr(agent.router, "route", fail)
    turn = agent.ask("Say hello, then say hello")
    assert (turn.outcome, str(turn.problem.problem)) == (TurnOutcome.FAILED, "no index")


def test_the_wait_for_an_approval_is_none_of_a_turns_time(make_agent):
    def slowly(*_call):
        time.sleep(1.5)
        return True

    agent = make_agent("hello", read_only=False, approve=slowly)
    agent.ask("Say hello")
    agent.profile = agent.profile.changed(turn_seconds=1.4)
    assert agent.ask("Say hello").outcome is TurnOutcome.CALLED


def test_waiting_for_another_agent_cancels_none_of_its_tool_calls(make_agent):
    held, cancelled = threading.Event(), []
    working = make_agent("hello", read_only=False, approve=lambda *_call: held.wait(20))
    waiting = make_agent("hello")
    waiting.tools = working.tools
    working.tools.cancel = lambda: cancelled.append(1)
    first = threading.Thread(target=working.ask, args=("Say hello",))
    first.start()
    while not working._holds:
        time.sleep(0.01)
    second = threading.Thread(target=waiting.ask, args=("Say hello",))
    second.start()
    while not waiting._asking:
        time.sleep(0.01)
    waiting.stop()
    time.sleep(0.2)
    held.set()
    first.join(60)
    second.join(60)
    assert cancelled == []
