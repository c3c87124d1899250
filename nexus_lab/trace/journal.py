"""The append-only journal of a running session, and the lock that keeps it to one writer.

One record per line: eight hex digits of length, eight of CRC-32, the JSON text. A record is handed to the
operating system before the observer returns, so it survives the death of the process at once; a helper
thread flushes to the disk at most once a second, so it survives a power cut up to that second. No token
waits for a disk.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.trace.base import JOURNAL, SessionBusy
from nexus_lab.trace.schema import to_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FLUSH_SECONDS", "JournalRecords", "JournalWriter", "SessionLock", "read_journal"]

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
_PREFIX = 18  # "LLLLLLLL CCCCCCCC "


class SessionLock:
    """Held by whoever writes a bundle; the kernel lets go of it when the process dies.

    Raises
    ------
    SessionBusy
        When somebody else holds it.
    """

    def __init__(self, bundle: Path) -> None:
        self._descriptor = os.open(bundle / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 80, 0).decode("ascii", "replace").strip() or "another process"
            os.close(self._descriptor)
            raise SessionBusy(
                f"{bundle} is being written by {holder}",
                next_step="close that session first, record under another name, or open this one to read",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; harmless when done twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class JournalWriter:
    """Appends records to the journal of `bundle`. Thread-safe.

    Parameters
    ----------
    flush_seconds
        Longest time that a record waits for the disk; tests shorten it.
    """

    def __init__(self, bundle: Path, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        self.path = bundle / JOURNAL
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._flusher = threading.Thread(
            target=self._flush_now_and_then, args=(flush_seconds,), name="nexus-journal", daemon=True
        )
        self._flusher.start()

    def append(self, record: dict[str, Any]) -> None:
        """Write `record`, whole, before returning.

        Raises
        ------
        OSError
            When the disk is full or gone; what was written of the record is cut off again.
        """
        text = to_json(record).encode("utf-8", "replace")
        line = b"%08x %08x %s\n" % (len(text), zlib.crc32(text), text)
        with self._lock:
            _write_all(self._file, line)
        self._dirty.set()

    def close(self) -> None:
        """Flush to the disk and close; harmless when done twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._dirty.set()
        self._flusher.join()
        with self._lock:
            os.fsync(self._file)
            os.close(self._file)

    def _flush_now_and_then(self, seconds: float) -> None:
        while not self._closing.wait(seconds):
            self._dirty.wait()
            if self._closing.is_set():
                return
            self._dirty.clear()
            try:
                os.fsync(self._file)
            except OSError:
                logger.exception("the journal %s could not be flushed to the disk", self.path)


def _write_all(file: int, line: bytes) -> None:
    start = os.lseek(file, 0, os.SEEK_END)
    view = memoryview(line)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.ftruncate(file, start)
        raise


@dataclass(frozen=True, slots=True)
class JournalRecords:
    """What a journal holds, and what had to be left out of it."""

    records: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def read_journal(path: Path) -> JournalRecords:
    """Read the whole records of the journal at `path`.

    A torn last record is what a kill leaves; a damaged one in the middle is skipped. Both are noted.

    Raises
    ------
    FileNotFoundError
        When there is no journal.
    """
    data = path.read_bytes()
    records: list[dict[str, Any]] = []
    damaged = 0
    lines = data.split(b"\n")
    torn = lines.pop()  # empty when the last record is whole
    for line in lines:
        record = _parse(line)
        if record is None:
            damaged += 1
        else:
            records.append(record)
    notes = []
    if torn:
        notes.append(f"the last record of the journal was torn ({len(torn)} bytes) and was dropped")
    if damaged:
        notes.append(f"{damaged} damaged record{'s' if damaged > 1 else ''} of the journal dropped")
    return JournalRecords(tuple(records), tuple(notes))


def _parse(line: bytes) -> dict[str, Any] | None:
    text = line[_PREFIX:]
    if line[:_PREFIX] != b"%08x %08x " % (len(text), zlib.crc32(text)):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
