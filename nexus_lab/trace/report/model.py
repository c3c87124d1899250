"""Everything a report says, worked out before a template sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.agent.base import EventKind, Status
from nexus_lab.trace.base import BundleStatus
from nexus_lab.trace.report.cache_view import PlainView, ProgramView, program_views
from nexus_lab.trace.report.facts import Card, FactBox, fact_boxes, total_cards
from nexus_lab.trace.report.figures import Bar, Heatmap, bar, heatmap
from nexus_lab.trace.report.limits import Limits, Shown
from nexus_lab.trace.report.turns import TurnView, turn_views
from nexus_lab.trace.text import (
    clip,
    count,
    duration,
    mapping_of,
    nats,
    plural,
    ratio,
    sentence,
    short_id,
    sign,
    status_word,
)

if TYPE_CHECKING:
    from nexus_lab.trace.selection import Selection

__all__ = ["Report", "build_report"]

_Row = Mapping[str, Any]
_PATHS = {
    "anchored": "anchored: the same tokens stand before it as when it was compiled",
    "repaired": "moved, then repaired",
    "unrepaired": "moved, not repaired",
    "prefill": "prefilled",
}


@dataclass(frozen=True, slots=True)
class DriftView:
    """One heatmap."""

    title: str
    map: Heatmap


@dataclass(frozen=True, slots=True)
class SpliceView:
    """One splice beside what it is compared with, or why it was declined."""

    turn: str
    name: str
    where: str
    path: str
    reason: str
    instead: str
    cost: str
    dkl: str
    dkl_ratio: str
    floor: str
    dkl_bar: Bar
    floor_bar: Bar
    top1: str
    top5: str
    positions: str
    ttft: str
    faster: str
    prefill: str
    ttft_bar: Bar
    prefill_bar: Bar
    recomputed: str
    recomputed_of: str
    recomputed_bar: Bar
    strategy: str
    drift: tuple[DriftView, ...]

    @property
    def declined(self) -> bool:
        """It was not done."""
        return bool(self.reason)


@dataclass(frozen=True, slots=True)
class ProblemView:
    """Something that did not go as asked."""

    turn: str
    tone: str
    sign: str
    word: str
    what: str
    reason: str
    instead: str


@dataclass(frozen=True, slots=True)
class Report:
    """A session as its report shows it."""

    name: str
    created: str
    status: str
    status_sign: str
    status_tone: str
    model: str
    runs: tuple[str, ...]
    events: str
    contents: bool
    redacted: tuple[str, ...]
    notes: tuple[str, ...]
    version: str
    schema: int
    cards: tuple[Card, ...]
    boxes: tuple[FactBox, ...]
    turns: Shown[TurnView]
    programs: Shown[ProgramView]
    plain_programs: Shown[PlainView]
    ops: int
    splices: Shown[SpliceView]
    problems: Shown[ProblemView]


def build_report(selection: Selection, limits: Limits) -> Report:
    """Work out the report of `selection`."""
    manifest = selection.manifest
    latest = manifest.latest
    worked, plain = program_views(selection, limits)
    return Report(
        name=manifest.name,
        created=manifest.created,
        status=str(manifest.status),
        status_sign="✓" if manifest.status is BundleStatus.COMPLETE else "!",
        status_tone="ok" if manifest.status is BundleStatus.COMPLETE else "warn",
        model=str(latest.model.get("name", "")) if latest else "",
        runs=tuple(run.id for run in manifest.runs),
        events=count(selection.tables["events"].height),
        contents=selection.contents,
        redacted=selection.redacted,
        notes=manifest.notes,
        version=manifest.nexus_lab,
        schema=manifest.schema_version,
        cards=total_cards(selection),
        boxes=fact_boxes(latest),
        turns=turn_views(selection, limits),
        programs=worked,
        plain_programs=plain,
        ops=selection.tables["ops"].height,
        splices=_splices(selection, limits),
        problems=_problems(selection, limits),
    )


def _splices(selection: Selection, limits: Limits) -> Shown[SpliceView]:
    table = selection.tables["fidelity"].sort("run", "event")
    shown = table.head(limits.splices)
    drift = _drift(
        selection.tables["drift"].join(shown.select("run", "event"), on=["run", "event"], how="semi"), limits
    )
    views = [_splice(row, drift.get((row["run"], row["event"]), ())) for row in shown.iter_rows(named=True)]
    return Shown.first(views, limits.splices, table.height)


def _drift(table: pl.DataFrame, limits: Limits) -> dict[tuple[str, int], tuple[DriftView, ...]]:
    """Return the last frame of each splice and tensor, as far as the limits go."""
    frames: dict[tuple[str, int, str], list[_Row]] = {}
    for row in table.sort("step").iter_rows(named=True):
        key = (row["run"], row["event"], row["tensor"])
        if frames.get(key) and frames[key][-1]["step"] != row["step"]:
            frames[key] = []
        frames.setdefault(key, []).append(row)
    views: dict[tuple[str, int], tuple[DriftView, ...]] = {}
    for (run, event, tensor), rows in list(frames.items())[: limits.drift_frames]:
        head = rows[0]
        after = f"after step {head['step']} {head['label'] or ''}".rstrip()
        title = f"{tensor.upper()} drift, {head['measure']}, {after}"
        cells = {(row["layer"], row["head"]): row["value"] for row in rows}
        views[run, event] = (*views.get((run, event), ()), DriftView(title, heatmap(cells)))
    return views


def _splice(row: _Row, drift: tuple[DriftView, ...]) -> SpliceView:
    floor, dkl = row["noise_floor"], row["dkl"]
    top = max(dkl or 0.0, floor or 0.0) or 1.0
    ttft, prefill = row["ttft_s"], row["prefill_s"]
    slowest = max(ttft or 0.0, prefill or 0.0) or 1.0
    tokens, repaired = row["n_tokens"], row["repaired"]
    share = repaired / tokens if tokens and repaired is not None else None
    return SpliceView(
        turn="–" if row["turn"] is None else str(row["turn"]),
        name=row["tool"] or short_id(row["block"] or "") or "block",
        where=_where(row),
        path=_PATHS.get(row["path"], row["path"] or ""),
        reason=sentence(row["decline_reason"] or row["decline_code"] or ""),
        instead=(row["decline_instead"] or "full prefill").rstrip("."),
        cost=_seconds(ttft if ttft is not None else prefill),
        dkl=nats(dkl),
        dkl_ratio=_against_floor(dkl, floor),
        floor=nats(floor),
        dkl_bar=bar((dkl or 0.0) / top, kind="ink"),
        floor_bar=bar((floor or 0.0) / top),
        top1=_share(row["top1"]),
        top5=_share(row["top5_overlap"]),
        positions=count(row["n_positions"]),
        ttft=_seconds(ttft),
        faster=f"{ratio(prefill, ttft)} faster" if prefill and ttft else "",
        prefill=_seconds(prefill),
        ttft_bar=bar((ttft or 0.0) / slowest, kind="ink"),
        prefill_bar=bar((prefill or 0.0) / slowest),
        recomputed=_share(share),
        recomputed_of=f"{count(repaired)} of {count(tokens)} tokens" if repaired is not None else "",
        recomputed_bar=bar(share or 0.0, kind="repair"),
        strategy=_strategy(row),
        drift=drift,
    )


def _where(row: _Row) -> str:
    block = f", block {short_id(row['block'])}" if row["block"] else ""
    return f"{plural(row['n_tokens'], 'token')} at n_past {count(row['n_past'])}{block}"


def _against_floor(dkl: float | None, floor: float | None) -> str:
    if dkl is None:
        return "not measured"
    if dkl == 0:
        return "exactly the prefill"
    return f"{ratio(dkl, floor)} floor" if floor else "no floor measured"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else duration(value * 1e9)


def _strategy(row: _Row) -> str:
    budget = f"{100 * row['budget']:.0f} %" if row["budget"] is not None else None
    named = (("repair", row["strategy"]), ("budget", budget), ("contract", row["contract"]))
    return ", ".join(f"{name} {value}" for name, value in named if value)


def _problems(selection: Selection, limits: Limits) -> Shown[ProblemView]:
    events = selection.tables["events"]
    wrong = events.filter(~pl.col("status").is_in([str(Status.OK), str(Status.RUNNING)])).sort("run", "id")
    # A turn only repeats what happened inside it.
    inside = wrong.filter(pl.col("kind") != EventKind.TURN).select("run", "turn").unique()
    told = (pl.col("kind") == EventKind.TURN) & pl.col("known").is_not_null()
    wrong = wrong.join(inside.with_columns(known=pl.lit(True)), on=["run", "turn"], how="left").filter(~told)
    wrong = wrong.sort("run", "id")
    views = [_problem(row) for row in wrong.head(limits.problems).iter_rows(named=True)]
    return Shown.first(views, limits.problems, wrong.height)


def _problem(row: _Row) -> ProblemView:
    attributes, contents = (mapping_of(row[name]) for name in ("attributes", "contents"))
    reasons: Iterable[Any] = (attributes.get("reason"), attributes.get("error_type"), contents.get("error"))
    reason = ": ".join(str(item) for item in reasons if item)
    if row["status"] == Status.INTERRUPTED:
        reason = reason or "The process ended before this did."
    return ProblemView(
        turn="–" if row["turn"] is None else str(row["turn"]),
        tone="warn" if row["status"] == Status.DECLINED else "bad",
        sign=sign(row["status"]),
        word=status_word(row["status"]),
        what=_what((row["kind"] or "").replace("_", " "), row["name"] or ""),
        reason=clip(sentence(reason), 600),
        instead=str(attributes.get("instead", "")),
    )


def _what(kind: str, name: str) -> str:
    return kind if name in ("", kind) else f"{kind}: {name}"
