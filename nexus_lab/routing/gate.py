"""The margin gate: does the best candidate stand by itself, does another stage decide, or does none fit?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab.registry import neutralise
from nexus_lab.routing.base import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.routing.scoring import StageScores

__all__ = ["Ranking", "Verdict", "judge", "rank", "told_apart", "without_scores"]

_NAMED_GAIN = 2.0  # more than any two fused scores differ
_SHOWN = 80
_SPOKEN = re.compile(r"[^\W_]")
_MOST_DIGITS = 9


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


def judge(stage: StageScores, ranking: Ranking, *, tau: float, fit: float, threshold: float) -> Verdict:
    """Pass the best candidate through the gate, where `without_scores` does not settle the request.

    Parameters
    ----------
    tau
        Margin from which it stands by itself.
    fit, threshold
        How well the best one fits, and the least that passes: a score, or a probability.
    """
    order, margin = ranking.order, ranking.margin
    best = stage.names[order[0]]
    shown = neutralise(best, limit=_SHOWN)
    if fit < threshold:
        near, least = told_apart(fit, threshold, digits=3)
        reason = f"The best fit, {near} for {shown}, is under {least}: no tool seems to fit."
        return Verdict(Outcome.NO_TOOL, None, reason)
    if len(order) == 1:
        return Verdict(Outcome.AUTO, best, f"{shown} is the only tool, and fits with {fit:.3f}.")
    ahead, wanted = told_apart(margin, tau, digits=4)
    lead = f"{shown} leads {neutralise(stage.names[order[1]], limit=_SHOWN)} by {ahead}"
    if margin >= tau:
        return Verdict(Outcome.AUTO, best, f"{lead}, which reaches tau = {wanted}.")
    reason = f"{lead} only, under tau = {wanted}, and there is no cross-encoder to ask."
    return Verdict(Outcome.ESCALATION_UNAVAILABLE, best, reason)


def without_scores(request: str, stage: StageScores, ranking: Ranking, *, taught: bool) -> Verdict | None:
    """Return the verdict where no score is asked: nothing to choose from or by, or the user has said it.

    Parameters
    ----------
    taught
        Whether the request is much like one that the user gave as an example of the best tool.
    """
    if len(ranking.order) == 0 or not request.strip():
        missing = "There are no tools in the registry." if request.strip() else "The request is empty."
        return Verdict(Outcome.NO_TOOL, None, missing)
    best = stage.names[ranking.order[0]]
    shown = neutralise(best, limit=_SHOWN)
    if ranking.order[0] in stage.named:
        return Verdict(Outcome.AUTO, best, f"The request names {shown}.")
    if _says_nothing(request, stage):
        return Verdict(Outcome.NO_TOOL, None, "There is no word in the request.")
    if taught:
        return Verdict(Outcome.AUTO, best, f"The request is much like one that was given for {shown}.")
    return None


def _says_nothing(request: str, stage: StageScores) -> bool:
    """Whether `request` has no letter and no digit, and leans on nothing: its vector may be near to any."""
    return stage.reference is None and _SPOKEN.search(request) is None


def told_apart(value: float, bound: float, *, digits: int) -> tuple[str, str]:
    """Return two numbers with at least so many digits, and as many as it takes to see which is larger."""
    texts = f"{value:.{digits}f}", f"{bound:.{digits}f}"
    while texts[0] == texts[1] and value != bound and digits < _MOST_DIGITS:
        digits += 1
        texts = f"{value:.{digits}f}", f"{bound:.{digits}f}"
    return texts
