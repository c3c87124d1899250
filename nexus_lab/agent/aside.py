"""A word with the model beside the conversation, over the cache as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.arguments import grammar_text
from nexus_lab.engine import ContextFull, GrammarMask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.engine import Engine

__all__ = ["ModelAside"]


class ModelAside:
    """Speaks with the model at the end of a conversation, whose owner takes it all back afterwards."""

    def __init__(self, conversation: Conversation, engine: Engine) -> None:
        self._conversation = conversation
        self._engine = engine

    def say(self, text: str) -> None:
        """Tell the model something, as a user would, and open its reply."""
        self._conversation.append("user", self._conversation.transcript.user(text))

    def answer(self, *, max_tokens: int, schema: Mapping[str, object] | None = None) -> str:
        """Let the model answer, under a JSON schema where one is given; the reply is closed behind it.

        Raises
        ------
        ContextFull
            When the longest answer would not fit; one that is cut off would stand for the whole.
        """
        n_ctx, active = self._engine.n_ctx, self._conversation.runner.snapshot.state.n_active
        if active + max_tokens > n_ctx:
            raise ContextFull(max_tokens, n_ctx - active, n_ctx)
        mask = None if schema is None else GrammarMask(self._engine, grammar_text(schema))
        generation = self._conversation.generate(max_tokens=max_tokens, note="aside", mask=mask)
        self._conversation.close_reply(generation.text)
        return generation.text
