"""The spans of an OTLP JSON document, checked, with the kind that the conventions give each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.lab.imports import BrokenTranscript

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OtlpSpan", "kind_of", "spans_of"]

_OPERATIONS = {
    "chat": EventKind.GENERATE,
    "text_completion": EventKind.GENERATE,
    "generate_content": EventKind.GENERATE,
    "execute_tool": EventKind.TOOL,
    "embeddings": EventKind.EMBEDDINGS,
    "retrieval": EventKind.RETRIEVAL,
    "invoke_agent": EventKind.TURN,
}
_OPENINFERENCE = {
    "LLM": EventKind.GENERATE,
    "TOOL": EventKind.TOOL,
    "EMBEDDING": EventKind.EMBEDDINGS,
    "RETRIEVER": EventKind.RETRIEVAL,
    "RERANKER": EventKind.RERANK,
    "AGENT": EventKind.TURN,
}
_OWN = {"redecode": EventKind.REPAIR, "cache": EventKind.CACHE_OP}
_ERRORS = (2, "2", "STATUS_CODE_ERROR")
_MOST_SPANS = 500_000


@dataclass(slots=True)
class OtlpSpan:
    """One span; times are nanoseconds, `moments` are its span events: name, time, attributes."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    moments: list[tuple[str, int, dict[str, Any]]]
    kind: EventKind = EventKind.STEP
    children: list[OtlpSpan] = field(default_factory=list)


def spans_of(document: Any) -> Iterator[OtlpSpan]:
    """Yield the spans of a document.

    Raises
    ------
    BrokenTranscript
        Naming the part that is not as it should be.
    """
    count = 0
    for i, resource in enumerate(_list(document, "resourceSpans", "document")):
        at = f"resourceSpans[{i}]"
        # The name that older exporters gave to the same list.
        key = "scopeSpans" if "scopeSpans" in resource else "instrumentationLibrarySpans"
        for j, scope in enumerate(_list(resource, key, at)):
            for k, span in enumerate(_list(scope, "spans", f"{at}.{key}[{j}]")):
                count += 1
                if count > _MOST_SPANS:
                    raise BrokenTranscript("resourceSpans", f"more than {_MOST_SPANS:,} spans")
                yield _span(span, f"{at}.{key}[{j}].spans[{k}]")


def _list(holder: Any, key: str, where: str) -> list[Any]:
    values = holder.get(key, []) if isinstance(holder, dict) else None
    if not isinstance(values, list) or not all(isinstance(item, dict) for item in values):
        raise BrokenTranscript(f"{where}.{key}", "is no list of objects")
    return values


def _span(span: dict[str, Any], where: str) -> OtlpSpan:
    names = (span.get("traceId"), span.get("spanId"))
    if not all(isinstance(name, str) and name for name in names):
        raise BrokenTranscript(where, "a span has a traceId and a spanId")
    parent, name = span.get("parentSpanId"), span.get("name")
    start = _time(span.get("startTimeUnixNano"), f"{where}.startTimeUnixNano")
    status = span.get("status")
    made = OtlpSpan(
        trace=str(names[0]),
        id=str(names[1]),
        parent=parent if isinstance(parent, str) else "",
        name=name if isinstance(name, str) else "span",
        start=start,
        end=max(start, _time(span.get("endTimeUnixNano", start), f"{where}.endTimeUnixNano")),
        failed=isinstance(status, dict) and status.get("code") in _ERRORS,
        attributes=_attributes(span, where),
        moments=[
            (
                str(item.get("name", "event")),
                _time(item.get("timeUnixNano", start), f"{where}.events[{number}].timeUnixNano"),
                _attributes(item, f"{where}.events[{number}]"),
            )
            for number, item in enumerate(_list(span, "events", where))
        ],
    )
    made.kind = kind_of(made.name, made.attributes)
    return made


def _time(value: Any, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 20 else -1  # noqa: PLR2004 - what 64 bits hold
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise BrokenTranscript(where, "a time is a number of nanoseconds")
    return value


def _attributes(holder: dict[str, Any], where: str) -> dict[str, Any]:
    found = {}
    for number, item in enumerate(_list(holder, "attributes", where)):
        key = item.get("key")
        if not isinstance(key, str):
            raise BrokenTranscript(f"{where}.attributes[{number}]", "an attribute has a key")
        found[key] = _value(item.get("value"), f"{where}.attributes[{number}].value")
    return found


def _value(value: Any, where: str) -> Any:
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise BrokenTranscript(where, 'a value is an object such as {"stringValue": ...}')
    kind, inner = next(iter(value.items()))
    if kind == "intValue":
        try:
            return int(inner)
        except (TypeError, ValueError):
            raise BrokenTranscript(where, f"{inner!r} is no whole number") from None
    if kind == "arrayValue":
        return [_value(item, where) for item in _list(inner, "values", where)]
    if kind == "kvlistValue":
        return {
            str(item.get("key")): _value(item.get("value"), where) for item in _list(inner, "values", where)
        }
    if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        return inner
    raise BrokenTranscript(where, f"{kind!r} is no kind of value")


def kind_of(name: str, attributes: dict[str, Any]) -> EventKind:
    """Return what a span of that name is; a step when no convention says."""
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    if name.startswith("nexus."):
        own = name.removeprefix("nexus.")
        if own in _OWN:
            return _OWN[own]
        if own in set(EventKind):
            return EventKind(own)
    said = attributes.get("openinference.span.kind")
    return _OPENINFERENCE.get(said, EventKind.STEP) if isinstance(said, str) else EventKind.STEP
