"""Records of the routing panel: a decision as views show it, and requests read from a text."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.json_lines import json_lines
from nexus_lab.lab.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.agent import Event
    from nexus_lab.agent.rows import RoutingRow
    from nexus_lab.lab.routing_book import Note
    from nexus_lab.routing import RoutingDecision

__all__ = ["DecisionRow", "of_box", "of_event", "of_note", "requests_in"]

_MOST_REQUESTS = 500
_KEYS = ("request", "query", "question", "text", "prompt", "utterance")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision as views show it; see ``DecisionRow`` in ``protocol.ts``."""

    id: str
    source: str
    turn: int | None
    request: str
    margin: float | None
    tau: float | None
    decision: str
    tool: str | None
    reason: str
    fit: float | None
    threshold: float | None
    candidates: tuple[Mapping[str, Any], ...]
    times_ms: Mapping[str, float]
    settings: Mapping[str, Any]
    mark: str | None = None
    right_tool: str | None = None


def of_event(row: RoutingRow, event: Event, turn: int | None) -> DecisionRow:
    """Return the decision of a turn, from the event that told of it."""
    matched = event.contents.get("matched")
    return DecisionRow(
        id=uuid.uuid4().hex[:12],
        source="turn",
        turn=turn,
        request=row.query or "",
        margin=row.margin,
        tau=row.tau,
        decision=row.decision,
        tool=row.tool,
        reason=row.reason,
        fit=_float(event.attributes.get("fit")),
        threshold=_float(event.attributes.get("threshold")),
        candidates=tuple({**to_json(item), "matched": _text(matched, item.tool)} for item in row.candidates),
        times_ms=dict(row.times_ms),
        settings=dict(row.settings),
    )


def of_note(note: Note) -> DecisionRow:
    """Return a marked decision of an earlier session, of which little more than the mark was kept."""
    return DecisionRow(
        id=note.id,
        source=note.source,
        turn=None,
        request=note.request or "",
        margin=note.margin,
        tau=note.tau,
        decision=note.decision,
        tool=note.tool,
        reason="Marked in an earlier session.",
        fit=None,
        threshold=None,
        candidates=(),
        times_ms={"all": note.ms},
        settings={},
        mark=note.mark,
        right_tool=note.right_tool,
    )


def of_box(decision: RoutingDecision) -> DecisionRow:
    """Return a decision that was made without a turn."""
    matched = decision.matched
    return DecisionRow(
        id=uuid.uuid4().hex[:12],
        source="box",
        turn=None,
        request=decision.request,
        margin=decision.margin,
        tau=decision.tau,
        decision=decision.outcome.value,
        tool=decision.tool,
        reason=decision.reason,
        fit=decision.fit,
        threshold=decision.threshold,
        candidates=tuple(
            {
                "tool": item.tool,
                "dense": item.dense,
                "lexical": item.lexical,
                "score": item.score,
                "cross_encoder": item.cross_encoder,
                "view": item.view.kind.value if item.view is not None else None,
                "matched": matched.get(item.tool),
                "example": item.example,
                "notes": list(item.notes),
            }
            for item in decision.candidates
        ),
        times_ms=dict(decision.times_ms),
        settings=dict(decision.settings),
    )


def _text(texts: Any, key: str) -> str | None:
    text = texts.get(key) if isinstance(texts, dict) else None
    return text if isinstance(text, str) else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def requests_in(text: str) -> list[str]:
    """Read requests from a text: a JSON list, JSON Lines, or one request a line; 500 at most."""
    found = _json_requests(text)
    if found is None:
        found = [request for _, line in json_lines(text) for request in _line_requests(line.strip())]
    return [request for request in found if request][:_MOST_REQUESTS]


def _line_requests(line: str) -> list[str]:
    parsed = _json_requests(line) if line.startswith(("{", '"')) else None
    return [line] if parsed is None else parsed


def _json_requests(text: str) -> list[str] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    named = [_named(entry) for entry in (value if isinstance(value, list) else [value])]
    return [request.strip() for request in named if isinstance(request, str)] or None


def _named(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return next((entry[key] for key in _KEYS if key in entry), None)
