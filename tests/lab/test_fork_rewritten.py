"""Forks of a conversation whose text a policy has rewritten."""

from __future__ import annotations

import pytest

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.conversation import Conversation
from nexus_lab.cache import FullPolicy, make_policy
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
