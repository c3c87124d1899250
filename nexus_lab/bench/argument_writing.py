"""Calls written as the agent writes them, each in a conversation of its own.

Beside what the agent shows of the routed tool (`Profile.schema_mode`) there is ``concatenated(N)``, what an
agent without routing shows: the right tool among the first N of the registry, each in full.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.calling import CallWriter, Written, tool_block
from nexus_lab.agent.conversation import Conversation
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.agent.splicing import Splicer
from nexus_lab.agent.transcript import join_tokens
from nexus_lab.bench.base import ResultsError
from nexus_lab.cache import Append, SequencePool, SnapshotStore, make_policy
from nexus_lab.registry import schema_text
from nexus_lab.splice import BlockLibrary, LibraryBlocks, typical_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.agent.transcript import Piece
    from nexus_lab.arguments import GrammarPlan
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec
    from nexus_lab.settings import Profile
    from nexus_lab.splice import BlockContext

__all__ = ["Cost", "Writer", "n_concatenated"]

_CONCATENATED = re.compile(r"concatenated\((\d{1,4})\)")
_MARKUP = 128  # tokens of room for markup and a complaint, at most


def n_concatenated(mode: str) -> int | None:
    """Return how many tools the mode ``concatenated(N)`` shows; ``None`` of another mode."""
    found = _CONCATENATED.fullmatch(mode)
    return int(found[1]) if found is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it took to come to a call.

    Attributes
    ----------
    ttft_s
        Seconds from the request, with nothing but the turns before it in the cache, to the first token of the
        arguments.
    warm_ttft_s
        Of ``concatenated(N)`` and of a splice, the same with the tools in the cache already, as in a later
        turn that shows the same ones; else as before.
    tool_tokens
        Tokens by which the tool stands in the context, or the tools.
    prefilled
        Those of them that were computed there.
    context
        All tokens of the context once the call is written.
    path
        How the block came in, in the modes that splice: ``anchored``, ``repaired``, ``unrepaired`` or
        ``prefill``.
    """

    ttft_s: float = 0.0
    warm_ttft_s: float = 0.0
    tool_tokens: int = 0
    prefilled: int = 0
    context: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was repaired of a splice, its path, and the clock when the tools stood in the context."""

    repaired: int | None = None
    path: str = ""
    at: float = 0.0


class Writer:
    """Writes calls with one engine.

    Parameters
    ----------
    profile
        Sampling settings, the longest call, and the mode where none is named.
    tools
        Those that ``concatenated(N)`` shows the first of.
    blocks
        Folder of the blocks, where they are spliced; by default that in the package's data folder.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        *,
        tools: Sequence[ToolSpec] = (),
        blocks: Path | None = None,
    ) -> None:
        self._engine = engine
        self._profile = profile
        self._tools = tools
        self._emitter = Emitter()
        self._store = SnapshotStore.for_engine(engine)
        self._pool = SequencePool(engine, tree=self._store.tree)
        self._library = BlockLibrary(engine, blocks)
        self._splicer = Splicer(engine, self._library, self._emitter)
        self._system = join_tokens(self._conversation().transcript.open())

    def check(self, mode: str) -> None:
        """Raise `SettingsError` or `ResultsError` when there is no such mode, or not so many tools."""
        n_tools = n_concatenated(mode)
        if n_tools is None:
            self._profile.changed(schema_mode=mode)
        elif not 1 < n_tools <= len(self._tools):
            raise ResultsError(
                f"{mode} of a registry of {len(self._tools)} tools",
                next_step="give a registry of so many tools, or a number from 2",
            )

    def write(
        self, case: ArgumentCase, planner: Callable[[ArgumentCase], GrammarPlan], mode: str
    ) -> tuple[Written, Cost] | None:
        """Return the call and what it took; ``None`` where what the mode shows does not fit the context.

        Nothing of one call is in the cache of another, and blocks are compiled and open before the clock
        runs.

        Parameters
        ----------
        mode
            What the model sees: a schema mode of a profile, or ``concatenated(N)``.
        """
        calls = CallWriter(self._engine, self._emitter, planner=lambda *_: planner(case))
        conversation = self._conversation()
        try:
            conversation.open()
            self._replay(conversation, case.context)
            text = self._text(case, mode)
            opening, block = conversation.transcript.preview(text)
            if not self._fits(conversation, len(opening) + len(block), case):
                return None
            self._prepare(case, block, self._system + opening, mode)
            began = time.perf_counter()
            shown = self._show(conversation, case, text, mode)
            prompted = time.perf_counter()
            written = calls.write(
                conversation, case.tool, self._profile, request=case.request, history=case.context
            )
            n_tool = len(self._engine.tokenize(text, special=False))
            cost = Cost(
                ttft_s=prompted - began + written.ttft_s,
                warm_ttft_s=prompted - (shown.at or began) + written.ttft_s,
                tool_tokens=n_tool,
                prefilled=n_tool if shown.repaired is None else shown.repaired,
                context=conversation.n_tokens,
                path=shown.path,
            )
        finally:
            conversation.close()
            # Cells of earlier calls would be scanned by later ones, the more the longer what was shown.
            self.close()
        return written, cost

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

    def _text(self, case: ArgumentCase, mode: str) -> str:
        n_tools = n_concatenated(mode)
        if n_tools is None:
            return tool_block(case.tool, mode)
        shown = list(self._tools[:n_tools])
        if all(tool.name != case.tool.name for tool in shown):
            shown[-1] = case.tool
        return "Tools: " + "\n\n".join(map(schema_text, shown)) + "\n\nRequest: "

    def _fits(self, conversation: Conversation, n_tools: int, case: ArgumentCase) -> bool:
        """Whether the prompt fits, with two calls of the greatest length."""
        n_request = len(self._engine.tokenize(case.request, special=False))
        prompt = conversation.n_tokens + n_tools + n_request
        return prompt + 2 * self._profile.max_tokens + _MARKUP <= self._engine.n_ctx

    def _prepare(
        self, case: ArgumentCase, block: tuple[int, ...], context: tuple[int, ...], mode: str
    ) -> None:
        """Compile and open the block that will be spliced."""
        if not mode.startswith("splice") or "splice" in self._engine.declines:
            return
        if not case.context or self._library.find(block, self._typical) is None:
            self._library.get_or_compile(block, context)

    def _show(
        self, conversation: Conversation, case: ArgumentCase, text: str, mode: str | None = None
    ) -> _Shown:
        """Bring tool and request into the context; what stands by itself there comes first."""
        mode = mode or self._profile.schema_mode
        start, pieces = conversation.n_tokens, conversation.transcript.user(text, case.request)
        shown = _Shown()
        if mode.startswith("splice") or n_concatenated(mode) is not None:
            *opening, block, request = pieces
            if opening:
                conversation.step(Append(join_tokens(opening)), note="system")
            shown = self._enter(conversation, case, block, self._system + join_tokens(opening), mode)
            pieces = [request]
        conversation.append("user", pieces, before=start)
        return shown

    def _enter(
        self,
        conversation: Conversation,
        case: ArgumentCase,
        block: Piece,
        context: tuple[int, ...],
        mode: str,
    ) -> _Shown:
        if not mode.startswith("splice"):
            conversation.step(Append(block.tokens), note="tools as text")
            return _Shown(at=time.perf_counter())
        row = self._splicer.enter(
            conversation,
            block.tokens,
            context=context,
            typical=lambda: self._typical,
            tool=case.tool.name,
            profile=self._profile.changed(schema_mode=mode),
        ).row
        repaired = None if row.path == "prefill" else row.repaired or 0
        return _Shown(repaired, row.path, time.perf_counter())

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
