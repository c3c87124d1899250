"""Carries single operations out on an engine sequence, each of them wholly or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nexus_lab.cache.base import BatchSchedule, DecodeKind, OpRecord
from nexus_lab.cache.ops import Append, CacheOp, Drop, Repair, Repos, Splice, ranges_of
from nexus_lab.cache.rows import RowMover
from nexus_lab.cache.snapshots import Snapshot
from nexus_lab.cache.state import CacheState, fold
from nexus_lab.engine.shift import add_shift, seen_shift
from nexus_lab.errors import Cancelled, Decline, NexusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nexus_lab.cache.base import BlockSource
    from nexus_lab.cache.program import CacheProgram
    from nexus_lab.cache.snapshots import SnapshotStore
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
    computed
        Those of them whose rows have no copy yet.
    rotations
        Most often that a moved row has been rounded by a rotation.
    declined
        Why it was not done as asked.
    """

    after: Snapshot
    executed: CacheOp | None
    touched: NDArray[np.int64]
    computed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rotations: int = 0
    declined: Decline | None = None

    def record(self, op: CacheOp, before: Snapshot, **facts: Any) -> OpRecord:
        """Return the record of `op`, which led from `before` to this.

        Parameters
        ----------
        facts
            What else the record says: times, cells, reused tokens, why no snapshot was kept.
        """
        after = self.after.state
        places = after.positions[self.touched]
        return OpRecord(
            index=len(before.program),
            op=op,
            executed=self.executed,
            state_id=self.after.program.id,
            parent_id=before.program.id,
            state=after,
            ranges=ranges_of(self.touched.tolist()),
            positions=ranges_of(places[places >= 0].tolist()),
            tokens=len(self.touched),
            rotations=self.rotations,
            declined=self.declined,
            **facts,
        )


class Executor:
    """Runs operations on sequences of one engine.

    The caller holds the engine's turn, and passes the sequence with the snapshot of what is on it. When an
    operation fails or is stopped, the sequence holds that snapshot's state again.

    Parameters
    ----------
    engine
        Engine that owns the sequences.
    store
        Keeps canonical copies of rows.
    blocks
        Where splices find their rows; None declines them.
    """

    def __init__(self, engine: Engine, store: SnapshotStore, blocks: BlockSource | None) -> None:
        self._engine = engine
        self._store = store
        self._blocks = blocks
        self._rows = RowMover(engine, store)
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
        with self._rows.undo(seq, before, start):
            for first, last in pairwise(schedule.cuts(start, stop)):
                wanted: Literal["last", "none"] = "last" if last == stop else "none"
                place = int(state.positions[first])
                logits = self._prefill(seq, state.tokens[first:last], wanted, start=place)
                done = done.then(DecodeKind.PREFILL, first, last - first)
        rows = before.rows.extended(stop - start)
        touched = np.arange(start, stop)
        return Outcome(Snapshot(target, state, rows, logits, done), op, touched, computed=touched)

    def adopt(
        self,
        tokens: tuple[int, ...],
        logits: NDArray[np.float32],
        before: Snapshot,
        kind: DecodeKind = DecodeKind.GENERATE,
    ) -> Outcome:
        """Take tokens that have already been put on the sequence, one by one or at once, as an append."""
        op = Append(tokens)
        target = before.program.then(op)
        state = fold(target)
        indices = np.arange(len(before.state), len(state))
        rows = before.rows.extended(len(indices))
        done = before.schedule.then(kind, len(before.state), len(indices))
        return Outcome(Snapshot(target, state, rows, logits, done), op, indices, computed=indices)

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
        with self._rows.undo(seq, before, len(before.state)):
            self._rows.restore(self._rows.moved(compiled.take(order), state.positions[indices]), seq)
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
        except OSError as error:  # a block that vanished or cannot be read any more
            return Decline("block_unreadable", f"the block cannot be read: {error}")
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
        if declined is None and op.carry:
            declined = self._carry_declined(before, selection)
        if declined is not None:
            return Outcome(before, None, selection[:0], declined=declined)
        if op.carry:
            return self._repair_and_carry(op, before, target, seq)
        state = fold(target)
        with self._rows.undo(seq, before, int(selection[0])):
            if runs is None or (len(runs) > 1 and "input_patches" not in self._engine.declines):
                logits = self._recompute_at_once(before.state, selection, seq)
            else:
                logits = self._recompute_in_runs(before.state, runs, seq)
        if selection[-1] != len(state) - 1:
            logits = before.logits  # the newest token was not recomputed
        done = _repaired(before, op)
        rows = before.rows.placed(selection, None, None)
        return Outcome(Snapshot(target, state, rows, logits, done), op, selection, computed=selection)

    def _repair_and_carry(self, op: Repair, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        """Compute the head of a splice, and splice the rest once more with the shift that the head shows."""
        state, head = fold(target), np.asarray(op.selection, np.int64)
        rest = np.arange(int(head[-1]) + 1, len(state))
        positions, rope = before.state.positions, self._engine.info.rope
        with self._rows.undo(seq, before, int(head[0])):
            was, behind = (self._rows.live(seq, positions[part], None).in_order() for part in (head, rest))
            self._engine.remove(seq, int(positions[head[0]]), -1)
            self._prefill(seq, before.state.tokens[head], "none", start=int(positions[head[0]]))
            shift = seen_shift(self._rows.live(seq, positions[head], None).in_order(), was, rope)
            if shift is not None:
                add_shift(behind, shift, rope)
            self._rows.restore(behind, seq)
        done = _repaired(before, op)
        changed = head if shift is None else np.concatenate([head, rest])
        # A later repos has to rotate the shifted rows as they stand: the file holds others.
        rows = before.rows.placed(changed, None, None, turns=np.where(changed > head[-1], 1, 0))
        return Outcome(Snapshot(target, state, rows, None, done), op, head, computed=changed)

    def _carry_declined(self, before: Snapshot, selection: NDArray[np.int64]) -> Decline | None:
        last, n = before.program.canonical_ops[-1], len(before.state)
        first = n - len(last.tokens) if isinstance(last, Splice) else n
        head = np.arange(first, first + len(selection))
        if first < n and len(head) < n - first and np.array_equal(selection, head):
            return None
        reason = (
            "only the head of the splice made last shows what its other tokens' keys are to be shifted by"
        )
        return Decline("no_head_of_a_splice", reason, "the rows stay as they are")

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
            aside = self._rows.live(seq, behind, None) if behind.size else None
            self._engine.remove(seq, first, -1)
            logits = self._prefill(seq, state.tokens[run], "last", start=first)
            if aside is not None:
                self._rows.restore(aside, seq)
        return logits

    def _recompute_at_once(
        self, state: CacheState, selection: NDArray[np.int64], seq: int
    ) -> NDArray[np.float32] | None:
        """Compute all selected tokens in their places, with what stands behind them left there."""
        return self._engine.recompute(
            seq,
            state.tokens[selection],
            state.positions[selection],
            logits="last",
            on_progress=self.on_progress,
        )

    def recompute_newest(self, before: Snapshot, seq: int) -> Snapshot:
        """Compute the newest token again for its logits; the last operation must be what appended it."""
        newest = len(before.state) - 1
        place = int(before.state.positions[newest])
        with self._rows.undo(seq, before, newest):
            self._engine.remove(seq, place, -1)
            logits = self._prefill(seq, before.state.tokens[newest:], "last", start=place)
        rows = before.rows.placed(np.array([newest]), None, None)
        done = before.schedule.then(DecodeKind.REPAIR, newest, 1)
        return replace(before, rows=rows, logits=logits, schedule=done)

    def _drop(self, op: Drop, before: Snapshot, target: CacheProgram, seq: int) -> Outcome:
        state = fold(target)
        gone = np.flatnonzero(before.state.active & ~state.active)
        if not gone.size:
            return _unchanged(op, before, target)
        with self._rows.parked(seq, before, int(gone[0])):
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
        rows, loans = self._rows.with_copies(before, moved, seq)
        fresh = self._rows.moved(rows.gather(moved), state.positions[moved])
        self._rows.swap(seq, before, int(moved[0]), fresh)
        rotations = int(rows.turns[moved].max()) + 1
        rows = rows.placed(loans, None, None, turns=rows.turns[loans] + 1)
        after = Snapshot(target, state, rows, before.logits, before.schedule)
        return Outcome(after, op, moved, rotations=rotations)

    def _prefill(
        self, seq: int, tokens: NDArray[np.int32], logits: Literal["last", "none"], *, start: int
    ) -> NDArray[np.float32] | None:
        return self._engine.prefill(seq, tokens, start=start, logits=logits, on_progress=self.on_progress)


def _repaired(before: Snapshot, op: Repair) -> BatchSchedule:
    """Return the schedule behind a repair, which computed each of its stretches."""
    done = before.schedule
    for start, stop in ranges_of(op.selection):
        done = done.then(DecodeKind.REPAIR, start, stop - start)
    return done


def _unchanged(op: CacheOp, before: Snapshot, target: CacheProgram) -> Outcome:
    return Outcome(replace(before, program=target, state=fold(target)), op, np.zeros(0, np.int64))


def _position_runs(state: CacheState, selection: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """Split `selection` into runs that a prefill can compute in place; None where a hole lies before one."""
    active = state.active_indices()
    places = state.positions[active]
    ordinal = np.searchsorted(active, selection)
    gaps = np.diff(places, prepend=-1)[ordinal]
    if np.any(gaps[ordinal > 0] != 1):
        return None
    return np.split(selection, np.flatnonzero(np.diff(ordinal) != 1) + 1)
