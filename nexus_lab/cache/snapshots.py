"""States that can be brought back: KV rows kept once, as they were computed, in arena memory.

A row is kept when it is computed, at the position where it was computed: its *canonical copy*. A snapshot
only says which rows, at which positions. So the snapshots of a long program share their rows, a drop costs
nothing, and a moved row is always rotated once, from its canonical copy, however many repos came before.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nexus_lab import _core
from nexus_lab.cache.state import IntegrityError
from nexus_lab.engine.errors import StateMemoryFull
from nexus_lab.engine.machine import memory_bytes
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nexus_lab.cache.base import BatchSchedule
    from nexus_lab.cache.program import CacheProgram
    from nexus_lab.cache.state import CacheState
    from nexus_lab.engine import Engine, SequenceState

__all__ = ["DEFAULT_ARENA_BYTES", "RowChunk", "RowMap", "Snapshot", "SnapshotStore"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_COUNTS = ("kept", "declined", "found", "missed", "snapshots_evicted", "chunks_evicted")

DEFAULT_ARENA_BYTES = 256 * 2**20
"""Least arena of a model: about 11,000 rows of one of 135M."""

_MEMORY_SHARE = 4

ARENA_FULL = Decline(
    code="arena_full",
    reason="the snapshot arena has no room that is not needed by a live state",
    instead="stepping back to this state computes again from the nearest one that was kept",
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class RowChunk:
    """Rows that one operation computed or spliced.

    Attributes
    ----------
    state
        The rows; None once evicted.
    used
        Logical time of the last use.
    """

    state: SequenceState | None
    used: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RowMap:
    """Where the canonical copy of each logical token's row is.

    Attributes
    ----------
    chunks
        Chunks that the map refers to.
    chunk
        int32[n], index into `chunks`; -1 for a dropped token, or one whose row was not kept.
    row
        int32[n], row of the chunk.
    turns
        uint16[n], how often the copy (or the live row, where there is none) had been rounded by a rotation.
    """

    chunks: tuple[RowChunk, ...] = ()
    chunk: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    row: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    turns: NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, np.uint16))

    def __len__(self) -> int:
        return len(self.chunk)

    def extended(self, count: int) -> RowMap:
        """Return the map with `count` more tokens, which have no copy."""
        return RowMap(
            self.chunks,
            np.concatenate([self.chunk, np.full(count, -1, np.int32)]),
            np.concatenate([self.row, np.zeros(count, np.int32)]),
            np.concatenate([self.turns, np.zeros(count, np.uint16)]),
        )

    def first(self, count: int) -> RowMap:
        """Return the map of the first `count` tokens."""
        return _compact(self.chunks, self.chunk[:count], self.row[:count], self.turns[:count])

    def placed(
        self, indices: NDArray[np.int64], chunk: RowChunk | None, rows: NDArray[Any] | None, *, turns: Any = 0
    ) -> RowMap:
        """Return the map with the tokens at `indices` in `rows` of `chunk`; without a copy for None."""
        numbers, row, counts = self.chunk.copy(), self.row.copy(), self.turns.copy()
        numbers[indices] = -1 if chunk is None else len(self.chunks)
        row[indices] = 0 if rows is None else rows
        counts[indices] = turns
        return _compact((*self.chunks, *(() if chunk is None else (chunk,))), numbers, row, counts)

    def kept(self, active: NDArray[np.bool_]) -> RowMap:
        """Return the map that forgets the rows of tokens that are not active."""
        return _compact(self.chunks, np.where(active, self.chunk, np.int32(-1)), self.row, self.turns)

    def present(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say for each token whether there is a copy of its row."""
        there = np.array([*(chunk.state is not None for chunk in self.chunks), False])
        found: NDArray[np.bool_] = there[self.chunk[indices]]
        return found

    def identities(self) -> NDArray[np.int64]:
        """Return int64[n, 2] that is equal for two tokens exactly when they share a copy; -1 without one."""
        names = np.array([*(id(chunk) for chunk in self.chunks), -1], np.int64)
        return np.stack([names[self.chunk], np.where(self.chunk >= 0, self.row, -1)], axis=1)

    def gather(self, indices: NDArray[np.int64], *, arena: Any = None) -> SequenceState:
        """Return the copies of the tokens at `indices`, in that order, at the positions they were kept at.

        Raises
        ------
        StateMemoryFull
            When `arena` has no room.
        """
        parts = [
            (chunk.state, np.flatnonzero(self.chunk[indices] == number))
            for number, chunk in enumerate(self.chunks)
            if chunk.state is not None
        ]
        parts = [(state, places) for state, places in parts if places.size]
        if sum(len(places) for _, places in parts) != len(indices):
            raise IntegrityError("rows were asked for that are not kept", next_step="report this")
        rows = self.row[indices]
        template = parts[0][0]
        return type(template).from_rows(
            template.layout,
            _scattered([(state.positions, places) for state, places in parts], rows),
            [_scattered([(s.key(layer), p) for s, p in parts], rows) for layer in range(template.n_layer)],
            [_scattered([(s.value(layer), p) for s, p in parts], rows) for layer in range(template.n_layer)],
            arena=arena,
        )


def _compact(
    chunks: tuple[RowChunk, ...], chunk: NDArray[np.int32], row: NDArray[np.int32], turns: NDArray[np.uint16]
) -> RowMap:
    """Make a map of the chunks that some token refers to."""
    used = np.unique(chunk[chunk >= 0])
    if len(used) == len(chunks):
        return RowMap(chunks, chunk, row, turns)
    number = np.full(len(chunks) + 1, -1, np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return RowMap(tuple(chunks[i] for i in used), number[chunk], row, turns)


def _scattered(parts: list[tuple[NDArray[Any], NDArray[np.int64]]], rows: NDArray[np.int32]) -> NDArray[Any]:
    source = parts[0][0]
    out = np.empty((len(rows), *source.shape[1:]), source.dtype)
    for values, places in parts:
        out[places] = values[rows[places]]
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A state and everything needed to bring it back.

    Attributes
    ----------
    program, state
        The program and its fold.
    rows
        Canonical copies of its rows.
    logits
        float32[n_vocab] behind the newest token, or None.
    schedule
        How its tokens were batched.
    """

    program: CacheProgram
    state: CacheState
    rows: RowMap
    logits: NDArray[np.float32] | None
    schedule: BatchSchedule

    def complete(self) -> bool:
        """Whether each active token has a copy of its row."""
        return bool(self.rows.present(self.state.active_indices()).all())


class SnapshotStore:
    """Snapshots by program id, with their rows in a bounded arena.

    Rows that a live state needs are never evicted. When the arena is full, the chunk that was used longest
    ago among the others goes, and with it the snapshots that need it; when there is none, nothing is evicted
    and the new state is not kept.

    Parameters
    ----------
    arena
        Memory for rows and logits; None makes one of `DEFAULT_ARENA_BYTES`.
    max_snapshots
        Most snapshots kept; the one used longest ago goes first.
    """

    def __init__(self, arena: _core.BuddyArena | None = None, *, max_snapshots: int = 512) -> None:
        self.arena = _core.BuddyArena(DEFAULT_ARENA_BYTES) if arena is None else arena
        self._max = max_snapshots
        self._snapshots: dict[str, Snapshot] = {}
        self._chunks: weakref.WeakSet[RowChunk] = weakref.WeakSet()
        self._holders: weakref.WeakKeyDictionary[object, RowMap] = weakref.WeakKeyDictionary()
        # Operations that compute nothing hand the logits on; they are stored once.
        self._in_arena: weakref.WeakValueDictionary[int, NDArray[np.float32]] = weakref.WeakValueDictionary()
        self._clock = 0
        self._counts = dict.fromkeys(_COUNTS, 0)

    @classmethod
    def for_engine(cls, engine: Engine) -> SnapshotStore:
        """Return a store that holds the rows of a full context twice, in at most a quarter of the memory.

        The arena takes memory only as it fills.
        """
        info = engine.info
        row = 2 * info.n_layer * info.n_head_kv * (info.head_dim_k + info.head_dim_v)
        wanted = max(DEFAULT_ARENA_BYTES, 2 * row * engine.n_ctx)
        limit = (memory_bytes() or 4 * wanted) // _MEMORY_SHARE
        return cls(_core.BuddyArena(min(wanted, limit)))

    def chunk(self, build: Callable[[_core.BuddyArena], SequenceState]) -> RowChunk | None:
        """Return a chunk of what `build` makes in the arena; None when there is no room for it."""
        state = self._with_memory(lambda: build(self.arena))
        if state is None:
            return None
        chunk = RowChunk(state, self._tick())
        self._chunks.add(chunk)
        return chunk

    def scratch(self, build: Callable[[_core.BuddyArena | None], SequenceState]) -> SequenceState:
        """Return what `build` makes in the arena, or in ordinary memory when the arena is full."""
        try:
            return build(self.arena)
        except StateMemoryFull:
            return build(None)

    def hold(self, owner: object, rows: RowMap) -> None:
        """Keep the chunks of `rows` from eviction, in place of those `owner` held before."""
        self._holders[owner] = rows

    def release(self, owner: object) -> None:
        """End what `owner` held."""
        self._holders.pop(owner, None)

    def keep(self, snapshot: Snapshot) -> Snapshot | Decline:
        """Keep `snapshot`, in place of one of the same program.

        Returns
        -------
        Snapshot or Decline
            The snapshot with its logits in the arena, or why it cannot be kept.
        """
        logits = snapshot.logits
        if logits is not None and snapshot.complete() and self._in_arena.get(id(logits)) is not logits:
            logits = self._with_memory(partial(self._stored, logits))
        if not snapshot.complete() or (logits is None and snapshot.logits is not None):
            self._counts["declined"] += 1
            return ARENA_FULL
        kept = replace(snapshot, logits=logits)
        self._snapshots.pop(kept.program.id, None)
        self._snapshots[kept.program.id] = kept
        self._counts["kept"] += 1
        self._touch(kept.rows)
        while len(self._snapshots) > self._max:
            self._forget(next(iter(self._snapshots)))
        return kept

    def find(self, program_id: str) -> Snapshot | None:
        """Return the snapshot of that program; None when it is not kept."""
        snapshot = self._snapshots.pop(program_id, None)
        self._counts["missed" if snapshot is None else "found"] += 1
        if snapshot is not None:
            self._snapshots[program_id] = snapshot
            self._touch(snapshot.rows)
        return snapshot

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._snapshots

    def __len__(self) -> int:
        return len(self._snapshots)

    def clear(self) -> None:
        """Forget all snapshots; live states keep their rows."""
        for program_id in list(self._snapshots):
            self._forget(program_id)

    def counters(self) -> dict[str, int]:
        """Return counts of snapshots and chunks, and the arena's bytes."""
        arena = {f"arena_{name}": value for name, value in self.arena.counters().items()}
        chunks = [chunk for chunk in self._chunks if chunk.state is not None]
        rows = sum(chunk.state.n_cells for chunk in chunks if chunk.state is not None)
        own = {"snapshots": len(self._snapshots), "chunks": len(chunks), "rows": rows}
        return {**own, **self._counts, **arena}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a snapshot lacks a row, or a bound is exceeded."""
        self.arena.check_integrity()
        for program_id, snapshot in self._snapshots.items():
            if program_id != snapshot.program.id or not snapshot.complete():
                raise IntegrityError(f"snapshot {program_id} cannot be brought back", next_step="report this")
        if len(self._snapshots) > self._max:
            raise IntegrityError("more snapshots than allowed", next_step="report this")

    def _with_memory(self, build: Callable[[], _T]) -> _T | None:
        while True:
            try:
                return build()
            except (StateMemoryFull, _core.ArenaFull):
                if not self._evict_chunk():
                    return None

    def _stored(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        block: Any = self.arena.allocate(logits.nbytes)
        stored: NDArray[np.float32] = np.frombuffer(block, np.float32, logits.size)
        stored[:] = logits
        stored.flags.writeable = False
        self._in_arena[id(stored)] = stored
        return stored

    def _evict_chunk(self) -> bool:
        held = {id(chunk) for rows in self._holders.values() for chunk in rows.chunks}
        free = [chunk for chunk in self._chunks if chunk.state is not None and id(chunk) not in held]
        if not free:
            return False
        victim = min(free, key=lambda chunk: chunk.used)
        for program_id, snapshot in list(self._snapshots.items()):
            if any(chunk is victim for chunk in snapshot.rows.chunks):
                self._forget(program_id)
        victim.state = None
        self._counts["chunks_evicted"] += 1
        return True

    def _forget(self, program_id: str) -> None:
        del self._snapshots[program_id]
        self._counts["snapshots_evicted"] += 1

    def _touch(self, rows: RowMap) -> None:
        tick = self._tick()
        for chunk in rows.chunks:
            chunk.used = tick

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
