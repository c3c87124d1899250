"""What the model holds of whole calls: how likely it is to write each of them at the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.calling import call_opening
from nexus_lab.arguments.scoring import Scoring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.arguments.scoring import Scorer
    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["likelihoods", "word_of"]


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
