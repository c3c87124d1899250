"""How sure a value is that was found for an argument, and from where on it is better to ask.

The scores of `ranking` order values; they do not say whether any is right. A logistic curve over a few signs
of the chosen one does, fitted to requests as they are and to the same requests with a needed value cut out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.arguments.lexicon import CALLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.arguments.assign import Choices

__all__ = ["Minimum", "fit_minimum", "signs"]

_FAR = 10.0
_KINDS = frozenset(CALLED)


@dataclass(frozen=True, slots=True)
class Minimum:
    """The least evidence that a required value needs.

    Attributes
    ----------
    curve
        Weights of `signs` in the log odds that a value is right.
    least
        Probability below which the value is not taken; 0 takes all.
    """

    curve: Mapping[str, float] = field(default_factory=dict)
    least: float = 0.0

    def probability(self, found: Mapping[str, float]) -> float:
        """Return how likely a value with these signs is right, in [0, 1]."""
        odds = sum(self.curve.get(name, 0.0) * value for name, value in found.items())
        return 1 / (1 + math.exp(-max(-_FAR * 3, min(_FAR * 3, odds))))

    def allows(self, found: Mapping[str, float]) -> bool:
        """Whether a value with these signs may be sent."""
        return not self.least or self.probability(found) >= self.least


def signs(choices: Sequence[Choices], picks: Sequence[int], place: int) -> dict[str, float]:
    """Return what tells whether the value chosen for the argument at `place` is right.

    Parameters
    ----------
    picks
        Place of the chosen candidate of each argument.
    """
    one, pick = choices[place], picks[place]
    argument, chosen = one.argument, one.candidates[pick]
    scores = np.where(np.isfinite(one.scores), one.scores, -np.inf)
    others = np.delete(scores[1:], pick - 1)
    rival = float(others.max()) if others.size else -_FAR
    weight = np.exp(scores[1:] - scores[1:].max())
    named = {kind for kind in _KINDS if argument.fit(kind) == "name"}
    kinds = frozenset[str]().union(*(span.kinds for span in chosen.spans))
    taken = [
        span
        for other, (there, at) in enumerate(zip(choices, picks, strict=True))
        if other != place
        for span in there.candidates[at].spans
    ]
    found = {
        "one": 1.0,
        "score": _near(float(scores[pick])),
        "lead": _near(float(scores[pick]) - rival),
        "share": float(weight[pick - 1] / weight.sum()),
        "many": math.log(len(one.candidates)),
        "shared": float(any(span.overlaps(other) for span in chosen.spans for other in taken)),
        "unlike": float(bool(named) and bool(kinds) and not kinds & named),
        "alike": float(bool(kinds & named)),
        f"is:{argument.kind}": 1.0,
        f"when:{min((span.turn for span in chosen.spans), default=0) > 0}": 1.0,
    }
    features = chosen.features
    found |= {name: features[name] for name in _READ if features.get(name)}
    return found


_READ = ("shape:True", "shape:False", "fillers", "self", "self_others", "topic", "opens", "way|clashes")


def _near(value: float) -> float:
    return max(-_FAR, min(_FAR, value))


def fit_minimum(
    rows: Sequence[tuple[Mapping[str, float], bool]],
    *,
    weights: Sequence[float] | None = None,
    penalty: float = 1.0,
) -> dict[str, float]:
    """Return the curve under which what was right, and what was not, is most likely.

    Parameters
    ----------
    rows
        `signs` of chosen values and whether each is right.
    weights
        What each row counts; 1 by default.
    penalty
        Half of it times the squared weights is added to the loss.
    """
    from scipy.optimize import minimize

    names = sorted({name for found, _ in rows for name in found})
    matrix = np.asarray([[found.get(name, 0.0) for name in names] for found, _ in rows])
    right = np.asarray([is_right for _, is_right in rows], np.float64)
    counts = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        odds = matrix @ values
        likely = 1 / (1 + np.exp(-odds))
        total = float((counts * (np.logaddexp(0, odds) - right * odds)).sum())
        return total + penalty * float(values @ values) / 2, matrix.T @ (
            counts * (likely - right)
        ) + penalty * values

    found = minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B").x
    return {name: round(float(value), 3) for name, value in zip(names, found, strict=True)}


def least_of(rows: Iterable[tuple[float, bool]], *, lost: float) -> float:
    """Return the highest minimum at which at most the share `lost` of the right values is asked for.

    Parameters
    ----------
    rows
        Probability of each value, and whether it is right.
    """
    right = sorted(likely for likely, is_right in rows if is_right)
    return right[int(lost * len(right))] if right else 0.0
