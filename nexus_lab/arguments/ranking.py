"""The linear score of a candidate, and its fit: a softmax over the candidates of each argument."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.minimum import Minimum
from nexus_lab.arguments.scoring import Scoring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.arguments.evidence import Candidate

    Group = tuple[str, float, Sequence[tuple[Mapping[str, float], bool]]]

__all__ = ["fit_weights", "load_minimum", "load_scoring", "load_weights", "save_weights", "scores"]

_SMALLEST = 0.02
# What is known before any case was seen, and what the penalty pulls towards: a date is no path.
_TELLING = (
    "clock",
    "date",
    "email",
    "file",
    "iso_date",
    "owner",
    "path",
    "sha",
    "slug",
    "statement",
    "time",
    "url",
)
_KNOWN = {
    f"fit|{kind}|{where}": worth
    for kind in _TELLING
    for where, worth in (("name", 1.5), ("said", 0.5), ("no", -1.5))
} | {
    "fit|zone|name": 4.0,
    "fit|zone|said": 1.0,
    "fit|zone|no": -3.0,
    **{
        f"fit|{kind}|{where}": 3.0
        for kind in ("currency", "language", "country")
        for where in ("name", "said")
    },
    "example": 1.5,
    "capitals|self": 1.0,
    "percent|share": -2.0,
    "percent|number": 1.0,
    "self|all": -1.0,
    **{f"{measure}|scaled": -4.0 for measure in ("degrees", "metres", "minutes")},
    "form|True": 1.0,
    "form|False": -1.0,
    "o|code": 3.0,
    "codes|listed": 9.0,
    "fit|glob|name": 3.0,
    "fit|glob|no": -2.0,
    "rank|fit": 1.0,
    "way|agrees": 2.0,
    "fit|tail|name": 1.5,
    "way|clashes": -2.0,
    "inside:list_quote": -1.0,
    "inside:quote": -1.0,
    "list|list_quote": 1.0,
}


@cache
def _load() -> dict[str, Any]:
    text = files(__package__).joinpath("weights.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def load_weights() -> dict[str, float]:
    """Return the weights that come with the package, by feature."""
    weights: dict[str, float] = _load()["weights"]
    return weights


@cache
def load_minimum() -> Minimum:
    """Return the least evidence for a required value that comes with the package."""
    return Minimum(**_load()["minimum"]) if "minimum" in _load() else Minimum()


@cache
def load_scoring() -> Scoring:
    """Return how evidence and likelihood are added up, as it comes with the package."""
    return Scoring(**_load().get("scoring", {}))


def save_weights(
    weights: Mapping[str, float],
    path: Path,
    *,
    minimum: Minimum,
    scoring: Scoring,
    fitted_to: Mapping[str, int],
) -> None:
    """Write weights as the package keeps them.

    Parameters
    ----------
    minimum
        The least evidence for a required value, fitted to scores of such weights.
    scoring
        How evidence and likelihood are added up.
    fitted_to
        The files they were fitted to, with the cases of each.
    """
    values = {
        "fitted_to": dict(fitted_to),
        "command": "nexus-lab eval arguments --fit",
        "minimum": {"least": minimum.least, "curve": dict(sorted(minimum.curve.items()))},
        "scoring": asdict(scoring),
        "weights": dict(sorted(weights.items())),
    }
    path.write_text(json.dumps(values, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def scores(
    candidates: Sequence[Candidate], weights: Mapping[str, float] | None = None
) -> NDArray[np.float64]:
    """Return the score of each candidate, float64 [n_candidates].

    Summed exactly, since features come in an order that differs from process to process.
    """
    known = load_weights() if weights is None else weights
    return np.asarray(
        [
            math.fsum(known.get(name, 0.0) * value for name, value in one.features.items())
            for one in candidates
        ]
    )


def fit_weights(
    groups: Sequence[Group], *, penalty: float = 1.0, fewest: int = 3, steps: int = 200
) -> dict[str, float]:
    """Return the weights under which right candidates are most likely.

    Parameters
    ----------
    groups
        One for each argument of each request: the tool, the weight of the group, and for each candidate its
        features and whether it is right; several may be.
    penalty
        Half of it times the squared distance of the weights from what is known before is added to the loss.
    fewest
        Tools in which a feature has to occur, so that what only one of them has is not learnt.
    steps
        Most iterations of L-BFGS.
    """
    from scipy.optimize import minimize
    from scipy.sparse import csr_matrix

    seen: dict[str, set[str]] = defaultdict(set)
    for tool, _, rows in groups:
        for features, _ in rows:
            for name in features:
                seen[name].add(tool)
    learnt = {name for name, tools in seen.items() if len(tools) >= fewest}
    names = {name: n for n, name in enumerate(sorted(learnt | _KNOWN.keys()))}
    cells = [
        (names[name], value)
        for _, _, rows in groups
        for features, _ in rows
        for name, value in features.items()
        if name in names
    ]
    lengths = [sum(name in names for name in features) for _, _, rows in groups for features, _ in rows]
    matrix: Any = csr_matrix(
        (
            [value for _, value in cells],
            [place for place, _ in cells],
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        shape=(len(lengths), len(names)),
    )
    sizes = np.asarray([len(rows) for _, _, rows in groups])
    starts, group_of = np.concatenate([[0], np.cumsum(sizes)[:-1]]), np.repeat(np.arange(len(groups)), sizes)
    known = np.asarray([_KNOWN.get(name, 0.0) for name in names])
    right = np.asarray([is_right for _, _, rows in groups for _, is_right in rows], np.float64)
    weight = np.asarray([weight for _, weight, _ in groups])

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        score = matrix @ values
        likely = np.exp(score - np.maximum.reduceat(score, starts)[group_of])
        total, good = np.add.reduceat(likely, starts), np.add.reduceat(likely * right, starts)
        gradient = weight[group_of] * (likely / total[group_of] - likely * right / good[group_of])
        away = values - known
        penalised = float((weight * (np.log(total) - np.log(good))).sum() + penalty * (away @ away) / 2)
        return penalised, matrix.T @ gradient + penalty * away

    found = minimize(loss, known, jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
    return {name: round(float(found[n]), 3) for name, n in names.items() if abs(found[n]) >= _SMALLEST}
