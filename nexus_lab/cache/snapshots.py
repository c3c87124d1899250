"""States that can be brought back: KV rows kept once, as they were computed, in arena memory, then on disk.

A row is kept when it is computed, at the position where it was computed: its *canonical copy*. A snapshot
only says which rows, at which positions. So the snapshots of a long program share their rows, a drop costs
nothing, and a moved row is always rotated once, from its canonical copy, however many repos came before.

Programs are kept in an op tree, so that a state that was never kept itself can be cut out of a longer one.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nexus_lab import _core
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.row_map import RowChunk, RowMap
from nexus_lab.cache.state import IntegrityError, fold
from nexus_lab.cache.tree import OpTree, Tier, TreeError
from nexus_lab.engine.errors import StateMemoryFull
from nexus_lab.engine.machine import memory_bytes
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from numpy.typing import NDArray

    from nexus_lab.cache.base import BatchSchedule
    from nexus_lab.cache.disk import SnapshotDisk
    from nexus_lab.cache.state import CacheState
    from nexus_lab.engine import Engine, SequenceState

__all__ = ["DEFAULT_ARENA_BYTES", "Snapshot", "SnapshotStore"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_COUNTS = (
    "kept",
    "declined",
    "found",
    "missed",
    "cut",
    "snapshots_evicted",
    "chunks_evicted",
    "dropped_evicted",
)

DEFAULT_ARENA_BYTES = 256 * 2**20
"""Least arena of a model: about 11,000 rows of one of 135M."""

_MEMORY_SHARE = 4

ARENA_FULL = Decline(
    code="arena_full",
    reason="the snapshot arena has no room that is not needed by a live state",
    instead="stepping back to this state computes again from the nearest one that was kept",
)


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

    def cut(self, program: CacheProgram) -> Snapshot:
        """Return the state of `program`, which this one's program only appended to and spliced behind.

        The logits behind its newest token were not kept.
        """
        n = len(program.layout)
        return Snapshot(program, fold(program), self.rows.first(n), None, self.schedule.first(n))


class SnapshotStore:
    """Snapshots by program, with their rows in a bounded arena, and on disk where one is given.

    Rows that a live state needs are never evicted. When the arena is full, a chunk of rows among the others
    goes: first those that no longest program needs (dropped or repaired since, so that only a step back would
    use them), then those of finished programs, of each the one that was used longest ago. With a disk, the
    longest programs that need a chunk are written there before it goes; other snapshots that need it are
    forgotten. When there is no such chunk, nothing is evicted and the new state is not kept.

    Parameters
    ----------
    arena
        Memory for rows and logits; None makes one of `DEFAULT_ARENA_BYTES`.
    max_snapshots
        Most snapshots kept in memory; the one used longest ago goes first.
    disk
        Where finished programs go when memory is short; None forgets them.
    tree
        Where programs are booked; None makes one, which a pool of sequences can share.
    """

    def __init__(
        self,
        arena: _core.BuddyArena | None = None,
        *,
        max_snapshots: int = 512,
        disk: SnapshotDisk | None = None,
        tree: OpTree | None = None,
    ) -> None:
        self.arena = _core.BuddyArena(DEFAULT_ARENA_BYTES) if arena is None else arena
        self.tree = OpTree() if tree is None else tree
        self.tree.on_evicted(self._drop_out)
        self.disk = disk
        self._max = max_snapshots
        self._snapshots: dict[str, Snapshot] = {}
        self._chunks: weakref.WeakSet[RowChunk] = weakref.WeakSet()
        self._holders: weakref.WeakKeyDictionary[object, RowMap] = weakref.WeakKeyDictionary()
        # Operations that compute nothing hand the logits on; they are stored once.
        self._in_arena: weakref.WeakValueDictionary[int, NDArray[np.float32]] = weakref.WeakValueDictionary()
        self._clock = 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        for program in () if disk is None else disk.programs():
            self._enter_on_disk(program)

    @classmethod
    def for_engine(cls, engine: Engine, *, disk: SnapshotDisk | None = None) -> SnapshotStore:
        """Return a store that holds the rows of a full context twice, in at most a quarter of the memory.

        The arena takes memory only as it fills.

        Raises
        ------
        DiskForeign
            When `disk` holds snapshots of another model or cache layout.
        """
        if disk is not None:
            disk.belong_to(engine)
        info = engine.info
        row = 2 * info.n_layer * info.n_head_kv * (info.head_dim_k + info.head_dim_v)
        wanted = max(DEFAULT_ARENA_BYTES, 2 * row * engine.n_ctx)
        limit = (memory_bytes() or 4 * wanted) // _MEMORY_SHARE
        return cls(_core.BuddyArena(min(wanted, limit)), disk=disk)

    # -- rows -----------------------------------------------------------------------------------------------

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

    # -- snapshots ------------------------------------------------------------------------------------------

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
        if not self._enter(kept.program, Tier.HOST) and kept.program.canonical_ops:
            self._counts["declined"] += 1
            return ARENA_FULL
        self._snapshots.pop(kept.program.id, None)
        self._snapshots[kept.program.id] = kept
        self._counts["kept"] += 1
        self._touch(kept.rows)
        self._trim()
        return kept

    def find(self, program_id: str) -> Snapshot | None:
        """Return the snapshot of that program; None when it is not kept, or what was kept is damaged."""
        snapshot = self._snapshots.pop(program_id, None)
        if snapshot is None and self.disk is not None and program_id in self.disk:
            snapshot = self._loaded(program_id, self.disk)
        self._counts["missed" if snapshot is None else "found"] += 1
        if snapshot is not None:
            self._snapshots[program_id] = snapshot
            self._touch(snapshot.rows)
            self._trim()
        return snapshot

    def beginning(self, program: CacheProgram) -> CacheProgram | None:
        """Return the longest beginning of `program` that `bring` has a state of; None when there is none."""
        held = self.tree.held(program, Tier.HOST | Tier.DISK)
        return None if held is None else held[0]

    def bring(self, program: CacheProgram) -> Snapshot | None:
        """Return the state of `program`, cut out of a longer one where it was not kept itself."""
        found = self.find(program.id) if program.id in self else None
        while found is None:
            held = self.tree.held(program, Tier.HOST | Tier.DISK)
            if held is None or held[0] != program:
                return None
            found = self._cut_out(held[1], program)
            if found is None and held[1] in self:
                return None  # memory has no room for it; a damaged one would be gone
        return found

    def _cut_out(self, program_id: str, program: CacheProgram) -> Snapshot | None:
        """Return the state of `program` out of a longer one's; of one on disk only what it needs is read."""
        if program_id in self._snapshots or self.disk is None:
            longer = self.find(program_id)
            found = None if longer is None else longer.cut(program)
        else:
            found = self._read(program_id, self.disk, _Keeper(), part=program)
            self._counts["missed" if found is None else "found"] += 1
        self._counts["cut"] += found is not None
        return found

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._snapshots or (self.disk is not None and program_id in self.disk)

    def __len__(self) -> int:
        return len(self._snapshots)

    def clear(self) -> None:
        """Forget all snapshots, in memory and on disk; live states keep their rows."""
        for program_id in list(self._snapshots):
            self._forget(program_id)
        for program_id in [] if self.disk is None else list(self.disk):
            self._forget_on_disk(program_id)

    def persist(self) -> int:
        """Write the longest programs in memory to disk, where there is one; returns how many were written.

        The one used last is written last: where there is no room for all, it is the last to go.
        """
        longest = self.tree.longest()
        wanted = [item for item in self._snapshots if item in longest]
        return sum(self._written(program_id) for program_id in wanted)

    def counters(self) -> dict[str, int]:
        """Return counts of snapshots and chunks, the arena's bytes, and what the tree and the disk count."""
        arena = {f"arena_{name}": value for name, value in self.arena.counters().items()}
        tree = {f"tree_{name}": value for name, value in self.tree.counters().items()}
        disk = {} if self.disk is None else {f"disk_{k}": v for k, v in self.disk.counters().items()}
        chunks = [chunk for chunk in self._chunks if chunk.state is not None]
        rows = sum(chunk.state.n_cells for chunk in chunks if chunk.state is not None)
        own = {"snapshots": len(self._snapshots), "chunks": len(chunks), "rows": rows}
        return {**own, **self._counts, **arena, **tree, **disk}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a snapshot lacks a row, or a bound is exceeded."""
        self.arena.check_integrity()
        self.tree.check_integrity()
        for program_id, snapshot in self._snapshots.items():
            if program_id != snapshot.program.id or not snapshot.complete():
                raise IntegrityError(f"snapshot {program_id} cannot be brought back", next_step="report this")
        if len(self._snapshots) > self._max:
            raise IntegrityError("more snapshots than allowed", next_step="report this")
        on_disk = set() if self.disk is None else set(self.disk)
        for tier, wanted in ((Tier.HOST, set(self._snapshots)), (Tier.DISK, on_disk)):
            booked = {program_id for program_id in self.tree if tier in self.tree.tiers(program_id)}
            if booked != wanted - {CacheProgram().id}:
                raise IntegrityError(f"the tree books other programs in {tier.name}", next_step="report this")

    # -- how ------------------------------------------------------------------------------------------------

    def _enter(self, program: CacheProgram, tier: Tier) -> bool:
        """Book `program` in the tree; returns whether it is there: the empty program never is."""
        if not program.canonical_ops:
            return False
        try:
            self.tree.insert(program, tier)
        except TreeError as error:
            _LOG.debug("not in the tree: %s", error)
            return False
        return True

    def _trim(self) -> None:
        """Forget the snapshots used longest ago that are too many."""
        while len(self._snapshots) > self._max:
            self._forget(next(iter(self._snapshots)))

    def _drop_out(self, program_id: str) -> None:
        """Forget what the tree has no room for."""
        if self._snapshots.pop(program_id, None) is not None:
            self._counts["snapshots_evicted"] += 1
        if self.disk is not None and program_id in self.disk:
            self.disk.remove(program_id)

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
        longest = self.tree.longest()
        needed = _chunks_of(self._snapshots[item] for item in longest if item in self._snapshots)
        victim = min(free, key=lambda chunk: (id(chunk) in needed, chunk.used))
        for program_id, snapshot in list(self._snapshots.items()):
            if any(chunk is victim for chunk in snapshot.rows.chunks):
                if program_id in longest:
                    self._written(program_id)
                self._forget(program_id)
        victim.state = None
        self._counts["chunks_evicted"] += 1
        self._counts["dropped_evicted"] += id(victim) not in needed
        return True

    def _forget(self, program_id: str) -> None:
        del self._snapshots[program_id]
        self._unbook(program_id, Tier.HOST)
        self._counts["snapshots_evicted"] += 1

    def _unbook(self, program_id: str, tier: Tier) -> None:
        if tier in self.tree.tiers(program_id):
            self.tree.remove(program_id, tier)

    # -- the disk -------------------------------------------------------------------------------------------

    def _written(self, program_id: str) -> bool:
        """Write a snapshot to disk, where there is one with room; returns whether it did."""
        if self.disk is None or program_id in self.disk:
            return False
        written, gone = self.disk.write(self._snapshots[program_id])
        for lost in gone:
            self._unbook(lost, Tier.DISK)
        return written and self._enter_on_disk(self._snapshots[program_id].program)

    def _enter_on_disk(self, program: CacheProgram) -> bool:
        """Book what is on disk; returns whether it stays there, since nothing would find it without."""
        booked = self._enter(program, Tier.DISK)
        if not booked and self.disk is not None:
            self.disk.remove(program.id)
        return booked

    def _read(
        self, program_id: str, disk: SnapshotDisk, keeper: _Keeper, *, part: CacheProgram | None = None
    ) -> Snapshot | None:
        """Read a snapshot, or a part of it; None when it is damaged, or memory has no room."""
        if program_id not in disk:
            self._unbook(program_id, Tier.DISK)
            return None
        found = disk.read(program_id, partial(self._adopted, keeper), part=part)
        if program_id not in disk:  # damaged, and with it perhaps others
            for lost in [item for item in self.tree if item not in disk]:
                self._unbook(lost, Tier.DISK)
        return found

    def _loaded(self, program_id: str, disk: SnapshotDisk) -> Snapshot | None:
        """Read a snapshot back into memory; None when it is damaged, or memory has no room."""
        keeper = _Keeper()  # until its logits are in the arena, too
        loaded = self._read(program_id, disk, keeper)
        if loaded is None:
            return None
        if loaded.logits is not None:
            loaded = replace(loaded, logits=self._with_memory(partial(self._stored, loaded.logits)))
        self._enter(loaded.program, Tier.HOST)
        return loaded

    def _adopted(
        self, keeper: _Keeper, states: Iterable[Callable[[_core.BuddyArena], SequenceState]]
    ) -> list[RowChunk] | None:
        """Return chunks of the rows that `states` make in the arena, all of them or None."""
        chunks: list[RowChunk] = []
        for build in states:
            chunk = self.chunk(build)
            if chunk is None:
                return None
            chunks.append(chunk)
            # What has been read already must not make room for the rest.
            self._holders[keeper] = RowMap(tuple(chunks))
        return chunks

    def _forget_on_disk(self, program_id: str) -> None:
        if self.disk is not None:
            self.disk.remove(program_id)
        self._unbook(program_id, Tier.DISK)

    def _touch(self, rows: RowMap) -> None:
        tick = self._tick()
        for chunk in rows.chunks:
            chunk.used = tick

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


class _Keeper:
    """Holds rows for as long as somebody has it."""


def _chunks_of(snapshots: Iterable[Snapshot]) -> set[int]:
    return {id(chunk) for snapshot in snapshots for chunk in snapshot.rows.chunks}
