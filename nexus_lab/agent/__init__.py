"""The agent room: how does a turn go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
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

__getattr__, __dir__ = lazy_names(__name__, _LAZY)
