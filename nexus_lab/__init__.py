"""Watch, steer and measure an agent's tool routing and KV cache on local llama.cpp models.

The public names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import Cancelled, Decline, NexusError

if TYPE_CHECKING:
    from nexus_lab.agent import Agent
    from nexus_lab.engine import Engine
    from nexus_lab.registry import load_registry
    from nexus_lab.routing import Router
    from nexus_lab.settings import Profile, load_profile, save_profile
    from nexus_lab.trace import read_session

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Agent",
    "Cancelled",
    "Decline",
    "Engine",
    "NexusError",
    "Profile",
    "Router",
    "__version__",
    "load_profile",
    "load_registry",
    "read_session",
    "save_profile",
]

_HOMES = {
    "Agent": "nexus_lab.agent",
    "Engine": "nexus_lab.engine",
    "Profile": "nexus_lab.settings",
    "Router": "nexus_lab.routing",
    "load_profile": "nexus_lab.settings",
    "load_registry": "nexus_lab.registry",
    "read_session": "nexus_lab.trace",
    "save_profile": "nexus_lab.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
