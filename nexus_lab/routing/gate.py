"""The margin gate: does the best candidate stand by itself, does another stage decide, or does none fit?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab.registry import neutralise
from nexus_lab.routing.base import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.routing.scoring import StageScores

__all__ = ["Ranking", "Verdict", "judge", "rank"]

_NAMED_GAIN = 2.0  # more than any two fused scores differ
_SHOWN = 80


class Ranking(NamedTuple):
    """All tools in order.

    Attributes
    ----------
    order
        Places of the tools, best first; ties go to the tool that was added first.
    margin
        Fused score of the first minus the second's, below 0 where the request names the lower one; of a
        lone tool, its score.
    fit
        Fused score of the first, which says whether it fits at all.
    """

    order: NDArray[np.intp]
    margin: float
    fit: float


class Verdict(NamedTuple):
    """What the gate says: how the decision is reached, for which tool, and why in one sentence."""

    outcome: Outcome
    tool: str | None
    reason: str


def rank(stage: StageScores) -> Ranking:
    """Order the tools by fused score; those that the request names come first, whatever their score."""
    ranked = stage.fused.astype(np.float64)
    ranked[list(stage.named)] += _NAMED_GAIN
    order = np.argsort(-ranked, kind="stable")
    if len(order) == 0:
        return Ranking(order, 0.0, 0.0)
    fit = float(stage.fused[order[0]])
    return Ranking(order, fit if len(order) == 1 else fit - float(stage.fused[order[1]]), fit)


def judge(
    request: str, stage: StageScores, ranking: Ranking, *, tau: float, fit: float, threshold: float
) -> Verdict:
    """Pass the best candidate through the gate.

    Parameters
    ----------
    tau
        Margin from which it stands by itself.
    fit, threshold
        How well the best one fits, and the least that passes: a score, or a probability.
    """
    order, margin = ranking.order, ranking.margin
    if len(order) == 0 or not request.strip():
        missing = "There are no tools in the registry." if request.strip() else "The request is empty."
        return Verdict(Outcome.NO_TOOL, None, missing)
    best = stage.names[order[0]]
    shown = neutralise(best, limit=_SHOWN)
    if order[0] in stage.named:
        return Verdict(Outcome.AUTO, best, f"The request names {shown}.")
    if fit < threshold:
        reason = f"The best fit, {fit:.3f} for {shown}, is under {threshold:.3f}: no tool seems to fit."
        return Verdict(Outcome.NO_TOOL, None, reason)
    if len(order) == 1:
        return Verdict(Outcome.AUTO, best, f"{shown} is the only tool, and fits with {fit:.3f}.")
    lead = f"{shown} leads {neutralise(stage.names[order[1]], limit=_SHOWN)} by {margin:.4f}"
    if margin >= tau:
        return Verdict(Outcome.AUTO, best, f"{lead}, which reaches tau = {tau:.4f}.")
    reason = f"{lead} only, under tau = {tau:.4f}, and there is no cross-encoder to ask."
    return Verdict(Outcome.ESCALATION_UNAVAILABLE, best, reason)
