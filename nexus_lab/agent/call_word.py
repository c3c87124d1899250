"""What the model holds of whole calls: how likely it is to write each of them at the cursor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.calling import call_opening
from nexus_lab.arguments.scoring import Scoring
from nexus_lab.engine import ContextFull
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.agent.base import Emitter, Span
    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.arguments.scoring import Scorer
    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["Weigher", "likelihoods", "word_of"]


def likelihoods(engine: Engine, stem: int, prompt: Sequence[int], texts: Sequence[str]) -> list[float]:
    """Return the log-likelihood of each text behind a sequence and more of its prompt, in nats.

    Parameters
    ----------
    stem
        A scratch sequence; the prompt is appended to it.
    texts
        Arguments as JSON, without spaces, as the model writes them: what closes the call is not its own.
    """
    from scipy.special import log_softmax

    last = np.asarray(engine.prefill(stem, prompt))
    found = []
    for text in texts:
        tokens = np.asarray(engine.tokenize(text, special=False))
        with engine.scratch_sequence() as branch:
            engine.copy_sequence(stem, branch)
            rest = np.asarray(engine.prefill(branch, tokens, logits="all"))
        logits = np.concatenate([last[np.newaxis], rest[:-1]]).astype(np.float64)
        found.append(float(log_softmax(logits, axis=1)[np.arange(len(tokens)), tokens].sum()))
    return found


def word_of(engine: Engine, conversation: Conversation) -> tuple[Scorer | None, Scoring | None]:
    """Return what weighs calls at the cursor of a conversation, and how much it counts.

    Nothing does where the model has no adapter that was trained for it; see ``nexus-lab train-arguments``.
    """
    adapter = engine.info.adapter
    scoring = None if adapter is None else Scoring.of(adapter.facts)
    seq = conversation.runner.seq
    if scoring is None or seq is None:
        return None, None

    def scorer(
        tool: ToolSpec, _request: str, _context: Sequence[Mapping[str, Any]], texts: Sequence[str]
    ) -> list[float]:
        opening = engine.tokenize(call_opening(tool.name), special=False)
        with engine.scratch_sequence() as stem:
            engine.copy_sequence(seq, stem)
            return likelihoods(engine, stem, opening, texts)

    return scorer, scoring


class Weigher:
    """Weighs the close calls of one turn with the model, in sequences of their own, and tells of it.

    Parameters
    ----------
    scorer, scoring
        As `word_of` gives them.
    emitter
        Hears of the weighing as a ``rerank`` span named ``calls``.

    Attributes
    ----------
    ms
        Milliseconds that it took; ``None`` as long as nothing was weighed.
    """

    def __init__(self, scorer: Scorer, scoring: Scoring, emitter: Emitter) -> None:
        self._scorer = scorer
        self.scoring = scoring
        self._emitter = emitter
        self.ms: float | None = None

    @classmethod
    def at(cls, engine: Engine, emitter: Emitter, conversation: Conversation) -> Weigher | None:
        """Return what weighs calls at the cursor of a conversation; ``None`` where nothing does."""
        scorer, scoring = word_of(engine, conversation)
        return None if scorer is None or scoring is None else cls(scorer, scoring, emitter)

    def __call__(
        self, tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]], texts: Sequence[str]
    ) -> Sequence[float]:
        """Return the log-likelihood of each text, in nats; none where the context has no room for them.

        Raises
        ------
        Cancelled
            When the turn was stopped; the sequences are given back then as well.
        """
        began = time.perf_counter()
        try:
            with self._emitter.span(EventKind.RERANK, "calls", candidates=len(texts)) as span:
                return self._weigh(span, tool, request, context, texts)
        finally:
            self.ms = (time.perf_counter() - began) * 1e3

    def _weigh(
        self,
        span: Span,
        tool: ToolSpec,
        request: str,
        context: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
    ) -> Sequence[float]:
        try:
            found = list(self._scorer(tool, request, context, texts))
        except ContextFull as error:
            reason = f"a call needs {error.needed} cells beside the conversation, and {error.free} are free"
            span.decline(Decline("calls_no_room", reason, "the call that was said most clearly"))
            return []
        span.set(preferred=f"call {1 + int(np.argmax(found))} of {len(found)}")
        span.set_contents(calls=list(texts), likelihoods=found)
        return found
