"""OTLP JSON as turns: spans are placed by the GenAI conventions, or by OpenInference's span kinds.

A trace whose spans name no agent is one turn. Texts go into contents, never into attributes, whoever wrote
them; numbers and the names that the conventions define go into attributes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Event, EventKind, Status, TurnRow
from nexus_lab.lab.imports import BrokenTranscript, Imported
from nexus_lab.lab.otlp_spans import OtlpSpan, kind_of, spans_of
from nexus_lab.trace.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["events_of_otlp"]

_ATTRIBUTES = {
    "gen_ai.request.model": "model",
    "gen_ai.response.model": "model",
    "llm.model_name": "model",
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.prompt_tokens": "input_tokens",
    "llm.token_count.prompt": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "llm.token_count.completion": "output_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.response.time_to_first_chunk": "ttft_s",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.tool.name": "tool",
    "tool.name": "tool",
    "gen_ai.tool.call.id": "call_id",
    "gen_ai.conversation.id": "conversation",
    "session.id": "conversation",
    "gen_ai.agent.name": "agent",
    "error.type": "error_type",
}
_TEXTS = {
    "gen_ai.input.messages": "prompt",
    "input.value": "prompt",
    "gen_ai.output.messages": "text",
    "output.value": "text",
    "gen_ai.tool.call.arguments": "arguments",
    "gen_ai.tool.call.result": "result",
    "gen_ai.retrieval.query.text": "query",
}
_SILENT = ("gen_ai.operation.name", "openinference.span.kind", "nexus.name", "gen_ai.response.finish_reasons")


def events_of_otlp(documents: Sequence[Any]) -> Imported:
    """Turn OTLP documents into events.

    Raises
    ------
    BrokenTranscript
        Naming the span that is not as it should be.
    """
    spans = [span for document in documents for span in spans_of(document)]
    if not spans:
        raise BrokenTranscript("resourceSpans", "there is no span")
    roots = _linked(spans)
    writer = _Writer()
    for root in roots:
        writer.write(root)
    models = [model for span in spans if isinstance(model := _named(span, "model"), str)]
    note = f"OTLP trace of {plural(writer.turns, 'turn')}, read-only"
    return Imported(
        source="otlp", timed=True, model=models[0] if models else None, events=tuple(writer.events), note=note
    )


# -- placing ------------------------------------------------------------------------------------------------


def _linked(spans: list[OtlpSpan]) -> list[OtlpSpan]:
    """Give each span its children and return the roots by time; what goes in a circle is a root too."""
    by_id = {(span.trace, span.id): span for span in spans}
    roots: list[OtlpSpan] = []
    for span in by_id.values():
        parent = by_id.get((span.trace, span.parent)) if span.parent else None
        (roots if parent is None or parent is span else parent.children).append(span)
    reached: set[tuple[str, str]] = set()
    for root in roots:
        _reach(root, reached)
    for key, span in by_id.items():
        if key not in reached:
            # Nobody leads to it, so its parents go in a circle, which ends here.
            above = by_id[span.trace, span.parent].children
            above[:] = [child for child in above if child is not span]
            roots.append(span)
            _reach(span, reached)
    for span in by_id.values():
        span.children.sort(key=lambda child: child.start)
    return sorted(roots, key=lambda root: root.start)


def _reach(root: OtlpSpan, reached: set[tuple[str, str]]) -> None:
    stack = [root]
    while stack:
        span = stack.pop()
        if (span.trace, span.id) not in reached:
            reached.add((span.trace, span.id))
            stack.extend(span.children)


def _all(root: OtlpSpan) -> Iterator[OtlpSpan]:
    stack = [root]
    while stack:
        span = stack.pop()
        yield span
        stack.extend(reversed(span.children))


# -- writing ------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.turns = 0

    def write(self, root: OtlpSpan) -> None:
        """Write a trace's spans, parents first; the outermost agent spans are its turns."""
        parent = None
        if not any(span.kind is EventKind.TURN for span in _all(root)):
            if root.kind is EventKind.STEP:
                root.kind = EventKind.TURN
            else:
                parent = self._turn(root, None)
        stack: list[tuple[OtlpSpan, int | None, bool]] = [(root, parent, parent is not None)]
        while stack:
            span, above, inside = stack.pop()
            if span.kind is EventKind.TURN and not inside:
                number, inside = self._turn(span, above), True
            else:
                number = self._plain(span, above)
            self._moments(span, number)
            stack.extend((child, number, inside) for child in reversed(span.children))

    def _turn(self, span: OtlpSpan, parent: int | None) -> int:
        self.turns += 1
        row = _turn_row(span, self.turns)
        said = {"request": row.request, "answer": row.answer}
        return self._add(
            EventKind.TURN,
            f"turn {self.turns}",
            parent,
            span,
            attributes={**_facts(span), "turn": self.turns},
            contents={key: value for key, value in said.items() if value},
            rows=(row,),
        )

    def _plain(self, span: OtlpSpan, parent: int | None) -> int:
        kind = EventKind.STEP if span.kind is EventKind.TURN else span.kind
        name = str(_named(span, "tool") or span.attributes.get("nexus.name") or span.name)
        return self._add(
            kind, name, parent, span, attributes=_facts(span), contents=_contents(span.attributes)
        )

    def _moments(self, span: OtlpSpan, parent: int) -> None:
        for name, when, attributes in span.moments:
            point = OtlpSpan(
                span.trace, "", "", name, when, when, failed=False, attributes=attributes, moments=[]
            )
            kind = kind_of(name, attributes)
            label = str(attributes.get("nexus.name") or name)
            self._add(kind, label, parent, point, attributes=_facts(point), contents=_contents(attributes))

    def _add(
        self, kind: EventKind, name: str, parent: int | None, span: OtlpSpan, *, rows: Any = (), **said: Any
    ) -> int:
        number = len(self.events) + 1
        self.events.append(
            Event(
                id=number,
                parent=parent,
                kind=kind,
                name=name,
                start_ns=span.start,
                duration_ns=span.end - span.start,
                status=Status.ERROR if span.failed else Status.OK,
                rows=rows,
                **said,
            )
        )
        return number


def _named(span: OtlpSpan, name: str) -> Any:
    return next(
        (span.attributes[key] for key, to in _ATTRIBUTES.items() if to == name and key in span.attributes),
        None,
    )


def _facts(span: OtlpSpan) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key, value in span.attributes.items():
        if key in _ATTRIBUTES:
            facts.setdefault(_ATTRIBUTES[key], value)
        elif isinstance(value, bool | int | float):
            facts[key] = value
    reasons = span.attributes.get("gen_ai.response.finish_reasons")
    if isinstance(reasons, list) and reasons:
        facts["stop_reason"] = reasons[0]
    return facts


def _contents(attributes: dict[str, Any]) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    for key, value in attributes.items():
        if key in _ATTRIBUTES or key in _SILENT or isinstance(value, bool | int | float) or value is None:
            continue
        contents.setdefault(_TEXTS.get(key, key), _said(value) if key in _TEXTS else value)
    return contents


def _said(value: Any) -> Any:
    """Return JSON that an attribute holds as text, and other text as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _turn_row(root: OtlpSpan, number: int) -> TurnRow:
    tools = [span for span in _all(root) if span.kind is EventKind.TOOL]
    tool = tools[0] if tools else None
    replies = [span for span in _all(root) if span.kind is EventKind.GENERATE]
    asked = _spoken([root, *replies], "prompt", first=True)
    said = _spoken([root, *reversed(replies)], "text", first=False)
    texts = _contents(tool.attributes) if tool is not None else {}
    result = texts.get("result")
    outcome = root.attributes.get("nexus.turn.outcome")
    known = ("called", "answered", "abstained", "refused", "failed", "cancelled")
    guess = "failed" if root.failed else "called" if tool is not None else "answered"
    return TurnRow(
        turn=number,
        outcome=outcome if outcome in known else guess,
        tool=None if tool is None else str(_named(tool, "tool") or tool.name),
        request=asked,
        answer=said,
        arguments=texts.get("arguments"),
        result=result if isinstance(result, str) or result is None else json.dumps(result),
        problem=str(_named(root, "error_type") or "error") if root.failed else None,
        ttft_s=_seconds(_named(root, "ttft_s"), root.attributes.get("nexus.turn.ttft_s")),
        prompt_tokens=_whole(_named(root, "input_tokens")),
        reused_tokens=_whole(_named(root, "cached_tokens")),
        generated_tokens=_whole(_named(root, "output_tokens")),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(*values: Any) -> float | None:
    real = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return float(real[0]) if real else None


def _spoken(spans: Sequence[OtlpSpan], key: str, *, first: bool) -> str | None:
    """Return what was asked, or said, by the first span that holds it."""
    for span in spans:
        value = _contents(span.attributes).get(key)
        text = _last_text(value, "user" if first else "assistant")
        if text:
            return text
    return None


def _last_text(value: Any, role: str) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None if value is None else json.dumps(value)
    messages = [item for item in value if isinstance(item, dict)]
    own = [item for item in messages if item.get("role") in (role, None)] or messages
    for message in reversed(own):
        parts = message.get("parts", message.get("content"))
        if isinstance(parts, str):
            return parts
        for part in reversed(parts if isinstance(parts, list) else []):
            text = part.get("content", part.get("text")) if isinstance(part, dict) else None
            if isinstance(text, str):
                return text
    return None
