"""From the scores of all tools to a decision: the gate, the cross-encoder below it, and "no tool fits"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab.registry import neutralise
from nexus_lab.routing.abstain import reading_signals, stage_signals
from nexus_lab.routing.base import Outcome
from nexus_lab.routing.gate import Ranking, Verdict, judge, rank, told_apart, without_scores
from nexus_lab.routing.reading import request_text, tool_text
from nexus_lab.routing.scoring import timed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.abstain import NoTool
    from nexus_lab.routing.base import CrossEncoder, Message
    from nexus_lab.routing.scoring import Scorer, StageScores

    Floats = NDArray[np.float32]

__all__ = ["RERANK_DEPTH", "Course", "ReaderWeights", "Rules", "read_candidates", "reread", "settle"]

RERANK_DEPTH = 10
_SHOWN = 80
# Where the scores say with this probability that no tool fits, a cross-encoder is asked whatever tau is.
_DOUBT = 0.5


class ReaderWeights(NamedTuple):
    """What one unit of a cross-encoder's score adds to a fused score.

    What it adds is calibrated apart where tools have no examples, which is where its reading is all there is.

    Attributes
    ----------
    known, unknown
        Over tools that have examples, and over tools that have none.
    """

    known: float
    unknown: float

    def over(self, stage: StageScores, places: Collection[int]) -> float:
        """Return the weight over the tools at `places`, by the share of them that have examples."""
        share = float((stage.examples.nearest[list(places)] >= 0).mean()) if places else 1.0
        return share * self.known + (1 - share) * self.unknown


_UNHEARD = ReaderWeights(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decision is held against.

    Attributes
    ----------
    tau
        Margin from which it stands by itself.
    threshold
        Least fused score of a tool that fits; in use where `no_tool` is not.
    no_tool, no_tool_read
        Calibrated probabilities that no tool fits, before and after the cross-encoder.
    reader, reader_weights
        Who is asked below tau, and what its score counts beside the fused one.
    """

    tau: float
    threshold: float
    no_tool: NoTool | None = None
    no_tool_read: NoTool | None = None
    reader: CrossEncoder | None = None
    reader_weights: ReaderWeights = _UNHEARD


@dataclass(frozen=True, slots=True)
class Course:
    """How a decision went.

    Attributes
    ----------
    ranking
        Of the scores alone.
    order
        Places of the candidates in the end, best first.
    verdict
        How it is reached.
    logits
        Score of the cross-encoder by place, where it was asked.
    no_tool
        Probability that no tool fits, where that is calibrated.
    fit, threshold
        What "no tool fits" was judged by, and the least that passes.
    """

    ranking: Ranking
    order: tuple[int, ...]
    verdict: Verdict
    logits: Mapping[int, float]
    no_tool: float | None
    fit: float
    threshold: float


def settle(
    request: str, stage: StageScores, scorer: Scorer, rules: Rules, context: Sequence[Message] = ()
) -> Course:
    """Decide by the scores, and where they are too near or too low, by what the cross-encoder reads."""
    with timed(stage.times_ms, "gate"):
        ranking = rank(stage)
        chance, fit, threshold = _fit(stage, ranking, rules, scorer)
        order = tuple(int(place) for place in ranking.order)
        taught = bool(order) and scorer.taught(stage, order[0])
        settled = without_scores(request, stage, ranking, taught=taught)
        verdict = settled or judge(stage, ranking, tau=rules.tau, fit=fit, threshold=threshold)
    # A cross-encoder that is not heard on whether any tool fits cannot settle that doubt.
    doubtful = verdict.outcome is Outcome.ESCALATION_UNAVAILABLE or (
        rules.no_tool_read is not None and chance is not None and chance >= _DOUBT
    )
    if rules.reader is None or not doubtful or settled is not None:
        return Course(ranking, order, verdict, {}, chance, fit, threshold)
    with timed(stage.times_ms, "rerank"):
        logits = read_candidates(rules.reader, request, stage, ranking, scorer=scorer, context=context)
        order, verdict, chance, fit, threshold = _escalated(
            stage, ranking, rules, logits, (chance, fit, threshold), scorer=scorer
        )
    return Course(ranking, order, verdict, logits, chance, fit, threshold)


def read_candidates(
    reader: CrossEncoder,
    request: str,
    stage: StageScores,
    ranking: Ranking,
    *,
    scorer: Scorer,
    context: Sequence[Message] = (),
) -> dict[int, float]:
    """Return the cross-encoder's score of the first ten tools, by place."""
    places = [int(place) for place in ranking.order[:RERANK_DEPTH]]
    texts = [_told(scorer.tool(stage.names[place]), stage, place, scorer) for place in places]
    scores = reader.score(request_text(request, context), texts)
    return {place: float(score) for place, score in zip(places, scores, strict=True)}


def reread(
    stage: StageScores, ranking: Ranking, logits: Mapping[int, float], weight: float
) -> tuple[int, ...]:
    """Return the places of the tools after reading, best first: those that were read, then the others."""
    read = sorted(logits, key=lambda place: -(float(stage.fused[place]) + weight * logits[place]))
    return (*read, *(int(place) for place in ranking.order if int(place) not in logits))


def _told(tool: ToolSpec, stage: StageScores, place: int, scorer: Scorer) -> str:
    nearest = int(stage.examples.nearest[place])
    return tool_text(tool, example=scorer.example_index.text(nearest) if nearest >= 0 else None)


def _fit(
    stage: StageScores, ranking: Ranking, rules: Rules, scorer: Scorer
) -> tuple[float | None, float, float]:
    """Return the probability that no tool fits, and what is held against what."""
    if rules.no_tool is None or len(ranking.order) == 0:
        return None, ranking.fit, rules.threshold
    chance = rules.no_tool.chance(stage_signals(stage, ranking, scorer))
    return chance, 1 - chance, 1 - rules.no_tool.limit


def _escalated(
    stage: StageScores,
    ranking: Ranking,
    rules: Rules,
    logits: Mapping[int, float],
    before: tuple[float | None, float, float],
    *,
    scorer: Scorer,
) -> tuple[tuple[int, ...], Verdict, float | None, float, float]:
    order = reread(stage, ranking, logits, rules.reader_weights.over(stage, logits.keys()))
    best = stage.names[order[0]]
    chance, fit, threshold = before
    if rules.no_tool_read is not None:
        signals = stage_signals(stage, ranking, scorer) | reading_signals(
            np.asarray(list(logits.values()), np.float32)
        )
        chance = rules.no_tool_read.chance(signals)
        fit, threshold = 1 - chance, 1 - rules.no_tool_read.limit
    shown = neutralise(best, limit=_SHOWN)
    reader = rules.reader.name if rules.reader is not None else ""
    if fit < threshold:
        near, least = told_apart(fit, threshold, digits=3)
        count = f"{len(logits)} tool{'s' * (len(logits) != 1)}"
        reason = f"{reader} read {count}; {shown} fits best, with {near} under {least}: no tool seems to fit."
        return order, Verdict(Outcome.NO_TOOL, None, reason), chance, fit, threshold
    ahead, wanted = told_apart(ranking.margin, rules.tau, digits=4)
    why = f"The margin of {ahead} is under tau = {wanted}"
    if ranking.margin >= rules.tau:
        why = "Whether a tool fits was in doubt"
    reason = f"{why}; {reader} chose {shown} among {len(logits)}."
    return order, Verdict(Outcome.ESCALATED, best, reason), chance, fit, threshold
