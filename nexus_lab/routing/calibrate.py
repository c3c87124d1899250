"""Calibrating a router on requests with known answers: tau, and the score under which no tool fits."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing.base import CalibrationError
from nexus_lab.routing.calibration import (
    Abstention,
    RouterCalibration,
    auroc,
    calibrate_abstention,
    calibrate_tau,
)
from nexus_lab.routing.gate import rank
from nexus_lab.routing.router import Router
from nexus_lab.routing.rows import file_digest, read_rows
from nexus_lab.routing.scoring import SCORING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["calibrate_router"]

_OWN = "candidates of the row"
_SMALLEST_PART = 4
_DRAWS = 8


class _Seen(NamedTuple):
    """What the gate would see of one request: its kind, margin, fit, and over how many tools."""

    kind: str
    margin: float
    fit: float
    n_tools: int


def calibrate_router(
    router: Router,
    pairs: Path,
    *,
    negatives: Path | None = None,
    percentile: float = 20.0,
    target: float = 0.05,
) -> RouterCalibration:
    """Calibrate both thresholds over the router's registry.

    Parameters
    ----------
    router
        Over the registry that the requests are meant for.
    pairs
        JSON Lines of confusable requests: ``query``, ``context``, ``right`` (a tool of the registry). A row
        that brings its own ``tools`` is no run over the registry; it only takes part in the error rates.
    negatives
        JSON Lines of requests that no tool fits: ``query``, and either ``registry_valid`` (sizes of the
        registry at which none fits) or the row's own ``tools``.
    percentile
        Of the margins, for tau.
    target
        Share of answerable requests that may be refused.

    Raises
    ------
    CalibrationError
        When no request of `pairs` belongs to the registry.
    """
    rows = read_rows(pairs)
    own = [row for row in rows if row.get("tools")]
    ours = [row for row in rows if not row.get("tools") and row.get("right") in router.registry]
    if not ours:
        raise CalibrationError(
            f"no request of {pairs.name} has its right tool in {router.registry.name!r}",
            next_step="give the registry that the pairs were made for",
        )
    registry = router.registry
    described = f"{len(ours)} requests of {pairs.name} over {registry.name} ({len(registry)} tools)"
    seen = [_seen(router, row) for row in ours]
    answerable = _fits_by_size(router, ours)
    abstention = calibrate_abstention(answerable, target=target, source=described)
    without = read_rows(negatives) if negatives is not None else []
    rates = [
        *_rates(abstention, seen, _negatives_over(router, without), registry.name),
        *_own_rates(abstention, router, own, [row for row in without if row.get("tools")]),
    ]
    return RouterCalibration(
        gate=calibrate_tau([one.margin for one in seen], percentile, source=described),
        abstention=replace(abstention, rates=tuple(rates)),
        embedder=router.embedder.fingerprint,
        scoring=SCORING,
        command=_command(pairs, registry, negatives, percentile, target),
        settings={
            "embedder_name": router.embedder.name,
            "registry_fingerprint": registry.fingerprint,
            "pairs_sha256": file_digest(pairs),
            "negatives_sha256": file_digest(negatives) if negatives is not None else None,
        },
    )


def _seen(router: Router, row: dict[str, Any]) -> _Seen:
    stage = router.scores(row["query"], row.get("context") or ())
    ranking = rank(stage)
    return _Seen(str(row.get("kind", "answerable")), ranking.margin, ranking.fit, len(stage.names))


def _fits_by_size(router: Router, rows: list[dict[str, Any]]) -> dict[int, list[float]]:
    """Return the best scores over the registry, and over random parts of it that hold the right tool."""
    stages = [router.scores(row["query"], row.get("context") or ()) for row in rows]
    n_tools = len(router.index)
    chooser = np.random.default_rng(0)
    fits: dict[int, list[float]] = {n_tools: [float(stage.fused.max()) for stage in stages]}
    size = n_tools // 2
    while size >= _SMALLEST_PART:
        fits[size] = [
            max(float(stage.fused[stage.names.index(row["right"])]), float(part.max()))
            for row, stage in zip(rows, stages, strict=True)
            for part in (chooser.choice(stage.fused, size - 1, replace=False) for _ in range(_DRAWS))
        ]
        size //= 2
    return fits


def _negatives_over(router: Router, rows: Iterable[dict[str, Any]]) -> list[_Seen]:
    size = len(router.registry)
    return [_seen(router, row) for row in rows if size in (row.get("registry_valid") or ())]


def _own_rates(
    abstention: Abstention, router: Router, answerable: list[dict[str, Any]], without: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the error rates over rows that bring their own candidates."""
    if not without:
        return []
    small = Router(Registry(), router.embedder, tau=0.0, store=False)

    def over_own(rows: list[dict[str, Any]]) -> list[_Seen]:
        seen = []
        for row in rows:
            small.update(load_registry(row["tools"], name=_OWN))
            seen.append(_seen(small, row))
        return seen

    return _rates(abstention, over_own(answerable), over_own(without), _OWN)


def _rates(
    abstention: Abstention, answerable: list[_Seen], negatives: list[_Seen], over: str
) -> list[dict[str, Any]]:
    fits = [seen.fit for seen in answerable]
    rates = [_rate(abstention, "answerable", over, answerable)] if answerable else []
    for kind in dict.fromkeys(seen.kind for seen in negatives):
        group = [seen for seen in negatives if seen.kind == kind]
        rate = _rate(abstention, kind, over, group)
        if fits:
            rate["auroc"] = round(auroc(fits, [seen.fit for seen in group]), 4)
        rates.append(rate)
    return rates


def _rate(abstention: Abstention, group: str, over: str, seen: list[_Seen]) -> dict[str, Any]:
    refused = sum(one.fit < abstention.at(one.n_tools) for one in seen)
    return {
        "group": group,
        "over": over,
        "n": len(seen),
        "refused": refused,
        "share": round(refused / len(seen), 4),
    }


def _command(
    pairs: Path, registry: Registry, negatives: Path | None, percentile: float, target: float
) -> str:
    parts = ["nexus-lab", "route", "calibrate", "--pairs", pairs.name, "--registry", registry.name]
    if negatives is not None:
        parts += ["--negatives", negatives.name]
    parts += ["--percentile", f"{percentile:g}", "--target", f"{target:g}"]
    return shlex.join(parts)
