"""What the model reads of a tool before it fills in a call, and after a mistake; no examples to copy from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.arguments.base import ArgumentsError
from nexus_lab.registry import SignatureDetail, neutralise, schema_text, signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.arguments.base import Violation
    from nexus_lab.registry import ToolSpec

__all__ = ["repair_message", "tool_text"]

_MOST_REPAIRS = 5


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
