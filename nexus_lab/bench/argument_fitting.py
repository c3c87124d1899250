"""Fitting the evidence, and the least of it, to cases with known arguments that are not kept apart."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.assign import Choices, assign, assignments, plain_units
from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.arguments.grounding import choices_of
from nexus_lab.arguments.minimum import Minimum, fit_minimum, least_of, signs
from nexus_lab.arguments.ranking import fit_weights, save_weights, scores
from nexus_lab.arguments.scoring import Scoring, best_calls, fit_scoring
from nexus_lab.bench.argument_cases import hashed, loose, read_cases
from nexus_lab.bench.argument_unsaid import unsaid
from nexus_lab.bench.base import ResultsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.arguments.scoring import Scorer
    from nexus_lab.arguments.spans import Span
    from nexus_lab.arguments.wants import Argument
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.registry import Registry

    # Signs of a value, whether it is right, and whether the right one was cut out.
    _Row = tuple[Mapping[str, float], bool, bool]
    # Of close calls: score, log-likelihood, characters, and whether none has more right values.
    _Calls = list[tuple[float, float, int, bool]]

__all__ = ["LOST", "Fitted", "fit", "fit_evidence"]

LOST = 0.001
"""Share of the right values, of requests as they are, that may be asked for; the minimum is set by it."""
_FOLDS = 4
_LEAD, _CALLS = 3.0, 6


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was fitted: weights of the evidence, its minimum, and how a likelihood is added."""

    weights: dict[str, float]
    minimum: Minimum
    scoring: Scoring


def fit_evidence(
    files: Sequence[Path], tools: Registry | None, path: Path, *, scorer: Scorer | None = None
) -> None:
    """Fit the evidence to the cases of some files, as `fit` does, and write it to `path`."""
    read = {file.name: read_cases(file, tools) for file in files}
    found = fit((case for cases in read.values() for case in cases), scorer=scorer)
    counts = {name: sum(not case.apart for case in cases) for name, cases in read.items()}
    save_weights(found.weights, path, minimum=found.minimum, scoring=found.scoring, fitted_to=counts)


def fit(cases: Iterable[ArgumentCase], *, scorer: Scorer | None = None) -> Fitted:
    """Fit to the cases that are not kept apart.

    A tool counts with the root of the number of its cases, so that many requests to one do not decide alone.
    The minimum rests on scores of weights that were fitted without the case at hand. It is the highest at
    which at most `LOST` of the values that are right in requests as they are is asked for.

    Parameters
    ----------
    scorer
        Weighs whole calls; without one their likelihood gets no weight.

    Raises
    ------
    ResultsError
        When no case is left.
    """
    tuned = [_Heard.of(case) for case in cases if not case.apart]
    counts = Counter(one.case.tool.name for one in tuned)
    groups = {n: list(one.groups(counts)) for n, one in enumerate(tuned)}
    if not any(groups.values()):
        raise ResultsError("no case is left to fit to", next_step="give more cases")
    rows: list[_Row] = []
    calls: list[_Calls] = []
    for fold in range(_FOLDS):
        others = [group for n, one in enumerate(tuned) if one.fold != fold for group in groups[n]]
        weights = fit_weights(others) if others else {}
        for one in tuned:
            if one.fold == fold:
                rows += one.rows(weights)
                if scorer is not None:
                    calls.append(one.calls(weights, scorer))
    return Fitted(
        fit_weights([group for some in groups.values() for group in some]),
        _minimum(rows),
        fit_scoring(calls, lead=_LEAD, most=_CALLS),
    )


@dataclass(frozen=True, slots=True)
class _Heard:
    """A case with what each of its arguments could be; cut out variants beside it."""

    case: ArgumentCase
    choices: list[Choices]
    units: list[Span]
    lacking: tuple[tuple[str, list[Choices], list[Span]], ...]

    @classmethod
    def of(cls, case: ArgumentCase) -> _Heard:
        """Hear a case."""
        choices, units = _choices(case)
        lacking = tuple((one.name, *_choices(one.case)) for one in unsaid(case))
        return cls(case, choices, units, lacking)

    @property
    def fold(self) -> int:
        """Which of the folds it is in."""
        return int(hashed(f"fold {self.case.group or self.case.id}"), 16) % _FOLDS

    def groups(self, counts: Mapping[str, int]) -> Iterator[Any]:
        """Yield what the weights are fitted to, of `fit_weights`."""
        name = self.case.tool.name
        for one in self.choices:
            right = [_leads_to(self.case, one.argument, each.value) for each in one.candidates]
            # What cannot be found among what was said is best left alone.
            right[0] |= not any(right)
            rows = [(each.features, is_right) for each, is_right in zip(one.candidates, right, strict=True)]
            rows = rows[one.argument.must_be_given :]
            if len(rows) > 1 and any(is_right for _, is_right in rows):
                yield name, counts[name] ** -0.5, rows

    def rows(self, weights: Mapping[str, float]) -> Iterator[_Row]:
        """Yield signs of each value that has to be sure, whether it is right, and whether it was cut out."""
        for found, place, picks in _sure(self.choices, self.units, weights):
            one = found[place]
            value = one.candidates[picks[place]].value
            if one.argument.name in self.case.accepted:
                yield signs(found, picks, place), _leads_to(self.case, one.argument, value), False
        for name, choices, units in self.lacking:
            for found, place, picks in _sure(choices, units, weights):
                if found[place].argument.name == name:
                    yield signs(found, picks, place), False, True

    def calls(self, weights: Mapping[str, float], scorer: Scorer) -> _Calls:
        """Return the close calls, of `fit_scoring`; empty where there is nothing to choose from."""
        case = self.case
        choices = _weighed(self.choices, weights)
        found = best_calls(choices, assignments(choices, self.units), most=_CALLS)
        close = [one for one in found if found[0].assignment.score - one.assignment.score < _LEAD]
        if len(close) < 2:  # noqa: PLR2004 - nothing to choose from
            return []
        values = [json.loads(one.text) for one in close]
        right = [
            sum(name in one and case.is_right(name, one[name]) for name in case.stated) for one in values
        ]
        likely = scorer(case.tool, case.request, case.context, [one.text for one in close])
        return [
            (one.assignment.score, weight, len(one.text), count == max(right))
            for one, weight, count in zip(close, likely, right, strict=True)
        ]


def _choices(case: ArgumentCase) -> tuple[list[Choices], list[Span]]:
    choices, spans = choices_of(case.tool, case.request, case.context, weights={})
    return choices, plain_units(spans)


def _weighed(choices: Sequence[Choices], weights: Mapping[str, float]) -> list[Choices]:
    """Return the choices with their scores under some weights."""
    found = []
    for one in choices:
        worth = scores(one.candidates, weights)
        if one.argument.must_be_given and len(worth) > 1:
            worth[0] = -np.inf
        found.append(Choices(one.argument, one.candidates, worth))
    return found


def _sure(
    choices: Sequence[Choices], units: Sequence[Span], weights: Mapping[str, float]
) -> Iterator[tuple[list[Choices], int, list[int]]]:
    """Yield the choices with their scores, and the place of each that was filled and has to be sure."""
    found = _weighed(choices, weights)
    picks = assign(found, units)
    for place, one in enumerate(found):
        if one.argument.must_be_sure and one.candidates[picks[place]].value is not NOTHING:
            yield found, place, picks


def _minimum(rows: Sequence[_Row]) -> Minimum:
    curve = fit_minimum([(found, is_right) for found, is_right, _ in rows])
    whole = Minimum(curve)
    least = least_of(
        [(whole.probability(found), is_right) for found, is_right, cut in rows if not cut], lost=LOST
    )
    return Minimum(curve, round(least, 4))


def _leads_to(case: ArgumentCase, argument: Argument, value: Any) -> bool:
    """Whether a value is right, or the beginning of a right one that the model may complete."""
    if case.is_right(argument.name, value):
        return True
    begun = bool(argument.completion(value)) and loose(f"{value},")
    golds = case.accepted.get(argument.name, ())
    return bool(begun) and any(isinstance(gold, str) and loose(gold).startswith(str(begun)) for gold in golds)
