"""Calls that end before they are whole, at the limit of a call or of the context."""

from __future__ import annotations

import pytest

from nexus_lab.agent import EventKind, TurnOutcome
from nexus_lab.arguments import CutOff

pytestmark = pytest.mark.model

LONG = {
    "string": {"type": "string", "minLength": 400},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 60},
    "number": {"type": "integer", "minimum": 10**15},
}


def holding(part: dict) -> dict:
    """A schema whose value the conversation does not give, so that the model writes it."""
    return {"type": "object", "required": ["x"], "properties": {"x": part}, "additionalProperties": False}


class Attempts:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_event(self, event) -> None:
        if event.kind is EventKind.ARGUMENTS and "text" in event.contents and event.duration_ns is not None:
            self.texts.append(event.contents["text"])


@pytest.mark.parametrize("kind", LONG)
def test_a_call_that_its_limit_cuts_is_tried_once_more_and_fails_typed(make_agent, kind):
    attempts = Attempts()
    agent = make_agent(holding(LONG[kind]), observers=[attempts], max_tokens=12)
    before = agent.conversation.tokens
    turn = agent.ask("Say a")
    assert turn.outcome is TurnOutcome.FAILED
    assert type(turn.problem) is CutOff
    assert "cut off after 12 tokens" in turn.problem.problem
    assert "max_tokens" in turn.problem.next_step
    assert len(attempts.texts) == 2
    assert turn.arguments is None
    assert agent.conversation.tokens == before


def filled(agent, free: int) -> str:
    """Return a request that leaves `free` cells of the context for the call."""
    n_ctx, seen = agent.engine.n_ctx, []
    agent.ask("Say a", on_progress=lambda _done, total: seen.append(total))
    words = n_ctx - free - agent.conversation.n_tokens - seen[0]
    return "Say a" + " word" * words


@pytest.mark.parametrize(
    ("free", "problem", "next_step", "attempts"),
    [
        (60, "cut off after 24 tokens", "max_tokens", 1),  # a second call would not fit
        (24, "the context is full", "start a new conversation", 0),
    ],
)
def test_a_cut_call_is_not_tried_again_where_there_is_no_room(make_agent, free, problem, next_step, attempts):
    heard = Attempts()
    agent = make_agent(holding(LONG["string"]))
    request = filled(agent, free)
    agent.emitter.add(heard)
    turn = agent.ask(request)
    assert turn.outcome is TurnOutcome.FAILED
    assert type(turn.problem) is CutOff
    assert problem in turn.problem.problem
    assert next_step in turn.problem.next_step
    assert len(heard.texts) == attempts
