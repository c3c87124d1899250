"""Calibrating a router on requests with known answers: tau, what reading counts, and when no tool fits."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing.base import CalibrationError
from nexus_lab.routing.calibrate_fitting import FOLDS, Fitting, fold_of
from nexus_lab.routing.calibrate_package import package_observations
from nexus_lab.routing.calibrate_seen import Seen, Unknown, see, see_unknown
from nexus_lab.routing.calibration import (
    READER_WEIGHT,
    Calibration,
    RouterCalibration,
    auroc,
    calibrate_tau,
)
from nexus_lab.routing.router import Router
from nexus_lab.routing.rows import file_digest, read_rows, share_of
from nexus_lab.routing.scoring import SCORING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.routing.abstain import NoTool

    Progress = Callable[[str, float], None]

__all__ = ["calibrate_router"]

_OWN = "candidates of the row"
_SOURCES = ("files", "package", "all")
_WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
_CURVE = 21
# A cross-encoder that counts less says next to nothing, so it is not heard on whether any tool fits either.
_WORTH_READING = 0.02


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
    learn_from: str = "files",
    unknown: Unknown | None = None,
    on_progress: Progress | None = None,
) -> RouterCalibration:
    """Calibrate the gate, the weight of the cross-encoder and the abstention over the router's registry.

    Parameters
    ----------
    router
        Over the registry that the requests are meant for.
    pairs
        JSON Lines of confusable requests: ``query``, ``context``, ``right`` (a tool of the registry), or as
        `train_reader` has them. A row that brings its own ``tools`` is no run over the registry; it takes
        part in the abstention alone.
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
        Share of the package's own requests, by a hash of their text, that takes part: the ones that
        `train_reader` was told to hold.
    learn_from
        What the probability that no tool fits is fitted to: ``files``, the ``package``, or ``all``.
    unknown
        Requests for tools that no model learned from, by which reading is weighed where tools have no
        examples; `pairs` say what it counts without them.

    Raises
    ------
    CalibrationError
        When no request of `pairs` belongs to the registry, `learn_from` is another word, or a share or the
        percentile is beyond its range.

    Notes
    -----
    The rates and the curve are of requests kept apart: of five parts of the files, each is judged by what was
    fitted without it. Where there are too few for that they are of the requests themselves, with ``folds`` 1.
    Where there are too few requests without a tool to fit "no tool fits" anew, the router's own stays.
    """
    _check(learn_from, percentile, target)
    tell = on_progress or (lambda _what, _done: None)
    rows = [_with_right(row) for row in read_rows(pairs) if share_of(row["query"]) < share]
    without = [row for path in negatives for row in read_rows(path) if share_of(row["query"]) < share]
    registry = router.registry
    named = [row for row in rows if not row.get("tools") and isinstance(row.get("right"), str)]
    ours = [row for row in named if row["right"] in registry]
    if not ours:
        raise _none_of(pairs, registry, rows=rows, named=named, share=share)
    described = f"{len(ours)} requests of {pairs.name} over {registry.name} ({len(registry)} tools)"
    seen = [see(router, row, registry.name) for row in _told(ours, tell, "confusable requests")]
    weight = _reader_weight(seen)
    apart_weight = None
    if unknown is not None and seen[0].logits:
        tell("requests for unknown tools", 0.0)
        apart_weight = _reader_weight(see_unknown(router, unknown, share))
    reads = bool(seen[0].logits) and weight >= _WORTH_READING
    size = len(registry)
    over = [row for row in without if not row.get("tools") and _valid_at(row, size)]
    none = [
        see(router, row, registry.name, read=reads) for row in _told(over, tell, "requests without a tool")
    ]
    own = [row for row in (*rows, *without) if row.get("tools")] if without else []
    beside = _over_own(router, _told(own, tell, "requests with their own tools"), read=reads)
    package: list[Seen] = []
    if held and learn_from != "files":
        for number, count, some in package_observations(router, held, read=reads):
            tell("requests of the package", number / count)
            package += some
    gate, curve = _gate(seen, weight, percentile, risk, described)
    everything = [*seen, *none, *beside]
    apart = Fitting(
        package, learn_from, target, registry.name, described, reads=reads, kept=_kept(router, reads=reads)
    )
    judge = apart.judge(everything)
    return RouterCalibration(
        gate=gate,
        abstention=replace(judge.abstention, rates=tuple(_rates(everything, *apart.doubts(everything)))),
        embedder=router.embedder.fingerprint,
        scoring=SCORING,
        command=_command(
            pairs,
            registry,
            negatives,
            {"percentile" if risk is None else "risk": percentile if risk is None else risk, "target": target}
            | ({"share": share} if share < 1 else {})
            | ({"held": held} if held else {})
            | ({"learn-from": learn_from} if learn_from != "files" else {})
            | (unknown.options if unknown is not None else {}),
        ),
        settings={
            "embedder_name": router.embedder.name,
            "registry_fingerprint": registry.fingerprint,
            "pairs_sha256": file_digest(pairs),
            "negatives_sha256": [file_digest(path) for path in negatives],
            **({"unknown_sha256": file_digest(unknown.rows)} if unknown is not None else {}),
        },
        reader=getattr(router.cross_encoder, "fingerprint", None),
        reader_weight=weight,
        reader_weight_unknown=apart_weight,
        no_tool=judge.before,
        no_tool_read=judge.after,
        curve=tuple(curve),
    )


def _check(learn_from: str, percentile: float, target: float) -> None:
    """Raise CalibrationError before minutes are spent on what cannot be."""
    if learn_from not in _SOURCES:
        raise CalibrationError(f"learn_from = {learn_from!r}", next_step=f"choose from {', '.join(_SOURCES)}")
    if not 0 < percentile < 100:  # noqa: PLR2004 - percent
        raise CalibrationError(f"percentile = {percentile:g}", next_step="choose a value between 0 and 100")
    if not 0 < target < 1:
        raise CalibrationError(f"target = {target:g}", next_step="choose a share between 0 and 1")


def _with_right(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its tool under ``right``, also where it is one that a model was trained on."""
    return row if "right" in row else {**row, "right": row.get("tool", row.get("gold_tool"))}


def _valid_at(row: Mapping[str, Any], size: int) -> bool:
    """Whether no tool fits a request over so many tools."""
    sizes = row.get("registry_valid")
    return not isinstance(sizes, list) or size in sizes


def _none_of(
    pairs: Path, registry: Registry, *, rows: Sequence[Any], named: Sequence[Any], share: float
) -> CalibrationError:
    """Return what is wrong with requests of which none can be used."""
    if not rows:
        within = f" within the share {share:g}" if share < 1 else ""
        return CalibrationError(
            f"there is no request in {pairs.name}{within}",
            next_step="take a larger share, or give more requests",
        )
    if named:
        return CalibrationError(
            f"no request of {pairs.name} has its right tool in {registry.name!r}",
            next_step="give the registry that the pairs were made for",
        )
    return CalibrationError(
        f"no request of {pairs.name} names its tool under 'right'",
        next_step='write objects such as {"query": "List my issues", "right": "list_issues"}',
    )


def _kept(router: Router, *, reads: bool) -> tuple[NoTool | None, NoTool | None]:
    """Return what "no tool fits" is judged by now, where that holds for this embedder and cross-encoder."""
    used = router.calibration
    if (used.embedder, used.scoring) != (router.embedder.fingerprint, SCORING):
        return None, None
    same = reads and used.reader == getattr(router.cross_encoder, "fingerprint", None)
    return used.no_tool, used.no_tool_read if same else None


def _told(rows: list[dict[str, Any]], tell: Progress, what: str) -> Any:
    for number, row in enumerate(rows):
        tell(what, number / len(rows))
        yield row


def _over_own(router: Router, rows: Any, *, read: bool) -> list[Seen]:
    """Route each row over the tools that it brings along."""
    small = Router(
        Registry(), router.embedder, tau=0.0, store=False, cross_encoder=router.cross_encoder, known=False
    )
    seen = []
    for row in rows:
        small.update(load_registry(row["tools"], name=_OWN))
        seen.append(see(small, row, _OWN, read=read))
    return seen


def _reader_weight(seen: list[Seen]) -> float:
    """Return the weight of the cross-encoder under which the right tools stand highest."""
    if not seen[0].logits:
        return READER_WEIGHT
    heights = [np.mean([1 / (one.place(weight) + 1) for one in seen]) for weight in _WEIGHTS]
    return _WEIGHTS[int(np.argmax(heights))]


def _read_apart(seen: list[Seen], weight: float) -> Any:
    """Return whether the right tool comes first after reading, bool [n], by the weight of the other folds."""
    weights = [
        _reader_weight(rest) if rest else weight
        for rest in ([one for one in seen if fold_of(one) != fold] for fold in range(FOLDS))
    ]
    return np.asarray([one.place(weights[fold_of(one)]) == 0 for one in seen])


def _gate(
    seen: list[Seen], weight: float, percentile: float, risk: float | None, source: str
) -> tuple[Calibration, list[dict[str, Any]]]:
    """Return tau, and the accuracy for growing shares of requests that are read."""
    margins = np.asarray([one.ranking.margin for one in seen])
    plain = np.asarray([one.place(None) == 0 for one in seen])
    if not seen[0].logits:
        return calibrate_tau(margins.tolist(), percentile, source=source), []
    read = _read_apart(seen, weight)
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


def _rates(seen: list[Seen], doubts: list[tuple[float, bool]], folds: int) -> list[dict[str, Any]]:
    """Return how often each group would be refused, read where that can be."""
    grouped: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for one, doubt in zip(seen, doubts, strict=True):
        grouped.setdefault(("answerable" if one.right else one.kind, one.over), []).append(doubt)
    rates = []
    for (group, over), values in grouped.items():
        refused = sum(no for _, no in values)
        rate: dict[str, Any] = {"group": group, "over": over, "n": len(values), "refused": refused}
        rate["share"] = round(refused / len(values), 4)
        answerable = grouped.get(("answerable", over))
        if group != "answerable" and answerable:
            higher, lower = ([value for value, _ in some] for some in (values, answerable))
            rate["auroc"] = round(auroc(higher, lower), 4)
        rates.append(rate | {"folds": folds})
    return rates


def _command(pairs: Path, registry: Registry, negatives: Sequence[Path], options: Mapping[str, Any]) -> str:
    parts = ["nexus-lab", "route", "calibrate", "--pairs", pairs.name, "--registry", registry.name]
    for path in negatives:
        parts += ["--negatives", path.name]
    for name, value in options.items():
        parts += [f"--{name}", value if isinstance(value, str) else f"{value:g}"]
    return shlex.join(parts)
