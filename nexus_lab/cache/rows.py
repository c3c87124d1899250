"""Moves KV rows between a live sequence, their canonical copies, and other positions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache.ops import ranges_of
from nexus_lab.cache.row_map import RowChunk
from nexus_lab.cache.state import IntegrityError
from nexus_lab.engine.errors import ContextFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.cache.row_map import RowMap
    from nexus_lab.cache.snapshots import Snapshot, SnapshotStore
    from nexus_lab.cache.state import CacheState
    from nexus_lab.engine import Engine, SequenceState

__all__ = ["RowMover"]


class RowMover:
    """Reads, writes and replaces rows of sequences; a sequence is always given with what it holds.

    Parameters
    ----------
    engine
        Engine that owns the sequences.
    store
        Keeps canonical copies.
    """

    def __init__(self, engine: Engine, store: SnapshotStore) -> None:
        self._engine = engine
        self._store = store
        self._readable = "splice" not in engine.declines

    def bring(self, wanted: Snapshot, before: Snapshot, seq: int) -> None:
        """Replace what is on `seq` by the complete snapshot `wanted`; leading rows that are the same stay."""
        common = _common(before, wanted)
        new = wanted.state.active_indices()
        new = new[new >= common]
        fresh = self.moved(wanted.rows.gather(new), wanted.state.positions[new]) if new.size else None
        self.swap(seq, before, common, fresh)

    def swap(self, seq: int, before: Snapshot, first: int, fresh: SequenceState | None) -> None:
        """Put `fresh` in the place of the rows of logical token `first` and of those behind it.

        The old rows stay on a scratch sequence until the engine has found room for the new ones; that takes
        no cells that the old rows alone will not give back.
        """
        place = _place(before.state, first)
        if place == before.state.next_position:
            if fresh is not None:
                self.restore(fresh, seq)
            return
        if fresh is None:
            self._engine.remove(seq, place, -1)
            return
        rescue = self._rescue(seq, before, first)
        with self._engine.scratch_sequence() as parked:
            try:
                self._engine.copy_sequence(seq, parked, place, -1)
                self._engine.remove(seq, place, -1)
                self._engine.restore_state(fresh, parked)
                self._engine.copy_sequence(parked, seq)
            except ContextFull:
                self._engine.copy_sequence(parked, seq)
                raise
            except BaseException:
                self._engine.remove(parked)
                rescue()
                raise

    @contextmanager
    def undo(self, seq: int, before: Snapshot, first: int) -> Iterator[None]:
        """Put the rows of logical token `first` and of those behind it back when the block fails."""
        rescue = self._rescue(seq, before, first)
        try:
            yield
        except BaseException:
            rescue()
            raise

    @contextmanager
    def parked(self, seq: int, before: Snapshot, first: int) -> Iterator[None]:
        """As `undo`, for a block that takes no new cells: the rows keep the cells they have."""
        place = _place(before.state, first)
        with self._engine.scratch_sequence() as scratch:
            self._engine.copy_sequence(seq, scratch, place, -1)
            try:
                yield
            except BaseException:
                self._engine.remove(seq, place, -1)
                self._engine.copy_sequence(scratch, seq)
                raise

    def _rescue(self, seq: int, before: Snapshot, first: int) -> Callable[[], None]:
        """Return what puts the rows of token `first` and of those behind it back, from copies of them."""
        indices = before.state.active_indices()
        indices = indices[indices >= first]
        positions = before.state.positions[indices]
        saved = None
        if not before.rows.present(indices).all():
            saved = self.live(seq, positions, None)

        def put_back() -> None:
            self._engine.remove(seq, _place(before.state, first), -1)
            if indices.size:
                self.restore(saved or self.moved(before.rows.gather(indices), positions), seq)

        return put_back

    def restore(self, state: SequenceState, seq: int) -> None:
        """Add the rows of `state` to `seq`, evicting warm sequences where cells are short."""
        self._engine.restore_state(state, seq, append=True)

    def live(self, seq: int, positions: NDArray[Any], arena: BuddyArena | None) -> SequenceState:
        """Copy the rows at `positions` out of the context, in rising order of position."""
        with self._engine.scratch_sequence() as scratch:
            for start, stop in ranges_of(positions.tolist()):
                self._engine.copy_sequence(seq, scratch, start, stop)
            return self._engine.save_state(scratch, arena=arena)

    def captured(self, rows: RowMap, indices: NDArray[np.int64], state: CacheState, seq: int) -> RowMap:
        """Return `rows` with copies of the live rows of `indices`; without them where there is no room."""
        if not self._readable or not indices.size:
            return rows
        chunk = self._store.chunk(lambda arena: self.live(seq, state.positions[indices], arena))
        if chunk is None or chunk.state is None:
            return rows
        return rows.placed(indices, chunk, chunk.state.order(), turns=rows.turns[indices])

    def with_copies(
        self, before: Snapshot, indices: NDArray[np.int64], seq: int
    ) -> tuple[RowMap, NDArray[np.int64]]:
        """Return a map in which each token at `indices` has a copy, and those that only have one on loan.

        A row whose copy could not be kept is copied from where it stands now, rotations included.
        """
        lacking = indices[~before.rows.present(indices)]
        rows = self.captured(before.rows, lacking, before.state, seq)
        loans = lacking[~rows.present(lacking)]
        if loans.size:
            state = self.live(seq, before.state.positions[loans], None)
            rows = rows.placed(loans, RowChunk(state), state.order(), turns=rows.turns[loans])
        return rows, loans

    def moved(self, state: SequenceState, positions: NDArray[np.int32]) -> SequenceState:
        """Return the rows of `state` rotated once to `positions`."""
        if np.array_equal(state.positions, positions):
            return state
        rope = self._engine.info.rope
        if rope is None:
            raise IntegrityError(
                "rows of a model without a known rotation cannot move", next_step="report this"
            )
        return self._store.scratch(lambda arena: state.moved(positions, rope, arena=arena))


def _place(state: CacheState, first: int) -> int:
    """Return the position from which on the rows of logical token `first` and of those behind it are."""
    positions = state.positions[first:]
    active = positions[positions >= 0]
    return int(active[0]) if active.size else state.next_position


def _common(one: Snapshot, two: Snapshot) -> int:
    """Count the leading logical tokens whose rows are the same copies at the same positions."""
    n = min(len(one.state), len(two.state))
    same = one.state.positions[:n] == two.state.positions[:n]
    lost = ~one.state.active[:n] & ~two.state.active[:n]
    left, right = one.rows.identities()[:n], two.rows.identities()[:n]
    kept = (left == right).all(axis=1) & (left[:, 0] != -1)
    alike = same & (kept | lost)
    return n if alike.all() else int(np.argmin(alike))
