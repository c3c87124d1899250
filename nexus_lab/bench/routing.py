"""How well requests find their tool: ours beside plain baselines, over registries of growing size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile, ResultsError, bootstrap, median_interval, proportion
from nexus_lab.bench.routing_baselines import Baselines
from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing import (
    EmbeddingStore,
    Outcome,
    Router,
    ViewKind,
    auroc,
    load_embedder,
    read_rows,
)
from nexus_lab.routing.gate import rank
from nexus_lab.routing.scoring import tools_by_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.routing import Embedder, RoutingDecision, StageScores

    Order = NDArray[np.intp]
    Progress = Callable[[str, float], None]

__all__ = ["SYSTEMS", "run"]

SYSTEMS = ("full", "no_lexical", "dense", "bm25", "rrf")
_TOPS = (1, 3, 5, 10)
_COVERAGE = 0.8
_TIMED = 40


@dataclass(slots=True)
class _Outcomes:
    """What was seen over one registry: by system the place of the right tool, and ours in full."""

    places: dict[str, list[int]] = field(default_factory=dict)
    decisions: list[RoutingDecision] = field(default_factory=list)
    int8: list[tuple[int, int]] = field(default_factory=list)
    negatives: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is asked over every registry."""

    queries: list[dict[str, Any]]
    negatives: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    systems: Sequence[str]
    store: EmbeddingStore


def run(
    registry: Registry | Path | str,
    queries: Path,
    *,
    negatives: Path | None = None,
    examples: Path | None = None,
    sizes: Sequence[int] | None = None,
    systems: Sequence[str] = SYSTEMS,
    embedder: Embedder | str = "bundled",
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> ResultFile:
    """Measure routing.

    A request counts as right when the tool in place k or before is its ``gold_tool`` or one of its
    ``also_ok``; ties count against us, save those that the router itself breaks. Requests whose right tool
    is not in the registry are left out, and counted in the settings.

    Parameters
    ----------
    registry
        The tools.
    queries
        JSON Lines of ``query``, ``context``, ``gold_tool`` (and ``also_ok``, ``style``).
    negatives
        JSON Lines of requests that no tool fits: ``query`` and ``registry_valid``, the sizes at which none
        does. Without it there are no figures of abstention.
    examples
        JSON Lines of ``query`` and ``gold_tool`` that the router learns from first; those that are asked
        too are left out.
    sizes
        Measure over the first so many tools, one size after another; all of them by default.
    systems
        Some of `SYSTEMS`: ``full`` is the router; ``no_lexical`` its views alone; ``dense`` one vector of
        name and description, requests as they are; ``bm25`` name (thrice) and description; ``rrf`` the
        reciprocal ranks of the last two.
    embedder
        An `Embedder`, or what `load_embedder` takes.
    on_progress
        Called with what is done and the fraction.

    Raises
    ------
    ResultsError
        When no request belongs to the registry, or a system is unknown.
    """
    unknown = sorted(set(systems) - set(SYSTEMS))
    if unknown:
        raise ResultsError(f"unknown system {unknown[0]!r}", next_step=f"choose from {', '.join(SYSTEMS)}")
    tools = registry if isinstance(registry, Registry) else load_registry(registry)
    rows = [row for row in read_rows(queries) if isinstance(row.get("gold_tool"), str)]
    model = embedder if not isinstance(embedder, str) else load_embedder(embedder, threads=threads)
    plan = _Plan(
        rows,
        read_rows(negatives) if negatives is not None else [],
        _examples(examples, rows),
        systems,
        EmbeddingStore(model, queries=True),
    )
    results: list[Result] = []
    used: dict[int, int] = {}
    steps = sorted({min(size, len(tools)) for size in sizes or (len(tools),)})
    for step, size in enumerate(steps):
        part = tools if size == len(tools) else Registry.of(tools.tools[:size], name=tools.name)
        ours = [row for row in rows if _right(row, part)]
        used[size] = len(ours)
        if ours:
            tell = _scaled(on_progress, step, len(steps), size)
            seen = _observe(part, ours, plan, tell)
            results += _figures(seen, ours, size, systems)
            results += _timings(part, ours, model, size)
    plan.store.save()
    if not results:
        raise ResultsError("no request has its tool in the registry", next_step="give the matching registry")
    settings = {
        "registry": tools.name,
        "fingerprint": tools.fingerprint,
        "queries": queries.name,
        "negatives": negatives.name if negatives else None,
        "examples": len(plan.examples),
        "left_out": {size: len(rows) - count for size, count in used.items()},
        "embedder": model.name,
        "embedder_fingerprint": model.fingerprint,
    }
    return ResultFile.now("eval routing", results, settings=settings, threads=threads)


def _examples(path: Path | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = {row["query"] for row in rows}
    found = read_rows(path) if path is not None else []
    return [row for row in found if row["query"] not in asked and isinstance(row.get("gold_tool"), str)]


def _right(row: dict[str, Any], registry: Registry) -> set[str]:
    """Return the tools of the registry that are right for a request; none when its gold tool is not there."""
    known = tools_by_key(registry)
    if row["gold_tool"] not in known:
        return set()
    return {row["gold_tool"], *(name for name in row.get("also_ok") or () if name in known)}


def _scaled(tell: Progress | None, step: int, steps: int, size: int) -> Callable[[float], None]:
    if tell is None:
        return lambda _fraction: None
    return lambda fraction: tell(f"{size} tools", (step + fraction) / steps)


def _observe(
    registry: Registry, rows: list[dict[str, Any]], plan: _Plan, tell: Callable[[float], None]
) -> _Outcomes:
    router = Router(registry, plan.store).warm_up()
    for example in plan.examples:
        if example["gold_tool"] in router.index:
            router.add_example(example["query"], example["gold_tool"])
    baselines = Baselines(registry, plan.store)
    exact = _exact_views(router, plan.store)
    seen = _Outcomes({system: [] for system in plan.systems})
    for number, row in enumerate(rows):
        tell(number / len(rows))
        context = row.get("context") or ()
        stage = router.scores(row["query"], context)
        right = [stage.names.index(name) for name in _right(row, registry)]
        for system, order in _orders(stage, baselines, row["query"], plan.systems).items():
            seen.places[system].append(_place(order, right))
        seen.decisions.append(router.route(row["query"], context))
        vector = plan.store.embed_queries([stage.normalised])[0]
        scanned = router.index.scan(router.index.quantise_query(vector)).scores
        cosines = np.asarray([(views @ vector).max() for views in exact])
        seen.int8.append((_place(_descending(scanned), right), _place(_descending(cosines), right)))
    for row in plan.negatives:
        if len(registry) in (row.get("registry_valid") or ()):
            seen.negatives.append(router.route(row["query"], row.get("context") or ()).fit)
    return seen


def _exact_views(router: Router, store: EmbeddingStore) -> list[NDArray[np.float32]]:
    """Return the float32 vectors of every tool, float32 [n_views, dim] each, that the index holds as INT8."""
    exact = []
    for name in router.index.names:
        rows = [
            (store.embed_queries if view.kind is ViewKind.EXAMPLE else store.embed_documents)([view.text])
            for view in router.index.views(name)
        ]
        exact.append(np.concatenate(rows))
    return exact


def _orders(stage: StageScores, baselines: Baselines, query: str, systems: Iterable[str]) -> dict[str, Order]:
    ours: dict[str, Callable[[], Order]] = {
        "full": lambda: rank(stage).order,
        "no_lexical": lambda: _descending(stage.dense),
        "dense": lambda: baselines.dense(query),
        "bm25": lambda: baselines.bm25(query),
        "rrf": lambda: baselines.rrf(query),
    }
    return {system: ours[system]() for system in systems}


def _place(order: Order, right: Sequence[int]) -> int:
    return int(min(np.flatnonzero(order == place)[0] for place in right))


def _descending(scores: NDArray[Any]) -> Order:
    return np.argsort(-scores, kind="stable")


def _figures(seen: _Outcomes, rows: list[dict[str, Any]], size: int, systems: Sequence[str]) -> list[Result]:
    results = []
    for system in systems:
        case = {"n_tools": size, "system": system}
        results += _accuracy(np.asarray(seen.places[system]), case, _TOPS)
        places = np.asarray(seen.places[system], np.float64)
        results.append(bootstrap(1 / (places + 1), np.mean, case=case, metric="mrr"))
    case = {"n_tools": size, "system": "full"}
    if "full" in systems:
        results += _by_style(seen, rows, case)
        results += _gate(seen, case)
        results += _abstention(seen, case)
    scanned, exact = np.asarray(seen.int8).T
    for top in (1, 10):
        lost = (exact < top).astype(float) - (scanned < top)
        int8 = {"n_tools": size, "system": "int8", "peer": "float32", "top": top}
        results.append(bootstrap(lost, np.mean, case=int8, metric="recall_lost"))
    return results


def _accuracy(places: NDArray[np.int64], case: dict[str, Any], tops: Sequence[int]) -> list[Result]:
    return [proportion(int((places < top).sum()), len(places), case=case, metric=f"top{top}") for top in tops]


def _by_style(seen: _Outcomes, rows: list[dict[str, Any]], case: dict[str, Any]) -> list[Result]:
    places = np.asarray(seen.places["full"])
    results = []
    for style in dict.fromkeys(row["style"] for row in rows if isinstance(row.get("style"), str)):
        chosen = np.asarray([row.get("style") == style for row in rows])
        results += _accuracy(places[chosen], {**case, "style": style}, (1, 3))
    return results


def _gate(seen: _Outcomes, case: dict[str, Any]) -> list[Result]:
    """Return how often the margin was under tau, and how right both sides of it are."""
    right = np.asarray(seen.places["full"]) < 1
    under = np.asarray([decision.margin < decision.tau for decision in seen.decisions])
    results = [proportion(int(under.sum()), len(under), case=case, metric="escalation_rate")]
    for side, chosen in (("at least tau", ~under), ("under tau", under)):
        if chosen.any():
            hits = int(right[chosen].sum())
            gate = {**case, "margin": side}
            results.append(proportion(hits, int(chosen.sum()), case=gate, metric="top1"))
    return results


def _abstention(seen: _Outcomes, case: dict[str, Any]) -> list[Result]:
    """Return how requests with and without a tool are told apart, and what that is worth."""
    refused = [decision.outcome is Outcome.NO_TOOL for decision in seen.decisions]
    results = [proportion(sum(refused), len(refused), case=case, metric="false_abstention")]
    if not seen.negatives:
        return results
    fits = [decision.fit for decision in seen.decisions]
    value, low, high = _auroc_interval(fits, seen.negatives)
    n = len(fits) + len(seen.negatives)
    results.append(Result(case=case, metric="abstain_auroc", value=value, low=low, high=high, n=n))
    threshold = seen.decisions[0].threshold
    caught = sum(fit < threshold for fit in seen.negatives)
    results.append(proportion(caught, len(seen.negatives), case=case, metric="negatives_refused"))
    right = [*(place < 1 for place in seen.places["full"]), *(False for _ in seen.negatives)]
    order = np.argsort(-np.asarray([*fits, *seen.negatives]), kind="stable")[: round(_COVERAGE * n)]
    hits = int(np.asarray(right)[order].sum())
    covered = {**case, "coverage": _COVERAGE}
    results.append(proportion(hits, len(order), case=covered, metric="selective_accuracy"))
    return results


def _auroc_interval(higher: list[float], lower: list[float]) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    above, below = np.asarray(higher), np.asarray(lower)
    draws = [
        auroc(rng.choice(above, above.size).tolist(), rng.choice(below, below.size).tolist())
        for _ in range(1000)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return auroc(higher, lower), float(low), float(high)


def _timings(registry: Registry, rows: list[dict[str, Any]], model: Embedder, size: int) -> list[Result]:
    """Time whole decisions, the embedding of the request included, in a router that is warm."""
    router = Router(registry, model).warm_up()
    chosen = rows[:: max(1, len(rows) // _TIMED)][:_TIMED]
    router.route(chosen[0]["query"])
    decisions = [router.route(row["query"], row.get("context") or ()) for row in chosen]
    case = {"n_tools": size, "system": "full"}
    times = [{**decision.times_ms, "all": decision.total_ms} for decision in decisions]
    return [
        median_interval(
            [stages[stage] for stages in times], case={**case, "stage": stage}, metric="median_ms", unit="ms"
        )
        for stage in times[0]
    ]
