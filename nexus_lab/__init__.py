"""Watch, steer and measure an agent's tool routing and KV cache on local llama.cpp models.

The public names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
from nexus_lab.errors import Cancelled, Decline, NexusError

if TYPE_CHECKING:
    from nexus_lab.agent import Agent, Endpoint, RemoteAgent
    from nexus_lab.engine import Engine
    from nexus_lab.lab import Workbench
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
    "Endpoint",
    "Engine",
    "NexusError",
    "Profile",
    "RemoteAgent",
    "Router",
    "Workbench",
    "__version__",
    "load_profile",
    "load_registry",
    "read_session",
    "save_profile",
]

_HOMES = {
    "Agent": "agent",
    "Endpoint": "agent",
    "Engine": "engine",
    "Profile": "settings",
    "RemoteAgent": "agent",
    "Router": "routing",
    "Workbench": "lab",
    "load_profile": "settings",
    "load_registry": "registry",
    "read_session": "trace",
    "save_profile": "settings",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
