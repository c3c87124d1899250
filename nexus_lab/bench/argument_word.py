"""How much a model's word counts beside the evidence, fitted on exercises that its adapter has not seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.assign import assignments, plain_units
from nexus_lab.arguments.grounding import choices_of
from nexus_lab.arguments.scoring import best_calls, fit_scoring
from nexus_lab.bench.argument_cases import matches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.arguments.scoring import Scorer, Scoring
    from nexus_lab.bench.argument_exercises import Exercise

__all__ = ["fit_word"]

_LEAD, _CALLS = 3.0, 6


def fit_word(exercises: Sequence[Exercise], scorer: Scorer) -> Scoring:
    """Return how evidence and likelihood are best added up, where the evidence leaves calls close.

    Parameters
    ----------
    exercises
        What the model has not learned from.
    scorer
        Weighs whole calls with the model.
    """
    groups = [rows for exercise in exercises if (rows := _close(exercise, scorer))]
    return fit_scoring(groups, lead=_LEAD, most=_CALLS)


def _close(exercise: Exercise, scorer: Scorer) -> list[tuple[float, float, int, bool]]:
    choices, spans = choices_of(exercise.tool, exercise.request, exercise.context)
    found = best_calls(choices, assignments(choices, plain_units(spans)), most=_CALLS)
    close = [one for one in found if found[0].assignment.score - one.assignment.score < _LEAD]
    right = [_right(json.loads(one.text), exercise.answer) for one in close]
    if len({*right}) < 2:  # noqa: PLR2004 - as right as each other
        return []
    likely = scorer(exercise.tool, exercise.request, exercise.context, [one.text for one in close])
    return [
        (one.assignment.score, weight, len(one.text), count == max(right))
        for one, weight, count in zip(close, likely, right, strict=True)
    ]


def _right(found: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    return sum(name in found and matches(found[name], value, "loose") for name, value in answer.items())
