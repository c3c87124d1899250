"""OTLP JSON: one object with ``resourceSpans``, hex ids, one trace per turn."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import nexus_lab
from nexus_lab.agent.base import EventKind, Status
from nexus_lab.paths import atomic_write
from nexus_lab.trace.exporters.semconv import SEMCONV_NAME, SEMCONV_VERSION, Context, describe
from nexus_lab.trace.schema import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexus_lab.trace.base import Run
    from nexus_lab.trace.selection import Selection
    from nexus_lab.trace.tree import SpanNode

__all__ = ["otlp_document", "write_otlp"]

_INTERNAL = 1
_OK, _ERROR = 1, 2
_STATUS: dict[str, int] = {Status.ERROR: _ERROR, Status.INTERRUPTED: _ERROR, Status.CANCELLED: _ERROR}
# Moments of these kinds stand as span events on the span they happened in.
_MOMENTS: frozenset[str] = frozenset(
    {
        EventKind.GATE,
        EventKind.CACHE_OP,
        EventKind.MESSAGE,
        EventKind.DECLINE,
        EventKind.FIDELITY,
        EventKind.CORRECTION,
    }
)


def write_otlp(selection: Selection, out: Path) -> None:
    """Write `selection` as OTLP JSON."""
    atomic_write(out, to_json(otlp_document(selection), strict=True).encode("utf-8", "replace"))


def otlp_document(selection: Selection) -> dict[str, Any]:
    """Return the OTLP document of `selection`."""
    spans: dict[str, list[dict[str, Any]]] = {run.id: [] for run in selection.manifest.runs}
    rows = _Rows(selection)
    for root in selection.tree():
        trace = _hex(selection.manifest.id, root.run, f"trace {root.id}", digits=32)
        for _, node in root.walk():
            if not _is_moment(node):
                spans.setdefault(root.run, []).append(_span(node, trace, selection, rows))
    resources = {run.id: run for run in selection.manifest.runs}
    found = [(run, listed) for run, listed in spans.items() if listed]
    return {
        "resourceSpans": [
            _resource_spans(selection, run, resources.get(run), listed) for run, listed in found
        ]
    }


class _Rows:
    """Typed rows by the event that carried them; the first, where there are several."""

    def __init__(self, selection: Selection) -> None:
        self._tables = {
            name: {
                (row["run"], row["event"]): row for row in reversed(selection.tables[name].rows(named=True))
            }
            for name in ("routing", "ops", "fidelity", "turns")
        }
        self._models = {run.id: str(run.model.get("name", "")) for run in selection.manifest.runs}

    def context(self, node: SpanNode, conversation: str) -> Context:
        key = (node.run, node.id)
        return Context(
            model=self._models.get(node.run, ""),
            conversation=conversation,
            routing=self._tables["routing"].get(key),
            op=self._tables["ops"].get(key),
            fidelity=self._tables["fidelity"].get(key),
            turn=self._tables["turns"].get(key),
        )


def _is_moment(node: SpanNode) -> bool:
    return node.kind in _MOMENTS and node.duration_ns == 0 and not node.children and node.parent is not None


def _span(node: SpanNode, trace: str, selection: Selection, rows: _Rows) -> dict[str, Any]:
    session = selection.manifest.id
    conversation = f"{selection.manifest.name}/{node.run}"
    name, attributes = describe(node, rows.context(node, conversation))
    span = {
        "traceId": trace,
        "spanId": _hex(session, node.run, str(node.id), digits=16),
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(node.start_ns),
        "endTimeUnixNano": str(node.end_ns),
        "attributes": _attributes(attributes),
        "events": [
            _moment(child, rows.context(child, conversation)) for child in node.children if _is_moment(child)
        ],
        "status": _status(node),
    }
    if node.parent is not None:
        span["parentSpanId"] = _hex(session, node.run, str(node.parent), digits=16)
    return span


def _moment(node: SpanNode, context: Context) -> dict[str, Any]:
    name, attributes = describe(node, context)
    attributes.pop("openinference.span.kind", None)
    return {"timeUnixNano": str(node.start_ns), "name": name, "attributes": _attributes(attributes)}


def _status(node: SpanNode) -> dict[str, Any]:
    code = _STATUS.get(node.status, _OK)
    if code == _OK:
        return {"code": _OK} if node.status == Status.OK else {}
    return {"code": _ERROR, "message": str(node.attributes.get("error_type") or node.status)}


def _resource_spans(
    selection: Selection, run: str, facts: Run | None, spans: list[dict[str, Any]]
) -> dict[str, Any]:
    resource = {
        "service.name": "nexus_lab",
        "service.version": selection.manifest.nexus_lab,
        "nexus.session.id": selection.manifest.id,
        "nexus.session.name": selection.manifest.name,
        "nexus.run": run,
        "nexus.contents": selection.contents,
        "nexus.redacted": list(selection.redacted),
        "nexus.semconv.name": SEMCONV_NAME,
        "nexus.semconv.version": SEMCONV_VERSION,
        **{f"nexus.model.{key}": value for key, value in (facts.model if facts else {}).items()},
        **{f"nexus.settings.{key}": value for key, value in (facts.settings if facts else {}).items()},
        **{f"nexus.host.{key}": value for key, value in (facts.host if facts else {}).items()},
    }
    return {
        "resource": {"attributes": _attributes(resource)},
        "scopeSpans": [
            {"scope": {"name": "nexus_lab.trace", "version": nexus_lab.__version__}, "spans": spans}
        ],
    }


def _hex(*parts: str, digits: int) -> str:
    """Return an id that is the same in every export of the same session."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:digits]


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        # Protocol Buffers' JSON spells these three as texts.
        names = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return {"doubleValue": value if math.isfinite(value) else names.get(value, "NaN")}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": to_json(value, strict=True)}
