"""One turn as the agent's panel shows it: gathered from events while it runs, complete when it has ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.agent import Event, EventKind, Status
from nexus_lab.agent.base import now_ns
from nexus_lab.agent.rows import FidelityRow, MessageRow, OpRow, RoutingRow, TurnRow
from nexus_lab.lab.grounds import ground_words, marked
from nexus_lab.lab.wire import Ready, error_info, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexus_lab.agent import Turn
    from nexus_lab.agent.base import Row
    from nexus_lab.lab.provenance import Said

__all__ = ["SpanRow", "TurnCard", "TurnLog"]

_RESULT_SHOWN = 20_000
# How the agent ends a result that it has cut.
_CUT = re.compile(r"\n\[cut: (\d+) more tokens\]$")
_FACTS: dict[str, Callable[[Any], str]] = {
    "margin": lambda value: f"margin {value:.4f}",
    "attempt": lambda value: f"attempt {value}",
    "tokens": lambda value: f"{value:,} tokens",
    "reused": lambda value: f"{value:,} reused" if value else "",
    "preferred": lambda value: f"prefers {value}",
    "settled": lambda value: "settled by what was said" if value else "",
    "weighed": lambda value: f"{value} calls weighed",
    "overruled": lambda value: "another than was said most clearly" if value else "",
    "window_turns": lambda value: f"{value} turns before it" if value else "",
    "surrogates": lambda value: f"{value} results shortened" if value else "",
    "server": str,
    "bytes": lambda value: f"{value:,} bytes",
    "reason": str,
    "instead": lambda value: f"instead: {value}",
    "error_type": str,
}
_NOT_SHOWN = frozenset({EventKind.TURN, EventKind.GATE, EventKind.MESSAGE, EventKind.CORRECTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One stage of a turn; `ms` is ``None`` while it runs."""

    id: int
    parent: int | None
    name: str
    kind: str
    status: str
    start_ms: float
    ms: float | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCard:
    """A turn as views show it; see ``TurnCard`` in ``protocol.ts``.

    Attributes
    ----------
    cut_at
        Tokens after which the answer was cut, at its limit; ``None`` where it ended by itself.
    call
        The call as far as the model has written it; empty once its arguments are known.
    marked
        The request in pieces, each with the arguments that were taken from it; empty where none was.
    grounds
        By argument, where its value comes from.
    """

    number: int
    request: str
    marked: tuple[tuple[str, str | None], ...]
    grounds: Mapping[str, str]
    answer: str
    cut_at: int | None
    state: str
    tool: str | None
    server: str | None
    call: str
    arguments: Mapping[str, Any] | None
    result: str | None
    result_is_error: bool
    problem: Mapping[str, Any] | None
    splice: Mapping[str, Any] | None
    total_ms: float | None
    ttft_ms: float | None
    prefill_ms: float | None
    prompt_tokens: int | None
    settings: Mapping[str, Any]
    spans: tuple[SpanRow, ...]


@dataclass(slots=True)
class TurnLog:
    """A turn that is being gathered; not for several threads at a time.

    Attributes
    ----------
    conversation
        Number of the conversation, which tells what the model can know.
    answer, call
        Pieces of the model's text as they came; of the call, those of its last attempt.
    """

    number: int
    request: str
    conversation: int
    start_ns: int
    answer: list[str] = field(default_factory=list)
    call: list[str] = field(default_factory=list)
    cut_at: int | None = None
    state: str = "running"
    tool: str | None = None
    server: str | None = None
    arguments: Mapping[str, Any] | None = None
    result: str | None = None
    result_is_error: bool = False
    problem: Mapping[str, Any] | None = None
    splice: Mapping[str, Any] | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    grounds: Sequence[Mapping[str, Any]] = ()
    spans: dict[int, SpanRow] = field(default_factory=dict)
    ended: TurnCard | None = None
    _sent: Ready | None = None

    def hear(self, event: Event) -> None:
        """Take note of an event of this turn."""
        if event.kind is EventKind.TOOL:
            self._hear_tool(event)
        elif event.kind is EventKind.ARGUMENTS:
            self._hear_arguments(event)
        elif event.kind is EventKind.GENERATE and event.name == "answer":
            tokens, reason = event.attributes.get("tokens"), event.attributes.get("stop_reason")
            self.cut_at = tokens if reason == "max_tokens" and isinstance(tokens, int) else None
        for row in event.rows:
            self._hear_row(row)
        if event.kind not in _NOT_SHOWN:
            self.spans[event.id] = self._span(event)
        if event.kind is EventKind.TURN and event.status is Status.ERROR and self.problem is None:
            name = str(event.attributes.get("error_type", "error"))
            self.problem = {
                "type": name,
                "message": str(event.contents.get("error", name)),
                "next_step": None,
            }

    def wait(self, number: int, tool: str) -> None:
        """Begin to wait for the user's word on call `number`."""
        began = (now_ns() - self.start_ns) / 1e6
        self.spans[-number] = SpanRow(
            id=-number,
            parent=None,
            name="approval",
            kind="approval",
            status=Status.RUNNING.value,
            start_ms=began,
            ms=None,
            detail=f"{tool} waits for approval",
        )

    def waited(self, number: int) -> None:
        """Say that call `number` waits no more, for whatever reason."""
        span = self.spans.get(-number)
        if span is not None:
            self.spans[-number] = replace(
                span,
                status=Status.OK.value,
                ms=(now_ns() - self.start_ns) / 1e6 - span.start_ms,
                detail="waited for approval",
            )

    def end(self, turn: Turn) -> None:
        """Take over what the turn itself says, which is more than its events do."""
        self._take_row(turn.to_row())
        self.problem = error_info(turn.problem) if turn.problem is not None else None
        if turn.splice is not None:
            self.splice = _splice(turn.splice)
        self.ended, self._sent = self._card(), None

    def said(self) -> Said:
        """Return what was said in it."""
        from nexus_lab.lab.provenance import Said

        return Said(self.number, self.request, "".join(self.answer), self.result or "")

    def card(self, *, waiting: bool = False) -> TurnCard:
        """Return the turn as it stands now; one that has ended is the same object each time."""
        return self.ended or self._card(waiting=waiting)

    def sent(self, *, waiting: bool = False) -> Ready | TurnCard:
        """Return the turn for a message; one that has ended is made JSON of only once."""
        if self.ended is None:
            return self._card(waiting=waiting)
        if self._sent is None:
            self._sent = Ready(to_json(self.ended))
        return self._sent

    def _card(self, *, waiting: bool = False) -> TurnCard:
        times = self.times_ms
        shown = self.result if self.result is None else self.result[:_RESULT_SHOWN]
        return TurnCard(
            number=self.number,
            request=self.request,
            marked=marked(self.request, self.grounds) if self.grounds else (),
            grounds=ground_words(self.grounds),
            answer="".join(self.answer).strip(),
            cut_at=self.cut_at,
            state="waiting" if waiting and self.state == "running" else self.state,
            tool=self.tool,
            server=self.server,
            call="".join(self.call) if self.arguments is None else "",
            arguments=self.arguments,
            result=shown,
            result_is_error=self.result_is_error,
            problem=self.problem,
            splice=self.splice,
            total_ms=times.get("total"),
            ttft_ms=None if self.ttft_s is None else self.ttft_s * 1e3,
            prefill_ms=times.get("prefill"),
            prompt_tokens=self.prompt_tokens,
            settings=self.settings,
            spans=tuple(self.spans.values()),
        )

    def _hear_arguments(self, event: Event) -> None:
        if event.duration_ns is None:
            self.call.clear()
        grounds = event.contents.get("grounds")
        if isinstance(grounds, list):
            self.grounds = [ground for ground in grounds if isinstance(ground, dict)]

    def _hear_tool(self, event: Event) -> None:
        self.tool = event.name
        server, arguments = event.attributes.get("server"), event.contents.get("arguments")
        self.server = server if isinstance(server, str) else None
        if isinstance(arguments, dict):
            self.arguments = arguments
        result = event.contents.get("result")
        if isinstance(result, str):
            self.result, self.result_is_error = result, bool(event.attributes.get("is_error"))

    def _hear_row(self, row: Row) -> None:
        if isinstance(row, RoutingRow):
            self.tool = row.tool
        elif isinstance(row, FidelityRow):
            self.splice = _splice(row)
        elif isinstance(row, TurnRow):
            self._take_row(row)
        elif isinstance(row, MessageRow) and row.role == "tool":
            self._hear_result(row.text or "")

    def _hear_result(self, shown: str) -> None:
        """Say at the call how much of its result was not put before the model."""
        cut = _CUT.search(shown)
        calls = [span for span in self.spans.values() if span.kind == EventKind.TOOL]
        if cut is not None and calls:
            detail = f"{calls[-1].detail}, the last {int(cut[1]):,} tokens not shown to the model"
            self.spans[calls[-1].id] = replace(calls[-1], detail=detail)

    def _take_row(self, row: TurnRow) -> None:
        self.state = row.outcome
        self.tool, self.server, self.arguments = row.tool, row.server, row.arguments
        self.result, self.result_is_error = row.result, row.result_is_error
        self.times_ms, self.ttft_s = row.times_ms, row.ttft_s
        self.prompt_tokens, self.settings = row.prompt_tokens, row.settings
        if row.answer:
            self.answer = [row.answer]

    def _span(self, event: Event) -> SpanRow:
        return SpanRow(
            id=event.id,
            parent=event.parent,
            name=event.name,
            kind=event.kind.value,
            status="error" if event.status is Status.INTERRUPTED else event.status.value,
            start_ms=(event.start_ns - self.start_ns) / 1e6,
            ms=None if event.duration_ns is None else event.duration_ns / 1e6,
            detail=", ".join(_details(event)),
        )


def _splice(row: FidelityRow) -> dict[str, Any]:
    return {"path": row.path, "declined": row.decline, "dkl": row.dkl, "noise_floor": row.noise_floor}


def _details(event: Event) -> list[str]:
    """Say in a few words what a span did."""
    words = [word for row in event.rows for word in _row_words(row)]
    if "departure" in event.attributes:
        place, keyword = event.contents.get("path") or "/", event.contents.get("keyword")
        words.append(f"{place} {keyword} {event.attributes['departure']}")
    return [word for word in (*words, *_fact_words(event)) if word]


def _row_words(row: Row) -> list[str]:
    if isinstance(row, RoutingRow):
        return [row.tool or "no tool", row.decision.replace("_", " ")]
    if isinstance(row, OpRow):
        return [row.note]
    if isinstance(row, FidelityRow):
        return [row.path, *([f"D_KL {row.dkl:.4g}"] if row.dkl is not None else [])]
    return []


def _fact_words(event: Event) -> list[str]:
    facts = event.attributes
    words = [write(facts[name]) for name, write in _FACTS.items() if facts.get(name) is not None]
    tokens, seconds = facts.get("tokens"), facts.get("decode_s")
    return [*words, f"{tokens / seconds:.0f} tokens/s"] if tokens and seconds else words
