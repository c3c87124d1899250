"""The contract of the trace room: what a session bundle is called, holds, and refuses.

A bundle is the folder (or zip) ``<name>.nexus``: ``manifest.json`` and one Parquet file per table. While a
session runs it also holds ``journal.jsonl``, which stays the truth until a manifest says that its run was
compacted; so a kill at any moment loses nothing that had been written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BUNDLE_SUFFIX",
    "FORMAT",
    "JOURNAL",
    "MANIFEST",
    "SCHEMA_VERSION",
    "SINGLE_FILE_SUFFIX",
    "TABLES",
    "BundleStatus",
    "DamagedSession",
    "ForeignSession",
    "Manifest",
    "NewerSession",
    "Run",
    "SessionBusy",
    "SessionError",
    "SessionMissing",
]

FORMAT = "nexus-session"
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
BUNDLE_SUFFIX = ".nexus"
SINGLE_FILE_SUFFIX = ".nexus.json"
TABLES = ("events", "turns", "routing", "ops", "fidelity", "drift", "messages")


class SessionError(NexusError):
    """A session cannot be read or written."""


class SessionMissing(SessionError):
    """There is nothing at the path."""


class ForeignSession(SessionError):
    """What is at the path is no session of ours."""


class DamagedSession(SessionError):
    """A session of ours, but a part of it is broken."""


class NewerSession(SessionError):
    """Written by a later version, with a schema that this one does not know."""


class SessionBusy(SessionError):
    """Another process, or another recorder, is writing the session."""


class BundleStatus(StrEnum):
    """How far a bundle has come."""

    RECORDING = "recording"
    COMPLETE = "complete"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One stretch of recording, from opening the recorder to closing it.

    Attributes
    ----------
    id
        ``r-001`` and so on, unique in the bundle.
    started, ended
        ISO times, UTC; `ended` is ``None`` when the process died.
    status
        ``complete``, or ``recovered`` when a later open finished the record.
    parent
        The run it was forked from.
    note
        A few words of whoever started it.
    model, settings, host
        Facts of the model (name, sha256, ...), the profile, and the machine.
    """

    id: str
    started: str
    ended: str | None = None
    status: BundleStatus = BundleStatus.RECORDING
    parent: str | None = None
    note: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """Read JSON values; keys that this version does not know are ignored."""
        return cls(
            id=_text(values["id"]),
            started=_text(values["started"]),
            ended=values.get("ended"),
            status=BundleStatus(values.get("status", BundleStatus.RECORDING)),
            parent=values.get("parent"),
            note=_text(values.get("note", "")),
            model=dict(values.get("model") or {}),
            settings=dict(values.get("settings") or {}),
            host=dict(values.get("host") or {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle says about itself.

    Attributes
    ----------
    id
        Random identifier, 32 hex digits; trace ids derive from it.
    contents
        Texts of users, models and tools were recorded.
    redacted
        Kinds of secrets that were removed before anything was written; empty when nothing was.
    runs
        In the order they were recorded.
    rows
        Rows per table.
    notes
        What a reader should know, for example that a torn last record was dropped.
    """

    id: str
    name: str
    created: str
    status: BundleStatus
    contents: bool = False
    redacted: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    nexus_lab: str = ""
    llama_cpp_build: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def latest(self) -> Run | None:
        """The newest run."""
        return self.runs[-1] if self.runs else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; the newest run's model, settings and host also stand at the top."""
        latest = self.latest
        return {
            "format": FORMAT,
            "schema_version": self.schema_version,
            "id": self.id,
            "name": self.name,
            "created": self.created,
            "status": str(self.status),
            "contents": self.contents,
            "redacted": list(self.redacted),
            "nexus_lab": self.nexus_lab,
            "llama_cpp_build": self.llama_cpp_build,
            "model": dict(latest.model) if latest else {},
            "settings": dict(latest.settings) if latest else {},
            "host": dict(latest.host) if latest else {},
            "runs": [asdict(run) for run in self.runs],
            "rows": dict(self.rows),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: object, *, where: str) -> Manifest:
        """Read JSON values; keys that this version does not know are ignored.

        Raises
        ------
        ForeignSession, NewerSession, DamagedSession
            When the values are not a manifest, are of a later schema, or lack what every manifest has.
        """
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ForeignSession(
                f"{where} is not a nexus_lab session",
                next_step=f"choose a folder or zip that ends in {BUNDLE_SUFFIX}",
            )
        version = values.get("schema_version")
        if not isinstance(version, int) or version < 1:
            raise DamagedSession(
                f"{where} has the schema version {version!r}", next_step="restore it from a copy"
            )
        if version > SCHEMA_VERSION:
            raise NewerSession(
                f"{where} was written with schema {version}; this version reads up to {SCHEMA_VERSION}",
                next_step="update nexus_lab, or export the session with the version that wrote it",
            )
        try:
            return _manifest(values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise DamagedSession(
                f"the manifest of {where} is damaged: {type(error).__name__}: {error}",
                next_step="restore it from a copy",
            ) from error


def _manifest(values: Mapping[str, Any]) -> Manifest:
    return Manifest(
        id=_text(values["id"]),
        name=_text(values["name"]),
        created=_text(values["created"]),
        status=BundleStatus(values["status"]),
        contents=bool(values.get("contents", False)),
        redacted=tuple(map(_text, values.get("redacted", ()))),
        runs=tuple(Run.from_dict(run) for run in values.get("runs", ())),
        rows={_text(name): int(count) for name, count in values.get("rows", {}).items()},
        notes=tuple(map(_text, values.get("notes", ()))),
        nexus_lab=_text(values.get("nexus_lab", "")),
        llama_cpp_build=values.get("llama_cpp_build"),
        schema_version=values["schema_version"],
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value
