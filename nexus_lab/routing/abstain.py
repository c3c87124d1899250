"""The probability that no tool fits: a logistic model over what the stages of a decision say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.base import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing.gate import Ranking
    from nexus_lab.routing.scoring import Scorer, StageScores

    Floats = NDArray[np.float32]

__all__ = ["READING_SIGNALS", "STAGE_SIGNALS", "NoTool", "fit_no_tool", "reading_signals", "stage_signals"]

# By these names a calibration knows them.
STAGE_SIGNALS = (
    "dense",
    "example",
    "log_tools",
    "lead_of_server",
    "covered",
    "knows",
    "in_vain",
)
READING_SIGNALS = ("reader_best", "reader_second", "reader_any")

_LEAST = 8
_MOST_LEAD, _RIVALS = 0.3, 20
# Where nobody knows what is asked of the tools in vain: about what an answerable request has.
_NEVER_IN_VAIN = -0.3
_STEPS, _RIDGE = 60, 1e-2


@dataclass(frozen=True, slots=True)
class NoTool:
    """A logistic model of "no tool fits".

    Attributes
    ----------
    weights, intercept
        Of the signals by name; the sum is the log-odds that none fits.
    limit
        Probability from which a request is refused.
    n, n_none
        Requests it was fitted to, and how many of them no tool fits.
    source
        Which.
    """

    weights: Mapping[str, float]
    intercept: float
    limit: float
    n: int
    n_none: int
    source: str = ""

    def chance(self, signals: Mapping[str, float]) -> float:
        """Return the probability that no tool fits."""
        odds = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))


def stage_signals(stage: StageScores, ranking: Ranking, scorer: Scorer) -> dict[str, float]:
    """Return what the scores of the tools say of the best one.

    Its lead over all others is left out: among few tools that do not fit, one leads by much. Its lead over
    the others of its server tells a job of that server that several of its tools are near to, and how much
    nearer the request is to one that is known to be asked in vain, a job that none of them does.
    """
    best = int(ranking.order[0])
    knows = stage.in_vain > -1
    values = (
        float(stage.dense[best]),
        max(0.0, float(stage.examples.best[best])),
        math.log(len(stage.names)),
        _lead_of_server(stage, ranking, scorer),
        scorer.covered(stage.normalised, stage.names[best]),
        float(knows),
        stage.in_vain - float(stage.dense[best]) if knows else _NEVER_IN_VAIN,
    )
    return dict(zip(STAGE_SIGNALS, values, strict=True))


def _lead_of_server(stage: StageScores, ranking: Ranking, scorer: Scorer) -> float:
    """Return the best fused score minus that of the next tool of the same server, at most `_MOST_LEAD`."""
    best, *others = (int(place) for place in ranking.order[: 1 + _RIVALS])
    server = scorer.tool(stage.names[best]).server
    lead = next(
        (
            float(stage.fused[best] - stage.fused[place])
            for place in others
            if scorer.tool(stage.names[place]).server == server
        ),
        _MOST_LEAD,
    )
    return min(lead, _MOST_LEAD)


def reading_signals(logits: Floats) -> dict[str, float]:
    """Return what a cross-encoder says: its best score, the second, and the log-odds that none fits."""
    ranked = np.sort(logits.astype(np.float64))[::-1]
    second = float(ranked[1]) if len(ranked) > 1 else float(ranked[0]) - 5.0
    values = (float(ranked[0]), second, float(np.logaddexp.reduce(ranked)))
    return dict(zip(READING_SIGNALS, values, strict=True))


def fit_no_tool(
    signals: Sequence[Mapping[str, float]],
    none: Sequence[bool],
    *,
    target: float,
    groups: Sequence[str] = (),
    source: str = "",
) -> NoTool:
    """Fit the model by ridge-penalised maximum likelihood, both kinds of requests weighing the same.

    Parameters
    ----------
    signals
        Of each request, all with the same names.
    none
        Whether no tool fits it.
    target
        Share of the answerable requests that may be refused.
    groups
        Which group each request is of; the target holds in every group that is large enough to tell, since
        one over well-known tools would otherwise make up for one over tools that nobody knows.

    Raises
    ------
    CalibrationError
        When there are too few requests of either kind.
    """
    wanted = np.asarray(list(none), bool)
    if min(int(wanted.sum()), int((~wanted).sum())) < _LEAST:
        raise CalibrationError(
            f"{int(wanted.sum())} requests without a tool and {int((~wanted).sum())} with one are too few",
            next_step=f"give at least {_LEAST} of each",
        )
    names = list(signals[0])
    values = np.asarray([[one[name] for name in names] for one in signals], np.float64)
    weights, intercept = _logistic(values, wanted)
    model = NoTool(
        dict(zip(names, weights.tolist(), strict=True)), intercept, 1.0, len(wanted), int(wanted.sum())
    )
    chances: dict[str, list[float]] = {}
    for one, no_tool, group in zip(signals, wanted, groups or [""] * len(wanted), strict=True):
        if not no_tool:
            chances.setdefault(group, []).append(model.chance(one))
    telling = [some for some in chances.values() if len(some) * target >= 1]
    everyone = [chance for some in chances.values() for chance in some]
    limit = max(float(np.quantile(some, 1 - target)) for some in telling or [everyone])
    return NoTool(model.weights, intercept, limit, model.n, model.n_none, source)


def _logistic(values: Any, wanted: Any) -> tuple[NDArray[np.float64], float]:
    """Return weights and intercept by Newton's method, on standardised columns."""
    centre, scale = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-6)
    columns = np.c_[(values - centre) / scale, np.ones(len(values))]
    share = np.where(wanted, 0.5 / wanted.sum(), 0.5 / (~wanted).sum()) * len(wanted)
    found = np.zeros(columns.shape[1])
    penalty = np.r_[np.full(values.shape[1], _RIDGE * len(values)), 1e-9]
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(columns @ found, -30, 30)))
        slope = columns.T @ (share * (chances - wanted)) + penalty * found
        curvature = (columns * (share * chances * (1 - chances))[:, None]).T @ columns + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        found -= step
        if np.abs(step).max() < 1e-8:  # noqa: PLR2004 - no change any more
            break
    weights = found[:-1] / scale
    return weights, float(found[-1] - weights @ centre)
