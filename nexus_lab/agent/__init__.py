"""The agent room: how does a turn go?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Emitter, Event, EventKind, Observer, Status

if TYPE_CHECKING:
    from nexus_lab.agent.loop import SYSTEM_PROMPT, Agent, ApprovalRefused
    from nexus_lab.agent.turn import Turn, TurnOutcome

__all__ = [
    "SYSTEM_PROMPT",
    "Agent",
    "ApprovalRefused",
    "Emitter",
    "Event",
    "EventKind",
    "Observer",
    "Status",
    "Turn",
    "TurnOutcome",
]

_LAZY = {
    "Agent": "loop",
    "ApprovalRefused": "loop",
    "SYSTEM_PROMPT": "loop",
    "Turn": "turn",
    "TurnOutcome": "turn",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"nexus_lab.agent.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
