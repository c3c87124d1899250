"""Snapshots on disk: rows by the hash of their contents, and one file that says what each snapshot needs.

Every file is written whole or not at all, rows before the snapshot that needs them, so that a process that is
killed leaves nothing half written: what it was writing is missing, and everything else is there. What is read
is checked against its hash; what does not agree is deleted with all that needs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache.disk_index import cut_index, index_header, pack_index, read_index, unpack_index
from nexus_lab.engine import SequenceState, StateMismatch
from nexus_lab.engine.state import state_buffer
from nexus_lab.errors import NexusError
from nexus_lab.paths import NotWritten, atomic_write, cache_dir, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import IO, Self

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.cache.program import CacheProgram
    from nexus_lab.cache.row_map import RowChunk
    from nexus_lab.cache.snapshots import Snapshot
    from nexus_lab.engine import Engine

    Builder = Callable[[BuddyArena], SequenceState]

__all__ = [
    "DEFAULT_DISK_BYTES",
    "DiskForeign",
    "DiskInUse",
    "DiskUnusable",
    "SnapshotDisk",
    "owner_of",
    "snapshots_folder",
]

_LOG = logging.getLogger(__name__)

DEFAULT_DISK_BYTES = 2 * 2**30
LOCK = "lock"
OWNER = ".owner"
_OWN = re.compile(r"[0-9a-f]{64}\.(?:rows|snapshot)|\.[0-9a-f]{64}\.(?:rows|snapshot)\..+")
_ATTEMPTS = 8
_PRIVATE = 0o700
_COUNTS = ("written", "read", "refused", "corrupt", "evicted", "orphans")


class DiskInUse(NexusError):
    """Another process keeps its snapshots in that folder."""


class DiskForeign(NexusError):
    """The folder holds snapshots of another model or cache layout."""


class DiskUnusable(NexusError):
    """The folder cannot be made, read or locked."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a snapshot without reading its rows."""

    program: CacheProgram
    rows: tuple[str, ...]
    n_bytes: int


class SnapshotDisk:
    """A folder of snapshots of one model and cache layout, for one process at a time.

    The files hold the tokens of conversations, so that nobody else may read a folder that is made here.

    Parameters
    ----------
    folder
        Made when it is missing. What an earlier process left there is taken over.
    max_bytes
        Most bytes of all files together; the snapshot used longest ago goes first.

    Raises
    ------
    DiskInUse
        When another process has the folder, or this one has it already.
    DiskUnusable
        When it cannot be made, read or locked, or may hold less than nothing.
    """

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_DISK_BYTES) -> None:
        if max_bytes < 0:
            raise DiskUnusable(f"max_bytes = {max_bytes}", next_step="choose 0 or more")
        self.folder = folder
        self.max_bytes = max_bytes
        self.closed = False
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._kept: dict[str, _Kept] = {}
        self._row_bytes: dict[str, int] = {}
        self._owner: str | None = None
        try:
            self._lock = _locked(folder)
            with _closed_on_failure(self._lock):
                self._take_over()
        except OSError as error:
            raise DiskUnusable(
                f"{shown_path(folder)} cannot hold snapshots: {error.strerror or error}",
                next_step="make it a folder that can be read and written, or name another",
            ) from error

    @classmethod
    def for_engine(cls, engine: Engine, *, max_bytes: int = DEFAULT_DISK_BYTES) -> SnapshotDisk:
        """Return the disk in the package's cache folder for this model and cache layout."""
        return cls(snapshots_folder() / owner_of(engine), max_bytes=max_bytes)

    def belong_to(self, engine: Engine) -> None:
        """Keep the snapshots of `engine` only, of its model and its cache layout; the folder remembers it.

        Raises
        ------
        DiskForeign
            When there are snapshots of another: its rows mean nothing to this one.
        """
        owner = owner_of(engine)
        if self.closed or self._owner == owner:
            return
        if self._kept and self._owner is not None:
            raise DiskForeign(
                f"{shown_path(self.folder)} holds snapshots of another model or cache layout",
                next_step="name another folder for this one",
            )
        for path in self.folder.glob(f"*{OWNER}"):
            path.unlink()
        (self.folder / f"{owner}{OWNER}").touch()
        self._owner = owner

    def close(self) -> None:
        """Let another process have the folder; nothing is written or read here any more."""
        self.closed = True
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self._row_bytes.values()) + sum(item.n_bytes for item in self._kept.values())

    def programs(self) -> tuple[CacheProgram, ...]:
        """Return the programs whose snapshots are there, the one used longest ago first."""
        return tuple(item.program for item in self._kept.values())

    def write(self, snapshot: Snapshot) -> tuple[bool, tuple[str, ...]]:
        """Write a snapshot that is complete.

        Returns
        -------
        written
            False where it cannot fit, or the folder cannot be written, or is closed.
        gone
            Ids of the programs that had to go for it.
        """
        if self.closed:
            return False, ()
        program_id = snapshot.program.id
        buffers = {_name(chunk): _buffer(chunk) for chunk in snapshot.rows.chunks}
        names = tuple(_name(chunk) for chunk in snapshot.rows.chunks)
        index = pack_index(snapshot, names)
        needed = len(index) + sum(buffer.nbytes for buffer in buffers.values())
        if needed > self.max_bytes:
            self._counts["refused"] += 1
            return False, ()
        gone = tuple(self._make_room(buffers, len(index)))
        try:
            for name, buffer in buffers.items():
                if name not in self._row_bytes:
                    atomic_write(self._rows_file(name), buffer.tobytes())
                    self._row_bytes[name] = buffer.nbytes
            atomic_write(self._index_file(program_id), index)
        except NotWritten as error:
            _LOG.warning("a snapshot stays in memory only: %s", error)
            self._counts["refused"] += 1
            self._sweep()
            return False, gone
        self._kept[program_id] = _Kept(snapshot.program, names, len(index))
        self._counts["written"] += 1
        return True, gone

    def read(
        self,
        program_id: str,
        adopt: Callable[[list[Builder]], list[RowChunk] | None],
        *,
        part: CacheProgram | None = None,
    ) -> Snapshot | None:
        """Read a snapshot back; None when it is damaged, `adopt` has no room, or the folder is closed.

        A damaged one is deleted, and so are others that need the same damaged rows.

        Parameters
        ----------
        adopt
            Makes chunks of what builds their rows in an arena.
        part
            The beginning that is wanted, which the program only grew behind: only its rows are read, and the
            result is its snapshot, without logits. None for all.
        """
        if self.closed:
            return None
        index = read_index(self._index_file(program_id))
        if index is not None and part is not None:
            index = cut_index(index, part)
        header = None if index is None else index_header(index)
        names = () if header is None else header[1]
        rows = [_rows(self._rows_file(name), name) for name in names]
        if index is None or header is None or any(item is None for item in rows):
            self._lose(program_id, [name for name, item in zip(names, rows, strict=True) if item is None])
            return None
        self._kept[program_id] = self._kept.pop(program_id)  # used last: room is made in place of others
        try:
            chunks = adopt([_builder(item) for item in rows if item is not None])
        except StateMismatch:
            self._lose(program_id, list(names))
            return None
        if chunks is None:
            return None
        snapshot = unpack_index(index, tuple(chunks))
        if snapshot is None:
            self._lose(program_id, [])
            return None
        with suppress(OSError):  # a later process then takes it for one used longer ago
            os.utime(self._index_file(program_id))
        self._counts["read"] += 1
        return snapshot

    def remove(self, program_id: str) -> None:
        """Delete a snapshot, and the rows that no other needs."""
        if self._kept.pop(program_id, None) is not None and not self.closed:
            _delete(self._index_file(program_id))
            self._sweep()

    def counters(self) -> dict[str, int]:
        """Return the number of snapshots and row files, their bytes and limit, and what happened so far."""
        own = {"snapshots": len(self._kept), "row_files": len(self._row_bytes), "bytes": self.n_bytes}
        return {**own, "max_bytes": self.max_bytes, **self._counts}

    # -- how ------------------------------------------------------------------------------------------------

    def _index_file(self, program_id: str) -> Path:
        return self.folder / f"{program_id}.snapshot"

    def _rows_file(self, name: str) -> Path:
        return self.folder / f"{name}.rows"

    def _take_over(self) -> None:
        """Read what is there; what a killed process was writing, and what nobody needs, is deleted."""
        for path in own_files(self.folder, ".*.*"):
            _delete(path)
        self._owner = next((path.stem for path in self.folder.glob(f"*{OWNER}")), None)
        self._row_bytes = {path.stem: path.lstat().st_size for path in own_files(self.folder, "*.rows")}
        for path in sorted(own_files(self.folder, "*.snapshot"), key=lambda item: item.lstat().st_mtime_ns):
            kept = _kept(path)
            if kept is not None and all(name in self._row_bytes for name in kept.rows):
                self._kept[kept.program.id] = kept
            else:
                _delete(path)
                self._counts["corrupt"] += 1
        self._counts["orphans"] = self._sweep()
        while self._kept and self.n_bytes > self.max_bytes:
            self._evict()

    def _make_room(self, buffers: dict[str, NDArray[np.uint8]], n_index: int) -> Iterator[str]:
        while True:
            new = sum(item.nbytes for name, item in buffers.items() if name not in self._row_bytes)
            if self.n_bytes + new + n_index <= self.max_bytes:
                return
            yield self._evict()

    def _evict(self) -> str:
        oldest = next(iter(self._kept))
        self.remove(oldest)
        self._counts["evicted"] += 1
        return oldest

    def _sweep(self) -> int:
        """Delete the rows that no snapshot needs; returns how many files these were."""
        needed = {name for item in self._kept.values() for name in item.rows}
        orphans = [name for name in self._row_bytes if name not in needed]
        for name in orphans:
            _delete(self._rows_file(name))
            del self._row_bytes[name]
        return len(orphans)

    def _lose(self, program_id: str, bad: list[str]) -> None:
        """Delete a damaged snapshot, and all others that need its damaged rows."""
        needing = [other for other, item in self._kept.items() if set(bad) & set(item.rows)]
        for lost in dict.fromkeys((program_id, *needing)):
            _LOG.warning("the snapshot of program %s is damaged; it will be computed again", lost)
            self._counts["corrupt"] += 1
            self.remove(lost)


def snapshots_folder() -> Path:
    """Return the folder in the package's cache that has a folder for each model and cache layout."""
    return cache_dir() / "snapshots"


def own_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield what snapshots leave in a folder; whatever else is there is somebody's own."""
    return (path for path in folder.glob(pattern) if _OWN.fullmatch(path.name))


def owner_of(engine: Engine) -> str:
    """Return whose snapshots those of `engine` are, by its model, its cache layout and its build.

    Under another build of llama.cpp the same tokens have other last bits.
    """
    schedule = engine.schedule
    layout = f"{schedule.kv_type}-{'flash' if schedule.flash_attention else 'plain'}"
    build = hashlib.sha256(engine.build.encode()).hexdigest()[:8]
    return f"{engine.info.fingerprint}-{layout}-{build}"


def _locked(folder: Path) -> IO[bytes]:
    """Make and lock a folder; one that is taken away meanwhile, since nobody had it, is made anew."""
    for _ in range(_ATTEMPTS):
        folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            handle = (folder / LOCK).open("ab")
            with _closed_on_failure(handle):
                _lock(handle, folder)
                if _is_there(handle, folder / LOCK):
                    os.utime(handle.fileno())
                    return handle
            handle.close()
    raise DiskUnusable(f"{shown_path(folder)} is taken away again and again", next_step="name another folder")


def _lock(handle: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DiskInUse(
            f"another process keeps its snapshots in {shown_path(folder)}",
            next_step="end it, or name another folder",
        ) from error


def _is_there(handle: IO[bytes], path: Path) -> bool:
    """Whether a file that was opened still has its name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _closed_on_failure(handle: IO[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        handle.close()
        raise


def _delete(path: Path) -> None:
    """Delete a file; one that cannot be deleted stands in nobody's way, and the next process tries again."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _LOG.warning("%s cannot be deleted: %s", shown_path(path), error)


def _kept(path: Path) -> _Kept | None:
    """Return what an index file says; None when it is damaged, of another version, or another program's."""
    index = read_index(path)
    if index is None:
        return None
    found = index_header(index)
    if found is None or found[0].id != path.stem:
        return None
    return _Kept(*found, path.stat().st_size)


def _buffer(chunk: RowChunk) -> NDArray[np.uint8]:
    if chunk.state is None:
        raise NexusError("rows were to be written that are gone", next_step="report this")
    return chunk.state.buffer


def _name(chunk: RowChunk) -> str:
    return hashlib.sha256(_buffer(chunk).data).hexdigest()


def _builder(rows: NDArray[np.uint8]) -> Builder:
    def build(arena: BuddyArena) -> SequenceState:
        buffer = state_buffer(rows.nbytes, arena)
        np.copyto(buffer, rows)
        return SequenceState(buffer)

    return build


def _rows(path: Path, name: str) -> NDArray[np.uint8] | None:
    try:
        rows = np.fromfile(path, np.uint8)
    except OSError:
        return None
    return rows if hashlib.sha256(rows.data).hexdigest() == name else None
