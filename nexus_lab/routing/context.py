"""What the conversation adds to a request that refers back: "open a pull request there"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.registry import repair_text
from nexus_lab.routing.base import RoutingError
from nexus_lab.routing.normalise import beginning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.routing.base import Message

__all__ = ["Reference", "checked_turns", "refers_back", "resolve", "said"]

_BACK = re.compile(
    r"\b(?:it|its|there|that|this|these|those|them|they|one|ones|he|she|him|her|then|same|instead|also|too"
    r"|again|another|second|first|last)\b|^(?:and|yes|no|ok|okay|now|but|so|sure)\b",
    re.IGNORECASE,
)
_SHORT = 4
_MOST_WORDS = 60


@dataclass(frozen=True, slots=True)
class Reference:
    """What a request refers back to.

    Attributes
    ----------
    text
        The user's turn before the request; empty where there is none.
    spoken
        That turn and the assistant's answer to it, each cut after 60 words.
    tool
        The tool that was called last, where one was.
    """

    text: str = ""
    spoken: str = ""
    tool: str | None = None


def checked_turns(context: Iterable[Message]) -> tuple[Message, ...]:
    """Return the turns of a conversation.

    Raises
    ------
    RoutingError
        When they are no list of messages, with the one that is none.
    """
    next_step = 'give messages such as {"role": "user", "content": "Look at acme/docs"}'
    if isinstance(context, str | bytes | Mapping) or not isinstance(context, Iterable):
        kind = type(context).__name__
        raise RoutingError(f"a {kind} is no list of the turns before a request", next_step=next_step)
    turns = tuple(context)
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping):
            raise RoutingError(
                f"turn {number} before the request is a {type(turn).__name__}, no message",
                next_step=next_step,
            )
    return turns


def said(turn: Message) -> str:
    """Return the beginning of what a turn says, also where its content comes in parts; empty for the rest."""
    content = turn.get("content")
    if isinstance(content, list | tuple):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        content = " ".join(part for part in parts if isinstance(part, str))
    return repair_text(beginning(content)) if isinstance(content, str) else ""


def refers_back(request: str) -> bool:
    """Whether `request` leans on what was said before: a pronoun, "and ...", or hardly a word."""
    return _BACK.search(request) is not None or len(request.split()) <= _SHORT


def resolve(request: str, context: Sequence[Message]) -> Reference | None:
    """Return what `request` refers back to, or ``None`` where it stands alone or nothing came before."""
    if not context or not refers_back(request):
        return None
    text, answer = _last_exchange(context)
    spoken = " ".join(" ".join(part.split()[:_MOST_WORDS]) for part in (text, answer) if part)
    tool = next((name for turn in reversed(context) if (name := _called(turn)) is not None), None)
    return Reference(text, spoken, tool) if spoken or tool else None


def _last_exchange(context: Sequence[Message]) -> tuple[str, str]:
    """Return the user's last turn, and the last that the assistant said after it."""
    answer = ""
    for turn in reversed(context):
        text = said(turn)
        if turn.get("role") == "user":
            return (text, answer) if text else ("", "")
        if turn.get("role") == "assistant" and not answer:
            answer = text
    return "", ""


def _called(turn: Message) -> str | None:
    """Return the last tool that a turn called, in the chat form or as ``{"name": ...}``."""
    calls: Any = turn.get("tool_calls")
    if not isinstance(calls, list | tuple) or not calls:
        return None
    call = calls[-1]
    if isinstance(call, dict):
        inner = call.get("function", call)
        name = inner.get("name") if isinstance(inner, dict) else None
        return name if isinstance(name, str) else None
    return None
