"""What the model reads before it fills in a call: one tool, no examples to copy from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import ArgumentsError
from nexus_lab.registry import SignatureDetail, neutralise, schema_text, signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.arguments.base import Violation
    from nexus_lab.registry import ToolSpec

__all__ = ["call_messages", "instructions", "mentioned", "repair_message", "tool_text"]

_MOST_REPAIRS = 5
_TASK = (
    "Fill in the arguments of one function call. Take every value from the user's words; leave out optional "
    "arguments that the user did not ask for. Answer with one JSON object of the arguments and nothing else."
)


def tool_text(tool: ToolSpec, *, mode: str = "signature") -> str:
    """Return what the model sees of `tool`.

    Parameters
    ----------
    mode
        ``signature`` for the typed line with short hints, ``full`` for the whole schema as JSON. A splice
        shows the same text as ``full``, as KV rows in place of tokens.

    Raises
    ------
    ArgumentsError
        When `mode` is neither.
    """
    if mode == "signature":
        return signature(tool, detail=SignatureDetail.INLINE)
    if mode == "full":
        return schema_text(tool)
    raise ArgumentsError(f"unknown schema mode {mode!r}", next_step="choose signature or full")


def instructions(tool: ToolSpec, *, mode: str = "signature") -> str:
    """Return the text of the system turn: the task, then the tool."""
    return f"{_TASK}\n\nFunction:\n{tool_text(tool, mode=mode)}"


def call_messages(
    tool: ToolSpec, request: str, context: Sequence[Any] = (), *, mode: str = "signature"
) -> list[dict[str, str]]:
    """Return the chat turns after which the model writes the arguments of `tool`.

    Parameters
    ----------
    request
        What the user asks now.
    context
        The turns before it, ``{"role", "content"}``, oldest first; turns without text are left out.
    mode
        See `tool_text`.
    """
    before = [
        {"role": str(turn["role"]), "content": turn["content"]}
        for turn in context
        if isinstance(turn.get("content"), str) and turn.get("role") in ("user", "assistant")
    ]
    return [
        {"role": "system", "content": instructions(tool, mode=mode)},
        *before,
        {"role": "user", "content": request},
    ]


def repair_message(violations: Sequence[Violation], *, tool: ToolSpec | None = None) -> str:
    """Return the user turn that asks for the call again, naming what was wrong with it.

    For one retry; what the model wrote stands in the turn before.
    """
    lines = [f"- {violation}" for violation in violations[:_MOST_REPAIRS]]
    hidden = len(violations) - len(lines)
    if hidden > 0:
        lines.append(f"- and {hidden} more")
    whom = f" of {neutralise(tool.name, limit=80)}" if tool is not None else ""
    return (
        f"These arguments{whom} are not valid:\n"
        + "\n".join(lines)
        + "\nAnswer with the corrected JSON object and nothing else."
    )


def mentioned(tool: ToolSpec, request: str, context: Sequence[Any] = ()) -> frozenset[str]:
    """Return the optional arguments that the conversation speaks of.

    An argument is spoken of when all words of its name occur in what the user said, or one of its enum
    values does, singular and plural alike. This is a first, plain measure; what it returns is meant for
    `build_grammar`'s `optional`.
    """
    said = [
        turn["content"] for turn in context if turn.get("role") == "user" and _is_text(turn.get("content"))
    ]
    heard = _stems(" ".join([*said, request]))
    required = set(tool.required)
    return frozenset(
        name
        for name, schema in tool.properties.items()
        if name not in required and (_stems(name) <= heard or _chosen(schema, heard))
    )


def _chosen(schema: Any, heard: set[str]) -> bool:
    values = schema.get("enum") if isinstance(schema, dict) else None
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return any(words and words <= heard for words in map(_stems, texts))


def _stems(text: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return {word.lower().removesuffix("s") for word in re.findall(r"[^\W_]+", spaced)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
