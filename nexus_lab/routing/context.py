"""What the conversation adds to a request that refers back: "open a pull request there"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.routing.base import Message

__all__ = ["Reference", "refers_back", "resolve"]

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
        text = _text(turn)
        if turn.get("role") == "user":
            return (text, answer) if text else ("", "")
        if turn.get("role") == "assistant" and not answer:
            answer = text
    return "", ""


def _text(turn: Message) -> str:
    content = turn.get("content")
    return content if isinstance(content, str) else ""


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
