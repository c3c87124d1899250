"""Carries single operations out on an engine sequence, each of them wholly or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nexus_lab.cache.base import BatchSchedule, DecodeKind
from nexus_lab.cache.ops import Append, CacheOp, Drop, Repair, Repos, Splice, ranges_of
from nexus_lab.cache.snapshots import RowChunk, Snapshot
from nexus_lab.cache.state import CacheState, fold
from nexus_lab.engine.errors import ContextFull
from nexus_lab.errors import Cancelled, Decline, NexusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.cache.base import BlockSource
    from nexus_lab.cache.program import CacheProgram
    from nexus_lab.cache.slots import SequencePool
    from nexus_lab.cache.snapshots import RowMap, SnapshotStore
    from nexus_lab.engine import Engine, SequenceState

__all__ = ["Executor", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one operation did.

    Attributes
    ----------
    after
        The state it led to; the state before when nothing was executed.
    executed
        The operation that ran; None when nothing did.
    touched
        Logical indices that were appended, spliced, recomputed, dropped or moved.
    rotations
        Most often that a moved row has been rounded by a rotation.
    declined
        Why it was not done as asked.
    """

    after: Snapshot
    executed: CacheOp | None
    touched: NDArray[np.int64]
    rotations: int = 0
    declined: Decline | None = None


class Executor:
    """Runs operations on sequences of one engine.

    The caller holds the engine's turn, and passes the sequence with the snapshot of what is on it. When an
    operation fails or is stopped, the sequence holds that snapshot's state again.

    Parameters
    ----------
    engine
        Engine that owns the sequences.
    pool
        Evicts warm sequences when cells run out.
    store
        Keeps canonical copies of rows.
    blocks
        Where splices find their rows; None declines them.
    """

    def __init__(
        self, engine: Engine, pool: SequencePool, store: SnapshotStore, blocks: BlockSource | None
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._store = store
        self._blocks = blocks
        self._readable = "splice" not in engine.declines
        self.on_progress: Callable[[int, int], None] | None = None

    def run(
        self, op: CacheOp, before: Snapshot, seq: int, *, schedule: BatchSchedule | None = None
    ) -> Outcome:
        """Execute `op` on `seq`, which holds `before`.

        Parameters
        ----------
        schedule
            Batch boundaries to repeat where the operation computes tokens; None lets the engine choose.

        Raises
        ------
        ProgramError
            When the operation means nothing in that state.
        ContextFull
            When its tokens do not fit and no warm sequence can be evicted.
        Cancelled
            When the turn was stopped.
        """
        target = before.program.then(op)
        match op:
            case Append():
                return self._append(op, before, target, seq, schedule or BatchSchedule())
            case Splice():
                return self._splice(op, before, target, seq)
            case Repair():
                return self._repair(op, before, target, seq)
            case Drop():
                return self._drop(op, before, target, seq)
            case Repos():
                return self._repos(op, before, target, seq)

    # -- the operations -------------------------------------------------------------------------------------

    def _append(
        self, op: Append, before: Snapshot, target: CacheProgram, seq: int, schedule: BatchSchedule
    ) -> Outcome:
        start, stop = len(before.state), len(before.state) + len(op.tokens)
        if start == stop:
            return _unchanged(op, before, target)
        state = fold(target)
        logits, done = before.logits, before.schedule
        with self._undo(seq, before, start):
            for first, last in pairwise(schedule.cuts(start, stop)):
                wanted: Literal["last", "none"] = "last" if last == stop else "none"
                place = int(state.positions[first])
                logits = self._prefill(seq, state.tokens[first:last], wanted, start=place)
                done = done.then(DecodeKind.PREFILL, first, last - first)
            rows = self.captured(before.rows.extended(stop - start), np.arange(start, stop), state, seq)
        return Outcome(Snapshot(target, state, rows, logits, done), op, np.arange(start, stop))

    def adopt(
        self, tokens: tuple[int, ...], logits: NDArray[np.float32], before: Snapshot, seq: int
    ) -> Outcome:
        """Take tokens that a generation has already put on `seq` as an append, one token per batch."""
        op = Append(tokens)
        target = before.program.then(op)
        state = fold(target)
        indices = np.arange(len(before.state), len(state))
        rows = self.captured(before.rows.extended(len(indices)), indices, state, seq)
        schedule = before.schedule
        if len(indices):
            schedule = schedule.then(DecodeKind.GENERATE, len(before.state), len(indices))
        return Outcome(Snapshot(target, state, rows, logits, schedule), op, indices)

    def _splice(self, op: Splice, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        if not op.tokens:
            return _unchanged(op, before, target)
        cursor = before.state.next_position
        compiled = self._block_rows(op)
        if isinstance(compiled, Decline):
            return self._prefilled(op, before, seq, compiled)
        state = fold(target)
        indices = np.arange(len(before.state), len(state))
        order = compiled.order()
        with self._undo(seq, before, len(before.state)):
            self._restore(self._moved(compiled.take(order), state.positions[indices]), seq)
        # The compiled rows are the canonical copy: a later repos rotates them once, from their anchor.
        kept = self._store.chunk(lambda arena: compiled.take(order, arena=arena))
        turned = int(op.anchor != cursor)
        rows = before.rows.extended(len(indices)).placed(
            indices, kept, np.arange(len(indices)), turns=turned if kept is None else 0
        )
        return Outcome(Snapshot(target, state, rows, None, before.schedule), op, indices, rotations=turned)

    def _block_rows(self, op: Splice) -> SequenceState | Decline:
        """Return the block's rows at its anchor, or why they cannot be used."""
        if "splice" in self._engine.declines:
            return self._engine.declines["splice"]
        if self._blocks is None:
            return Decline("no_block_source", "the runner was given no source of compiled blocks")
        try:
            tokens = tuple(self._blocks.tokens(op.block_id))
            compiled = self._blocks.state_at(op.block_id, op.anchor)
        except Cancelled:
            raise
        except NexusError as error:
            return Decline("block_refused", error.problem)
        wanted = np.arange(op.anchor, op.anchor + len(op.tokens))
        if tokens != op.tokens or not np.array_equal(np.sort(compiled.positions), wanted):
            return Decline("block_differs", f"block {op.block_id} holds other tokens than the program says")
        return compiled

    def _prefilled(self, op: Splice, before: Snapshot, seq: int, declined: Decline) -> Outcome:
        """Compute the tokens of a splice that cannot be done."""
        return replace(self.run(Append(op.tokens), before, seq), declined=declined)

    def _repair(self, op: Repair, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        selection = np.asarray(op.selection, np.int64)
        if not selection.size:
            return _unchanged(op, before, target)
        runs = _position_runs(before.state, selection)
        declined = self._repair_declined(before, selection, runs)
        if declined is not None:
            return Outcome(before, None, selection[:0], declined=declined)
        state = fold(target)
        with self._undo(seq, before, int(selection[0])):
            if runs is None or (len(runs) > 1 and "input_patches" not in self._engine.declines):
                logits = self._recompute_at_once(before.state, selection, seq)
            else:
                logits = self._recompute_in_runs(before.state, runs, seq)
            rows = self.captured(before.rows.placed(selection, None, None), selection, state, seq)
        if selection[-1] != len(state) - 1:
            logits = before.logits  # the newest token was not recomputed
        done = before.schedule
        for start, stop in ranges_of(op.selection):
            done = done.then(DecodeKind.REPAIR, start, stop - start)
        return Outcome(Snapshot(target, state, rows, logits, done), op, selection)

    def _repair_declined(
        self, before: Snapshot, selection: NDArray[np.int64], runs: list[NDArray[np.int64]] | None
    ) -> Decline | None:
        last = before.program.canonical_ops[-1]
        if isinstance(last, Append) and selection[0] >= len(before.state) - len(last.tokens):
            return Decline(
                "already_computed",
                "the selected tokens were computed in this very context",
                "nothing is computed again",
            )
        if runs is None and "input_patches" in self._engine.declines:
            return Decline(
                "position_hole",
                "llama.cpp decodes only where positions follow each other, and a hole lies before a token",
                "the rows stay as they are; repos first, then repair",
            )
        if "splice" in self._engine.declines:
            return self._engine.declines["splice"]
        return None

    def _recompute_in_runs(
        self, state: CacheState, runs: list[NDArray[np.int64]], seq: int
    ) -> NDArray[np.float32] | None:
        """Prefill each run where it stands, with the rows behind it held aside meanwhile."""
        logits = None
        for run in runs:
            first, after = int(state.positions[run[0]]), int(state.positions[run[-1]]) + 1
            behind = state.positions[state.positions >= after]
            aside = self._live_rows(seq, behind, None) if behind.size else None
            self._engine.remove(seq, first, -1)
            logits = self._prefill(seq, state.tokens[run], "last", start=first)
            if aside is not None:
                self._restore(aside, seq)
        return logits

    def _recompute_at_once(
        self, state: CacheState, selection: NDArray[np.int64], seq: int
    ) -> NDArray[np.float32] | None:
        """Decode all selected tokens behind the sequence, turned and masked as if in their places."""
        from nexus_lab.engine import PatchPlan

        places, cursor = state.positions[selection], state.next_position
        plan = PatchPlan.for_recompute(places, state.positions[state.active], cursor)
        with self._engine.input_patches(plan):
            logits = self._prefill(seq, state.tokens[selection], "last", start=cursor)
        fresh = self._live_rows(seq, np.arange(cursor, cursor + len(selection)), None)
        fresh = fresh.take(fresh.order())
        self._engine.remove(seq, cursor, -1)
        for start, stop in ranges_of(places.tolist()):
            self._engine.remove(seq, start, stop)
        # Their keys were turned to these places when they were computed; only the cells' labels differ.
        self._restore(_relabelled(fresh, places), seq)
        return logits

    def _drop(self, op: Drop, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        state = fold(target)
        gone = np.flatnonzero(before.state.active & ~state.active)
        if not gone.size:
            return _unchanged(op, before, target)
        with self._undo(seq, before, int(gone[0])):
            for start, stop in ranges_of(before.state.positions[gone].tolist()):
                self._engine.remove(seq, start, stop)
        logits = before.logits if state.active[-1] else None
        return Outcome(
            Snapshot(target, state, before.rows.kept(state.active), logits, before.schedule), op, gone
        )

    def _repos(self, op: Repos, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        state = fold(target)
        moved = np.flatnonzero(before.state.positions != state.positions)
        if not moved.size:
            return _unchanged(op, before, target)
        if "splice" in self._engine.declines:
            declined = replace(self._engine.declines["splice"], instead="positions stay as they are")
            return Outcome(before, None, moved[:0], declined=declined)
        # Positions belong to cells, which other sequences may share: moved rows get cells of their own.
        rows, loans = self._with_copies(before, moved, seq)
        fresh = self._moved(rows.gather(moved), state.positions[moved])
        self._swap(seq, before, int(moved[0]), fresh)
        rotations = int(rows.turns[moved].max()) + 1
        rows = rows.placed(loans, None, None, turns=rows.turns[loans] + 1)
        return Outcome(Snapshot(target, state, rows, before.logits, before.schedule), op, moved, rotations)

    # -- states ---------------------------------------------------------------------------------------------

    def bring(self, wanted: Snapshot, before: Snapshot, seq: int) -> None:
        """Replace what is on `seq` by the complete snapshot `wanted`; leading rows that are the same stay."""
        common = _common(before, wanted)
        new = wanted.state.active_indices()
        new = new[new >= common]
        fresh = self._moved(wanted.rows.gather(new), wanted.state.positions[new]) if new.size else None
        self._swap(seq, before, common, fresh)

    def _swap(self, seq: int, before: Snapshot, first: int, fresh: SequenceState | None) -> None:
        """Put `fresh` in the place of the rows of logical token `first` and of those behind it.

        The old rows stay on a scratch sequence until the engine has found room for the new ones; that takes
        no cells that the old rows alone will not give back.
        """
        place = _place(before.state, first)
        if place == before.state.next_position:
            if fresh is not None:
                self._restore(fresh, seq)
            return
        if fresh is None:
            self._engine.remove(seq, place, -1)
            return
        rescue = self._rescue(seq, before, first)
        with self._engine.scratch_sequence() as parked:
            try:
                self._engine.copy_sequence(seq, parked, place, -1)
                self._engine.remove(seq, place, -1)
                self._pool.with_room(partial(self._engine.restore_state, fresh, parked))
                self._engine.copy_sequence(parked, seq)
            except ContextFull:
                self._engine.copy_sequence(parked, seq)
                raise
            except BaseException:
                self._engine.remove(parked)
                rescue()
                raise

    @contextmanager
    def _undo(self, seq: int, before: Snapshot, first: int) -> Iterator[None]:
        """Put the rows of logical token `first` and of those behind it back when the block fails."""
        rescue = self._rescue(seq, before, first)
        try:
            yield
        except BaseException:
            rescue()
            raise

    def _rescue(self, seq: int, before: Snapshot, first: int) -> Callable[[], None]:
        """Return what puts the rows of token `first` and of those behind it back, from copies of them."""
        indices = before.state.active_indices()
        indices = indices[indices >= first]
        positions = before.state.positions[indices]
        saved = None
        if not before.rows.present(indices).all():
            saved = self._live_rows(seq, positions, None)

        def put_back() -> None:
            self._engine.remove(seq, _place(before.state, first), -1)
            if indices.size:
                self._restore(saved or self._moved(before.rows.gather(indices), positions), seq)

        return put_back

    def _prefill(
        self, seq: int, tokens: NDArray[np.int32], logits: Literal["last", "none"], *, start: int
    ) -> NDArray[np.float32] | None:
        return self._pool.with_room(
            lambda: self._engine.prefill(
                seq, tokens, start=start, logits=logits, on_progress=self.on_progress
            )
        )

    def _restore(self, state: SequenceState, seq: int) -> None:
        self._pool.with_room(lambda: self._engine.restore_state(state, seq, append=True))

    def _live_rows(self, seq: int, positions: NDArray[Any], arena: BuddyArena | None) -> SequenceState:
        """Copy the rows at `positions` out of the context, in rising order of position."""
        with self._engine.scratch_sequence() as scratch:
            for start, stop in ranges_of(positions.tolist()):
                self._engine.copy_sequence(seq, scratch, start, stop)
            return self._engine.save_state(scratch, arena=arena)

    def captured(self, rows: RowMap, indices: NDArray[np.int64], state: CacheState, seq: int) -> RowMap:
        """Return `rows` with copies of the live rows of `indices`; without them where there is no room."""
        if not self._readable or not indices.size:
            return rows
        chunk = self._store.chunk(lambda arena: self._live_rows(seq, state.positions[indices], arena))
        if chunk is None or chunk.state is None:
            return rows
        return rows.placed(indices, chunk, chunk.state.order(), turns=rows.turns[indices])

    def _with_copies(
        self, before: Snapshot, indices: NDArray[np.int64], seq: int
    ) -> tuple[RowMap, NDArray[np.int64]]:
        """Return a map in which each token at `indices` has a copy, and those that only have one on loan.

        A row whose copy could not be kept is copied from where it stands now, rotations included.
        """
        lacking = indices[~before.rows.present(indices)]
        rows = self.captured(before.rows, lacking, before.state, seq)
        loans = lacking[~rows.present(lacking)]
        if loans.size:
            state = self._live_rows(seq, before.state.positions[loans], None)
            rows = rows.placed(loans, RowChunk(state), state.order(), turns=rows.turns[loans])
        return rows, loans

    def _moved(self, state: SequenceState, positions: NDArray[np.int32]) -> SequenceState:
        """Return the rows of `state` rotated once to `positions`."""
        rope = self._engine.info.rope
        if np.array_equal(state.positions, positions) or rope is None:
            return state
        return self._store.scratch(lambda arena: state.moved(positions, rope, arena=arena))


def _unchanged(op: CacheOp, before: Snapshot, target: CacheProgram) -> Outcome:
    return Outcome(replace(before, program=target, state=fold(target)), op, np.zeros(0, np.int64))


def _place(state: CacheState, first: int) -> int:
    """Return the position from which on the rows of logical token `first` and of those behind it are."""
    positions = state.positions[first:]
    active = positions[positions >= 0]
    return int(active[0]) if active.size else state.next_position


def _position_runs(state: CacheState, selection: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """Split `selection` into runs that a prefill can compute in place; None where a hole lies before one."""
    active = state.active_indices()
    places = state.positions[active]
    ordinal = np.searchsorted(active, selection)
    gaps = np.diff(places, prepend=-1)[ordinal]
    if np.any(gaps[ordinal > 0] != 1):
        return None
    return np.split(selection, np.flatnonzero(np.diff(ordinal) != 1) + 1)


def _common(one: Snapshot, two: Snapshot) -> int:
    """Count the leading logical tokens whose rows are the same copies at the same positions."""
    n = min(len(one.state), len(two.state))
    same = one.state.positions[:n] == two.state.positions[:n]
    lost = ~one.state.active[:n] & ~two.state.active[:n]
    left, right = one.rows.identities()[:n], two.rows.identities()[:n]
    kept = (left == right).all(axis=1) & (left[:, 0] != -1)
    alike = same & (kept | lost)
    return n if alike.all() else int(np.argmin(alike))


def _relabelled(state: SequenceState, positions: NDArray[np.int32]) -> SequenceState:
    """Return the same rows under other positions, without a rotation."""
    layers = range(state.n_layer)
    keys, values = [state.key(layer) for layer in layers], [state.value(layer) for layer in layers]
    return type(state).from_rows(state.layout, positions, keys, values)
