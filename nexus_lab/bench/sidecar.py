"""What the sidecar is worth: close decisions as the router leaves them, and after the model tried them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.escalation import escalates
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.agent.sidecar import SIDECAR_DEPTH, SIDECAR_LEAD, Sidecar
from nexus_lab.bench.base import (
    Result,
    ResultFile,
    ResultsError,
    bootstrap,
    insist_positive,
    median_interval,
    proportion,
)
from nexus_lab.bench.routing_rows import asked_rows, right_tools, unlearned
from nexus_lab.bench.trajectories import read_trajectories
from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.agent.sidecar import SidecarResult
    from nexus_lab.engine import Engine
    from nexus_lab.routing import CrossEncoder, Embedder, RoutingDecision

    Row = dict[str, Any]

__all__ = ["LEADS", "WAYS", "run"]

LEADS = (SIDECAR_LEAD, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Nats a token by which another candidate must lead the router's first; each is a figure of its own."""

WAYS = ("mean", "log_chance", "lift")
"""What candidates are compared by: the mean log probability of a token of the name, which is what the agent
takes; their sum; or that sum less what it is behind a request that says nothing, which takes away how ready
the model is to write the name anyway."""

_CONVERSATION = "conversation"
_GATE = "no_rerank"
_NOTHING_SAID = ""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A close decision and what the model made of it."""

    row: Row
    right: frozenset[str]
    decision: RoutingDecision
    gate: RoutingDecision | None
    result: SidecarResult
    idle: tuple[float, ...]

    def before(self) -> bool:
        return self.decision.tool in self.right

    def by_gate(self) -> bool:
        return self.gate is not None and self.gate.tool in self.right

    def chosen(self, lead: float, way: str) -> str | None:
        scores = self.result.scores
        values = {
            "mean": [one.score for one in scores],
            "log_chance": [one.log_chance for one in scores],
            "lift": [one.log_chance - idle for one, idle in zip(scores, self.idle, strict=True)],
        }[way]
        return self.result.best(lead, values) or self.decision.tool

    def after(self, lead: float, way: str) -> bool:
        return self.chosen(lead, way) in self.right


class _Idle:
    """How ready the model is to write each tool's name behind a request that says nothing, once for each."""

    def __init__(self, sidecar: Sidecar, tools: Registry, schema_mode: str) -> None:
        self._sidecar, self._tools, self._mode = sidecar, tools, schema_mode
        self._names = [tool.name for tool in tools.tools]
        self._known: dict[str, float] = {}

    def of(self, result: SidecarResult) -> tuple[float, ...]:
        """Return it for each candidate; 0 where that was declined."""
        return tuple(self._log_chance(one.tool) for one in result.scores)

    def _log_chance(self, name: str) -> float:
        if name not in self._known:
            alone = {name: self._tools[name]}
            found = self._sidecar.validate(alone, _NOTHING_SAID, names=self._names, schema_mode=self._mode)
            self._known[name] = found.scores[0].log_chance if found.scores else 0.0
        return self._known[name]


def run(
    engine: Engine,
    registry: Registry | Path | str,
    queries: Sequence[Path] = (),
    *,
    trajectories: Path | None = None,
    schema_mode: str = "signature",
    depth: int = SIDECAR_DEPTH,
    tau: float | None = None,
    limit: int | None = None,
    known: bool = True,
    windows: bool = True,
    embedder: Embedder | str | None = None,
    cross_encoder: CrossEncoder | str | None = "auto",
    leads: Sequence[float] = LEADS,
    on_progress: Callable[[int, int], None] | None = None,
) -> ResultFile:
    """Route requests, have the model try the candidates of every decision that was too close, and compare.

    Parameters
    ----------
    engine
        The model that tries them.
    registry
        The tools.
    queries
        JSON Lines of ``query``, ``context``, ``gold_tool`` (and ``also_ok``, ``style``), as `eval routing`
        takes them; requests that the package learned from are left out.
    trajectories
        JSON Lines of real conversations. Each call that directly follows something the user said is a case:
        what was said is the request, everything before it the context, tool results included.
    schema_mode
        What the model sees of a tool: ``signature`` or ``full``.
    depth
        Candidates that are tried.
    tau
        Margin under which a decision is too close; ``None`` takes the calibrated one; at infinity all are
        tried but those that name a tool, and none is refused, and the results say ``null``.
    limit
        Most decisions that are tried, evenly chosen.
    known
        Give tools of public servers the requests that come with the package, as examples.
    windows
        Show the model the turns before the request; without them it is the control.
    embedder, cross_encoder
        What `Router` takes; with ``None`` for a cross-encoder nobody is asked before the model.
    leads
        See `LEADS`; they are asked of the mean, and the others of `WAYS` are taken without.
    on_progress
        Called with the decisions tried and all of them.

    Raises
    ------
    ResultsError
        When there is no close decision, or a count means nothing.
    """
    insist_positive(depth=depth, limit=limit)
    if depth > SIDECAR_DEPTH:
        raise ResultsError(f"depth = {depth}", next_step=f"at most {SIDECAR_DEPTH} candidates are tried")
    if schema_mode not in ("signature", "full"):
        raise ResultsError(f"unknown mode {schema_mode!r}", next_step="choose signature or full")
    tools = registry if isinstance(registry, Registry) else load_registry(registry)
    rows = unlearned([row for path in queries for row in asked_rows(path, 0.0) if row.get("gold_tool")])
    rows += list(_spoken_cases(trajectories)) if trajectories is not None else []
    ours = [row for row in rows if right_tools(row, tools)]
    router = Router(
        tools,
        embedder,
        tau=tau,
        top_k=depth,
        threshold=0.0 if tau == float("inf") else None,
        known=known,
        cross_encoder=cross_encoder,
    ).warm_up()
    decisions = [(row, router.route(row["query"], row.get("context") or ())) for row in ours]
    close = [(row, decision) for row, decision in decisions if escalates(decision)]
    n_close = len(close)
    if limit is not None and n_close > limit:
        close = [close[place] for place in np.linspace(0, n_close - 1, limit).round().astype(int)]
    if not close:
        raise ResultsError(
            f"none of {len(ours)} decisions was too close",
            next_step="give requests of this registry, or a larger --tau",
        )
    sidecar = Sidecar(engine, system=SYSTEM_PROMPT)
    idle, gate = _Idle(sidecar, tools, schema_mode), _gate_alone(router, depth=depth, known=known)
    tried = []
    for number, (row, decision) in enumerate(close):
        if on_progress is not None:
            on_progress(number, len(close))
        history = (row.get("context") or ()) if windows else ()
        _, result = sidecar.route(decision, tools, history, schema_mode=schema_mode)
        right = frozenset(right_tools(row, tools))
        by_gate = None if gate is None else gate.route(row["query"], row.get("context") or ())
        tried.append(_Tried(row, right, decision, by_gate, result, idle.of(result)))
    # JSON has no infinity: null stands for the margin that every decision is under.
    margin = router.tau if math.isfinite(router.tau) else None
    reader = router.cross_encoder is not None
    case = {
        "n_tools": len(tools),
        "mode": schema_mode,
        "window": windows,
        "depth": depth,
        "tau": margin,
        "known": known,
        "reader": reader,
    }
    settings = {
        "registry": tools.name,
        "fingerprint": tools.fingerprint,
        "queries": [path.name for path in queries],
        "trajectories": trajectories.name if trajectories is not None else None,
        "requests": len(ours),
        "close": n_close,
        "depth": depth,
        "tau": margin,
        "known": known,
        "model": engine.info.name,
        "model_sha256": engine.info.sha256,
        "cross_encoder": getattr(router.cross_encoder, "fingerprint", None),
        "system": SYSTEM_PROMPT,
        "declined": sorted({one.result.declined.code for one in tried if one.result.declined is not None}),
    }
    results = [
        proportion(n_close, len(ours), case=case, metric="close"),
        *_figures(tried, case, leads, "cross_encoder" if reader else _GATE),
    ]
    return ResultFile.now("eval sidecar", results, settings=settings, threads=engine.threads)


def _gate_alone(router: Router, *, depth: int, known: bool) -> Router | None:
    """Return a router that decides by the scores alone; ``None`` where the given one does."""
    if router.cross_encoder is None:
        return None
    return Router(
        router.registry,
        router.embedder,
        tau=router.tau,
        top_k=depth,
        threshold=0.0 if math.isinf(router.tau) else None,
        known=known,
        cross_encoder=None,
    ).warm_up()


def _spoken_cases(path: Path) -> Iterator[Row]:
    """Yield each call of real conversations that follows directly on something the user said."""
    for trajectory in read_trajectories(path):
        messages = trajectory.messages
        for place in range(1, len(messages)):
            asked, answer = messages[place - 1], messages[place]
            calls = answer.get("tool_calls") or ()
            if asked["role"] == "user" and asked.get("content") and answer["role"] == "assistant" and calls:
                yield {
                    "id": f"{trajectory.name}@{place}",
                    "query": asked["content"],
                    "context": list(messages[: place - 1]),
                    "gold_tool": calls[0]["name"],
                    "style": _CONVERSATION,
                }


def _figures(
    tried: Sequence[_Tried], case: Mapping[str, Any], leads: Sequence[float], baseline: str
) -> list[Result]:
    results = _accuracy(tried, case, leads, baseline)
    styles = dict.fromkeys(one.row["style"] for one in tried if isinstance(one.row.get("style"), str))
    for style in styles if len(styles) > 1 else ():
        part = [one for one in tried if one.row.get("style") == style]
        results += _accuracy(part, {**case, "style": style}, leads[:1], baseline)
    behind = [one for one in tried if one.row.get("context")]
    if behind and len(behind) < len(tried):
        results += _accuracy(behind, {**case, "context": True}, leads[:1], baseline)
    return results + _costs(tried, case, baseline)


def _accuracy(
    tried: Sequence[_Tried], case: Mapping[str, Any], leads: Sequence[float], baseline: str
) -> list[Result]:
    """Return how often the first tool is right, without the sidecar and with it, and what it changes."""
    n = len(tried)
    peers = {baseline: np.asarray([one.before() for one in tried], float)}
    if tried[0].gate is not None:
        peers[_GATE] = np.asarray([one.by_gate() for one in tried], float)
    listed = sum(any(item.tool in one.right for item in one.decision.candidates) for one in tried)
    results = [
        proportion(int(right.sum()), n, case={**case, "system": peer}, metric="top1")
        for peer, right in peers.items()
    ]
    results.append(proportion(listed, n, case={**case, "system": baseline}, metric="among_candidates"))
    for way in WAYS:
        for lead in leads if way == "mean" else (0.0,):
            at = {**case, "system": "sidecar", "score": way, "lead": lead}
            results += _changed(tried, peers, at, baseline)
    return results


def _changed(
    tried: Sequence[_Tried], peers: Mapping[str, NDArray[np.float64]], at: Mapping[str, Any], baseline: str
) -> list[Result]:
    n, way, lead, before = len(tried), at["score"], at["lead"], peers[baseline]
    after = np.asarray([one.after(lead, way) for one in tried], float)
    moved = sum(one.chosen(lead, way) != one.decision.tool for one in tried)
    return [
        proportion(int(after.sum()), n, case=at, metric="top1"),
        *(
            bootstrap(after - right, np.mean, case={**at, "peer": peer}, metric="top1_difference")
            for peer, right in peers.items()
        ),
        proportion(moved, n, case=at, metric="changed"),
        proportion(int(((after == 1) & (before == 0)).sum()), n, case=at, metric="mended"),
        proportion(int(((after == 0) & (before == 1)).sum()), n, case=at, metric="spoiled"),
    ]


def _costs(tried: Sequence[_Tried], case: Mapping[str, Any], baseline: str) -> list[Result]:
    """Return what a close decision costs: milliseconds of router and sidecar, and tokens of the window."""
    results = [
        proportion(
            sum(one.result.declined is not None for one in tried), len(tried), case=case, metric="declined"
        )
    ]
    times = {
        baseline: [one.decision.total_ms for one in tried],
        "sidecar": [one.result.ms for one in tried],
    }
    if tried[0].gate is not None:
        times[_GATE] = [one.gate.total_ms for one in tried if one.gate is not None]
    for system, values in times.items():
        results.append(
            median_interval(values, case={**case, "system": system}, metric="median_ms", unit="ms")
        )
    counts = {
        "tail_tokens": [one.result.tail_tokens for one in tried],
        "block_tokens": [score.block_tokens for one in tried for score in one.result.scores],
        "surrogates": [one.result.window.surrogates for one in tried],
    }
    for metric, numbers in counts.items():
        if numbers:
            results.append(bootstrap(numbers, np.mean, case={**case, "system": "sidecar"}, metric=metric))
    return results
