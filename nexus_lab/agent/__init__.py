"""The agent room: how does a turn go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
from nexus_lab.agent.base import Emitter, Event, EventKind, Observer, Status

if TYPE_CHECKING:
    from nexus_lab.agent.endpoint import Endpoint
    from nexus_lab.agent.endpoint_errors import EndpointError
    from nexus_lab.agent.local import Agent
    from nexus_lab.agent.loop import SYSTEM_PROMPT, ApprovalRefused, TurnLoop
    from nexus_lab.agent.remote import RemoteAgent
    from nexus_lab.agent.turn import Turn, TurnOutcome

__all__ = [
    "SYSTEM_PROMPT",
    "Agent",
    "ApprovalRefused",
    "Emitter",
    "Endpoint",
    "EndpointError",
    "Event",
    "EventKind",
    "Observer",
    "RemoteAgent",
    "Status",
    "Turn",
    "TurnLoop",
    "TurnOutcome",
]

_LAZY = {
    "Agent": "local",
    "ApprovalRefused": "loop",
    "Endpoint": "endpoint",
    "EndpointError": "endpoint_errors",
    "RemoteAgent": "remote",
    "SYSTEM_PROMPT": "loop",
    "Turn": "turn",
    "TurnLoop": "loop",
    "TurnOutcome": "turn",
}

__getattr__, __dir__ = lazy_names(__name__, _LAZY)
