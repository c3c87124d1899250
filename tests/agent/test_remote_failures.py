"""What an endpoint can do wrong, and what a stop does: typed errors, and a next turn that works."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from remote_tools import HELLO, Listener
from waiting import eventually, meanwhile

from nexus_lab.agent import EventKind, TurnOutcome
from nexus_lab.agent.endpoint_errors import (
    BadEndpointAnswer,
    EndpointBrokeOff,
    EndpointBusy,
    EndpointFailed,
    EndpointTimeout,
    KeyRefused,
    ModelNotFound,
    RequestRejected,
    RequestTooLong,
)
from nexus_lab.agent.loop import TurnTooLong
from nexus_lab.errors import Cancelled

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("model", "kind", "told"),
    [
        ("forbidden", KeyRefused, "401: no key, no answer"),
        ("unknown", ModelNotFound, "404: The model"),
        ("busy", EndpointBusy, "429: slow down"),
        ("loading", EndpointBusy, "503: Loading model"),
        ("broken", EndpointFailed, "500: internal error"),
        ("full", RequestTooLong, "maximum context length"),
        ("elsewhere", BadEndpointAnswer, "302"),
        ("page", BadEndpointAnswer, "<html>welcome"),
        ("empty", BadEndpointAnswer, "no choices"),
        ("packed", BadEndpointAnswer, "compressed"),
        ("malformed", BadEndpointAnswer, "no chat completion"),
        ("floods", BadEndpointAnswer, "16,000,000 bytes"),
        ("dies", EndpointBrokeOff, "broke off"),
        ("dies_quietly", EndpointBrokeOff, "in the middle"),
        ("dies_at_once", EndpointBrokeOff, "broke off"),
        ("fails_in_the_middle", EndpointFailed, "on fire \\x1b[2J"),
        ("hangs", EndpointTimeout, "was silent"),
        ("hangs_in_the_middle", EndpointTimeout, "was silent"),
        ("keeps_alive", EndpointTimeout, "was silent"),
    ],
)
def test_every_failure_of_an_endpoint_is_typed_and_the_next_turn_works(make_remote, model, kind, told):
    agent = make_remote(f"{model}+once", timeout_s=1.0 if kind is EndpointTimeout else 60.0)
    turn = agent.ask(HELLO)
    assert turn.outcome is TurnOutcome.FAILED
    assert type(turn.problem) is kind
    assert told in turn.problem.problem
    assert turn.problem.next_step
    assert (agent.history, agent.messages) == ((), [])
    agent.profile = agent.profile.changed(answer_tokens=1)
    agent.router.tool = None
    agent._asker._endpoint = replace(agent.endpoint, timeout_s=60.0)  # a busy machine takes its time
    again = agent.ask("Hello")
    assert (again.outcome, again.problem) == (TurnOutcome.ABSTAINED, None)


def test_a_busy_endpoint_says_how_long(make_remote):
    turn = make_remote("busy").ask(HELLO)
    assert turn.problem.retry_after_s == 7
    assert turn.problem.next_step == "ask again in 7 s"


@pytest.mark.parametrize("model", ["hangs", "hangs_in_the_middle", "smol"])
def test_stop_closes_the_connection_and_the_next_turn_works(make_remote, chat, model):
    agent = make_remote(f"{model}+once", answer_tokens=1500)
    agent.router.tool = None
    with meanwhile(chat.log, agent.stop):
        turn = agent.ask("Tell me a long story")
    assert (turn.outcome, type(turn.problem)) == (TurnOutcome.CANCELLED, Cancelled)
    eventually(lambda: chat.log()[0]["ended"] == "closed")
    assert (agent.history, agent.messages) == ((), [])
    agent.profile = agent.profile.changed(answer_tokens=8)
    assert agent.ask("Hello").outcome is TurnOutcome.ABSTAINED


def test_a_turn_whose_time_is_over_closes_the_connection(make_remote, chat):
    turn = make_remote("hangs", turn_seconds=1.0).ask(HELLO)
    assert type(turn.problem) is TurnTooLong
    assert turn.problem.next_step
    eventually(lambda: chat.log()[0]["ended"] == "closed")


def test_a_stop_before_anything_is_asked_asks_nothing(make_remote, chat):
    agent = make_remote()

    class Stopper:
        def on_event(self, event):
            if event.kind is EventKind.GENERATE and event.duration_ns is None:
                thread = threading.Thread(target=agent.stop)
                thread.start()
                thread.join()

    agent.emitter.add(Stopper())
    assert agent.ask(HELLO).outcome is TurnOutcome.CANCELLED
    assert all(entry["ended"] != "answered" for entry in chat.log())


def test_a_request_that_is_refused_however_it_is_put_is_told(make_remote, chat):
    listener = Listener()
    agent = make_remote("wrong", observers=[listener])
    turn = agent.ask(HELLO)
    assert type(turn.problem) is RequestRejected
    assert "400: bad request" in turn.problem.problem
    assert agent.offers.form == "tools"  # nothing shows that it was this that was refused
    assert len(chat.log()) == 5
    assert not [code for code in listener.declined() if code.startswith("endpoint")]
