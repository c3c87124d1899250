"""What a failed turn tells the one who asked: what happened, what may stay done, and what to do next."""

from __future__ import annotations

import threading

import pytest
from echo_tool import echo_spec

from nexus_lab.agent import ApprovalRefused, TurnOutcome
from nexus_lab.agent.loop import TurnTooLong
from nexus_lab.agent.problems import ConversationFull, refused, told
from nexus_lab.arguments import ArgumentsRejected, CutOff, MissingValues, NotJson, Violation
from nexus_lab.engine import ContextFull
from nexus_lab.errors import Cancelled
from nexus_lab.registry import ServerDied, ServerNotRunning, ServerTimeout, ToolCallRejected

WRITES, READS = echo_spec({}, read_only=False), echo_spec({}, read_only=True)
BROKEN_OFF = {
    "call cancelled": lambda: Cancelled("the call of server 'raw' was cancelled"),
    "stopped": lambda: Cancelled("stopped on request", next_step="start the turn again"),
    "late": lambda: TurnTooLong("the turn took more than 2 s", next_step="ask for less"),
    "died": lambda: ServerDied("it ended in the call", server="raw", next_step="the next call restarts it"),
    "silent": lambda: ServerTimeout(
        "no answer within 2 s", server="raw", phase="call", seconds=2, next_step="allow more time"
    ),
}


@pytest.mark.parametrize("kind", BROKEN_OFF)
def test_a_tool_that_was_running_may_have_done_its_work(kind):
    assert "stays done" not in told(BROKEN_OFF[kind](), READS).problem
    assert "stays done" not in told(BROKEN_OFF[kind](), None).problem
    found = told(BROKEN_OFF[kind](), WRITES)
    assert found.problem.endswith("; echo was running, and what it did by then stays done")
    assert found.next_step


def test_what_the_server_refused_has_done_nothing():
    error = ToolCallRejected("it refused the call", server="raw", next_step="check the arguments")
    assert told(error, WRITES).problem == "server 'raw': it refused the call"


def test_a_server_that_is_not_running_is_to_be_started():
    error = ServerNotRunning("it hung or died 4 times", server="raw", next_step="then call start()")
    assert told(error, WRITES).next_step.startswith("start the server again")
    assert "stays done" not in error.problem, "nothing was sent"


def test_a_stop_is_told_in_the_words_of_a_stop_wherever_it_hit():
    stops = ("call cancelled", "stopped")
    found = {(one.problem, one.next_step) for one in (told(BROKEN_OFF[kind](), None) for kind in stops)}
    assert found == {("the turn was stopped", "ask again; the conversation is as it was before")}


def test_what_a_model_is_told_is_no_advice_for_a_user():
    violation = Violation("/n", "type", "3 is not a text")
    for error in (
        NotJson("the arguments are not JSON", next_step="write one JSON object"),
        ArgumentsRejected((violation,), tool="echo"),
    ):
        assert told(error, None).next_step.startswith("say the values in other words")
    kept = [CutOff("cut off", next_step="allow more"), MissingValues(("owner",))]
    assert [told(error, None).next_step for error in kept] == ["allow more", "say the value of owner"]


def test_a_full_context_says_what_makes_room():
    error = ContextFull(300, 20, 2048)
    grown, first = (ConversationFull(error, 2048, begun=begun) for begun in (True, False))
    assert (grown.needed, grown.free) == (300, 20)
    assert "conversation" in grown.problem
    assert "300 more tokens, where 20 of 2,048 are free" in grown.problem
    assert "new conversation" in grown.next_step
    assert "new conversation" not in first.next_step
    assert "larger context" in first.next_step


def test_a_refusal_says_who_refused():
    asked, nobody = refused(WRITES, asked=True), refused(WRITES, asked=False)
    assert (asked.problem, "allow it" in asked.next_step) == ("echo was not allowed to run", True)
    assert nobody.problem == "echo may change something, and there is nobody to ask"
    assert "approve" in nobody.next_step
    assert refused(READS, asked=False).problem.startswith("echo is asked about before it runs")


@pytest.mark.model
def test_each_failure_of_a_turn_names_a_next_step(make_agent):
    """One turn of each kind, over the real server and the real model."""
    long = {"type": "object", "required": ["x"], "properties": {"x": {"type": "string", "minLength": 400}}}

    def explain(*_call):
        raise ApprovalRefused("not on a Friday", next_step="ask on Monday")

    turns = {
        "died": make_agent("die").ask("Say die"),
        "nobody": make_agent("hello", read_only=False).ask("Say hello"),
        "refused": make_agent("hello", read_only=False, approve=lambda *_: False).ask("Say hello"),
        "explained": make_agent("hello", read_only=False, approve=explain).ask("Say hello"),
        "late": make_agent("hello", turn_seconds=0.01).ask("Say hello " * 50),
        "cut": make_agent(long, max_tokens=8).ask("Say a"),
        "full": make_agent("hello").ask("word " * 3000),
    }
    kinds = {name: type(turn.problem).__name__ for name, turn in turns.items()}
    assert kinds == {
        "died": "ServerDied",
        "nobody": "ApprovalRefused",
        "refused": "ApprovalRefused",
        "explained": "ApprovalRefused",
        "late": "TurnTooLong",
        "cut": "CutOff",
        "full": "ConversationFull",
    }
    assert {name for name, turn in turns.items() if turn.outcome is TurnOutcome.REFUSED} == {
        "nobody",
        "refused",
        "explained",
    }
    assert turns["explained"].problem.problem == "not on a Friday"
    assert all(turn.problem.next_step for turn in turns.values())


@pytest.mark.model
def test_a_tool_that_dies_or_is_stopped_may_have_done_its_work(make_agent):
    died = make_agent("die", read_only=False, approve=lambda *_: True).ask("Say die")
    assert isinstance(died.problem, ServerDied)
    assert died.problem.problem.endswith("echo was running, and what it did by then stays done")
    agent = make_agent("hang", read_only=False, approve=lambda *_: True)
    calls = threading.Event()

    class Watch:
        def on_event(self, event):
            if event.kind == "tool" and event.duration_ns is None:
                calls.set()

    agent.emitter.add(Watch())
    found = []
    asking = threading.Thread(target=lambda: found.append(agent.ask("Say hang")))
    asking.start()
    assert calls.wait(60)
    agent.stop()
    asking.join(60)
    assert found[0].outcome is TurnOutcome.CANCELLED
    assert found[0].problem.problem == (
        "the turn was stopped; echo was running, and what it did by then stays done"
    )


@pytest.mark.model
def test_an_answer_that_its_limit_cuts_says_so(make_agent):
    assert make_agent("hello", answer_tokens=1).ask("Say hello").answer_cut
