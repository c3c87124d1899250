"""The turns before a request, short enough to be read again beside every candidate.

What the user and the model said stays as it was. A bulky tool result becomes a line that says what kind of
thing it was and what it was about, since that is what a later "there" or "the second one" points at.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Message = Mapping[str, Any]

__all__ = ["BULKY_CHARS", "WINDOW_TOKENS", "WINDOW_TURNS", "Spoken", "Window", "recent_window", "surrogate"]

BULKY_CHARS = 240
"""A tool result longer than this is replaced by a surrogate."""
WINDOW_TURNS = 3
"""Most turns of a window."""
WINDOW_TOKENS = 384
"""Most tokens of all texts of a window, markup aside."""

_FIELDS = 6
_VALUE_CHARS = 48
_LINE_CHARS = 96
_SCANNED_CHARS = 20_000
# Nested or not, and also where the text was cut: pairs of a key and a plain value.
_PAIR = re.compile(
    r'"(?P<key>[A-Za-z_][\w.-]{0,40})"\s{0,8}:\s{0,8}'
    r'(?P<value>"(?:[^"\\]|\\.){0,400}"|-?\d{1,20}(?:\.\d{1,20})?|true|false)'
)
# What a later request may refer to, before all else.
_IDENTITY = re.compile(
    r"(?:^|_)(?:name|full_name|id|number|title|owner|repo|repository|login|path|file|url|branch|ref|sha"
    r"|key|slug|user|email|state|status|date|code)$|Id$|Name$|Number$",
)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One message as the window has it: role (``user``, ``assistant``, ``tool``) and text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The turns that a candidate is judged behind.

    Attributes
    ----------
    messages
        Oldest first; the first is the user's.
    turns, turns_left_out
        Turns of the conversation that are in it, and older ones that are not. A turn begins with what the
        user says.
    surrogates
        Tool results that stand in it as surrogates.
    n_tokens
        Tokens of its texts, markup aside.
    """

    messages: tuple[Spoken, ...] = ()
    turns: int = 0
    turns_left_out: int = 0
    surrogates: int = 0
    n_tokens: int = 0


def recent_window(
    history: Sequence[Message],
    count_tokens: Callable[[str], int],
    *,
    most_turns: int = WINDOW_TURNS,
    most_tokens: int = WINDOW_TOKENS,
) -> Window:
    """Return the newest whole turns of `history` that fit, bulky tool results as surrogates.

    Parameters
    ----------
    history
        Messages before the request, oldest first: ``role``, ``content``, and ``tool_calls`` of ``name`` and
        ``arguments`` (also under ``function``). Those of the system are no part of it, nor is what stands
        before the first thing that the user said.
    count_tokens
        Length of a text in tokens.
    most_turns, most_tokens
        Limits; a turn that does not fit ends the window.
    """
    turns = _turns(history)
    kept: list[list[Spoken]] = []
    used = surrogates = 0
    for turn in reversed(turns[-most_turns:] if most_turns > 0 else []):
        spoken, replaced = _spoken(turn)
        size = sum(count_tokens(message.text) for message in spoken)
        if used + size > most_tokens:
            break
        kept.insert(0, spoken)
        used, surrogates = used + size, surrogates + replaced
    return Window(
        messages=tuple(message for turn in kept for message in turn),
        turns=len(kept),
        turns_left_out=len(turns) - len(kept),
        surrogates=surrogates,
        n_tokens=used,
    )


def _turns(history: Sequence[Message]) -> list[list[Message]]:
    turns: list[list[Message]] = []
    for message in history:
        if message.get("role") == "user":
            if _text(message):
                turns.append([message])
        elif turns and message.get("role") in {"assistant", "tool"}:
            turns[-1].append(message)
    return turns


def _spoken(turn: Iterable[Message]) -> tuple[list[Spoken], int]:
    spoken: list[Spoken] = []
    replaced = 0
    for message in turn:
        text, role = _text(message), str(message["role"])
        if role == "assistant":
            text = "\n".join(part for part in (text, *map(_call_text, _calls(message))) if part)
        elif role == "tool" and len(text) > BULKY_CHARS:
            text, replaced = surrogate(text), replaced + 1
        if text:
            spoken.append(Spoken(role, text))
    return spoken, replaced


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _calls(message: Message) -> list[Message]:
    calls = message.get("tool_calls")
    named = [call.get("function", call) for call in calls if isinstance(call, dict)] if calls else []
    return [call for call in named if isinstance(call, dict) and isinstance(call.get("name"), str)]


def _call_text(call: Message) -> str:
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}
    return json.dumps({"name": call["name"], "arguments": arguments or {}}, ensure_ascii=False, default=str)


def surrogate(text: str) -> str:
    """Return one short line for a bulky tool result: its kind, its size, and what it was about.

    Of JSON, whole or cut off, up to six plain fields are named, those first that tell things apart (names,
    numbers, titles, paths); of any other text, the beginning of its first line.
    """
    kind = _kind(text)
    if kind is None:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return f"[{len(text)} characters of text: {_cut(line, _LINE_CHARS)}]"
    return f"[{kind}, {len(text)} characters: {', '.join(_fields(text)) or 'no plain fields'}]"


def _kind(text: str) -> str | None:
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        return f"JSON list of {len(value)}"
    if value is not None or _PAIR.search(text[:_SCANNED_CHARS]):
        return "JSON object" if start == "{" else "JSON list"
    return None


def _fields(text: str) -> list[str]:
    found: dict[str, str] = {}
    for pair in _PAIR.finditer(text[:_SCANNED_CHARS]):
        found.setdefault(pair["key"], pair["value"])
    telling = [key for key in found if _IDENTITY.search(key)]
    chosen = [*telling, *(key for key in found if key not in telling)][:_FIELDS]
    return [f"{key} {_cut(found[key], _VALUE_CHARS)}" for key in chosen]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
