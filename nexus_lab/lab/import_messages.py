"""OpenAI-style messages as turns: each user message begins one, tool calls and their results stand inside."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Event, EventKind, MessageRow, Status, TurnRow, now_ns
from nexus_lab.lab.imports import BrokenTranscript, Imported
from nexus_lab.trace.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.agent.rows import Row

__all__ = ["events_of_messages"]

_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant"}
_KNOWN = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class _Call:
    name: str
    id: str | None
    arguments: Any
    result: str | None = None


@dataclass(slots=True)
class _Turn:
    request: str
    messages: list[MessageRow] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    answer: str = ""


@dataclass(slots=True)
class _Writer:
    """Gives events their ids and their time, which is that of the import: transcripts have none."""

    now: int
    events: list[Event] = field(default_factory=list)

    def add(self, kind: EventKind, name: str, parent: int | None, *rows: Row, **more: Any) -> int:
        number = len(self.events) + 1
        self.events.append(
            Event(
                id=number,
                parent=parent,
                kind=kind,
                name=name,
                start_ns=self.now + number,
                duration_ns=0,
                status=Status.OK,
                rows=rows,
                **more,
            )
        )
        return number


def events_of_messages(conversations: Sequence[Sequence[Any]]) -> Imported:
    """Turn lists of messages into events.

    Raises
    ------
    BrokenTranscript
        Naming the message that is not as it should be.
    """
    writer = _Writer(now_ns())
    n_turns = 0
    for number, messages in enumerate(conversations):
        where = "messages" if len(conversations) == 1 else f"conversation {number + 1}, messages"
        before, turns = _turns(messages, where)
        for row in before:
            writer.add(EventKind.MESSAGE, row.role, None, row)
        for turn in turns:
            n_turns += 1
            _write(writer, turn, n_turns)
    if not n_turns:
        raise BrokenTranscript("messages", "no user speaks, so there is no turn")
    note = f"transcript of {plural(n_turns, 'turn')}, read-only; it says no times"
    return Imported(source="openai_messages", timed=False, model=None, events=tuple(writer.events), note=note)


def _turns(messages: Sequence[Any], where: str) -> tuple[list[MessageRow], list[_Turn]]:
    before: list[MessageRow] = []
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        place = f"{where}[{index}]"
        role, text, calls = _message(message, place)
        if role == "user":
            turns.append(_Turn(request=text))
        rows = turns[-1].messages if turns else before
        call_id = message.get("tool_call_id")
        name = message.get("name")
        rows.append(
            MessageRow(
                role=role,
                text=text,
                tool=name if isinstance(name, str) else None,
                call_id=call_id if isinstance(call_id, str) else None,
            )
        )
        if not turns:
            continue
        turn = turns[-1]
        turn.calls += calls
        if role == "tool":
            _answer_call(turn, call_id, name, text)
        elif role == "assistant" and text:
            turn.answer = text
    return before, turns


def _message(message: Any, where: str) -> tuple[str, str, list[_Call]]:
    if not isinstance(message, dict):
        raise BrokenTranscript(where, f"a message is an object, not {_kind(message)}")
    said = message.get("role")
    role = _ROLES.get(said, said) if isinstance(said, str) else said
    if role not in _KNOWN:
        raise BrokenTranscript(f"{where}.role", f"{said!r} is none of {', '.join(_KNOWN)}")
    return role, _text(message.get("content"), f"{where}.content"), _calls(message, where)


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BrokenTranscript(where, f"contents are a text or a list of parts, not {_kind(content)}")
    parts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text")
            parts.append(text if isinstance(text, str) else f"[{part.get('type', 'part')}]")
        else:
            raise BrokenTranscript(f"{where}[{index}]", f"a part is an object, not {_kind(part)}")
    return "\n".join(parts)


def _calls(message: dict[str, Any], where: str) -> list[_Call]:
    listed = message.get("tool_calls")
    if listed is None:
        legacy = message.get("function_call")
        listed = [] if legacy is None else [{"function": legacy}]
        where = f"{where}.function_call"
    else:
        where = f"{where}.tool_calls"
    if not isinstance(listed, list):
        raise BrokenTranscript(where, f"calls are a list, not {_kind(listed)}")
    return [_call(item, f"{where}[{index}]") for index, item in enumerate(listed)]


def _call(item: Any, where: str) -> _Call:
    function = item.get("function", item) if isinstance(item, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise BrokenTranscript(where, "a call names its function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # models do write calls that are no JSON; the text itself is the record
            arguments = json.loads(arguments)
    call_id = item.get("id")
    return _Call(name, call_id if isinstance(call_id, str) else None, arguments)


def _answer_call(turn: _Turn, call_id: Any, name: Any, text: str) -> None:
    """Give a result to the call it names, or to the oldest that waits."""
    waiting = [call for call in turn.calls if call.result is None]
    named = [call for call in waiting if call.id == call_id] if call_id is not None else []
    same = [call for call in waiting if call.name == name] if name is not None else []
    for call in (*named, *same, *waiting)[:1]:
        call.result = text


def _write(writer: _Writer, turn: _Turn, number: int) -> None:
    called = turn.calls[0] if turn.calls else None
    row = TurnRow(
        turn=number,
        outcome="called" if called else "answered",
        tool=called.name if called else None,
        request=turn.request,
        answer=turn.answer or None,
        arguments=called.arguments if called else None,
        result=called.result if called else None,
    )
    said = {"request": turn.request, "answer": turn.answer}
    root = writer.add(EventKind.TURN, f"turn {number}", None, row, contents=said, attributes={"turn": number})
    for message in turn.messages:
        writer.add(EventKind.MESSAGE, message.role, root, message)
    for call in turn.calls:
        writer.add(
            EventKind.TOOL,
            call.name,
            root,
            attributes={"tool": call.name, "call_id": call.id},
            contents={"arguments": call.arguments, "result": call.result},
        )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
