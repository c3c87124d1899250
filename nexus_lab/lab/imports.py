"""Reading what other programs recorded: chat transcripts and OTLP traces, as runs without a model.

An import becomes a bundle of its own, which appears whole or not at all. It can be read, compared and
exported; nothing of it is ever run.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError
from nexus_lab.json_lines import json_lines, parse_line
from nexus_lab.trace import SessionRecorder
from nexus_lab.trace.base import BUNDLE_SUFFIX

if TYPE_CHECKING:
    from nexus_lab.agent import Event

__all__ = [
    "IMPORTED_FROM",
    "BrokenTranscript",
    "Imported",
    "NotATranscript",
    "TranscriptError",
    "free_path",
    "import_transcript",
    "read_text",
    "read_transcript",
]

IMPORTED_FROM = "imported_from"
_MOST_BYTES = 64 << 20
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class TranscriptError(NexusError):
    """A transcript cannot be imported."""


class NotATranscript(TranscriptError):
    """The text is of a form that nothing here reads."""


class BrokenTranscript(TranscriptError):
    """A transcript of a known form, with a part that is not as it should be.

    Attributes
    ----------
    where
        The part, for example ``messages[3].tool_calls[0]``.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", next_step="mend that part, or leave it out")
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What was read, ready to be recorded.

    Attributes
    ----------
    source
        ``openai_messages`` or ``otlp``.
    timed
        The times are the record's own.
    model
        Name of the model that spoke, where it is said.
    events
        Spans in the order their ids ascend.
    note
        For the list of runs.
    """

    source: str
    timed: bool
    model: str | None
    events: tuple[Event, ...]
    note: str

    @property
    def n_turns(self) -> int:
        """Number of turns."""
        return sum(event.kind.value == "turn" for event in self.events)


def read_text(path: str | Path) -> str:
    """Return the text of a file.

    Raises
    ------
    TranscriptError
        When it is not there, too large, or no text.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise TranscriptError(
                f"{file} is larger than {_MOST_BYTES >> 20} MiB",
                next_step="split it, or leave some turns out",
            )
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotATranscript(f"{file} is no text: {error.reason}", next_step="choose a JSON file") from error
    except OSError as error:
        raise TranscriptError(
            f"{file} cannot be read: {error.strerror or error}", next_step="check the path"
        ) from error


def read_transcript(text: str) -> Imported:
    """Read OpenAI-style messages or OTLP JSON, each as one document or as JSON lines.

    Raises
    ------
    NotATranscript
        When it is neither.
    BrokenTranscript
        When a part of it is not as it should be.
    """
    from nexus_lab.lab.import_messages import events_of_messages
    from nexus_lab.lab.import_otlp import events_of_otlp

    documents = _documents(text)
    try:
        if all(isinstance(item, dict) and "resourceSpans" in item for item in documents):
            return events_of_otlp(documents)
        conversations = _conversations(documents)
        if conversations:
            return events_of_messages(conversations)
    except RecursionError:
        raise BrokenTranscript("document", "it is nested without end") from None
    raise NotATranscript(
        "the text is JSON, but neither a list of messages nor an OTLP trace",
        next_step='give [{"role": ..., "content": ...}], {"messages": [...]} or {"resourceSpans": [...]}',
    )


def import_transcript(text: str, folder: Path, *, name: str = "imported") -> Path:
    """Record a transcript as a bundle in `folder`, under a free name, and return it.

    Raises
    ------
    TranscriptError
        When it cannot be read; nothing is written then.
    SessionError
        When the bundle cannot be written.
    """
    found = read_transcript(text)
    stem = _NAME.sub("-", name).strip("-.") or "imported"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".import-") as temporary:
            recorder = SessionRecorder(
                Path(temporary) / f"{stem}{BUNDLE_SUFFIX}",
                contents=True,
                model={"name": found.model} if found.model else {},
                settings={IMPORTED_FROM: found.source, "timed": found.timed},
                host={},
                note=found.note,
            )
            for event in found.events:
                recorder.on_event(event)
            recorder.close()
            if recorder.failure is not None:
                raise recorder.failure
            target = free_path(folder / f"{stem}{BUNDLE_SUFFIX}")
            recorder.path.rename(target)
            return target
    except OSError as error:
        raise TranscriptError(
            f"{folder} cannot be written: {error.strerror or error}",
            next_step="choose another session folder",
        ) from error


def free_path(path: Path) -> Path:
    """Return `path`, or the first of ``name-2``, ``name-3``, ... that does not exist."""
    if not path.exists():
        return path
    stem, dot, suffix = path.name.partition(".")
    number = 2
    while (candidate := path.with_name(f"{stem}-{number}{dot}{suffix}")).exists():
        number += 1
    return candidate


def _documents(text: str) -> list[Any]:
    if len(text) > _MOST_BYTES:
        raise TranscriptError("the text is too long", next_step="split it, or leave some turns out")
    try:
        return [json.loads(text)]
    except RecursionError:
        raise BrokenTranscript("document", "it is nested without end") from None
    except ValueError as error:
        lines = list(json_lines(text))
        if len(lines) < 2:  # noqa: PLR2004 - one line is no JSON lines
            raise NotATranscript(f"the text is no JSON: {error}", next_step="give JSON") from None
    documents = []
    for number, line in lines:
        try:
            documents.append(parse_line(line))
        except ValueError as error:
            raise NotATranscript(
                f"the text is no JSON, and line {number} is none either: {error}",
                next_step="give JSON, or JSON lines",
            ) from None
    return documents


def _conversations(documents: list[Any]) -> list[list[Any]]:
    """Return the lists of messages; empty when the documents hold none."""
    if all(isinstance(item, dict) and "role" in item for item in documents):
        return [documents]
    found = []
    for item in documents:
        messages = item.get("messages") if isinstance(item, dict) else item
        if not isinstance(messages, list) or not messages:
            return []
        if not isinstance(messages[0], dict) or "role" not in messages[0]:
            return []
        found.append(messages)
    return found
