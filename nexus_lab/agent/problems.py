"""What a turn that failed tells the user: what happened, what may stay done, and what to do next.

The parts of a turn raise errors in their own words, and what they advise is for whoever calls them: a
program, or the model that is to write again. Here they get the words of the one who asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.arguments import ArgumentsRejected, CutOff, DuplicateArgument, NotAnObject, NotJson
from nexus_lab.engine.errors import ContextFull
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.registry import ServerDied, ServerNotRunning, ServerTimeout, neutralise

if TYPE_CHECKING:
    from nexus_lab.registry import ToolSpec

__all__ = ["MAKE_ROOM", "ApprovalRefused", "ConversationFull", "TurnTooLong", "refused", "told", "too_many"]

MAKE_ROOM = (
    "start a new conversation, choose a cache policy that drops old results, or load the model with a larger "
    "context (n_ctx)"
)
_SHORTEN = "ask for less at once, or load the model with a larger context (n_ctx)"
_REWRITE = "say the values in other words and ask again, or use a larger model"
_STOPPED = "the turn was stopped"
_AGAIN = "ask again; the conversation is as it was before"
_START = "start the server again (see Registry in the workbench; start() in Python), then ask again"
_SHOWN = 80


class ApprovalRefused(NexusError):
    """A tool that may change something was not allowed to run."""


class TurnTooLong(NexusError):
    """A turn was ended because its time was over."""


class ConversationFull(ContextFull):
    """A turn does not fit the context any more.

    Parameters
    ----------
    error
        What the engine said.
    n_ctx
        Tokens of the context.
    begun
        Whether the conversation holds earlier turns, which could make room.
    """

    def __init__(self, error: ContextFull, n_ctx: int, *, begun: bool) -> None:
        super().__init__(error.needed, error.free, n_ctx)
        whose = "conversation" if begun else "turn"
        self.problem = (
            f"the {whose} does not fit the context: {error.needed:,} more tokens, where {error.free:,} of "
            f"{n_ctx:,} are free"
        )
        self.next_step = MAKE_ROOM if begun else _SHORTEN


def refused(tool: ToolSpec, *, asked: bool) -> ApprovalRefused:
    """Return the error of a tool that may not run.

    Parameters
    ----------
    asked
        Whether somebody was asked, and said no.
    """
    name = neutralise(tool.name, limit=_SHOWN)
    if asked:
        return ApprovalRefused(
            f"{name} was not allowed to run", next_step="ask again and allow it, or ask for something else"
        )
    why = "is asked about before it runs" if tool.read_only else "may change something"
    return ApprovalRefused(
        f"{name} {why}, and there is nobody to ask",
        next_step="pass `approve` to the agent, or set its ask_before to never",
    )


def told(error: NexusError, running: ToolSpec | None) -> NexusError:
    """Return the error of a turn in the words of the one who asked; it is changed in place.

    Parameters
    ----------
    running
        The tool that had been sent off, and whose result did not come.
    """
    if isinstance(error, Cancelled):
        error.problem, error.next_step = _STOPPED, _AGAIN
    broken_off = isinstance(error, Cancelled | TurnTooLong | ServerDied | ServerTimeout)
    if running is not None and broken_off and not running.read_only:
        name = neutralise(running.name, limit=_SHOWN)
        error.problem += f"; {name} was running, and what it did by then stays done"
    if isinstance(error, ServerNotRunning):
        error.next_step = _START
    by_model = isinstance(error, ArgumentsRejected | NotJson | NotAnObject | DuplicateArgument)
    if by_model and not isinstance(error, CutOff):
        error.next_step = _REWRITE
    return error


def too_many(asked: int, most: int) -> Decline:
    """Return why a request is not taken apart: it asks for more things than a profile allows."""
    return Decline(
        "too_many_things",
        f"the request asks for {asked} things, and the profile allows {most} calls (max_calls)",
        "it is one turn with one call; ask for fewer at once, or allow more",
    )
