"""Index files of snapshots: what each needs beside its rows, checked before anything is taken for true.

An index is an archive of arrays behind its hash: the program, the names of the files of rows, where the row
of each token is in them, how the tokens were batched, and the logits behind the newest.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache.base import BatchSchedule, DecodeBatch, DecodeKind
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.row_map import RowMap
from nexus_lab.cache.snapshots import Snapshot
from nexus_lab.cache.state import fold
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.cache.row_map import RowChunk

    Index = dict[str, NDArray[Any]]

__all__ = ["cut_index", "index_header", "pack_index", "read_index", "unpack_index"]

_DIGEST = 32
_KINDS = tuple(DecodeKind)
# What reading a file of another version, whose hash agrees all the same, can fail with.
_FOREIGN = (
    NexusError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    RuntimeError,  # such as a packing that is not known, or too deep a nesting
    MemoryError,
    EOFError,
    OSError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def read_index(path: Path) -> Index | None:
    """Read an index file; None when its hash does not agree, or it is no archive of arrays."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    try:
        with np.load(io.BytesIO(data[_DIGEST:]), allow_pickle=False) as arrays:
            return dict(arrays)
    except _FOREIGN:
        return None


def pack_index(snapshot: Snapshot, names: tuple[str, ...]) -> bytes:
    """Return the file of a snapshot whose chunks of rows have these names."""
    rows, logits = snapshot.rows, snapshot.logits
    arrays = {
        "program": np.frombuffer(snapshot.program.to_json().encode(), np.uint8),
        "names": np.frombuffer("".join(names).encode(), np.uint8),
        "chunk": rows.chunk,
        "row": rows.row,
        "turns": rows.turns,
        "schedule": _scheduled(snapshot.schedule.batches),
        **({} if logits is None else {"logits": logits}),
    }
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    data = file.getvalue()
    return hashlib.sha256(data).digest() + data


def cut_index(index: Index, program: CacheProgram) -> Index | None:
    """Return the index of a beginning, with the rows of it alone; None when it is of another version."""
    n = len(program.layout)
    try:
        _, names = _header(index)
        chunk = index["chunk"][:n]
        used = np.unique(chunk[chunk >= 0])
        number = np.full(len(names) + 1, -1, np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        batches = BatchSchedule(_batches(index)).first(n).batches
        return {
            "program": np.frombuffer(program.to_json().encode(), np.uint8),
            "names": np.frombuffer("".join(names[i] for i in used.tolist()).encode(), np.uint8),
            "chunk": number[chunk],
            "row": index["row"][:n],
            "turns": index["turns"][:n],
            "schedule": _scheduled(batches),
        }
    except _FOREIGN:
        return None


def _batches(index: Index) -> tuple[DecodeBatch, ...]:
    found = index["schedule"].tolist()
    return tuple(DecodeBatch(_KINDS[kind], start, count) for kind, start, count in found)


def _scheduled(batches: tuple[DecodeBatch, ...]) -> NDArray[np.int64]:
    rows = [(_KINDS.index(batch.kind), batch.start, batch.count) for batch in batches]
    return np.array(rows, np.int64).reshape(-1, 3)


def index_header(index: Index) -> tuple[CacheProgram, tuple[str, ...]] | None:
    """Return the program and the names of its files of rows; None when they are of another version."""
    try:
        return _header(index)
    except _FOREIGN:
        return None


def _header(index: Index) -> tuple[CacheProgram, tuple[str, ...]]:
    names = index["names"].tobytes().decode()
    width = 2 * _DIGEST
    rows = tuple(names[i : i + width] for i in range(0, len(names), width))
    return CacheProgram.from_json(index["program"].tobytes().decode()), rows


def unpack_index(index: Index, chunks: tuple[RowChunk, ...]) -> Snapshot | None:
    """Return the snapshot that an index file and its rows make; None when it is of another version."""
    try:
        program, _ = _header(index)
        schedule = BatchSchedule(_batches(index))
        rows = RowMap(
            chunks,
            index["chunk"].astype(np.int32, casting="same_kind"),
            index["row"].astype(np.int32, casting="same_kind"),
            index["turns"].astype(np.uint16, casting="same_kind"),
        )
        found = Snapshot(program, fold(program), rows, index.get("logits"), schedule)
        return found if _sound(found) else None
    except _FOREIGN:
        return None


def _sound(snapshot: Snapshot) -> bool:
    """Whether a snapshot that was read has a row for each active token, in the chunks that there are."""
    rows, logits = snapshot.rows, snapshot.logits
    if any(part.shape != (len(snapshot.state),) for part in (rows.chunk, rows.row, rows.turns)):
        return False
    if logits is not None and (logits.ndim != 1 or logits.dtype != np.float32):
        return False
    if (rows.chunk < -1).any() or (rows.chunk >= len(rows.chunks)).any():
        return False
    sizes = np.array([*(0 if item.state is None else item.state.n_cells for item in rows.chunks), 0])
    kept = rows.chunk >= 0
    if (rows.row[kept] < 0).any() or (rows.row >= sizes[rows.chunk])[kept].any():
        return False
    layouts = {_shape_of(item) for item in rows.chunks}
    return len(layouts) <= 1 and snapshot.complete()


def _shape_of(chunk: RowChunk) -> tuple[int, ...]:
    """Return layers and bytes of a chunk's rows: those of one snapshot go together."""
    state = chunk.state
    return () if state is None else (state.n_layer, state.layout.size_for(1))
