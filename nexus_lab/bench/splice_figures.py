"""The figures of a splice sweep: what the rows of a group of cells say, with intervals clustered by tool."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, median_interval
from nexus_lab.bench.clusters import cluster_mean, cluster_median, cluster_ratio, cluster_share
from nexus_lab.bench.splice_proxy import rank_correlation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["all_figures", "quality"]

ALL = "all"
_SHARES = {
    "top1": "top1_agreement",
    "top1_first": "top1_first",
    "tool_match": "tool_match",
    "arguments_match": "arguments_match",
}
_MEANS = {
    "top5_overlap": "top5_overlap",
    "k_drift": "k_drift",
    "v_drift": "v_drift",
    "attention_drift": "attention_drift",
}
_PAPER = ("trailing", "none")
Row = dict[str, Any]


def all_figures(
    cells: Sequence[Row], floors: Sequence[Row], of: Callable[[str], Sequence[Row]]
) -> list[Result]:
    """Return every figure of a sweep.

    Parameters
    ----------
    cells, floors
        Rows of the repairs, with their cell's floor and excess, and rows of the floors.
    of
        Gives the rows of another kind of task.
    """
    results: list[Result] = []
    for (strategy, budget, context), rows in _grouped(floors, "strategy", "budget", "context"):
        for depth, chosen in _by_depth(rows):
            case = _case(depth, strategy, budget, context)
            results += quality(chosen, case)
            schedule = {"permuted": "permuted cells", "split": "batch split"}[budget]
            values, tools = [row["dkl_mean"] for row in chosen], [row["tool"] for row in chosen]
            where = {"schedule": schedule, "depth": depth}
            results.append(cluster_mean(values, tools, case=where, metric="noise_floor", unit="nat"))
    excess = {(*_identity(row), row["context"]): row["excess"] for row in cells}
    for (strategy, budget, context), rows in _grouped(cells, "strategy", "budget", "context"):
        for depth, chosen in _by_depth(rows):
            case = _case(depth, strategy, budget, context)
            results += quality(chosen, case)
            results += _against_peers(chosen, excess, case, (strategy, budget, context))
    return [
        *results,
        *_anchored(of("anchored")),
        *_speed(of("speed")),
        *_passes(of("passes")),
        *_proxy(of("proxy")),
    ]


def quality(rows: Sequence[Row], case: Mapping[str, Any]) -> list[Result]:
    """Return the figures of one group of cells; what was not measured is left out."""
    tools = [row["tool"] for row in rows]
    dkl = [row["dkl_mean"] for row in rows]
    every = np.concatenate([row["dkl"] for row in rows])
    results = [
        cluster_mean(dkl, tools, case=case, metric="dkl_mean", unit="nat"),
        Result(case=case, metric="dkl_p95", value=float(np.quantile(every, 0.95)), n=len(every), unit="nat"),
        cluster_mean(
            [row["greedy_match"] / row["greedy_n"] for row in rows], tools, case=case, metric="greedy_match"
        ),
    ]
    if "excess" in rows[0]:
        floor, beside = [row["floor"] for row in rows], {**case, "peer": "noise floor"}
        excess = [row["excess"] for row in rows]
        results += [
            cluster_mean(excess, tools, case=case, metric="dkl_excess", unit="nat"),
            # Beside a floor of 0 there is no ratio.
            *([cluster_ratio(dkl, floor, tools, case=beside, metric="dkl_ratio")] if sum(floor) else []),
        ]
    for name, metric in _SHARES.items():
        held = [row for row in rows if row.get(name) is not None]
        if held:
            values, owners = [float(row[name]) for row in held], [row["tool"] for row in held]
            results.append(cluster_share(values, owners, case=case, metric=metric))
    for name, metric in _MEANS.items():
        held = [row for row in rows if row.get(name) is not None]
        if held:
            values, owners = [row[name] for row in held], [row["tool"] for row in held]
            results.append(cluster_mean(values, owners, case=case, metric=metric))
    return results + list(_times(rows, case))


def _times(rows: Sequence[Row], case: Mapping[str, Any]) -> Iterator[Result]:
    clocks = {
        "ttft_ratio": ("prefill_ttft_s", "ttft_s", "prefill of block and prompt"),
        "block_ratio": ("prefill_block_s", "block_s", "prefill of the block"),
    }
    for metric, (slow, fast, peer) in clocks.items():
        timed = [row for row in rows if row.get(fast)]
        if timed:
            ratios, tools = [row[slow] / row[fast] for row in timed], [row["tool"] for row in timed]
            yield cluster_median(ratios, tools, case={**case, "peer": peer}, metric=metric)


def _against_peers(
    rows: Sequence[Row],
    excess: Mapping[tuple[Any, ...], float],
    case: Mapping[str, Any],
    key: tuple[str, str, str],
) -> Iterator[Result]:
    """Yield the excess as a share of the paper's repair of the same budget, and of trailing on one block."""
    _, budget, context = key
    for peer_context in dict.fromkeys((_PAPER[1], context)):
        peer = (_PAPER[0], budget, peer_context)
        others = [excess.get((*_cell(row), *peer)) for row in rows]
        known = [other for other in others if other is not None]
        if peer == key or len(known) < len(others) or not sum(known):
            continue
        yield cluster_ratio(
            [row["excess"] for row in rows],
            known,
            [row["tool"] for row in rows],
            case={**case, "peer": f"trailing {budget} behind {peer_context}"},
            metric="excess_ratio",
        )


def _anchored(rows: Sequence[Row]) -> Iterator[Result]:
    for depth, chosen in _by_depth(rows):
        case = _case(depth, "none", "0.0", "identical")
        tools = [row["tool"] for row in chosen]
        dkl = [row["dkl_mean"] for row in chosen]
        yield cluster_mean(dkl, tools, case=case, metric="dkl_mean", unit="nat")
        yield cluster_share([row["top1"] for row in chosen], tools, case=case, metric="top1_agreement")


def _speed(rows: Sequence[Row]) -> Iterator[Result]:
    for key, chosen in _grouped(rows, "depth", "strategy", "budget", "context"):
        case = {**_case(*key), "n_tokens": chosen[0]["n_tokens"]}
        prefill, splice = ([row[name] for row in chosen] for name in ("prefill_s", "splice_s"))
        ratios = [slow / fast for slow, fast in zip(prefill, splice, strict=True)]
        yield median_interval([1e3 * value for value in prefill], case=case, metric="prefill_ms", unit="ms")
        yield median_interval([1e3 * value for value in splice], case=case, metric="splice_ms", unit="ms")
        beside = {**case, "peer": "prefill of the block"}
        yield median_interval(ratios, case=beside, metric="splice_speedup")


def _passes(rows: Sequence[Row]) -> Iterator[Result]:
    for depth, chosen in _by_depth(rows):
        case = {"depth": depth, "peer": "pass over as many tokens in a row"}
        ratios = [row["scattered_s"] / row["contiguous_s"] for row in chosen]
        yield median_interval(ratios, case=case, metric="one_pass_ratio")


def _proxy(rows: Sequence[Row]) -> Iterator[Result]:
    for (context,), held in _grouped(rows, "context"):
        for depth, chosen in _by_depth(held):
            for level in ("token", "head"):
                pairs = [(row[f"{level}_proxy"], row[f"{level}_drift"]) for row in chosen]
                tools = [row["tool"] for row in chosen]
                case = {"depth": depth, "compile_context": context, "proxy": "K variance", "level": level}
                yield from rank_correlation(pairs, tools, case=case)


def _grouped(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return list(groups.items())


def _by_depth(rows: Sequence[Row]) -> Iterator[tuple[int | str, list[Row]]]:
    depths = sorted({row["depth"] for row in rows})
    for depth in depths:
        yield depth, [row for row in rows if row["depth"] == depth]
    if len(depths) > 1:
        yield ALL, list(rows)


def _cell(row: Row) -> tuple[Any, ...]:
    return row["tool"], row["prefix"], row["depth"]


def _identity(row: Row) -> tuple[Any, ...]:
    return (*_cell(row), row["strategy"], row["budget"])


def _case(depth: int | str, strategy: str, budget: str, context: str) -> dict[str, Any]:
    try:
        label: float | str = float(budget)
    except ValueError:
        label = budget
    return {"depth": depth, "strategy": strategy, "budget": label, "compile_context": context}
