"""Policies that were tried, from a result file, the folder of a replay, or the folder of a search."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import Result, ResultFile, ResultsError, insist_plausible
from nexus_lab.bench.cache_report import SETTINGS, CacheSweep
from nexus_lab.bench.sweep import JOURNAL, read_journal
from nexus_lab.cache.costs import CostsError, Prices
from nexus_lab.trace.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.bench.policy_search import PolicySearch
    from nexus_lab.bench.sweep import Finished

__all__ = ["PolicyPoint", "marked_front", "points_of", "read_points", "read_priced"]

_TRIAL = "trial "
_WRONG = (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_NEXT_STEP = "give what `nexus-lab eval cache` or `search policy` wrote with --json, or their folder (--work)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPoint:
    """One policy: how likely the real replies were under it, and what it cost.

    Attributes
    ----------
    nll
        Nats per token of the real replies; ``None`` in a dry count.
    cost
        Of a conversation, at the prices of where it is from.
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
        return marked_front(_of_results(source.compared.figures))
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
    return read_priced(path)[0]


def read_priced(path: Path, prices: Prices | None = None) -> tuple[tuple[PolicyPoint, ...], Prices | None]:
    """Return what `read_points` does, and the prices of its costs.

    Parameters
    ----------
    prices
        For a folder, which holds counts and no prices; ``None`` takes the defaults. A result file has
        costs, and its own prices.

    Returns
    -------
    points, prices
        ``None`` for the prices of a file that does not say them.

    Raises
    ------
    ResultsError, SweepError
        When there are no policies, or a file is asked for at other prices than its own.
    """
    if path.is_dir():
        priced: Prices | None = prices or Prices()
        points = _of_folder(path, prices or Prices())
    else:
        file = ResultFile.read(path)
        priced = _prices_of(file.settings, path)
        if prices is not None and prices != priced:
            raise ResultsError(
                f"{path} holds costs, which cannot be priced anew",
                next_step="give the folder of the replay or search, or no prices",
            )
        with _readable(path):
            points = list(_of_results(file.results))
    if not points:
        raise ResultsError(f"{path} holds no policy with both NLL and cost", next_step=_NEXT_STEP)
    return marked_front(points), priced


def _prices_of(settings: Mapping[str, Any], path: Path) -> Prices | None:
    """Return the prices of a result file; ``None`` where it names none."""
    told = settings.get("prices")
    if told is None:
        return None
    try:
        return Prices.parse(",".join(f"{name}={value}" for name, value in dict(told).items()))
    except (CostsError, TypeError, ValueError) as error:
        told_error = visible(f"{path} has prices that mean nothing: {error}")
        raise ResultsError(told_error, next_step=_NEXT_STEP) from error


def _of_folder(folder: Path, prices: Prices) -> list[PolicyPoint]:
    if (folder / SETTINGS).is_file():
        with _readable(folder):
            sweep = CacheSweep.read(folder, prices=prices).compared
        return _figures_of(sweep, folder)
    journal = folder / JOURNAL
    if not journal.is_file():
        raise ResultsError(f"{folder} holds neither a replay nor a search", next_step=_NEXT_STEP)
    with _readable(journal):
        trials, rows = _last_search(read_journal(journal))
        proposers = {str(row.get("policy")): str(row.get("proposer", "")) for row in trials}
        sweep = CacheSweep({}, _once(rows), prices)
    found = _figures_of(sweep, journal)
    # Of a search, only what went through every conversation is a trial with figures.
    whole = max((point.n or 0 for point in found), default=0)
    return [
        replace(point, proposer=proposers.get(point.policy, ""))
        for point in found
        if not proposers or (point.n or 0) == whole
    ]


def _last_search(
    found: Mapping[str, Finished],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the trials of the search that went on last, and the rows of their conversations.

    A folder may hold searches over other conversations, or over fewer replies of each; they say nothing of
    each other.
    """
    own = [key for key in found if key.startswith(_TRIAL)]
    name = own[-1].rpartition(" ")[0] if own else ""
    trials = [row for key in own if key.rpartition(" ")[0] == name for row in found[key].rows]
    tasks = {str(key) for row in trials for key in row.get("tasks", ())}
    rows = [
        row
        for key, finished in found.items()
        if not key.startswith(_TRIAL) and (key in tasks or not tasks)
        for row in finished.rows
    ]
    return trials, rows


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Make what goes wrong with the values of a file an error that names it."""
    try:
        yield
    except _WRONG as error:
        told = visible(f"{path} cannot be read: {type(error).__name__}: {error}")
        raise ResultsError(told, next_step=_NEXT_STEP) from error


def _figures_of(sweep: CacheSweep, path: Path) -> list[PolicyPoint]:
    with _readable(path):
        figures = sweep.figures
        for result in figures:
            insist_plausible(result)
        return list(_of_results(figures))


def _once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each policy and conversation that ran with the model."""
    found = {(row["policy"], row["trajectory"]): row for row in rows if not row.get("dry")}
    return list(found.values())


def _of_results(results: Iterable[Result]) -> Iterable[PolicyPoint]:
    """Yield the policies that have both figures, as finite numbers; ratios against a peer are left out."""
    found: dict[tuple[str, Any], dict[str, Result]] = defaultdict(dict)
    for result in results:
        policy = result.case.get("policy")
        if isinstance(policy, str) and "peer" not in result.case:
            found[policy, result.case.get("trial")][result.metric] = result
    for (policy, _), figures in found.items():
        nll, cost = figures.get("nll_per_token"), figures.get("cost")
        if nll is not None and cost is not None and math.isfinite(nll.value) and math.isfinite(cost.value):
            yield PolicyPoint(
                policy=policy,
                nll=nll.value,
                cost=cost.value,
                nll_low=_finite(nll.low),
                nll_high=_finite(nll.high),
                cost_low=_finite(cost.low),
                cost_high=_finite(cost.high),
                n=cost.n,
                proposer=str(nll.case.get("proposer", "")),
            )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
