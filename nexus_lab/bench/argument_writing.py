"""Calls written as the agent writes them, each in a conversation of its own."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.calling import CallWriter, Written, tool_block
from nexus_lab.agent.conversation import Conversation
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.agent.splicing import Splicer
from nexus_lab.agent.transcript import join_tokens
from nexus_lab.cache import Append, SequencePool, SnapshotStore, make_policy
from nexus_lab.splice import BlockLibrary, LibraryBlocks, typical_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.arguments import GrammarPlan
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.engine import Engine
    from nexus_lab.settings import Profile
    from nexus_lab.splice import BlockContext

__all__ = ["Writer"]


class Writer:
    """Writes calls with one engine.

    Parameters
    ----------
    profile
        Its ``schema_mode`` says what the model sees of the tool, as text or as a spliced block.
    blocks
        Folder of the blocks, where they are spliced; by default that in the package's data folder.
    """

    def __init__(self, engine: Engine, profile: Profile, *, blocks: Path | None = None) -> None:
        self._engine = engine
        self._profile = profile
        self._emitter = Emitter()
        self._store = SnapshotStore.for_engine(engine)
        self._pool = SequencePool(engine, tree=self._store.tree)
        self._library = BlockLibrary(engine, blocks)
        self._splicer = Splicer(engine, self._library, self._emitter)
        self._system = join_tokens(self._conversation().transcript.open())

    def write(
        self, case: ArgumentCase, planner: Callable[[ArgumentCase], GrammarPlan]
    ) -> tuple[Written, float, int]:
        """Return the call, the seconds from the request to its first token, and the tool's tokens."""
        calls = CallWriter(self._engine, self._emitter, planner=lambda *_: planner(case))
        conversation = self._conversation()
        try:
            conversation.open()
            self._replay(conversation, case.context)
            text = tool_block(case.tool, self._profile.schema_mode)
            began = time.perf_counter()
            self._show(conversation, case, text)
            prefilled = time.perf_counter() - began
            written = calls.write(
                conversation, case.tool, self._profile, request=case.request, history=case.context
            )
        finally:
            conversation.close()
        return written, prefilled + written.ttft_s, len(self._engine.tokenize(text, special=False))

    def close(self) -> None:
        """Empty the sequences."""
        with self._engine.turn():
            self._pool.close()

    def _conversation(self) -> Conversation:
        return Conversation(
            self._engine,
            system=SYSTEM_PROMPT,
            emitter=self._emitter,
            policy=make_policy("full"),
            blocks=LibraryBlocks(self._library),
            pool=self._pool,
            store=self._store,
        )

    @cached_property
    def _typical(self) -> BlockContext:
        return typical_context(self._engine, system=SYSTEM_PROMPT)

    def _show(self, conversation: Conversation, case: ArgumentCase, text: str) -> None:
        """Bring tool and request into the context."""
        start, pieces = conversation.n_tokens, conversation.transcript.user(text, case.request)
        if self._profile.schema_mode.startswith("splice"):
            *opening, block, request = pieces
            if opening:
                conversation.step(Append(join_tokens(opening)), note="system")
            self._splicer.enter(
                conversation,
                block.tokens,
                context=self._system + join_tokens(opening),
                typical=lambda: self._typical,
                tool=case.tool.name,
                profile=self._profile,
            )
            pieces = [request]
        conversation.append("user", pieces, before=start)

    def _replay(self, conversation: Conversation, context: Sequence[Mapping[str, Any]]) -> None:
        """Bring about the turns before the request; one without an answer gets an empty one."""
        waiting = False
        for turn in context:
            said = str(turn.get("content") or "")
            if turn.get("role") == "user":
                if waiting:
                    conversation.close_reply("")
                conversation.append("user", conversation.transcript.user(said))
                waiting = True
            elif turn.get("role") == "assistant" and waiting:
                tokens = tuple(self._engine.tokenize(said, special=False))
                if tokens:
                    conversation.step(Append(tokens), note="assistant")
                conversation.close_reply(said)
                waiting = False
        if waiting:
            conversation.close_reply("")
