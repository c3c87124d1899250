"""The time line of a turn: one line per span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind, OpKind, Status
from nexus_lab.trace.report.figures import Bar, mark
from nexus_lab.trace.report.limits import Limits, Shown
from nexus_lab.trace.text import count, duration, plural, sign, size, status_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexus_lab.trace.tree import SpanNode

__all__ = ["STATUS_TONES", "SpanLine", "span_lines"]

STATUS_TONES: dict[str, str] = {
    Status.OK: "ok",
    Status.DECLINED: "warn",
    Status.RUNNING: "muted",
}


@dataclass(frozen=True, slots=True)
class SpanLine:
    """One line of a turn's time line."""

    depth: int
    kind: str
    name: str
    bar: Bar
    note: str
    tone: str
    length: str


def span_lines(root: SpanNode, limits: Limits) -> Shown[SpanLine]:
    """Return the time line; messages are in the texts above it, and take no time."""
    nodes = [
        (depth - 1, node)
        for depth, node in root.walk()
        if node is not root and node.kind != EventKind.MESSAGE
    ]
    span = max(1, root.end_ns - root.start_ns)
    return Shown.first(
        [_line(depth, node, root.start_ns, span) for depth, node in nodes[: limits.spans_per_turn]],
        limits.spans_per_turn,
        len(nodes),
    )


def _line(depth: int, node: SpanNode, start: int, span: int) -> SpanLine:
    tone = STATUS_TONES.get(node.status, "bad")
    note = _note(node)
    length = node.end_ns - node.start_ns
    if node.status != Status.OK:
        note = f"{sign(node.status)} {status_word(node.status)}{': ' if note else ''}{note}"
    return SpanLine(
        depth=min(depth, 4),
        kind=node.kind.replace("_", " "),
        name=node.name,
        bar=mark(length / span, start=(node.start_ns - start) / span, kind=_fill(node)),
        note=note,
        tone="" if tone == "ok" else tone,
        length=duration(node.duration_ns) if node.duration_ns or node.duration_ns is None else "–",
    )


_FILLS: dict[str, str] = {EventKind.SPLICE: "splice", EventKind.REPAIR: "repair"}


def _fill(node: SpanNode) -> str:
    """Return the pattern of a span: that of its op, or plain."""
    op = node.name.split(" ", 1)[0].lower()
    if node.kind == EventKind.CACHE_OP and op in set(OpKind):
        return op
    return _FILLS.get(node.kind, "append")


def _tokens(value: Any) -> str:
    return plural(value, "token")


_NOTES: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("tokens", _tokens),
    ("input_tokens", lambda value: f"{_tokens(value)} in"),
    ("cached_tokens", lambda value: f"{count(value)} reused"),
    ("reused", lambda value: f"{count(value)} reused" if value else ""),
    ("output_tokens", lambda value: f"{count(value)} out"),
    ("n_past", lambda value: f"at n_past {count(value)}"),
    ("dimensions", lambda value: plural(value, "dimension")),
    ("top_k", lambda value: f"top {value}"),
    ("kernel", lambda value: f"kernel {value}"),
    ("server", lambda value: f"on {value}"),
    ("result_bytes", lambda value: f"{size(value)} back"),
    ("bytes", lambda value: f"{size(value)} back"),
    ("is_error", lambda value: "the tool reports an error" if value else ""),
    ("truncated", lambda value: "cut" if value else ""),
    ("path", str),
    ("schema_mode", str),
    ("attempt", lambda value: f"attempt {value}" if value != 1 else ""),
    ("violations", lambda value: plural(value, "violation") if value else ""),
    ("departure", str),
    ("stop_reason", lambda value: f"ended by {value}"),
    ("error_type", str),
    ("reason", lambda value: str(value).rstrip(".")),
    ("instead", str),
)


def _note(node: SpanNode) -> str:
    """Return what is worth saying of a span, from the attributes that spans are known to carry."""
    parts = []
    for key, say in _NOTES:
        value = node.attributes.get(key)
        if isinstance(value, str | int | float):
            parts.append(_said(say, value))
    return ", ".join(part for part in parts if part)


def _said(say: Callable[[Any], str], value: Any) -> str:
    try:
        return say(value)
    except (TypeError, ValueError):  # a text where a number was expected
        return str(value)
