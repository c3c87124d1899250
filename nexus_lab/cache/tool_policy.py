"""The cache as a tool: the model itself lists and drops spans of what it has in its KV cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.cache.base import Edit
from nexus_lab.cache.policies import dropping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.cache.base import MessageSpan, Moment

__all__ = ["CACHE_TOOLS", "ToolPolicy"]

CACHE_TOOLS = (
    ("cache_list", "show the spans that are in your cache: id, role, tokens and how each begins"),
    ("cache_drop", "take spans out of your cache for good; you will not see them again"),
    ("cache_keep", "leave the cache as it is, and go on"),
)
"""Name and description of each tool that the model is offered."""

_SHOWN = 48
_MOST_SPANS = 8
_CALL_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """Offer the model tools over its own cache, now and then.

    The system prompt and the newest message cannot be dropped. What the model says meanwhile is no part of
    the conversation, and leaves nothing in the cache.

    Attributes
    ----------
    every
        Tool responses between two offers.
    max_calls
        Calls that the model may make in one offer.
    repos
        Re-pack positions after a drop.
    """

    every: int = 2
    max_calls: int = 2
    repos: bool = True

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "agent"

    def decide(self, moment: Moment) -> Edit:
        """Return a drop of the spans that the model chose."""
        responses = sum(message.role == "tool" for message in moment.messages)
        offered = _droppable(moment)
        if moment.host is None or responses % self.every or not offered or not _is_fresh(moment.messages):
            return Edit()
        chosen: set[int] = set()
        with moment.host.aside() as aside:
            said = _offer(offered)
            for _ in range(self.max_calls):
                aside.say(said)
                call = _read(aside.answer(max_tokens=_CALL_TOKENS, schema=_schema(sorted(offered))))
                if call.get("tool") == "cache_list":
                    said = _listing(offered)
                    continue
                if call.get("tool") == "cache_drop":
                    chosen.update(span for span in call.get("spans", ()) if span in offered)
                break
        ranges = [(offered[i].start, offered[i].stop) for i in sorted(chosen)]
        return Edit(ops=dropping(moment.program, ranges, repos_every=int(self.repos)))


def _is_fresh(messages: Sequence[MessageSpan]) -> bool:
    """Whether a tool has answered since the user last said something."""
    since = next((i for i in range(len(messages), 0, -1) if messages[i - 1].role == "user"), 0)
    return any(message.role == "tool" for message in messages[since:])


def _droppable(moment: Moment) -> dict[int, MessageSpan]:
    """Return the spans that may go, by their number: those with active tokens, but for the first and last."""
    active = moment.state.active
    return {
        i: message
        for i, message in enumerate(moment.messages[:-1])
        if message.role != "system" and active[message.start : message.stop].any()
    }


def _offer(offered: Mapping[int, MessageSpan]) -> str:
    tools = "\n".join(f"- {name}: {about}" for name, about in CACHE_TOOLS)
    tokens = sum(span.stop - span.start for span in offered.values())
    return (
        f"Before you go on: {len(offered)} spans with {tokens} tokens are in your cache. You have tools:\n"
        f"{tools}\nDrop old tool results that you do not need any more. Answer with one call."
    )


def _listing(offered: Mapping[int, MessageSpan]) -> str:
    lines = (
        f"{i}: {span.role}, {span.stop - span.start} tokens: {' '.join(span.text[:_SHOWN].split())}"
        for i, span in offered.items()
    )
    return "Spans in your cache:\n" + "\n".join(lines) + "\nAnswer with one call."


def _schema(spans: Sequence[int]) -> dict[str, Any]:
    def call(tool: str, **more: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"tool": {"const": tool}, **more},
            "required": ["tool", *more],
            "additionalProperties": False,
        }

    chosen = {"type": "array", "items": {"enum": list(spans)}, "minItems": 1, "maxItems": _MOST_SPANS}
    return {"anyOf": [call("cache_list"), call("cache_drop", spans=chosen), call("cache_keep")]}


def _read(text: str) -> dict[str, Any]:
    try:
        call = json.loads(text)
    except ValueError:  # cut off at its longest
        return {}
    return call if isinstance(call, dict) else {}
