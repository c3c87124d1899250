"""The sidecar: candidates of a decision that was too close are tried out by the model, each by itself.

Every candidate gets a fresh sequence that begins at position 0: the system prompt, the tool's block as it was
compiled behind that, the last turns (`nexus_lab.agent.window`), the request, and the opening of a call. There
the block stands behind the tokens that it was compiled behind, so a spliced one is what a prefill would be.
What a candidate scores is how likely the model is to go on with its name (`nexus_lab.agent.name_scores`).

It costs a prefill of window and request for each candidate. Whether that pays depends on the model, and is
measured by ``nexus-lab eval sidecar``; it is off by default.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.base import Emitter, EventKind
from nexus_lab.agent.calling import tool_block
from nexus_lab.agent.escalation import settled
from nexus_lab.agent.name_scores import CALL_OPENING, NameScorer
from nexus_lab.agent.transcript import TemplateRewritesError, Transcript, join_tokens
from nexus_lab.agent.window import Spoken, Window, recent_window
from nexus_lab.arguments import ArgumentsError
from nexus_lab.engine import ChatTemplateError, ContextFull, SequenceError
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.splice import Exact, SplicePath, splice_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.registry import Registry, ToolSpec
    from nexus_lab.routing import RoutingDecision
    from nexus_lab.splice import BlockLibrary

    Message = Mapping[str, Any]

__all__ = [
    "SIDECAR_DEPTH",
    "SIDECAR_LEAD",
    "Sidecar",
    "SidecarResult",
    "SidecarScore",
]

SIDECAR_DEPTH = 5
"""Most candidates that are tried."""
SIDECAR_LEAD = 0.0
"""Nats a token by which another candidate must lead the router's first to take its place."""

_INSTEAD = "the order of the router stands"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarScore:
    """What the model made of one candidate.

    Attributes
    ----------
    tool
        Its name in the registry.
    score
        Mean log probability of a token of its name, in nats, at most 0. Tokens without an alternative count
        as 0, so that a name with a long ending of its own is raised by it.
    log_chance
        Their sum: the logarithm of the name's probability among all names.
    name_tokens, block_tokens
        Tokens of the name with the mark that ends it, and of the tool's block.
    path
        How the block came into the sequence: ``anchored`` or ``prefill``.
    declined
        Why it was not spliced.
    ms
        Milliseconds it took.
    """

    tool: str
    score: float
    log_chance: float
    name_tokens: int
    block_tokens: int
    path: str
    declined: Decline | None
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarResult:
    """What came of trying the candidates.

    Attributes
    ----------
    scores
        In the router's order; the candidates tried so far where it was declined.
    window
        The turns they were judged behind.
    tail_tokens
        Tokens behind every block: window, request and the opening of the call, with their markup.
    ms
        Milliseconds in all.
    declined
        Why there is no order of the model's.
    """

    scores: tuple[SidecarScore, ...]
    window: Window
    tail_tokens: int
    ms: float
    declined: Decline | None = None

    def best(self, lead: float = SIDECAR_LEAD, values: Sequence[float] | None = None) -> str | None:
        """Return the candidate that comes first: the router's, unless another leads it by `lead` nats.

        Parameters
        ----------
        values
            What they are compared by, one for each of `scores`; ``None`` takes the mean of a token.
        """
        if self.declined is not None or not self.scores:
            return None
        held = [one.score for one in self.scores] if values is None else values
        top = max(range(len(held)), key=held.__getitem__)
        ahead = held[top] > held[0] and held[top] - held[0] >= lead
        return self.scores[top if ahead else 0].tool


class Sidecar:
    """Tries candidates in sequences of their own; the conversation's sequence is left alone.

    Parameters
    ----------
    engine
        Runs the model.
    system
        System prompt that the blocks were compiled behind.
    library
        Compiled blocks; a block that is not there is prefilled, and none is compiled. ``None`` prefills all.
    emitter
        Hears of every trial.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        system: str,
        library: BlockLibrary | None = None,
        emitter: Emitter | None = None,
    ) -> None:
        self._engine = engine
        self._system = system
        self._library = library
        self._emitter = emitter or Emitter()
        self._transcript: Transcript | None = None
        self._scorer: tuple[tuple[str, ...], NameScorer] | None = None

    def route(
        self,
        decision: RoutingDecision,
        registry: Registry,
        history: Sequence[Message] = (),
        *,
        schema_mode: str = "signature",
    ) -> tuple[RoutingDecision, SidecarResult]:
        """Try the candidates of a decision, and return the decision as the model confirms or changes it."""
        tools = {item.tool: registry[item.tool] for item in decision.candidates[:SIDECAR_DEPTH]}
        names = [tool.name for tool in registry.tools]
        result = self.validate(tools, decision.request, history, names=names, schema_mode=schema_mode)
        return settled(decision, result, model=self._engine.info.name), result

    def validate(
        self,
        tools: Mapping[str, ToolSpec],
        request: str,
        history: Sequence[Message] = (),
        *,
        names: Sequence[str],
        schema_mode: str = "signature",
    ) -> SidecarResult:
        """Score each of `tools`; what cannot be done is a decline, and leaves the router's order.

        Parameters
        ----------
        tools
            The candidates, best first, by what the router calls them.
        request, history
            What the user says, and the messages before it.
        names
            Names of all tools that a call could name.
        schema_mode
            What the model sees of a tool, as in a profile.

        Raises
        ------
        Cancelled
            When the engine was cancelled. Sequences and cells have been given back then as well.
        """
        began, scores = time.perf_counter(), list[SidecarScore]()
        window = recent_window(history, lambda text: len(self._engine.tokenize(text, special=False)))
        tail_tokens, declined = 0, None
        with self._emitter.span(EventKind.RERANK, "sidecar", candidates=len(tools)) as span:
            try:
                trial = self._trial(window, request, names, schema_mode)
                tail_tokens = len(trial.tail)
                with self._engine.turn(), self._lent() as base:
                    if trial.context:
                        self._engine.prefill(base, trial.context, logits="none")
                    for name, tool in tools.items():
                        scores.append(self._score(trial, base, name, tool))
            except Cancelled:
                raise
            except NexusError as error:
                declined = _decline(error)
                span.decline(declined)
            result = SidecarResult(
                scores=tuple(scores),
                window=window,
                tail_tokens=tail_tokens,
                ms=(time.perf_counter() - began) * 1e3,
                declined=declined,
            )
            span.set(**_facts(result))
            span.set_contents(window=[{"role": one.role, "text": one.text} for one in window.messages])
        return result

    def _trial(self, window: Window, request: str, names: Sequence[str], schema_mode: str) -> _Trial:
        """Return what all candidates have in common; their blocks are told apart by their text alone."""
        transcript = self._fresh_transcript()
        context = join_tokens(transcript.open())
        ask = Spoken("user", f"Request: {request}" if window.messages else request)
        first, *others = (*window.messages, ask)
        *opening, _block, rest = transcript.user("", first.text)
        tail = [rest, *(piece for one in others for piece in transcript.message(one.role, one.text))]
        tail += transcript.open_reply()
        return _Trial(
            context=context + join_tokens(opening),
            tail=join_tokens(tail) + tuple(self._engine.tokenize(CALL_OPENING, special=False)),
            names=self._names(tuple(names)),
            schema_mode=schema_mode,
        )

    def _fresh_transcript(self) -> Transcript:
        if self._transcript is None:
            self._transcript = Transcript(self._engine, system=self._system)
        return self._transcript.restarted()

    def _names(self, names: tuple[str, ...]) -> NameScorer:
        if self._scorer is None or self._scorer[0] != names:
            self._scorer = names, NameScorer(self._engine, names)
        return self._scorer[1]

    def _score(self, trial: _Trial, base: int, name: str, tool: ToolSpec) -> SidecarScore:
        began = time.perf_counter()
        transcript = self._fresh_transcript()
        transcript.open()
        _, block = transcript.preview(tool_block(tool, trial.schema_mode))
        written = trial.names.tokens(tool.name)
        # The last token of the tail gives the logits before the name, and the mark's own are not needed.
        *before, last = trial.tail
        with self._lent() as seq:
            if trial.context:
                self._engine.copy_sequence(base, seq)
            declined = self._enter(seq, block, trial.context)
            self._engine.prefill(seq, before, logits="none")
            logits = np.asarray(self._engine.prefill(seq, (last, *written[:-1]), logits="all"))
        chances = trial.names.log_chances(logits, written)
        return SidecarScore(
            tool=name,
            score=float(chances.mean()),
            log_chance=float(chances.sum()),
            name_tokens=len(written),
            block_tokens=len(block),
            path="anchored" if declined is None else "prefill",
            declined=declined,
            ms=(time.perf_counter() - began) * 1e3,
        )

    def _enter(self, seq: int, block: tuple[int, ...], context: tuple[int, ...]) -> Decline | None:
        """Bring a block into a sequence: spliced where there is one and it is exact, else prefilled."""
        declined = self._engine.declines.get("splice")
        found = None
        if declined is None and self._library is not None:
            try:
                found = self._library.find(block, context)
            except (NexusError, OSError) as error:
                declined = Decline("block_unavailable", str(error))
        if found is None:
            self._engine.prefill(seq, block, logits="none")
            return declined or Decline("no_block", "there is no compiled block of this tool")
        result = splice_block(self._engine, seq, found, contract=Exact(), preceding=context)
        return None if result.path is SplicePath.SPLICE else result.declined

    @contextmanager
    def _lent(self) -> Iterator[int]:
        """Lend a sequence slot for the block; its cells are given back whatever happens."""
        seq = self._engine.acquire_sequence()
        try:
            yield seq
        finally:
            self._engine.release_sequence(seq)


@dataclass(frozen=True, slots=True)
class _Trial:
    context: tuple[int, ...]
    tail: tuple[int, ...]
    names: NameScorer
    schema_mode: str


def _decline(error: NexusError) -> Decline:
    if isinstance(error, ContextFull):
        reason = f"a candidate needs {error.needed} cells at once, and {error.free} are free"
        return Decline("sidecar_no_room", reason, _INSTEAD)
    codes: dict[type[NexusError], str] = {
        SequenceError: "sidecar_no_slot",
        TemplateRewritesError: "sidecar_template",
        ChatTemplateError: "sidecar_template",
        ArgumentsError: "sidecar_names",
    }
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), "sidecar_failed")
    return Decline(code, error.problem, _INSTEAD)


def _facts(result: SidecarResult) -> dict[str, Any]:
    """Return what the record says of a trial, without anybody's text."""
    window = result.window
    return {
        "scores": [
            {
                "tool": one.tool,
                "score": one.score,
                "log_chance": one.log_chance,
                "name_tokens": one.name_tokens,
                "block_tokens": one.block_tokens,
                "path": one.path,
                "declined": one.declined.code if one.declined is not None else None,
                "ms": one.ms,
            }
            for one in result.scores
        ],
        "preferred": result.best(),
        "window_tokens": window.n_tokens,
        "window_turns": window.turns,
        "window_turns_left_out": window.turns_left_out,
        "surrogates": window.surrogates,
        "tail_tokens": result.tail_tokens,
        "ms": result.ms,
    }
