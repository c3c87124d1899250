"""The last word of the model: whole calls that the evidence leaves close are weighed by their likelihood."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nexus_lab.arguments.evidence import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.arguments.assign import Assignment, Choices
    from nexus_lab.registry import ToolSpec

__all__ = ["Call", "Scorer", "Scoring", "Weighed", "best_calls", "fit_scoring", "weigh"]

_FACTS = "scoring."


class Scorer(Protocol):
    """What weighs whole calls; the model behind an engine does."""

    def __call__(
        self,
        tool: ToolSpec,
        request: str,
        context: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        /,
    ) -> Sequence[float]:
        """Return the log-likelihood of each text as the arguments of a call, in nats; or none at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How evidence and likelihood are added up; fitted by ``nexus-lab eval arguments --fit``.

    Attributes
    ----------
    evidence, likelihood, length
        Weights of an assignment's score, of its call's log-likelihood, and of the characters of the call,
        which a likelihood counts against it.
    lead
        The model is asked where the best assignment leads by less than this, in nats.
    most
        Calls that are weighed at most.
    """

    evidence: float = 1.0
    likelihood: float = 0.0
    length: float = 0.0
    lead: float = 2.0
    most: int = 6

    @classmethod
    def of(cls, facts: Mapping[str, float]) -> Scoring | None:
        """Return how an adapter's word counts, by the facts in its header; ``None`` where it does not."""
        found = {name: facts[key] for name in asdict(cls()) if (key := f"{_FACTS}{name}") in facts}
        if len(found) < len(asdict(cls())) or found["likelihood"] <= 0 or found["most"] < 1:
            return None
        most = int(found.pop("most"))
        return cls(**found, most=most)

    def to_facts(self) -> dict[str, float]:
        """Return what an adapter's header says of it."""
        return {f"{_FACTS}{name}": float(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Call:
    """One of the best calls: its assignment, and its arguments as JSON."""

    assignment: Assignment
    text: str


@dataclass(frozen=True, slots=True)
class Weighed:
    """Calls that the evidence left close, and what came of weighing them.

    Attributes
    ----------
    calls
        Their arguments as JSON, by evidence, best first.
    likelihoods
        What the model holds of each, in nats.
    chosen
        Place of the one that was taken.
    """

    calls: tuple[str, ...]
    likelihoods: tuple[float, ...]
    chosen: int


def best_calls(choices: Sequence[Choices], found: Sequence[Assignment], *, most: int) -> list[Call]:
    """Return the best `most` calls that differ in a value, best first."""
    calls: dict[str, Call] = {}
    for one in found:
        text = _text(choices, one)
        calls.setdefault(text, Call(one, text))
        if len(calls) == most:
            break
    return list(calls.values())


def weigh(
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]],
    calls: Sequence[Call],
    *,
    scorer: Scorer,
    scoring: Scoring,
) -> Weighed | None:
    """Weigh some calls, best first, by evidence and likelihood: those that the evidence leaves close.

    Returns
    -------
    Weighed
        ``None`` where there is nothing to choose from, or nothing is held of them: the first is best then.
    """
    close = [one for one in calls if calls[0].assignment.score - one.assignment.score < scoring.lead]
    if len(close) < 2:  # noqa: PLR2004 - nothing to choose from
        return None
    texts = tuple(one.text for one in close)
    likely = scorer(tool, request, context, texts)
    if len(likely) == 0:
        return None
    worth = [
        scoring.evidence * one.assignment.score + scoring.likelihood * weight + scoring.length * len(one.text)
        for one, weight in zip(close, likely, strict=True)
    ]
    return Weighed(texts, tuple(map(float, likely)), max(range(len(close)), key=worth.__getitem__))


def _text(choices: Sequence[Choices], one: Assignment) -> str:
    values = {
        each.argument.name: each.candidates[pick].value
        for each, pick in zip(choices, one.picks, strict=True)
        if each.candidates[pick].value is not NOTHING
    }
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def fit_scoring(
    groups: Sequence[Sequence[tuple[float, float, int, bool]]],
    *,
    penalty: float = 1.0,
    lead: float,
    most: int,
) -> Scoring:
    """Return the weights under which the best calls are most likely.

    Parameters
    ----------
    groups
        For each request its close calls: score of the assignment, log-likelihood, characters, and whether no
        other of them has more right values.
    penalty
        Half of it times the squared distance from evidence alone is added to the loss; characters count in
        tens.
    lead, most
        How the calls were chosen.
    """
    import numpy as np
    from scipy.optimize import minimize

    told = [rows for rows in groups if len({row[3] for row in rows}) > 1]
    signs = [np.asarray([(score, weight, size / 10) for score, weight, size, _ in rows]) for rows in told]
    best = [np.asarray([row[3] for row in rows]) for rows in told]
    known = np.asarray([1.0, 0.0, 0.0])

    def loss(values: Any) -> float:
        worth = [one @ values for one in signs]
        fitting = sum(
            np.logaddexp.reduce(one) - np.logaddexp.reduce(one[right])
            for one, right in zip(worth, best, strict=True)
        )
        away = values - known
        return float(fitting + penalty * (away @ away) / 2)

    evidence, likelihood, length = minimize(loss, known).x if told else known
    return Scoring(
        evidence=round(float(evidence), 4),
        likelihood=round(float(likelihood), 4),
        length=round(float(length) / 10, 5),
        lead=lead,
        most=most,
    )
