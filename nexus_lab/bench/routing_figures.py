"""The figures of a routing run, from what was seen of each request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nexus_lab.bench.base import RESAMPLES, Result, bootstrap, proportion
from nexus_lab.routing import Outcome, auroc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing import RoutingDecision

    Case = dict[str, Any]
    Row = Mapping[str, Any]

__all__ = ["OWN", "REGISTRY", "Refusable", "Seen", "confusions", "figures"]

REGISTRY, OWN = "registry", "candidates of the row"

_TOPS = (1, 3, 5, 10)
_COVERAGES = (0.8, 0.9)
_SHARES = 11


class Refusable(NamedTuple):
    """A request that no tool fits: its kind, over which tools it was asked, and the router's decision."""

    kind: str
    over: str
    decision: RoutingDecision


@dataclass(slots=True)
class Seen:
    """What was seen over one registry.

    Attributes
    ----------
    places
        By system, the place of the right tool for each request.
    decisions
        Of the router, one for each request.
    int8
        Place of the right tool by INT8 and by float32 vectors.
    beside
        Requests over the tools that they bring along: whether the router's first tool is right, and its
        decision.
    refused
        Requests that no tool fits.
    """

    places: dict[str, list[int]] = field(default_factory=dict)
    decisions: list[RoutingDecision] = field(default_factory=list)
    int8: list[tuple[int, int]] = field(default_factory=list)
    beside: list[tuple[bool, RoutingDecision]] = field(default_factory=list)
    refused: list[Refusable] = field(default_factory=list)

    @property
    def first(self) -> NDArray[np.bool_]:
        """Whether the router's first tool is right, bool [n]."""
        return np.asarray(self.places["full"]) < 1


def figures(seen: Seen, rows: Sequence[Row], size: int, subsets: Mapping[str, Sequence[str]]) -> list[Result]:
    """Return all figures over a registry of `size` tools."""
    results = []
    for system, found in seen.places.items():
        case = {"n_tools": size, "system": system}
        places = np.asarray(found)
        results += _accuracy(places, case, _TOPS)
        results.append(bootstrap(1 / (places.astype(np.float64) + 1), np.mean, case=case, metric="mrr"))
        results += _parts(places, rows, case, subsets)
    case = {"n_tools": size, "system": "full"}
    if "full" in seen.places:
        results += _gate(seen, case)
        results += _curve(seen, case)
        results += _abstention(seen, case)
    return results + _quantisation(seen, size)


def confusions(seen: Seen, rows: Sequence[Row], *, most: int = 20) -> list[dict[str, Any]]:
    """Return the most frequent mistakes: the right tool, what came first instead, and how often."""
    wrong = (
        (row["gold_tool"], decision.candidates[0].tool)
        for row, decision, right in zip(rows, seen.decisions, seen.first, strict=True)
        if not right and decision.candidates
    )
    return [
        {"right": right, "chosen": chosen, "n": count}
        for (right, chosen), count in Counter(wrong).most_common(most)
    ]


def _accuracy(places: NDArray[Any], case: Case, tops: Iterable[int]) -> list[Result]:
    return [proportion(int((places < top).sum()), len(places), case=case, metric=f"top{top}") for top in tops]


def _parts(
    places: NDArray[Any], rows: Sequence[Row], case: Case, subsets: Mapping[str, Sequence[str]]
) -> list[Result]:
    """Return the accuracy of each style, and of each subset that is named by its ids."""
    results = []
    for style in dict.fromkeys(row["style"] for row in rows if isinstance(row.get("style"), str)):
        chosen = np.asarray([row.get("style") == style for row in rows])
        results += _accuracy(places[chosen], {**case, "style": style}, (1, 3))
    for name, ids in subsets.items():
        chosen = np.asarray([row.get("id") in set(ids) for row in rows])
        if chosen.any():
            results += _accuracy(places[chosen], {**case, "subset": name}, (1, 3))
    return results


def _gate(seen: Seen, case: Case) -> list[Result]:
    """Return how often the cross-encoder was or would be asked, and how right both sides of tau are."""
    asked = np.asarray([_asked(decision) for decision in seen.decisions])
    results = [proportion(int(asked.sum()), len(asked), case=case, metric="escalation_rate")]
    for side, chosen in (("at least tau", ~asked), ("under tau", asked)):
        if chosen.any():
            gate = {**case, "margin": side}
            results.append(
                proportion(int(seen.first[chosen].sum()), int(chosen.sum()), case=gate, metric="top1")
            )
    return results


def _asked(decision: RoutingDecision) -> bool:
    return decision.outcome is Outcome.ESCALATION_UNAVAILABLE or "rerank" in decision.times_ms


def _curve(seen: Seen, case: Case) -> list[Result]:
    """Return the accuracy when the share with the least margins is read, from none to all, and at tau."""
    if not {"no_reader", "always_read"} <= seen.places.keys():
        return []
    plain = np.asarray(seen.places["no_reader"]) < 1
    read = np.asarray(seen.places["always_read"]) < 1
    order = np.argsort([decision.margin for decision in seen.decisions], kind="stable")
    results = []
    for share in np.linspace(0, 1, _SHARES):
        escalated = np.zeros(len(order), bool)
        escalated[order[: round(share * len(order))]] = True
        right = int(np.where(escalated, read, plain).sum())
        at = {**case, "escalated": round(float(share), 2)}
        results.append(proportion(right, len(order), case=at, metric="curve_top1"))
    under = np.asarray([decision.margin < decision.tau for decision in seen.decisions])
    chosen = {**case, "escalated": round(float(under.mean()), 4), "tau": seen.decisions[0].tau}
    right = int(np.where(under, read, plain).sum())
    results.append(proportion(right, len(under), case=chosen, metric="curve_top1_at_tau"))
    return results


def _abstention(seen: Seen, case: Case) -> list[Result]:
    """Return how requests with and without a tool are told apart, and what that is worth.

    Only requests over the same tools are compared: over few tools that the models never saw, all scores are
    lower than over many that have examples.
    """
    results: list[Result] = []
    answerable = {REGISTRY: list(zip(seen.first.tolist(), seen.decisions, strict=True)), OWN: seen.beside}
    for over, fitting in answerable.items():
        at = {**case, "over": over}
        if fitting:
            refused = sum(decision.outcome is Outcome.NO_TOOL for _, decision in fitting)
            results.append(proportion(refused, len(fitting), case=at, metric="false_abstention"))
        kinds: dict[str, list[RoutingDecision]] = {}
        for one in seen.refused:
            if one.over == over:
                kinds.setdefault("all", []).append(one.decision)
                kinds.setdefault(one.kind, []).append(one.decision)
        for kind, decisions in kinds.items():
            results += _told_apart(fitting, decisions, {**at, "negatives": kind})
    return results


def _told_apart(
    fitting: Sequence[tuple[bool, RoutingDecision]], without: Sequence[RoutingDecision], case: Case
) -> list[Result]:
    fits, below = [_fit(one) for _, one in fitting], [_fit(one) for one in without]
    caught = sum(decision.outcome is Outcome.NO_TOOL for decision in without)
    results = [proportion(caught, len(below), case=case, metric="negatives_refused")]
    if not fits:
        return results
    value, low, high = _auroc_interval(fits, below)
    n = len(fits) + len(below)
    results.append(Result(case=case, metric="abstain_auroc", value=value, low=low, high=high, n=n))
    firsts = [first for first, _ in fitting]
    results += _selective(fits, firsts, below, case)
    return results


def _selective(
    fits: Sequence[float], firsts: Sequence[bool], below: Sequence[float], case: Case
) -> Iterator[Result]:
    """Return how often an answer is right where the least certain requests are left unanswered.

    The coverage is of the requests that a tool fits, alone and with all that pass the same limit and have no
    tool, or of all requests: how many of those can be answered rightly depends on how many have no tool.
    """
    fit, right = np.asarray([*fits, *below]), np.asarray([*firsts, *(False for _ in below)])
    order = np.argsort(-fit, kind="stable")
    own = np.argsort(-fit[: len(fits)], kind="stable")
    for coverage in _COVERAGES:
        kept = own[: max(1, round(coverage * len(own)))]
        answers = {
            "requests with a tool, alone": kept,
            "requests with a tool": np.flatnonzero(fit >= fit[kept].min()),
            "all requests": order[: max(1, round(coverage * len(order)))],
        }
        for of, answered in answers.items():
            at = {**case, "coverage": coverage, "of": of}
            yield proportion(int(right[answered].sum()), len(answered), case=at, metric="selective_accuracy")


def _fit(decision: RoutingDecision) -> float:
    return decision.fit if decision.no_tool_chance is None else 1 - decision.no_tool_chance


def _auroc_interval(higher: list[float], lower: list[float]) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    above, below = np.asarray(higher), np.asarray(lower)
    draws = [
        auroc(rng.choice(above, above.size).tolist(), rng.choice(below, below.size).tolist())
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return auroc(higher, lower), float(low), float(high)


def _quantisation(seen: Seen, size: int) -> list[Result]:
    scanned, exact = np.asarray(seen.int8).T
    results = []
    for top in (1, 10):
        lost = (exact < top).astype(float) - (scanned < top)
        case = {"n_tools": size, "system": "int8", "peer": "float32", "top": top}
        results.append(bootstrap(lost, np.mean, case=case, metric="recall_lost"))
    return results
