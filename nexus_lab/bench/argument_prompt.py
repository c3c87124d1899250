"""What stands before a call's arguments, token by token as the agent's own writing has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.agent.calling import call_opening, tool_block
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.agent.transcript import Piece, Transcript, join_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nexus_lab.agent.transcript import ChatModel
    from nexus_lab.registry import ToolSpec

__all__ = ["call_prompt"]


def call_prompt(
    model: ChatModel,
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]] = (),
    *,
    mode: str = "signature",
) -> list[int]:
    """Return the tokens of a conversation up to where the arguments of a call begin.

    Parameters
    ----------
    model
        Renders and tokenises.
    context
        The turns before the request, oldest first; one of the user's without an answer gets an empty one.
    mode
        What the model sees of the tool: ``signature`` or ``full``.
    """
    transcript = Transcript(model, system=SYSTEM_PROMPT)
    pieces = [*transcript.open(), *_replayed(model, transcript, context)]
    pieces += transcript.user(tool_block(tool, mode), request)
    pieces += transcript.open_reply()
    return [*join_tokens(pieces), *model.tokenize(call_opening(tool.name), special=False)]


def _replayed(model: ChatModel, transcript: Transcript, context: Sequence[Mapping[str, Any]]) -> list[Piece]:
    pieces: list[Piece] = []
    waiting = False
    for turn in context:
        said = str(turn.get("content") or "")
        if turn.get("role") == "user":
            if waiting:
                pieces += transcript.close_reply("")
            pieces += [*transcript.user(said), *transcript.open_reply()]
            waiting = True
        elif turn.get("role") == "assistant" and waiting:
            pieces.append(Piece(tuple(model.tokenize(said, special=False)) if said else (), said))
            pieces += transcript.close_reply(said)
            waiting = False
    return pieces + transcript.close_reply("") if waiting else pieces
