"""Forks of a conversation whose text a policy has rewritten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nexus_lab.agent.base import Emitter, EventKind
from nexus_lab.agent.conversation import Conversation
from nexus_lab.cache import Edit, FullPolicy, make_policy
from nexus_lab.cache.text_policies import SummarisePolicy, TrimPolicy
from nexus_lab.lab.fork import ForkPoint, TurnLog, TurnPoint, fork_points


def ask(conversation, text):
    conversation.append("user", conversation.transcript.user(text), reply=False)
    conversation.append("tool", conversation.transcript.tool(f"{text} is there."), reply=False)
    conversation.open_reply()
    conversation.force("Yes.")
    conversation.apply_policy()


@pytest.mark.model
def test_only_points_of_the_program_that_is_there_are_offered(bundled_engine):
    conversation = Conversation(bundled_engine, system="Look.", emitter=Emitter(), policy=FullPolicy())
    log = TurnLog()
    log._conversation = conversation

    def end(number):
        said = len(conversation.runner.program)
        log._points.append(TurnPoint(number, "?", said, conversation.mark(), 0))

    try:
        conversation.open()
        ask(conversation, "A file")
        end(1)
        first = len(conversation.runner.program)
        assert fork_points(conversation, log) == (ForkPoint(0, 1), ForkPoint(first, first))
        conversation.policy = make_policy("trim(keep_last=0)")
        ask(conversation, "A folder")
        end(2)
        assert [point.turn for point in log.points(conversation)] == [2]
        assert fork_points(conversation, log) == (ForkPoint(1, 1),)
        conversation.policy = FullPolicy()
        ask(conversation, "A link")
        assert [point.turn for point in log.points(conversation)] == [2]
    finally:
        conversation.close()


class Asks:
    """A policy that has a word with the model, and decides nothing."""

    name = "asks"

    def decide(self, moment):
        with moment.host.aside() as aside:
            aside.say("Well?")
            aside.answer(max_tokens=2)
        return Edit()


@pytest.mark.model
@pytest.mark.parametrize(
    "policy", [Asks(), TrimPolicy(keep_last=0), SummarisePolicy(above=1, keep_last=1, max_tokens=4)]
)
def test_a_fork_at_the_end_of_a_turn_asks_nothing_again(bundled_engine, policy):
    log, heard = TurnLog(), []
    agent = SimpleNamespace(live=None, history=())

    def hear(event):
        heard.append(event)
        log.hear(event, agent)

    emitter = Emitter(SimpleNamespace(on_event=hear))
    agent.live = conversation = Conversation(bundled_engine, system="Look.", emitter=emitter, policy=policy)
    try:
        conversation.open()
        for turn in (1, 2):
            with emitter.span(EventKind.TURN, "turn", contents={"request": "?"}, turn=turn):
                ask(conversation, "A file")
        points, program = log.points(conversation), conversation.runner.program
        assert points[-1].turn == 2
        assert [point.n_said for point in points] == [len(point.mark.program) for point in points]
        assert points[-1].mark.program == program
        notes = [row.note for event in heard for row in event.rows]
        assert any("aside" in note for note in notes) is (policy.name != "trim")
        assert all(note.startswith("policy") for note in notes if "aside" in note)
    finally:
        conversation.close()
