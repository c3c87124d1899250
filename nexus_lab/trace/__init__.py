"""The trace room: what happened.

A `SessionRecorder` hears the agent's events and leaves a bundle; `read_session` opens one; `export` turns it
into HTML, OTLP, Perfetto, CSV, Parquet or a single file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
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
    from nexus_lab.trace.exporters.estimate import estimate_size
    from nexus_lab.trace.recorder import SessionRecorder, insist_new
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
    "estimate_size",
    "export",
    "insist_new",
    "read_session",
    "recover",
]

_HOMES = {
    "Redactor": "redact",
    "Session": "session",
    "SessionRecorder": "recorder",
    "SpanNode": "tree",
    "SpanTree": "tree",
    "Target": "exporters",
    "estimate_size": "exporters.estimate",
    "export": "exporters",
    "insist_new": "recorder",
    "read_session": "session",
    "recover": "session",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
