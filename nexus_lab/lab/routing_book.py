"""Decisions, marks and margins of one registry, kept on disk, so that a restart forgets no correction."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from nexus_lab.paths import atomic_write, home
from nexus_lab.routing.known import description_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from nexus_lab.registry import Registry, ToolSpec

    Mark = Literal["right", "wrong"]
    Owned = tuple[str | None, str]

__all__ = ["Note", "RoutingBook", "book_path", "key_of", "owned"]

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
    tool_of, right_tool_of
        Server and name of these tools, as the server itself has it. What a decision calls a tool depends on
        the other servers: the first of two has the plain name. Notes of older books have neither.
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
    tool_of: Owned | None = None
    right_tool_of: Owned | None = None

    @property
    def owner(self) -> Owned | None:
        """Server and name of the tool that the request belongs to, where they are known."""
        return self.tool_of if self.mark == "right" else self.right_tool_of

    def tool_in(self, registry: Registry) -> ToolSpec | None:
        """Return the tool that the request belongs to, where `registry` has it as it was when marked."""
        if self.example is None:
            return None
        found = _named(registry, self.example[0]) if self.owner is None else _owned_in(registry, self.owner)
        return next((tool for tool in found if self.described in (None, description_digest(tool))), None)

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
    _touched: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, registry: Registry) -> RoutingBook:
        """Open the book of a registry; a file that cannot be read is put aside."""
        book = cls(book_path(registry), registry.name)
        book._notes = book._read()
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

        The pairs call a tool as decisions over `registry` do. A tool of the same name on another server, or
        with another description, may do another job.
        """
        found = ((note.tool_in(registry), note.request) for note in self.notes)
        pairs = ((key_of(registry, tool), request) for tool, request in found if tool is not None and request)
        return tuple(dict.fromkeys(pairs))

    def get(self, number: str) -> Note | None:
        """Return the note of a decision."""
        with self._lock:
            return self._notes.get(number)

    def add(self, note: Note) -> None:
        """Note a decision, in memory until `save`; the oldest unmarked ones make room for too many."""
        with self._lock:
            self._notes[note.id] = note
            self._touched.add(note.id)
            _cut(self._notes)
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
        right_tool
            As decisions over `registry` call it.
        registry
            The tools as they are now, by which the one that the request belongs to is recognised later.
        """
        right = registry.get(right_tool) if registry is not None and right_tool is not None else None
        with self._lock:
            note = replace(
                self._notes[number],
                mark=mark,
                right_tool=right_tool if mark == "wrong" else None,
                request=request if mark is not None else None,
                right_tool_of=owned(right) if right is not None and mark == "wrong" else None,
                described=None,
            )
            tool = note.tool_in(registry) if registry is not None else None
            if tool is not None:
                note = replace(note, described=description_digest(tool))
            self._notes[number] = note
            self._touched.add(number)
            self._changed = True
        self.save()
        return note

    def save(self) -> None:
        """Write what has changed; a disk that refuses is logged, and tried again the next time.

        What another session over the same tools has written meanwhile stays.
        """
        with self._lock:
            if not self._changed:
                return
            self._changed, touched = False, self._touched
            self._touched = set()
        try:
            with _one_writer(self.path):
                atomic_write(self.path, self._merged(self._read(), touched))
            self.failure = None
        except OSError as error:
            if self.failure is None:
                logger.warning("decisions are not kept: %s", error)
            with self._lock:
                self.failure, self._changed = error, True
                self._touched |= touched

    def _read(self) -> dict[str, Note]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            return {note.id: note for note in map(_note, values["notes"])}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            aside = self.path.with_suffix(".unreadable.json")
            logger.warning("%s cannot be read (%s) and is kept as %s", self.path, error, aside.name)
            try:
                self.path.replace(aside)
            except OSError:
                logger.warning("%s could not be put aside", self.path)
            return {}

    def _merged(self, written: Mapping[str, Note], touched: Collection[str]) -> bytes:
        """Return the file's text, with what another session wrote of decisions that are not of `touched`."""
        with self._lock:
            self._notes.update(
                (number, note)
                for number, note in written.items()
                if number not in touched and number not in self._touched
            )
            _cut(self._notes)
            notes = [asdict(note) for note in self._notes.values()]
        told = {"version": _VERSION, "registry": self.name, "notes": notes}
        return (json.dumps(told, ensure_ascii=False) + "\n").encode("utf-8", "replace")


@contextmanager
def _one_writer(path: Path) -> Iterator[None]:
    """Let one process at a time read a book and write it; the lock is a file beside it, which stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("wb") as handle:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _cut(notes: dict[str, Note]) -> None:
    """Let the oldest unmarked notes make room for too many."""
    surplus = len(notes) - _KEPT
    for old in [old for old in notes.values() if old.mark is None][: max(0, surplus)]:
        del notes[old.id]


def book_path(registry: Registry) -> Path:
    """File of the book of a registry: the same as long as its tools have the same names."""
    names = sorted(tool.qualified_name for tool in (*registry.tools, *registry.shadowed))
    digest = hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]
    return home() / "routing" / f"{digest}.json"


def owned(tool: ToolSpec) -> Owned:
    """Return the server and the name of a tool."""
    return tool.server, tool.name


def key_of(registry: Registry, tool: ToolSpec) -> str:
    """Return what decisions over `registry` call a tool of it."""
    return tool.name if registry.get(tool.name) is tool else tool.qualified_name


def _owned_in(registry: Registry, owner: Owned) -> list[ToolSpec]:
    server, name = owner
    return [tool for tool in registry.of_server(server) if tool.name == name]


def _named(registry: Registry, key: str) -> list[ToolSpec]:
    """Return the tools that an older book may have called `key`, the likeliest first."""
    first = registry.get(key)
    rest = [tool for tool in (*registry.tools, *registry.shadowed) if tool.name == key and tool is not first]
    return rest if first is None else [first, *rest]


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
        tool_of=_owned(entry.get("tool_of")),
        right_tool_of=_owned(entry.get("right_tool_of")),
    )


def _owned(value: Any) -> Owned | None:
    if value is None:
        return None
    server, name = value
    return _text(server), str(name)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
