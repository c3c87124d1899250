"""Calibrating a router on requests with known answers: tau, what reading counts, and when no tool fits."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing.abstain import NoTool, fit_no_tool, reading_signals, stage_signals
from nexus_lab.routing.base import CalibrationError
from nexus_lab.routing.calibration import (
    READER_WEIGHT,
    Abstention,
    Calibration,
    RouterCalibration,
    auroc,
    calibrate_abstention,
    calibrate_tau,
)
from nexus_lab.routing.deciding import reread
from nexus_lab.routing.gate import Ranking, rank
from nexus_lab.routing.known import package_rows_for
from nexus_lab.routing.router import Router
from nexus_lab.routing.rows import file_digest, read_rows
from nexus_lab.routing.scoring import SCORING, StageScores
from nexus_lab.routing.training_rows import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Progress = Callable[[str, float], None]

__all__ = ["calibrate_router"]

_OWN = "candidates of the row"
_SMALLEST_PART = 4
_DRAWS = 8
_WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
_CURVE = 21


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the gate sees of one request.

    Attributes
    ----------
    kind, over
        Which group of requests it is of, and over which tools it was asked.
    right
        Places of the right tools.
    logits
        What the cross-encoder says, by place; empty without one.
    """

    kind: str
    over: str
    right: frozenset[int]
    stage: StageScores
    ranking: Ranking
    logits: Mapping[int, float]

    def signals(self, *, read: bool) -> dict[str, float]:
        """Return what the probability that no tool fits is made from."""
        before = stage_signals(self.stage, self.ranking)
        if not read:
            return before
        return before | reading_signals(np.asarray(list(self.logits.values()), np.float32))

    def place(self, weight: float | None) -> int:
        """Return the place of the right tool, by the scores or after reading."""
        order = (
            self.ranking.order if weight is None else reread(self.stage, self.ranking, self.logits, weight)
        )
        return next(number for number, place in enumerate(order) if int(place) in self.right)


def calibrate_router(
    router: Router,
    pairs: Path,
    *,
    negatives: Sequence[Path] = (),
    percentile: float = 20.0,
    risk: float | None = None,
    target: float = 0.05,
    share: float = 1.0,
    held: float = 0.0,
    on_progress: Progress | None = None,
) -> RouterCalibration:
    """Calibrate the gate, the weight of the cross-encoder and the abstention over the router's registry.

    Parameters
    ----------
    router
        Over the registry that the requests are meant for.
    pairs
        JSON Lines of confusable requests: ``query``, ``context``, ``right`` (a tool of the registry). A row
        that brings its own ``tools`` is no run over the registry; it takes part in the abstention alone.
    negatives
        JSON Lines of requests that no tool fits: ``query``, and either the row's own ``tools`` or
        ``registry_valid`` (sizes of the registry at which none fits; any size where it is not said).
    percentile
        Of the margins, for tau.
    risk
        Instead of a percentile: tau is the least that keeps the accuracy within this of always escalating.
    target
        Share of answerable requests that may be refused.
    share
        Of the requests, by a hash of their text; the others are kept apart to report on.
    held
        Share of the package's own requests without a tool, by a hash of their text, that takes part: the ones
        that `train_reader` was told to hold.

    Raises
    ------
    CalibrationError
        When no request of `pairs` belongs to the registry.
    """
    tell = on_progress or (lambda _what, _done: None)
    rows = [row for row in read_rows(pairs) if share_of(row["query"]) < share]
    without = [row for path in negatives for row in read_rows(path) if share_of(row["query"]) < share]
    registry = router.registry
    ours = [row for row in rows if not row.get("tools") and row.get("right") in registry]
    if not ours:
        raise CalibrationError(
            f"no request of {pairs.name} has its right tool in {registry.name!r}",
            next_step="give the registry that the pairs were made for",
        )
    described = f"{len(ours)} requests of {pairs.name} over {registry.name} ({len(registry)} tools)"
    seen = [_seen(router, row, registry.name) for row in _told(ours, tell, "confusable requests")]
    size = len(registry)
    over = [row for row in without if not row.get("tools") and size in row.get("registry_valid", (size,))]
    none = [_seen(router, row, registry.name) for row in _told(over, tell, "requests without a tool")]
    none += [
        _seen(router, row, registry.name)
        for row in _told(_held_rows(registry, held), tell, "requests of the package")
    ]
    own = [row for row in (*rows, *without) if row.get("tools")] if without else []
    beside = _over_own(router, _told(own, tell, "requests with their own tools"))
    weight = _reader_weight(seen)
    gate, curve = _gate(seen, weight, percentile, risk, described)
    everything = [*seen, *none, *beside]
    source = f"{described}, and {len(none) + len(beside)} more"
    abstention = calibrate_abstention(_fits_by_size(seen), target=target, source=described)
    reads = bool(seen[0].logits)
    before = _no_tool(everything, target, source, read=False)
    after = _no_tool([one for one in everything if one.logits], target, source, read=True) if reads else None
    return RouterCalibration(
        gate=gate,
        abstention=replace(abstention, rates=tuple(_rates(everything, abstention, before, after))),
        embedder=router.embedder.fingerprint,
        scoring=SCORING,
        command=_command(
            pairs,
            registry,
            negatives,
            {"percentile" if risk is None else "risk": percentile if risk is None else risk, "target": target}
            | ({"share": share} if share < 1 else {})
            | ({"held": held} if held else {}),
        ),
        settings={
            "embedder_name": router.embedder.name,
            "registry_fingerprint": registry.fingerprint,
            "pairs_sha256": file_digest(pairs),
            "negatives_sha256": [file_digest(path) for path in negatives],
        },
        reader=getattr(router.cross_encoder, "fingerprint", None),
        reader_weight=weight,
        no_tool=before,
        no_tool_read=after,
        curve=tuple(curve),
    )


def _held_rows(registry: Registry, held: float) -> list[dict[str, Any]]:
    """Return requests of the package that no tool of the registry fits, though some are near."""
    return [
        {"query": row["request"], "kind": "held"}
        for row in package_rows_for(registry)
        if row["tool"] is None
        and share_of(row["request"]) < held
        and any(name in registry for name in row.get("near", ()))
    ]


def _told(rows: list[dict[str, Any]], tell: Progress, what: str) -> Any:
    for number, row in enumerate(rows):
        tell(what, number / len(rows))
        yield row


def _seen(router: Router, row: Mapping[str, Any], over: str) -> _Seen:
    context = row.get("context") or ()
    stage = router.scores(row["query"], context)
    ranking = rank(stage)
    logits = router.read(row["query"], stage, context)
    right = {stage.names.index(row["right"])} if row.get("right") in stage.names else set()
    return _Seen(str(row.get("kind", "answerable")), over, frozenset(right), stage, ranking, logits)


def _over_own(router: Router, rows: Any) -> list[_Seen]:
    """Route each row over the tools that it brings along."""
    small = Router(
        Registry(), router.embedder, tau=0.0, store=False, cross_encoder=router.cross_encoder, known=False
    )
    seen = []
    for row in rows:
        small.update(load_registry(row["tools"], name=_OWN))
        seen.append(_seen(small, row, _OWN))
    return seen


def _reader_weight(seen: list[_Seen]) -> float:
    """Return the weight of the cross-encoder under which the right tools stand highest."""
    if not seen[0].logits:
        return READER_WEIGHT
    heights = [np.mean([1 / (one.place(weight) + 1) for one in seen]) for weight in _WEIGHTS]
    return _WEIGHTS[int(np.argmax(heights))]


def _gate(
    seen: list[_Seen], weight: float, percentile: float, risk: float | None, source: str
) -> tuple[Calibration, list[dict[str, Any]]]:
    """Return tau, and the accuracy for growing shares of requests that are read."""
    margins = np.asarray([one.ranking.margin for one in seen])
    plain = np.asarray([one.place(None) == 0 for one in seen])
    if not seen[0].logits:
        return calibrate_tau(margins.tolist(), percentile, source=source), []
    read = np.asarray([one.place(weight) == 0 for one in seen])
    curve = []
    for share in np.linspace(0, 1, _CURVE):
        tau = float(np.quantile(margins, share)) if share < 1 else float(margins.max()) + 1e-6
        right = np.where(margins < tau, read, plain)
        curve.append({"share": round(float(share), 3), "tau": tau, "top1": round(float(right.mean()), 4)})
    if risk is None:
        return calibrate_tau(margins.tolist(), percentile, source=source), curve
    # The curve may dip again after it first comes near: what counts is where it stays near.
    near = [row["top1"] >= float(read.mean()) - risk for row in curve]
    start = len(near) - next((n for n, ok in enumerate(reversed(near)) if not ok), len(near))
    chosen = curve[min(start, len(curve) - 1)]
    told = f"{source}; the least share within {risk:.1%} of reading always"
    return Calibration(max(0.0, chosen["tau"]), 100 * chosen["share"], len(seen), told), curve


def _fits_by_size(seen: list[_Seen]) -> dict[int, list[float]]:
    """Return the best scores over the registry, and over random parts of it that hold the right tool."""
    n_tools = len(seen[0].stage.names)
    chooser = np.random.default_rng(0)
    fits: dict[int, list[float]] = {n_tools: [float(one.stage.fused.max()) for one in seen]}
    size = n_tools // 2
    while size >= _SMALLEST_PART:
        fits[size] = [
            max(float(one.stage.fused[min(one.right)]), float(part.max()))
            for one in seen
            for part in (chooser.choice(one.stage.fused, size - 1, replace=False) for _ in range(_DRAWS))
        ]
        size //= 2
    return fits


def _no_tool(seen: list[_Seen], target: float, source: str, *, read: bool) -> NoTool | None:
    """Return the model of "no tool fits"; none where there are too few requests to fit it to."""
    try:
        return fit_no_tool(
            [one.signals(read=read) for one in seen],
            [not one.right for one in seen],
            target=target,
            source=source,
        )
    except CalibrationError:
        return None


def _rates(
    seen: list[_Seen], abstention: Abstention, before: NoTool | None, after: NoTool | None
) -> list[dict[str, Any]]:
    """Return how often each group would be refused, read where that can be."""
    doubts: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for one in seen:
        key = ("answerable" if one.right else one.kind, one.over)
        doubts.setdefault(key, []).append(_doubt(one, abstention, before, after))
    rates = []
    for (group, over), values in doubts.items():
        refused = sum(no for _, no in values)
        rate: dict[str, Any] = {"group": group, "over": over, "n": len(values), "refused": refused}
        rate["share"] = round(refused / len(values), 4)
        answerable = doubts.get(("answerable", over))
        if group != "answerable" and answerable:
            doubt, trust = ([value for value, _ in some] for some in (values, answerable))
            rate["auroc"] = round(auroc(doubt, trust), 4)
        rates.append(rate)
    return rates


def _doubt(
    one: _Seen, abstention: Abstention, before: NoTool | None, after: NoTool | None
) -> tuple[float, bool]:
    """Return how doubtful it is that a tool fits, and whether the request would be refused."""
    model = after or before
    if model is None:
        fit = one.ranking.fit
        return -fit, fit < abstention.at(len(one.stage.names))
    chance = model.chance(one.signals(read=after is not None))
    return chance, chance >= model.limit


def _command(pairs: Path, registry: Registry, negatives: Sequence[Path], options: Mapping[str, Any]) -> str:
    parts = ["nexus-lab", "route", "calibrate", "--pairs", pairs.name, "--registry", registry.name]
    for path in negatives:
        parts += ["--negatives", path.name]
    for name, value in options.items():
        parts += [f"--{name}", f"{value:g}"]
    return shlex.join(parts)
