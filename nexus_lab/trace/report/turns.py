"""The turns of a report: one line each, and the spans inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.agent.base import EventKind, Status
from nexus_lab.trace.report.figures import Bar, MarginBar, bar, margin_bar
from nexus_lab.trace.report.limits import Limits, Shown
from nexus_lab.trace.report.spans import STATUS_TONES, SpanLine, span_lines
from nexus_lab.trace.text import clip, count, duration, from_json, mapping_of, number, sign, status_word
from nexus_lab.trace.tree import SpanNode, build_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nexus_lab.trace.selection import Selection

__all__ = ["Fact", "Gate", "TurnView", "setting_name", "setting_value", "turn_views"]

_Row = dict[str, Any]
_Key = tuple[str, int | None]

# What a gate decision is called, and whether the reader should look twice.
_GATES = {
    "auto": ("ok", "auto"),
    "escalated": ("warn", "escalated"),
    "escalation_unavailable": ("warn", "escalation unavailable"),
    "no_tool": ("muted", "no tool fits"),
}
_OUTCOMES = {"called": "ok", "answered": "ok", "abstained": "muted", "refused": "warn"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and a value; `tone` colours a status."""

    label: str
    value: str
    tone: str = ""
    code: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """A candidate in the list of the best three."""

    tool: str
    score: str
    bar: Bar
    dense: str
    lexical: str
    cross_encoder: str
    sidecar: str | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """A routing decision in one cell."""

    margin: str
    tau: str
    bar: MarginBar | None
    sign: str
    word: str
    tone: str
    reason: str


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn as the report shows it."""

    run: str
    turn: str
    anchor: str
    request: str | None
    answer: str | None
    tool: str | None
    server: str | None
    outcome: str
    outcome_sign: str
    tone: str
    scores: tuple[Score, ...]
    gate: Gate | None
    arguments: tuple[tuple[str, str], ...] | None
    arguments_text: str | None
    result: str | None
    result_tone: str
    result_is_error: bool
    problem: str | None
    length: str
    ttft: str
    stages: tuple[Fact, ...]
    facts: tuple[Fact, ...]
    spans: Shown[SpanLine]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is the same for every turn."""

    limits: Limits
    scale: float
    settings: Mapping[str, Mapping[str, Any]]


def turn_views(selection: Selection, limits: Limits) -> Shown[TurnView]:
    """Return the first turns of the session."""
    events = selection.tables["events"]
    found = events.filter(pl.col("kind") == EventKind.TURN).sort("run", "id")
    shown = found.head(limits.turns)
    spans = _spans(events, shown)
    said = _by_turn(selection, "turns", shown)
    routed = _by_turn(selection, "routing", shown)
    frame = _Frame(
        limits=limits,
        scale=_scale(selection.tables["routing"]),
        settings={run.id: run.settings for run in selection.manifest.runs},
    )
    views = [
        _turn_view(root, said.get((root.run, root.turn)), routed.get((root.run, root.turn)), frame)
        for root in spans
    ]
    return Shown.first(views, limits.turns, found.height)


def _spans(events: pl.DataFrame, turns: pl.DataFrame) -> list[SpanNode]:
    """Return the trees of `turns` only; a long session has far more spans than a report shows."""
    wanted = events.join(turns.select("run", "turn").unique(), on=["run", "turn"], how="semi")
    return [root for root in build_tree(wanted) if root.kind == EventKind.TURN]


def _by_turn(selection: Selection, table: str, turns: pl.DataFrame) -> dict[_Key, _Row]:
    """Return the first row of each turn."""
    rows = selection.tables[table].join(turns.select("run", "turn").unique(), on=["run", "turn"], how="semi")
    return {(row["run"], row["turn"]): row for row in reversed(rows.sort("event").rows(named=True))}


def _scale(routing: pl.DataFrame) -> float:
    """Return the margin at which a bar is full: four times the largest tau, so that tau stays visible."""
    taus = [tau for tau in routing["tau"] if tau]
    margins = [margin for margin in routing["margin"] if margin]
    return 4 * max(taus) if taus else max(margins, default=1.0)


def _turn_view(root: SpanNode, said: _Row | None, routed: _Row | None, frame: _Frame) -> TurnView:
    said, limits = said or {}, frame.limits
    contents = root.contents
    arguments = from_json(said.get("arguments"))
    outcome = said.get("outcome") or status_word(root.status)
    problem = said.get("problem") or root.attributes.get("error_type")
    error = contents.get("error")
    result = said.get("result")
    return TurnView(
        run=root.run,
        turn=str(root.turn if root.turn is not None else root.id),
        anchor=f"turn-{root.run}-{root.id}",
        request=_text(said.get("request") or contents.get("request"), limits),
        answer=_text(said.get("answer") or contents.get("answer"), limits),
        tool=said.get("tool"),
        server=said.get("server"),
        outcome=outcome,
        outcome_sign=sign(root.status) if outcome != "abstained" else "–",
        tone=_OUTCOMES.get(outcome, "bad")
        if root.status == Status.OK
        else STATUS_TONES.get(root.status, "bad"),
        scores=_scores(routed),
        gate=_gate(routed, frame.scale),
        arguments=_pairs(arguments, limits),
        arguments_text=None
        if arguments is None
        else clip(json.dumps(arguments, ensure_ascii=False, indent=2), limits.text),
        result=_text(result, limits) or (_text(error, limits) if problem else None),
        result_tone="bad" if problem or said.get("result_is_error") else "",
        result_is_error=bool(said.get("result_is_error")),
        problem=problem,
        length=duration(root.duration_ns) if root.duration_ns is not None else "unfinished",
        ttft=_seconds(said.get("ttft_s")),
        stages=_stages(said),
        facts=tuple(_facts(root, said, routed, frame.settings.get(root.run, {}))),
        spans=span_lines(root, frame.limits),
    )


def _text(value: Any, limits: Limits) -> str | None:
    if value is None or value == "":
        return None
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), limits.text)


def _pairs(arguments: Any, limits: Limits) -> tuple[tuple[str, str], ...] | None:
    """Return arguments as short key-value lines for the table's cell."""
    if not isinstance(arguments, dict):
        return None if arguments is None else (("", clip(json.dumps(arguments, ensure_ascii=False), 120)),)
    pairs = [(str(key), clip(json.dumps(value, ensure_ascii=False), 120)) for key, value in arguments.items()]
    return tuple(pairs[: max(1, limits.text // 120)])


def _scores(routed: _Row | None) -> tuple[Score, ...]:
    candidates = (routed or {}).get("candidates") or ()
    top = max((item["score"] or 0 for item in candidates), default=0) or 1
    return tuple(
        Score(
            tool=item["tool"],
            score=number(item["score"]),
            bar=bar(
                (item["score"] or 0) / max(1.0, top),
                kind="chosen" if item["tool"] == routed["tool"] else "data",
            ),
            dense=number(item["dense"], 3),
            lexical=number(item["lexical"], 3),
            cross_encoder=number(item["cross_encoder"], 3),
            sidecar=None if item["sidecar"] is None else number(item["sidecar"], 3),
            chosen=item["tool"] == routed["tool"],
        )
        for item in candidates[:8]
        if routed is not None
    )


def _gate(routed: _Row | None, scale: float) -> Gate | None:
    if routed is None:
        return None
    tone, word = _GATES.get(routed["decision"], ("muted", str(routed["decision"])))
    margin, tau = routed["margin"], routed["tau"]
    return Gate(
        margin=number(margin),
        tau=number(tau),
        bar=margin_bar(margin, tau, scale=scale) if margin is not None and tau is not None else None,
        sign={"ok": "✓", "warn": "!", "muted": "–"}[tone],
        word=word,
        tone=tone,
        reason=routed["reason"] or "",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else duration(value * 1e9)


def _facts(
    root: SpanNode, said: _Row, routed: _Row | None, session_settings: Mapping[str, Any]
) -> Iterable[Fact]:
    """Yield what the expanded turn lists beside its time line."""
    if said.get("schema_mode"):
        yield Fact("Schema mode", said["schema_mode"])
    if said.get("prompt_tokens") is not None:
        reused = f", {count(said['reused_tokens'])} of them reused" if said.get("reused_tokens") else ""
        yield Fact("Context", f"{count(said['prompt_tokens'])} tokens{reused}")
    if said.get("generated_tokens") is not None:
        yield Fact("Generated", f"{count(said['generated_tokens'])} tokens")
    settings = mapping_of(said.get("settings"))
    if settings:
        yield Fact("Ran with", _settings(settings, session_settings))
    if routed and routed["times_ms"]:
        yield Fact(
            "Routing",
            ", ".join(f"{item['stage']} {duration((item['ms'] or 0) * 1e6)}" for item in routed["times_ms"]),
        )
    if root.attributes.get("error_type"):
        yield Fact("Error", str(root.attributes["error_type"]), tone="bad")


def _settings(settings: Mapping[str, Any], session: Mapping[str, Any]) -> str:
    """Return a turn's settings, as far as they are not the session's."""
    changed = [
        f"{setting_name(key)} = {setting_value(value)}"
        for key, value in settings.items()
        if key not in session or session[key] != value
    ]
    if not session:
        return ", ".join(changed)
    return f"the session's settings{', but ' if changed else ''}{', '.join(changed)}"


def _stages(said: _Row) -> tuple[Fact, ...]:
    """Return the stages; their total stands in the turn's line already."""
    times = [item for item in said.get("times_ms") or () if item["stage"] != "total"]
    return tuple(Fact(item["stage"], duration((item["ms"] or 0) * 1e6)) for item in times)


def setting_name(key: str) -> str:
    """Return a setting's name as the papers write it."""
    return {"tau": "τ", "k": "K", "m": "M", "r_base": "R_base"}.get(key, key)


def setting_value(value: Any) -> str:
    """Return a setting's value without a float's empty digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
