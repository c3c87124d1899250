"""The tokens of one splice trial: what stands before the block, the block, and the prompt after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.agent.calling import call_opening, tool_block
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.errors import NexusError
from nexus_lab.splice import (
    SYSTEM_PROMPT,
    BlockContext,
    ended,
    message_ending,
    prompt_tokens,
    typical_context,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["CONTEXTS", "TrialError", "TrialParts", "block_tokens", "compile_contexts", "trial_parts"]

CONTEXTS = {"system": "the system prompt", "typical": "typical conversations", "none": "nothing"}
"""What a block can be compiled behind, in words."""

_SEED = 4_242
_REQUEST = "Use this tool with the values that you were given."


class TrialError(NexusError):
    """A splice cannot be tried like this."""


@dataclass(frozen=True, slots=True)
class TrialParts:
    """Tokens in the order they stand in the context.

    Attributes
    ----------
    context
        System prompt.
    before
        Everything before the block, ``n_past`` tokens.
    source
        Where `before` comes from, in a few words.
    block
        The tool's block.
    rest
        Request, end of the message, and the opening of the call.
    """

    context: tuple[int, ...]
    before: tuple[int, ...]
    source: str
    block: tuple[int, ...]
    rest: tuple[int, ...]


def block_tokens(
    engine: Engine, spec: ToolSpec, *, system: str, request: str = ""
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return system prompt, block and rest of the prompt as a turn would have them, each as tokens."""
    transcript = Transcript(engine, system=system)
    context = join_tokens(transcript.open())
    block, rest = transcript.user(tool_block(spec, "full"), request or _REQUEST)
    tail = join_tokens(transcript.open_reply())
    opening = engine.tokenize(call_opening(spec.name), special=False)
    return context, block.tokens, (*rest.tokens, *tail, *opening)


def compile_contexts(engine: Engine, context: tuple[int, ...], *, system: str) -> dict[str, BlockContext]:
    """Return what a block can be compiled behind, by the names of `CONTEXTS`.

    Parameters
    ----------
    context
        Tokens of the system prompt.
    system
        The same as text, which the typical conversations begin with.
    """
    typical = typical_context(engine, system=system)
    return {"system": BlockContext.of(context), "typical": typical, "none": BlockContext()}


def trial_parts(
    engine: Engine,
    spec: ToolSpec,
    *,
    system: str,
    n_past: int,
    live: Sequence[int] = (),
    request: str = "",
) -> TrialParts:
    """Put a trial together.

    Parameters
    ----------
    system
        The agent's system prompt.
    n_past
        Tokens before the block.
    live
        Tokens of the live conversation, which stand before the block where there are enough of them.
    request
        The user's words after the block.

    Raises
    ------
    TrialError
        When `n_past` is no depth, or leaves no room in the context.
    """
    context, block, rest = block_tokens(engine, spec, system=system, request=request)
    if not 0 <= n_past < engine.n_ctx - len(block) - len(rest):
        raise TrialError(
            f"n_past = {n_past} leaves no room for a block of {len(block)} tokens in {engine.n_ctx}",
            next_step=f"choose 0 to {max(0, engine.n_ctx - len(block) - len(rest) - 1)}",
        )
    if n_past <= len(context):
        before, source = context[:n_past], "system prompt"
    elif len(live) >= n_past:
        before, source = tuple(live[:n_past]), "this conversation"
    else:
        sample = (*context, *_history(engine, n_past - len(context)))
        before, source = ended(sample, n_past, message_ending(engine)), "a sample conversation"
    return TrialParts(context, before, source, block, rest)


def _history(engine: Engine, n_tokens: int) -> list[int]:
    """Return tokens of a sample conversation, without the system prompt that it begins with."""
    head = [{"role": "system", "content": SYSTEM_PROMPT}]
    skipped = len(engine.tokenize(engine.render_chat(head, add_generation_prompt=False)))
    return prompt_tokens(engine, skipped + n_tokens, seed=_SEED)[skipped:]
