"""How well requests find their tool: ours beside plain baselines, over registries of growing size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile, ResultsError, insist_positive, median_interval
from nexus_lab.bench.routing_baselines import Baselines
from nexus_lab.bench.routing_figures import OWN, REGISTRY, Refusable, Seen, confusions, figures
from nexus_lab.bench.routing_rows import asked_for, asked_rows, of_servers, right_tools, unlearned
from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing import EmbeddingStore, Router, load_embedder
from nexus_lab.routing.deciding import reread
from nexus_lab.routing.gate import rank
from nexus_lab.routing.reader import choose_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.bench.routing_model import Generator
    from nexus_lab.routing import CrossEncoder, Embedder, RoutingDecision, StageScores

    Order = NDArray[np.intp]
    Progress = Callable[[str, float], None]

__all__ = ["SYSTEMS", "run"]

SYSTEMS = (
    "full",
    "always_read",
    "no_reader",
    "no_lexical",
    "no_examples",
    "dense_tuned",
    "dense",
    "bm25",
    "rrf",
    "no_prefixes",
)
_TIMED = 40
_DEPTHS = (0, 1000)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is asked over every registry.

    Attributes
    ----------
    store, stock
        The embedder of the router, and the one of the plain baselines; both remember vectors.
    bare
        The latter without its prefixes, where it has any.
    """

    queries: list[dict[str, Any]]
    negatives: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    systems: Sequence[str]
    subsets: Mapping[str, Sequence[str]]
    store: EmbeddingStore
    stock: EmbeddingStore
    reader: CrossEncoder | None
    bare: Embedder | None = None


def run(
    registry: Registry | Path | str,
    queries: Path,
    *,
    negatives: Path | None = None,
    examples: Path | None = None,
    sizes: Sequence[int] | None = None,
    systems: Sequence[str] = SYSTEMS,
    subsets: Mapping[str, Sequence[str]] | None = None,
    apart: float = 0.0,
    tools_apart: float = 0.0,
    servers: Sequence[str] = (),
    known: bool = True,
    embedder: Embedder | str = "bundled",
    cross_encoder: CrossEncoder | str | None = "auto",
    generator: Generator | None = None,
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> ResultFile:
    """Measure routing.

    A request counts as right when the tool in place k or before is its ``gold_tool`` or one of its
    ``also_ok``; ties are broken as the router breaks them, by the place of the tool. Left out, and counted in
    the settings, are requests whose right tool is not in the registry, and those that, masked, equal one of
    the package, which its models learned from.

    Parameters
    ----------
    registry
        The tools.
    queries
        JSON Lines of ``query``, ``context``, ``gold_tool`` (and ``also_ok``, ``style``); ``request`` and
        ``tool`` serve as well.
    negatives
        JSON Lines of requests that no tool fits: ``query``, and either ``registry_valid``, the sizes at which
        none does, or the row's own ``tools``; these are compared only with `queries` that bring ``tools``
        too. Without it there are no figures of how they are told apart.
    examples
        JSON Lines of ``query`` and ``gold_tool`` that the router learns from first; those that are asked
        too are left out.
    sizes
        Measure over the first so many tools, one size after another; all of them by default.
    systems
        Some of `SYSTEMS`: ``full`` is the router; ``always_read`` has the cross-encoder read every request,
        ``no_reader`` none; ``no_lexical`` is its views and examples alone; ``no_examples`` the router over
        tools that it has never seen; ``dense`` one vector of name and description, requests as they are, by
        the embedder as it came, and ``dense_tuned`` by ours; ``bm25`` name (thrice) and description;
        ``rrf`` the reciprocal ranks of ``dense`` and ``bm25``; ``no_prefixes`` is ``dense`` without what the
        embedder wants before a text, where it wants anything.
    subsets
        Ids of queries by name, to be reported on by themselves as well.
    apart
        Share of the requests, by a hash of their text, that is left out: what `calibrate_router` was given
        as its ``share``.
    tools_apart
        Ask only for this share of the tools, by a hash of their names: those that `train_reader` and
        `train_embedder` were given as ``kept_apart``. 0 asks for all.
    servers
        Leave only the tools of these servers in the registry; all by default.
    known
        Give tools of public servers the requests that come with the package, as examples.
    embedder, cross_encoder
        What `Router` takes.
    generator
        Lets a model choose among all tools in its prompt (``concat_all``), and fills its KV cache.
    on_progress
        Called with what is done and the fraction.

    Raises
    ------
    ResultsError
        When no request belongs to the registry, a system or a server is unknown, or a size is below 1.
    """
    for size in sizes or ():
        insist_positive(size=size)
    unknown = sorted(set(systems) - set(SYSTEMS))
    if unknown:
        raise ResultsError(f"unknown system {unknown[0]!r}", next_step=f"choose from {', '.join(SYSTEMS)}")
    tools = of_servers(registry if isinstance(registry, Registry) else load_registry(registry), servers)
    asked = asked_for(asked_rows(queries, apart), tools_apart)
    without = asked_rows(negatives, apart) if negatives is not None else []
    rows, refusable = unlearned(asked), unlearned(without)
    model = embedder if not isinstance(embedder, str) else load_embedder(embedder, threads=threads)
    stock = load_embedder("stock", threads=threads) if embedder == "bundled" else model
    plan = _Plan(
        queries=rows,
        negatives=refusable,
        examples=_examples(examples, rows),
        systems=[name for name in systems if name != "no_prefixes" or _without_prefixes(stock)],
        subsets=subsets or {},
        store=EmbeddingStore(model, queries=True),
        stock=EmbeddingStore(stock, queries=True),
        reader=choose_reader(cross_encoder, embedder),
        bare=_without_prefixes(stock) if "no_prefixes" in systems else None,
    )
    results: list[Result] = []
    used: dict[int, int] = {}
    mistakes: dict[int, list[dict[str, Any]]] = {}
    steps = sorted({min(size, len(tools)) for size in sizes or (len(tools),)})
    for step, size in enumerate(steps):
        part = tools if size == len(tools) else Registry.of(tools.tools[:size], name=tools.name)
        ours = [row for row in rows if right_tools(row, part)]
        used[size] = len(ours)
        if ours:
            tell = _scaled(on_progress, step, len(steps), size)
            seen = _observe(part, ours, plan, known=known, tell=tell)
            results += figures(seen, ours, size, plan.subsets)
            mistakes[size] = confusions(seen, ours) if "full" in seen.places else []
            results += _timings(part, ours, model, plan.reader, known=known)
            if generator is not None:
                router = Router(part, plan.store, cross_encoder=plan.reader, known=known)
                results += generator.measure(router, ours, on_progress or (lambda _what, _done: None))
            plan.store.save()
            plan.stock.save()
    if not results:
        raise ResultsError("no request has its tool in the registry", next_step="give the matching registry")
    settings = {
        "registry": tools.name,
        "fingerprint": tools.fingerprint,
        "queries": queries.name,
        "apart": apart,
        "tools_apart": tools_apart,
        "servers": list(servers),
        "known": known,
        "negatives": negatives.name if negatives else None,
        "examples": len(plan.examples),
        "learned": {"queries": len(asked) - len(rows), "negatives": len(without) - len(refusable)},
        "left_out": {size: len(rows) - count for size, count in used.items()},
        "confusions": mistakes,
        "embedder": model.name,
        "prefixes": {"query": model.query_prefix, "document": model.document_prefix},
        **({"concat_all": generator.told} if generator is not None else {}),
        "embedder_fingerprint": model.fingerprint,
        "cross_encoder": getattr(plan.reader, "fingerprint", None),
    }
    return ResultFile.now("eval routing", results, settings=settings, threads=threads)


def _without_prefixes(embedder: Embedder) -> Embedder | None:
    """Return the embedder without its prefixes; None where it has none, or cannot do without."""
    bare = getattr(embedder, "without_prefixes", None)
    if bare is None or not (embedder.query_prefix or embedder.document_prefix):
        return None
    found: Embedder = bare()
    return found


def _examples(path: Path | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = {row["query"] for row in rows}
    found = asked_rows(path, 0.0) if path is not None else []
    return [row for row in found if row["query"] not in asked and isinstance(row.get("gold_tool"), str)]


def _scaled(tell: Progress | None, step: int, steps: int, size: int) -> Callable[[float], None]:
    if tell is None:
        return lambda _fraction: None
    return lambda fraction: tell(f"{size} tools", (step + fraction) / steps)


def _observe(
    registry: Registry,
    rows: list[dict[str, Any]],
    plan: _Plan,
    *,
    known: bool,
    tell: Callable[[float], None],
) -> Seen:
    contest = _Contest(registry, plan, known=known)
    router = contest.router
    exact = _exact_views(router, plan.store)
    seen = Seen({system: [] for system in plan.systems})
    for number, row in enumerate(rows):
        tell(number / len(rows))
        query, context = row["query"], row.get("context") or ()
        stage = router.scores(query, context)
        decision = router.route(query, context, top_k=len(stage.names))
        right = [stage.names.index(name) for name in right_tools(row, registry)]
        for system in plan.systems:
            order = contest.order(system, query, context, stage=stage, decision=decision)
            seen.places[system].append(_place(order, right))
        seen.decisions.append(decision)
        vector = plan.store.embed_queries([stage.normalised])[0]
        scanned = router.index.scan(router.index.quantise_query(vector)).scores
        cosines = np.asarray([(views @ vector).max() for views in exact])
        seen.int8.append((_place(_descending(scanned), right), _place(_descending(cosines), right)))
    own = _OwnTools(plan)
    seen.beside = [own.answered(row) for row in plan.queries if row.get("tools")] if plan.negatives else []
    seen.refused = _without_tool(router, plan, own)
    return seen


class _Contest:
    """The router and what it is measured against, over one registry."""

    def __init__(self, registry: Registry, plan: _Plan, *, known: bool) -> None:
        self.router = Router(registry, plan.store, cross_encoder=plan.reader, known=known).warm_up()
        for example in plan.examples:
            if example["gold_tool"] in self.router.index:
                self.router.add_example(example["query"], example["gold_tool"])
        self._bare = Router(registry, plan.store, cross_encoder=plan.reader, known=False)
        self._plain, self._tuned = Baselines(registry, plan.stock), Baselines(registry, plan.store)
        self._without = Baselines(registry, plan.bare) if plan.bare is not None else self._plain

    def order(
        self,
        system: str,
        query: str,
        context: Sequence[Any],
        *,
        stage: StageScores,
        decision: RoutingDecision,
    ) -> Order:
        """Return the places of all tools as `system` ranks them, best first."""
        orders: dict[str, Callable[[], Order]] = {
            "full": lambda: _as_decided(decision, stage),
            "always_read": lambda: _as_read(self.router, query, stage, context),
            "no_reader": lambda: rank(stage).order,
            "no_lexical": lambda: _descending(stage.dense),
            "no_examples": lambda: _as_decided(
                self._bare.route(query, context, top_k=len(stage.names)), stage
            ),
            "dense_tuned": lambda: self._tuned.dense(query),
            "dense": lambda: self._plain.dense(query),
            "bm25": lambda: self._plain.bm25(query),
            "rrf": lambda: self._plain.rrf(query),
            "no_prefixes": lambda: self._without.dense(query),
        }
        return orders[system]()


def _as_decided(decision: RoutingDecision, stage: StageScores) -> Order:
    place = {name: number for number, name in enumerate(stage.names)}
    return np.asarray([place[candidate.tool] for candidate in decision.candidates], np.intp)


def _as_read(router: Router, query: str, stage: StageScores, context: Sequence[Any]) -> Order:
    ranking = rank(stage)
    if stage.named:
        return ranking.order
    logits = router.read(query, stage, context)
    weight = router.reader_weights.over(stage, logits.keys())
    return np.asarray(reread(stage, ranking, logits, weight), np.intp)


class _OwnTools:
    """Routes requests over the tools that they bring along, without examples."""

    def __init__(self, plan: _Plan) -> None:
        self._router = Router(Registry(), plan.store, cross_encoder=plan.reader, known=False, store=False)

    def route(self, row: dict[str, Any]) -> RoutingDecision:
        self._router.update(load_registry(row["tools"], name=OWN))
        return self._router.route(row["query"], row.get("context") or ())

    def answered(self, row: dict[str, Any]) -> tuple[bool, RoutingDecision]:
        """Return whether the first tool is right, and the decision."""
        decision = self.route(row)
        right = right_tools(row, self._router.registry)
        return bool(decision.candidates) and decision.candidates[0].tool in right, decision


def _without_tool(router: Router, plan: _Plan, own: _OwnTools) -> list[Refusable]:
    """Route the requests that no tool fits: over the registry, or over the tools that they bring along."""
    size = len(router.registry)
    found = []
    for row in plan.negatives:
        kind = str(row.get("kind", "none"))
        if row.get("tools"):
            found.append(Refusable(kind, OWN, own.route(row)))
        elif size in row.get("registry_valid", (size,)):
            decision = router.route(row["query"], row.get("context") or ())
            found.append(Refusable(kind, REGISTRY, decision))
    return found


def _exact_views(router: Router, store: EmbeddingStore) -> list[NDArray[np.float32]]:
    """Return the float32 vectors of every tool, float32 [n_views, dim] each, that the index holds as INT8."""
    return [
        store.embed_documents([view.text for view in router.index.views(name)]) for name in router.index.names
    ]


def _place(order: Order, right: Sequence[int]) -> int:
    return int(min(np.flatnonzero(order == place)[0] for place in right))


def _descending(scores: NDArray[Any]) -> Order:
    return np.argsort(-scores, kind="stable")


def _timings(
    registry: Registry,
    rows: list[dict[str, Any]],
    model: Embedder,
    reader: CrossEncoder | None,
    *,
    known: bool,
) -> list[Result]:
    """Time whole decisions, the embedding of the request included, in a router that is warm.

    They are timed with and without the cross-encoder, and behind conversations of growing length.
    """
    chosen = rows[:: max(1, len(rows) // _TIMED)][:_TIMED]
    results = []
    for escalated in (False, True) if reader is not None else (False,):
        # A margin is never infinite, nor below zero without a name.
        tau = float("inf") if escalated else 0.0
        router = Router(
            registry, model, tau=tau, threshold=0.0, known=known, cross_encoder=reader if escalated else None
        ).warm_up()
        router.route(chosen[0]["query"])
        case = {"n_tools": len(registry), "system": "full", "escalated": escalated}
        for depth in _DEPTHS:
            history = [{"role": "assistant", "content": "So it goes. " * 20}] * depth
            decisions = [
                router.route(row["query"], [*history, *(row.get("context") or ())]) for row in chosen
            ]
            results += _medians(decisions, {**case, "turns_before": depth})
    return results


def _medians(decisions: list[RoutingDecision], case: dict[str, Any]) -> list[Result]:
    times = [{**decision.times_ms, "all": decision.total_ms} for decision in decisions]
    stages = max(times, key=len)
    results = []
    for stage in stages:
        values = [one[stage] for one in times if stage in one]
        at = {**case, "stage": stage}
        results.append(median_interval(values, case=at, metric="median_ms", unit="ms"))
    return results
