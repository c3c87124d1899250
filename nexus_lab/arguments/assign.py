"""Which value goes to which argument: all at once, by a beam search over the scores of single choices.

A bipartite assignment would not do: spans overlap (``San Francisco`` and ``San Francisco, CA``), halves of
one ``owner/name`` belong together, and what was said plainly wants to be used by some argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.arguments.evidence import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.arguments.evidence import Candidate
    from nexus_lab.arguments.spans import Span
    from nexus_lab.arguments.wants import Argument

__all__ = ["Assignment", "Choices", "Costs", "assign", "assignments", "plain_units"]

_BEAM, _TRIED = 48, 10
_PLAIN = frozenset(
    {"quote", "url", "email", "slug", "path", "file", "sha", "date", "time", "number", "ticket", "negative"}
    | {"money", "code", "user", "number_word", "share", "capitals", "tail"}
)


@dataclass(frozen=True, slots=True)
class Choices:
    """What an argument could be, with the score of each.

    Attributes
    ----------
    scores
        float64 [n_candidates].
    """

    argument: Argument
    candidates: Sequence[Candidate]
    scores: NDArray[np.float64]

    @property
    def log_shares(self) -> NDArray[np.float64]:
        """Log of the softmax of the scores, float64 [n_candidates]."""
        shifted = self.scores - self.scores.max()
        found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
        return found


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value for each argument.

    Attributes
    ----------
    score
        Sum of the log shares of the values, and of what it costs or gains how they stand to each other.
    picks
        Place of the chosen candidate of each argument.
    """

    score: float
    picks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What it costs or gains, in nats, how choices stand to each other; found on the cases that are tuned on.

    Attributes
    ----------
    overlap
        Cost of two arguments that take the same characters.
    apart
        Cost of halves of two different ``owner/name``.
    used
        Gain of each plain unit that some argument takes.
    tied
        Gain of an argument that is given together with the option that its description asks for.
    """

    overlap: float = 3.0
    apart: float = 2.0
    used: float = 2.5
    tied: float = 1.5


@dataclass(frozen=True, slots=True)
class _State:
    """Choices for some of the arguments.

    Attributes
    ----------
    covered
        Places of the units that are taken.
    given, wanted
        Names of the arguments that have a value, and of those that a chosen option goes with.
    """

    score: float = 0.0
    picks: tuple[int, ...] = ()
    used: tuple[Span, ...] = ()
    covered: frozenset[int] = frozenset()
    given: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()

    def with_pick(
        self, choices: Choices, pick: int, share: float, reach: frozenset[int], costs: Costs
    ) -> _State:
        """Return the state with one more choice, which takes the units at the places `reach`."""
        chosen, score, picks = choices.candidates[pick], self.score + share, (*self.picks, pick)
        if chosen.value is NOTHING:
            return replace(self, score=score, picks=picks)
        asking = choices.argument.asked_by.get(str(chosen.value), frozenset())
        name, spans = choices.argument.name, chosen.spans
        score += costs.tied * (bool(asking & self.given) + (name in self.wanted))
        score -= costs.overlap * any(span.overlaps(taken) for span in spans for taken in self.used)
        score -= costs.apart * any(span.is_apart(taken) for span in spans for taken in self.used)
        new = reach - self.covered
        return _State(
            score + costs.used * len(new),
            picks,
            (*self.used, *spans),
            self.covered | new,
            self.given | {name},
            self.wanted | asking,
        )


def plain_units(spans: Sequence[Span]) -> list[Span]:
    """Return the longest spans of the request that are plainly values: a number, a path, a name."""
    plain = [
        span
        for span in spans
        if span.turn == 0 and span.kinds & _PLAIN and not ("capitals" in span.kinds and span.start == 0)
    ]
    return [
        span
        for number, span in enumerate(plain)
        if not any(
            (other.start <= span.start and span.stop <= other.stop)
            and (other.stop - other.start > span.stop - span.start or place < number)
            for place, other in enumerate(plain)
            if place != number
        )
    ]


def assign(choices: Sequence[Choices], units: Sequence[Span], *, costs: Costs | None = None) -> list[int]:
    """Return the place of the chosen candidate for each argument; the best of `assignments`."""
    return list(assignments(choices, units, costs=costs)[0].picks)


def assignments(
    choices: Sequence[Choices], units: Sequence[Span], *, costs: Costs | None = None
) -> list[Assignment]:
    """Return the assignments that the search ends with, best first; at least one.

    Parameters
    ----------
    units
        What was plainly said, of `plain_units`.
    costs
        How choices stand to each other; ``None`` for the defaults.
    """
    order = sorted(range(len(choices)), key=lambda place: -_margin(choices[place].scores))
    states = [_State()]
    for place in order:
        one, shares = choices[place], choices[place].log_shares
        tried = {0, *np.argsort(-one.scores, kind="stable")[:_TRIED].tolist()}
        reached = {pick: _reach(one.candidates[pick], units) for pick in tried}
        grown = [
            state.with_pick(one, pick, float(shares[pick]), reach, costs or Costs())
            for state in states
            for pick, reach in reached.items()
        ]
        states = sorted(grown, key=lambda state: -state.score)[:_BEAM]
    back = np.argsort(order, kind="stable").tolist()
    return [Assignment(state.score, tuple(state.picks[n] for n in back)) for state in states]


def _reach(candidate: Candidate, units: Sequence[Span]) -> frozenset[int]:
    """Return the places of the units that a candidate takes."""
    return frozenset(
        n for n, unit in enumerate(units) if any(span.overlaps(unit) for span in candidate.spans)
    )


def _margin(scores: NDArray[np.float64]) -> float:
    top = np.sort(scores)[-2:]
    return float(top[-1] - top[0]) if len(scores) > 1 else np.inf
