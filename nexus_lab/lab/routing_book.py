"""Decisions, marks and margins of one registry, kept on disk, so that a restart forgets no correction."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from nexus_lab.paths import atomic_write, home
from nexus_lab.routing.known import description_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexus_lab.registry import Registry

    Mark = Literal["right", "wrong"]

__all__ = ["Note", "RoutingBook", "book_path"]

logger = logging.getLogger(__name__)

_VERSION = 1
_KEPT = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is kept of one decision.

    Attributes
    ----------
    id
        Unique, also across restarts.
    source
        ``turn`` or ``box``.
    margin, tau, ms
        Margin, what it was held against, and milliseconds of all stages.
    decision, tool
        How it went, and to which tool.
    mark, right_tool
        The user's correction, and the tool that it names.
    request
        The request's text; kept only while it is marked, since the mark makes an example of it.
    described
        What the tool that the request belongs to was recognised by when it was marked: a digest of its
        description. Notes of older books have none.
    """

    id: str
    source: str
    margin: float | None
    tau: float | None
    ms: float
    decision: str
    tool: str | None
    mark: Mark | None = None
    right_tool: str | None = None
    request: str | None = None
    described: str | None = None

    @property
    def example(self) -> tuple[str, str] | None:
        """The tool and the request that belongs to it, as the mark says; ``None`` where it says nothing."""
        if self.request is None or self.mark is None:
            return None
        tool = self.tool if self.mark == "right" else self.right_tool
        return None if tool is None else (tool, self.request)


@dataclass(slots=True)
class RoutingBook:
    """The notes of one registry, oldest first.

    Attributes
    ----------
    path
        Its file; written whole or not at all.
    failure
        Why it could not be written, the last time.
    """

    path: Path
    name: str
    failure: OSError | None = None
    _notes: dict[str, Note] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: bool = False

    @classmethod
    def of(cls, registry: Registry) -> RoutingBook:
        """Open the book of a registry; a file that cannot be read is put aside."""
        book = cls(book_path(registry), registry.name)
        book._read()
        return book

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes, oldest first."""
        with self._lock:
            return tuple(self._notes.values())

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Pairs of tool and request that the marks make examples of, each once."""
        pairs = (note.example for note in self.notes)
        return tuple(dict.fromkeys(pair for pair in pairs if pair is not None))

    def examples_for(self, registry: Registry) -> tuple[tuple[str, str], ...]:
        """Return the examples of the tools that are still as they were when the marks were made.

        A tool of the same name with another description may do another job.
        """
        pairs: dict[tuple[str, str], None] = {}
        for note in self.notes:
            pair = note.example
            tool = registry.get(pair[0]) if pair is not None else None
            if pair is None or tool is None:
                continue
            if note.described in (None, description_digest(tool)):
                pairs[pair] = None
        return tuple(pairs)

    def get(self, number: str) -> Note | None:
        """Return the note of a decision."""
        with self._lock:
            return self._notes.get(number)

    def add(self, note: Note) -> None:
        """Note a decision, in memory until `save`; the oldest unmarked ones make room for too many."""
        with self._lock:
            self._notes[note.id] = note
            surplus = len(self._notes) - _KEPT
            for old in [old for old in self._notes.values() if old.mark is None][: max(0, surplus)]:
                del self._notes[old.id]
            self._changed = True

    def mark(
        self,
        number: str,
        mark: Mark | None,
        *,
        request: str | None,
        right_tool: str | None,
        registry: Registry | None = None,
    ) -> Note:
        """Set or clear the mark of a decision, on disk as well, and return the note.

        Parameters
        ----------
        registry
            The tools as they are now, by which the one that the request belongs to is recognised later.
        """
        with self._lock:
            note = replace(
                self._notes[number],
                mark=mark,
                right_tool=right_tool if mark == "wrong" else None,
                request=request if mark is not None else None,
                described=None,
            )
            tool = registry.get(note.example[0]) if registry is not None and note.example else None
            if tool is not None:
                note = replace(note, described=description_digest(tool))
            self._notes[number] = note
            self._changed = True
        self.save()
        return note

    def save(self) -> None:
        """Write what has changed; a disk that refuses is logged, and tried again the next time."""
        with self._lock:
            changed, self._changed = self._changed, False
        if changed:
            self._write()

    def _read(self) -> None:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            for entry in values["notes"]:
                note = _note(entry)
                self._notes[note.id] = note
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as error:
            aside = self.path.with_suffix(".unreadable.json")
            logger.warning("%s cannot be read (%s) and is kept as %s", self.path, error, aside.name)
            self._notes.clear()
            try:
                self.path.replace(aside)
            except OSError:
                logger.warning("%s could not be put aside", self.path)

    def _write(self) -> None:
        notes = [asdict(note) for note in self.notes]
        text = json.dumps({"version": _VERSION, "registry": self.name, "notes": notes}, ensure_ascii=False)
        try:
            atomic_write(self.path, (text + "\n").encode("utf-8", "replace"))
            self.failure = None
        except OSError as error:
            if self.failure is None:
                logger.warning("decisions are not kept: %s", error)
            self.failure, self._changed = error, True


def book_path(registry: Registry) -> Path:
    """File of the book of a registry: the same as long as its tools have the same names."""
    names = sorted(tool.qualified_name for tool in (*registry.tools, *registry.shadowed))
    digest = hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]
    return home() / "routing" / f"{digest}.json"


def _note(entry: Mapping[str, Any]) -> Note:
    mark = entry.get("mark")
    if mark not in ("right", "wrong", None) or not isinstance(entry["id"], str):
        raise ValueError(f"a note has the mark {mark!r}")
    return Note(
        id=entry["id"],
        source=str(entry["source"]),
        margin=_number(entry["margin"]),
        tau=_number(entry["tau"]),
        ms=float(entry["ms"]),
        decision=str(entry["decision"]),
        tool=_text(entry["tool"]),
        mark=mark,
        right_tool=_text(entry.get("right_tool")),
        request=_text(entry.get("request")),
        described=_text(entry.get("described")),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
