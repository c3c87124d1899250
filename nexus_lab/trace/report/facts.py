"""The head of a report: totals, and what is known of model, machine and settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.trace.report.figures import Bar, bar
from nexus_lab.trace.report.turns import Fact, setting_name, setting_value
from nexus_lab.trace.text import count, duration, nats, ratio, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nexus_lab.trace.base import Run
    from nexus_lab.trace.selection import Selection

__all__ = ["Card", "FactBox", "Line", "fact_boxes", "total_cards"]

_OUTCOMES = (
    ("called", "✓"),
    ("answered", "✓"),
    ("abstained", "–"),
    ("refused", "!"),
    ("failed", "×"),
    ("cancelled", "×"),
)
_DECISIONS = {
    "auto": "auto",
    "escalated": "escalated",
    "escalation_unavailable": "unavailable",
    "no_tool": "no tool",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a card: label, bar, value."""

    label: str
    value: str
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One number and what it stands beside."""

    title: str
    value: str
    unit: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class FactBox:
    """Facts under a heading: the first few, and all of them as JSON."""

    title: str
    subtitle: str
    facts: tuple[Fact, ...]
    everything: str


def total_cards(selection: Selection) -> tuple[Card, ...]:
    """Return the cards of the session's totals."""
    tables = selection.tables
    return (
        _turns_card(tables["events"], tables["turns"]),
        _gate_card(tables["routing"]),
        _fidelity_card(tables["fidelity"]),
        _ttft_card(tables["turns"], tables["fidelity"]),
        _tokens_card(tables["turns"]),
    )


def _turns_card(events: pl.DataFrame, turns: pl.DataFrame) -> Card:
    spans = events.filter(pl.col("kind") == "turn")
    counts = dict(turns["outcome"].value_counts().iter_rows())
    lines = [Line(f"{sign} {name}", count(counts[name])) for name, sign in _OUTCOMES if name in counts]
    unfinished = spans["duration"].null_count()
    if unfinished:
        lines.append(Line("× unfinished", count(unfinished)))
    length = int(spans["duration"].drop_nulls().to_physical().sum())
    return Card("Turns", count(spans.height), f"in {duration(length)}", tuple(lines))


def _gate_card(routing: pl.DataFrame) -> Card:
    counts: dict[str, int] = dict(routing["decision"].value_counts().iter_rows())
    lines = [
        Line(label, count(counts[name]), bar(counts[name] / routing.height))
        for name, label in _DECISIONS.items()
        if name in counts
    ]
    taus = sorted({f"{tau:.4f}" for tau in routing["tau"].drop_nulls()})
    unit = f"of {count(routing.height)}, τ {taus[0]}" if len(taus) == 1 else f"of {count(routing.height)}"
    return Card(
        "Routed by itself", count(counts.get("auto", 0)) if routing.height else "–", unit, tuple(lines)
    )


def _fidelity_card(fidelity: pl.DataFrame) -> Card:
    spliced = pl.col("decline_code").is_null() & (pl.col("path") != "prefill")
    measured = fidelity.filter(pl.col("dkl").is_not_null() & spliced)
    if not measured.height:
        return Card("Worst D_KL of a splice", "–", "", (Line("no splice was measured", ""),))
    worst = measured.sort("dkl", descending=True).row(0, named=True)
    lines = [Line(f"n = {count(measured.height)} measured", "")]
    if worst["noise_floor"] is not None:
        top = max(worst["dkl"], worst["noise_floor"]) or 1.0
        lines = [
            Line(
                "splice",
                f"{ratio(worst['dkl'], worst['noise_floor'])} floor",
                bar(worst["dkl"] / top, kind="ink"),
            ),
            Line("floor", nats(worst["noise_floor"]), bar(worst["noise_floor"] / top)),
        ]
    return Card("Worst D_KL of a splice", nats(worst["dkl"]), "nats", tuple(lines))


def _ttft_card(turns: pl.DataFrame, fidelity: pl.DataFrame) -> Card:
    times = turns["ttft_s"].drop_nulls().sort()
    if not len(times):
        return Card("First token, median", "–", "", ())
    value, unit = duration(median(times) * 1e9).rsplit(" ", 1)
    lines = [Line("fastest", duration(times[0] * 1e9)), Line("slowest", duration(times[-1] * 1e9))]
    both = fidelity.drop_nulls(["ttft_s", "prefill_s"]).filter(pl.col("decline_code").is_null())
    if both.height:
        faster = ratio(sum(both["prefill_s"]), sum(both["ttft_s"]))
        lines.append(Line("splices, all", f"{faster} faster"))
    return Card("First token, median", value, unit, tuple(lines))


def _tokens_card(turns: pl.DataFrame) -> Card:
    known = turns.drop_nulls(["prompt_tokens", "reused_tokens"])
    context, reused = int(known["prompt_tokens"].sum()), int(known["reused_tokens"].sum())
    made = int(turns["generated_tokens"].sum())
    lines = (
        Line("in context", count(context), bar(1.0)),
        Line("reused", count(reused), bar(reused / context if context else 0.0, kind="ink")),
        Line("generated", count(made)),
    )
    share = f"{100 * reused / context:.1f}" if context else "–"
    return Card("Context reused", share, "%" if context else "", lines)


def fact_boxes(run: Run | None) -> tuple[FactBox, ...]:
    """Return what is known of the newest run's model, machine and settings."""
    if run is None:
        return ()
    settings = dict(run.settings)
    return (
        FactBox("Model", str(run.model.get("name", "")), tuple(_model(run.model)), _all(run.model)),
        FactBox("Machine", str(run.host.get("host", "")), tuple(_machine(run.host)), _all(run.host)),
        FactBox("Settings", str(settings.pop("name", "")), tuple(_settings(settings)), _all(run.settings)),
    )


def _all(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), indent=2, ensure_ascii=False, default=str) if values else ""


def _model(model: Mapping[str, Any]) -> Iterable[Fact]:
    if model.get("sha256"):
        yield Fact("sha256", str(model["sha256"]), code=True)
    shape = [
        f"{count(model[key])} {word}"
        for key, word in (("n_layer", "layers"), ("n_head", "heads"), ("n_head_kv", "KV heads"))
        if isinstance(model.get(key), int)
    ]
    if shape:
        yield Fact("Shape", " × ".join(shape))
    if isinstance(model.get("n_ctx_train"), int):
        yield Fact("Trained context", f"{count(model['n_ctx_train'])} tokens")
    if isinstance(model.get("size_bytes"), int):
        yield Fact("File", size(model["size_bytes"]))
    adapter = model.get("adapter")
    if isinstance(adapter, dict) and adapter.get("name"):
        yield Fact("Adapter", f"{adapter['name']}, rank {adapter.get('rank', '–')}")
        yield Fact("Adapter's sha256", str(adapter.get("sha256", "–")), code=True)
    for key, label in (("architecture", "Architecture"), ("license", "Licence"), ("embedder", "Embedder")):
        if model.get(key):
            yield Fact(label, str(model[key]))


def _machine(host: Mapping[str, Any]) -> Iterable[Fact]:
    for key, label in (("cpu", "Processor"), ("system", "System")):
        if host.get(key):
            yield Fact(label, str(host[key]))
    cores = host.get("cores_physical") or host.get("cpus")
    if cores:
        threads = f", {count(host['threads'])} threads in use" if host.get("threads") else ""
        yield Fact("Cores", f"{count(cores)}{threads}")
    if isinstance(host.get("memory_bytes"), int):
        yield Fact("Memory", size(host["memory_bytes"]))
    if host.get("scan_kernels"):
        yield Fact("Scan kernel", str(host["scan_kernels"][0]))
    versions = host.get("versions")
    if isinstance(versions, dict):
        shown = [
            f"{name} {versions[name]}"
            for name in ("llama-cpp-python", "llama.cpp", "python")
            if name in versions
        ]
        yield Fact("Versions", ", ".join(shown))


def _settings(settings: Mapping[str, Any]) -> Iterable[Fact]:
    for key, value in settings.items():
        shown = "calibrated" if key == "tau" and value is None else setting_value(value)
        yield Fact(setting_name(key), shown)
