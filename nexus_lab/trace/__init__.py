"""The trace room: what happened.

A `SessionRecorder` hears the agent's events and leaves a bundle; `read_session` opens one; `export` turns it
into HTML, OTLP, Perfetto, CSV, Parquet or a single file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexus_lab.trace.base import (
    BundleStatus,
    DamagedSession,
    ForeignSession,
    Manifest,
    NewerSession,
    Run,
    SessionBusy,
    SessionError,
    SessionMissing,
)

if TYPE_CHECKING:
    from nexus_lab.trace.exporters import Target, export
    from nexus_lab.trace.recorder import SessionRecorder
    from nexus_lab.trace.redact import Redactor
    from nexus_lab.trace.session import Session, read_session, recover
    from nexus_lab.trace.tree import SpanNode, SpanTree

__all__ = [
    "BundleStatus",
    "DamagedSession",
    "ForeignSession",
    "Manifest",
    "NewerSession",
    "Redactor",
    "Run",
    "Session",
    "SessionBusy",
    "SessionError",
    "SessionMissing",
    "SessionRecorder",
    "SpanNode",
    "SpanTree",
    "Target",
    "export",
    "read_session",
    "recover",
]

_HOMES = {
    "Redactor": "nexus_lab.trace.redact",
    "Session": "nexus_lab.trace.session",
    "SessionRecorder": "nexus_lab.trace.recorder",
    "SpanNode": "nexus_lab.trace.tree",
    "SpanTree": "nexus_lab.trace.tree",
    "Target": "nexus_lab.trace.exporters",
    "export": "nexus_lab.trace.exporters",
    "read_session": "nexus_lab.trace.session",
    "recover": "nexus_lab.trace.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
