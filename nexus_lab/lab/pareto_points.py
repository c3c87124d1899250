"""Policies that were tried, from a result file, the folder of a replay, or the folder of a search."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import Result, ResultFile, ResultsError
from nexus_lab.bench.cache_report import SETTINGS, CacheSweep
from nexus_lab.bench.sweep import JOURNAL, read_journal
from nexus_lab.cache.costs import Prices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from nexus_lab.bench.policy_search import PolicySearch

__all__ = ["PolicyPoint", "marked_front", "points_of", "read_points"]

_TRIAL = "trial "
_NEXT_STEP = "give what `nexus-lab eval cache` or `search policy` wrote with --json, or their folder (--work)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPoint:
    """One policy: how likely the real replies were under it, and what it cost.

    Attributes
    ----------
    nll
        Nats per token of the real replies; ``None`` in a dry count.
    cost
        Of a conversation, in prefilled tokens.
    nll_low, nll_high, cost_low, cost_high
        95 % intervals over conversations, where they were measured.
    n
        Conversations.
    proposer
        Who proposed it; empty in a replay.
    on_front
        No other is at least as good in both and better in one.
    """

    policy: str
    nll: float
    cost: float
    nll_low: float | None = None
    nll_high: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    n: int | None = None
    proposer: str = ""
    on_front: bool = False


def marked_front(points: Iterable[PolicyPoint]) -> tuple[PolicyPoint, ...]:
    """Return the points, cheapest first, with those marked that no other beats in both quality and cost."""
    best = float("inf")
    made = []
    for point in sorted(points, key=lambda item: (item.cost, item.nll)):
        on_front = point.nll < best
        best = min(best, point.nll)
        made.append(replace(point, on_front=on_front))
    return tuple(made)


def points_of(source: CacheSweep | PolicySearch) -> tuple[PolicyPoint, ...]:
    """Return the points of a replay or a search that has just been made."""
    if isinstance(source, CacheSweep):
        return marked_front(_of_results(source.figures))
    trials = [trial for trial in source.trials if trial.nll is not None and trial.cost is not None]
    return marked_front(
        PolicyPoint(
            policy=trial.policy,
            nll=trial.nll or 0.0,
            cost=trial.cost or 0.0,
            n=len(source.settings.get("conversations", ())) or None,
            proposer=trial.proposer,
        )
        for trial in trials
    )


def read_points(path: Path) -> tuple[PolicyPoint, ...]:
    """Return the policies of a result file, or of the folder of a replay or a search.

    The folders hold every conversation, so that the points of a search have intervals too.

    Raises
    ------
    ResultsError, SweepError
        When there are none.
    """
    points = _of_folder(path) if path.is_dir() else list(_of_results(ResultFile.read(path).results))
    if not points:
        raise ResultsError(f"{path} holds no policy with both NLL and cost", next_step=_NEXT_STEP)
    return marked_front(points)


def _of_folder(folder: Path) -> list[PolicyPoint]:
    if (folder / SETTINGS).is_file():
        return list(_of_results(CacheSweep.read(folder).figures))
    journal = folder / JOURNAL
    if not journal.is_file():
        raise ResultsError(f"{folder} holds neither a replay nor a search", next_step=_NEXT_STEP)
    trials: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for key, finished in read_journal(journal).items():
        (trials if key.startswith(_TRIAL) else rows).extend(finished.rows)
    proposers = {str(row.get("policy")): str(row.get("proposer", "")) for row in trials}
    try:
        sweep = CacheSweep({}, _once(rows), Prices())
        found = list(_of_results(sweep.figures))
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{journal} cannot be read: {error}", next_step=_NEXT_STEP) from error
    # Of a search, only what went through every conversation is a trial with figures.
    whole = max((point.n or 0 for point in found), default=0)
    return [
        replace(point, proposer=proposers.get(point.policy, ""))
        for point in found
        if not proposers or (point.n or 0) == whole
    ]


def _once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each policy and conversation that ran with the model."""
    found = {(row["policy"], row["trajectory"]): row for row in rows if not row.get("dry")}
    return list(found.values())


def _of_results(results: Iterable[Result]) -> Iterable[PolicyPoint]:
    """Yield the policies that have both figures; ratios against a peer are left out."""
    found: dict[tuple[str, Any], dict[str, Result]] = defaultdict(dict)
    for result in results:
        policy = result.case.get("policy")
        if isinstance(policy, str) and "peer" not in result.case:
            found[policy, result.case.get("trial")][result.metric] = result
    for (policy, _), figures in found.items():
        nll, cost = figures.get("nll_per_token"), figures.get("cost")
        if nll is not None and cost is not None:
            yield PolicyPoint(
                policy=policy,
                nll=nll.value,
                cost=cost.value,
                nll_low=nll.low,
                nll_high=nll.high,
                cost_low=cost.low,
                cost_high=cost.high,
                n=cost.n,
                proposer=str(nll.case.get("proposer", "")),
            )
