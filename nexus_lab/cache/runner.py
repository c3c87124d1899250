"""Executes cache programs on an engine, and steps through them in both directions."""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nexus_lab.cache.base import (
    BatchSchedule,
    DecodeKind,
    OpRecord,
    Restored,
    RunnerError,
    RunResult,
    Start,
    StartKind,
)
from nexus_lab.cache.executor import Executor, Outcome
from nexus_lab.cache.ops import Append, CacheOp
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.residency import Residency, residency
from nexus_lab.cache.restore import PASSED, passes, run_pass
from nexus_lab.cache.row_map import RowMap
from nexus_lab.cache.rows import RowMover
from nexus_lab.cache.slots import SequencePool
from nexus_lab.cache.snapshots import ARENA_FULL, Snapshot, SnapshotStore
from nexus_lab.cache.start import StartPlan, plan_start
from nexus_lab.cache.state import fold
from nexus_lab.engine.errors import ContextFull, EngineClosed
from nexus_lab.errors import Cancelled, Decline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.cache.base import BlockSource
    from nexus_lab.cache.slots import SlotMatch
    from nexus_lab.engine import Engine, Generation

__all__ = ["ProgramRunner"]

_LOG = logging.getLogger(__name__)


class ProgramRunner:
    """One conversation's cache: a program, the sequence that holds its state, and the way back.

    Operations are all or nothing: when one fails or is stopped, the runner and its sequence hold the state
    before it. Every method takes the engine's turn.

    Parameters
    ----------
    engine
        Engine to run on.
    arena
        Memory for canonical rows and snapshots; None makes one for the engine.
    blocks
        Where splices find compiled blocks; None prefills their tokens instead.
    on_op
        Called with the record of each executed operation, in the turn; must return soon and not raise.
    pool
        Sequences to share rows with; runners of one engine should share a pool. None makes one.
    store
        Snapshots to share, in place of `arena`.

    Raises
    ------
    RunnerError
        When both an arena and a store are given.
    DiskForeign
        When the store's disk holds snapshots of another model or cache layout.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        arena: BuddyArena | None = None,
        blocks: BlockSource | None = None,
        on_op: Callable[[OpRecord], None] | None = None,
        pool: SequencePool | None = None,
        store: SnapshotStore | None = None,
    ) -> None:
        if arena is not None and store is not None:
            raise RunnerError("an arena and a store were given", next_step="give one; a store has an arena")
        self._engine = engine
        self._own_pool = pool is None
        if store is None:
            store = SnapshotStore.for_engine(engine) if arena is None else SnapshotStore(arena)
        elif store.disk is not None:
            store.disk.belong_to(engine)
        self.store = store
        self.pool = SequencePool(engine, tree=store.tree) if pool is None else pool
        self._rows = RowMover(engine, self.store)
        self._executor = Executor(engine, self.store, blocks)
        self._on_op = on_op
        self._seq: int | None = None
        self._borrowed = False
        self._lease: list[int] = []
        weakref.finalize(self, self.pool.abandon, self._lease).atexit = False
        self._live = _empty()
        self._timeline = CacheProgram()
        self._restored: Restored | None = None

    # -- what is there --------------------------------------------------------------------------------------

    @property
    def program(self) -> CacheProgram:
        """The operations executed so far, up to the cursor."""
        return self._live.program

    @property
    def timeline(self) -> CacheProgram:
        """All operations that can be stepped to, those ahead of the cursor included."""
        return self._timeline

    @property
    def cursor(self) -> int:
        """Number of operations of the timeline that are behind the cursor."""
        return len(self._live.program)

    @property
    def seq(self) -> int | None:
        """Engine sequence that holds the state at the cursor; None before the first run."""
        return self._seq

    @property
    def snapshot(self) -> Snapshot:
        """The state at the cursor; immutable, so views may read it while a turn runs."""
        return self._live

    def residency(self) -> Residency:
        """Return where the rows of this and all other programs are."""
        with self._engine.turn():
            return residency(self._engine, self.store, self.pool)

    # -- running --------------------------------------------------------------------------------------------

    def run(
        self,
        program: CacheProgram,
        *,
        seq: int | None = None,
        schedule: BatchSchedule | None = None,
        at_once: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> RunResult:
        """Bring the state of `program` about, from whatever is nearest to it.

        That is the live state, a snapshot of one of its prefixes, the plain prefix of another sequence, or
        nothing: what has most of its tokens, then most of its operations.

        Parameters
        ----------
        program
            What to execute; it becomes the timeline.
        seq
            Sequence to work on from now on, which is emptied; it stays the caller's. None keeps the
            current one, or leases one.
        schedule
            Batch boundaries to repeat, so that a second run gives the same bits in the same cells.
        at_once
            Compute appends with drops between them in one prefill: the same but for the cells they stand in,
            and faster where they are of a few tokens each (on a CPU it saves nothing from about 16 on, see
            `nexus_lab.bench.restore`). States between them are not kept.
        on_progress
            Called with tokens done and tokens in all during each prefill.

        Raises
        ------
        ContextFull
            When the tokens do not fit; the state before that operation stays.
        Cancelled
            When the turn was stopped; the state before that operation stays.
        """
        with self._engine.turn():
            if seq is not None:
                self._borrow(seq)
            self._restored = Restored() if at_once else None
            try:
                return self._reach(program, schedule, on_progress)
            finally:
                self._timeline, self._restored = self._live.program, None

    def step(self, *ops: CacheOp, on_progress: Callable[[int, int], None] | None = None) -> RunResult:
        """Execute further operations at the cursor; what the timeline held behind it is forgotten."""
        with self._engine.turn():
            program = self._live.program.then(*ops)
            try:
                return self._reach(program, None, on_progress, rest=ops)
            finally:
                self._timeline = self._live.program

    def goto(self, n_ops: int, *, at_once: bool = False) -> RunResult:
        """Move the cursor to the state after `n_ops` operations of the timeline, back or forward.

        States that were kept come back with identical rows and logits; others are computed again from the
        nearest one that was, with `at_once` as `run` does.

        Raises
        ------
        ProgramError
            When the timeline has fewer operations.
        """
        with self._engine.turn():
            self._restored = Restored() if at_once else None
            try:
                return self._reach(self._timeline.prefix(n_ops), None, None)
            finally:
                self._restored = None
                self._rejoin()

    def back(self) -> RunResult:
        """Step one operation back."""
        if self.cursor == 0:
            raise RunnerError("the cursor is at the start", next_step="run or step forward first")
        return self.goto(self.cursor - 1)

    def forward(self) -> RunResult:
        """Step one operation forward along the timeline."""
        if self.cursor == len(self._timeline):
            raise RunnerError(
                "the cursor is at the end of the timeline", next_step="add an operation with step"
            )
        return self.goto(self.cursor + 1)

    def generate(self, *, max_tokens: int, **options: Any) -> tuple[Generation, RunResult]:
        """Generate at the cursor, and take what came as an append.

        Parameters
        ----------
        max_tokens, options
            As for `Engine.generate`.

        Raises
        ------
        RunnerError
            When there are no logits and computing the newest token again would not give them: it was
            spliced or dropped, other tokens were dropped since, or there is none.
        Cancelled
            When the turn was stopped; the state before stays.
        """
        with self._engine.turn():
            seq, began = self._sequence(), time.perf_counter()
            self._recover_logits()
            before = self._live
            if before.logits is None:
                raise RunnerError("there are no logits to continue from", next_step="append a token first")
            generation = self._engine.generate(seq, before.logits, max_tokens=max_tokens, **options)
            start = Start(StartKind.LIVE, len(before.state), before.program.id, 0.0)
            records = []
            if generation.cached:
                tokens = generation.tokens[: generation.cached]
                outcome = self._executor.adopt(tokens, generation.logits, before)
                self._live = outcome.after
                records.append(self._record(Append(tokens), outcome, before, time.perf_counter() - began))
                self._timeline = self._live.program
            return generation, self._result(start, records, began)

    def force(self, tokens: Sequence[int]) -> tuple[NDArray[np.float32], RunResult]:
        """Append tokens that are known, and return what the model expected before each of them.

        Returns
        -------
        logits
            float32 [n + 1, n_vocab], before each token and behind the last.
        result
            The run.

        Raises
        ------
        RunnerError
            When there are no logits to begin with; see `generate`.
        ContextFull, Cancelled
            The state before stays.
        """
        with self._engine.turn():
            seq, began = self._sequence(), time.perf_counter()
            self._recover_logits()
            before = self._live
            if before.logits is None:
                raise RunnerError("there are no logits to compare with", next_step="append a token first")
            behind = self._engine.prefill(seq, tokens, start=before.state.next_position, logits="all")
            logits = np.concatenate([before.logits[np.newaxis], behind])
            outcome = self._executor.adopt(tuple(tokens), logits[-1].copy(), before, DecodeKind.PREFILL)
            self._live = outcome.after
            start = Start(StartKind.LIVE, len(before.state), before.program.id, 0.0)
            op = Append(tuple(tokens))
            records = [self._record(op, outcome, before, time.perf_counter() - began)]
            self._timeline = self._live.program
            return logits, self._result(start, records, began)

    def close(self) -> None:
        """Give the sequence back; in a pool that was given, its plain prefix stays warm for others.

        Snapshots stay in the store. Behind a closed engine there is nothing to give back.
        """
        try:
            with self._engine.turn():
                self._give_back()
                if self._own_pool:
                    self.pool.close()
        except EngineClosed:
            self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- how ------------------------------------------------------------------------------------------------

    def _reach(
        self,
        program: CacheProgram,
        schedule: BatchSchedule | None,
        on_progress: Callable[[int, int], None] | None,
        rest: Sequence[CacheOp] | None = None,
    ) -> RunResult:
        """Bring `program` about; with `rest`, by executing just these operations at the cursor."""
        began = time.perf_counter()
        records: list[OpRecord] = []
        self._executor.on_progress = on_progress
        try:
            if rest is None:
                start, rest = self._begin(program, records)
            else:
                start = self._started(StartKind.LIVE, began)
            for group in [(op,) for op in rest] if self._restored is None else passes(rest, self._live.state):
                records.extend(self._execute_each(group, schedule))
            self._recover_logits()
        except BaseException:
            self._check_sequence()
            if records and records[-1].reused:
                self._clear(self._sequence())  # what was shared is the beginning of an append that failed
            raise
        finally:
            self._executor.on_progress = None
        if not any(record.declined for record in records):
            # Equal to what ran, but with the operations as they were issued: the steps of the debugger.
            self._live = replace(self._live, program=program)
        return self._result(start, records, began)

    def _begin(self, program: CacheProgram, records: list[OpRecord]) -> tuple[Start, Sequence[CacheOp]]:
        """Put the nearest state on the sequence; returns it and the operations that are left."""
        began = time.perf_counter()
        seq = self._sequence()
        plan, snapshot = self._plan(program)
        if snapshot is not None:
            self._bring(snapshot, plan.prefix, seq)
            records.extend(self._brought(began))
        elif plan.match is not None:
            records.extend(self._share(plan.match, seq))
        elif plan.kind is StartKind.EMPTY and self._live.program.ops:
            self._clear(seq)
        elif plan.prefix != self._live.program:
            self._shorten(plan.prefix, seq)
        return self._started(plan.kind, began), plan.rest

    def _plan(self, program: CacheProgram) -> tuple[StartPlan, Snapshot | None]:
        """Choose where to begin, and fetch the snapshot when that is one; a damaged one is no longer kept."""
        store: SnapshotStore | None = self.store
        tried: CacheProgram | None = None
        while True:
            plan = plan_start(program, self._live.program, store, self.pool)
            snapshot = self.store.bring(plan.prefix) if plan.kind is StartKind.SNAPSHOT else None
            if snapshot is not None or plan.kind is not StartKind.SNAPSHOT:
                return plan, snapshot
            if plan.prefix == tried:
                store = None  # it is still there, but memory has no room for it
            tried = plan.prefix

    def _bring(self, snapshot: Snapshot, program: CacheProgram, seq: int) -> None:
        self._rows.bring(snapshot, self._live, seq)
        self._settle(replace(snapshot, program=program), seq)

    def _brought(self, began: float) -> Iterator[OpRecord]:
        """Tell plain tokens that a first run begins with as an append, or the record would begin without."""
        live = self._live
        if self._timeline.ops or not (len(live.program) == 1 and live.program.plain_tokens()):
            return
        outcome = Outcome(live, live.program.ops[0], live.state.active_indices())
        facts = {"seconds": time.perf_counter() - began, "cells_used": self._engine.used_cells()}
        yield self._told(outcome.record(live.program.ops[0], _empty(), reused=len(live.state), **facts))

    def _shorten(self, program: CacheProgram, seq: int) -> None:
        """Go back to `program`, which the live state only appended to; its logits were not kept."""
        live, state = self._live, fold(program)
        n = len(state)
        self._engine.remove(seq, state.next_position, -1)
        self._settle(
            Snapshot(program, state, live.rows.first(n), None, live.schedule.first(n)), seq, keep=False
        )

    def _share(self, match: SlotMatch, seq: int) -> Iterator[OpRecord]:
        """Begin with cells of another sequence, or of our own; plain tokens are told as an append."""
        began = time.perf_counter()
        program, state = match.program, fold(match.program)
        if match.seq == seq:
            self._engine.remove(seq, state.next_position, -1)
        else:
            self._clear(seq)
            self._engine.copy_sequence(match.seq, seq, 0, state.next_position)
        self._live = Snapshot(program, state, match.rows, None, match.schedule)
        indices = state.active_indices()
        lacking = indices[~match.rows.present(indices)]
        if program.plain_tokens() and len(program) == 1:
            outcome = Outcome(self._live, program.ops[0], indices, computed=lacking)
            seconds = time.perf_counter() - began
            yield self._record(program.ops[0], outcome, _empty(), seconds, reused=len(state))
            return
        rows = self._rows.captured(match.rows, lacking, state, seq)
        self._settle(replace(self._live, rows=rows), seq, keep=False)

    def _execute_each(self, ops: Sequence[CacheOp], schedule: BatchSchedule | None) -> Iterator[OpRecord]:
        """Execute one of `passes`, at once where it has several operations and that can be done."""
        done = [] if len(ops) == 1 else self._execute_pass(tuple(ops))
        yield from done or (self._execute(op, schedule) for op in ops)

    def _execute_pass(self, ops: tuple[CacheOp, ...]) -> list[OpRecord]:
        """Execute `ops` as one prefill; returns nothing when it was declined."""
        began, before, seq = time.perf_counter(), self._live, self._sequence()
        restored = self._restored or Restored()
        outcomes = run_pass(
            ops,
            before,
            seq,
            engine=self._engine,
            rows=self._rows,
            on_progress=self._executor.on_progress,
        )
        if isinstance(outcomes, Decline):
            self._restored = replace(restored, declined=outcomes)
            return []
        seconds = time.perf_counter() - began
        self._live = outcomes[-1].after  # done, even if keeping it is interrupted
        n_tokens = len(self._live.state) - len(before.state)
        self._restored = replace(restored, passes=restored.passes + 1, tokens=restored.tokens + n_tokens)
        records = []
        for op, outcome in zip(ops[:-1], outcomes[:-1], strict=True):
            part = len(outcome.after.state) - len(before.state)
            facts = {"seconds": seconds * part / n_tokens, "cells_used": self._engine.used_cells()}
            records.append(self._told(outcome.record(op, before, snapshot_declined=PASSED, **facts)))
            before = outcome.after
        part = len(outcomes[-1].after.state) - len(before.state)
        return [*records, self._record(ops[-1], outcomes[-1], before, seconds * part / n_tokens)]

    def _execute(self, op: CacheOp, schedule: BatchSchedule | None) -> OpRecord:
        began = time.perf_counter()
        before = self._live
        outcome = self._executor.run(op, before, self._sequence(), schedule=schedule)
        self._live = outcome.after  # from here on the operation is done, even if keeping it is interrupted
        return self._record(op, outcome, before, time.perf_counter() - began)

    def _rejoin(self) -> None:
        """Find the live state on the timeline; where it is not there, it becomes the timeline."""
        live = self._live.program
        if live.ops == self._timeline.ops[: len(live)]:
            return
        found = next((prefix for prefix in self._timeline.prefixes() if prefix == live), None)
        if found is None:
            self._timeline = live
        else:
            self._live = replace(self._live, program=found)

    def _recover_logits(self) -> None:
        """Compute the newest token of the live state again where its logits were not kept.

        In a turn that was stopped, or without a free cell, they stay away: the state is there without them.
        """
        live, seq = self._live, self._sequence()
        last = live.program.canonical_ops[-1:]
        if live.logits is not None or not last or not isinstance(last[0], Append):
            return
        try:
            after = self._executor.recompute_newest(live, seq)
        except (Cancelled, ContextFull):
            return
        self._live = after
        newest = np.array([len(after.state) - 1])
        rows = self._rows.captured(after.rows, newest, after.state, seq)
        self._settle(replace(after, rows=rows), seq)

    def _record(
        self, op: CacheOp, outcome: Outcome, before: Snapshot, seconds: float, *, reused: int = 0
    ) -> OpRecord:
        """Make what `outcome` says the live state, keep a snapshot of it, and tell the listener."""
        began = time.perf_counter()
        seq, after = self._sequence(), outcome.after
        rows = self._rows.captured(after.rows, outcome.computed, after.state, seq)
        after = replace(after, rows=rows)
        # The shared first part of an append has no logits: it is no state to come back to.
        declined = self._settle(after, seq, keep=not reused)
        record = replace(outcome, after=after).record(
            op,
            before,
            reused=reused,
            seconds=seconds,
            snapshot_seconds=time.perf_counter() - began,
            cells_used=self._engine.used_cells(),
            snapshot_declined=declined,
        )
        return self._told(record)

    def _told(self, record: OpRecord) -> OpRecord:
        if self._on_op is not None:
            self._on_op(record)
        return record

    def _settle(self, snapshot: Snapshot, seq: int, *, keep: bool = True) -> Decline | None:
        """Take `snapshot` for what is on `seq` now; returns why it was not kept."""
        self._live = snapshot
        self.store.hold(self, snapshot.rows)
        if not self._borrowed:
            self.pool.publish(seq, snapshot)
        if not keep:
            return None
        if "splice" in self._engine.declines:
            return replace(self._engine.declines["splice"], instead=ARENA_FULL.instead)
        kept = self.store.keep(snapshot)
        if isinstance(kept, Decline):
            return kept
        self._live = kept
        return None

    def _started(self, kind: StartKind, began: float) -> Start:
        live = self._live
        return Start(kind, len(live.state), live.program.id, time.perf_counter() - began)

    def _result(self, start: Start, records: list[OpRecord], began: float) -> RunResult:
        live = self._live
        return RunResult(
            seq=self._sequence(),
            program=live.program,
            state=live.state,
            logits=live.logits,
            schedule=live.schedule,
            start=start,
            records=tuple(records),
            seconds=time.perf_counter() - began,
            restored=self._restored,
        )

    # -- the sequence ---------------------------------------------------------------------------------------

    def _sequence(self) -> int:
        if self._seq is None:
            self._seq, self._borrowed = self.pool.lease(), False
            self._lease.append(self._seq)
        return self._seq

    def _borrow(self, seq: int) -> None:
        if seq != self._seq:
            self._engine.remove(seq)  # first: where there is no such sequence, all stays as it is
            self._give_back()
            self._seq, self._borrowed = seq, True

    def _give_back(self) -> None:
        if self._seq is not None and not self._borrowed:
            self.pool.retire(self._seq)
        self._forget()

    def _forget(self) -> None:
        self._lease.clear()
        self._seq, self._borrowed = None, False
        self._live = _empty()
        self.store.release(self)

    def _clear(self, seq: int) -> None:
        self._engine.remove(seq)
        self._live = _empty()
        self.store.hold(self, self._live.rows)
        if not self._borrowed:
            self.pool.publish(seq, self._live)

    def _check_sequence(self) -> None:
        """Start from nothing when an undo itself failed or was interrupted; snapshots are still there."""
        seq = self._sequence()
        state = self._live.state
        if not np.array_equal(self._engine.positions(seq), state.positions[state.active]):
            _LOG.warning("sequence %d is not as it was before the operation; it has been emptied", seq)
            self._clear(seq)


def _empty() -> Snapshot:
    program = CacheProgram()
    return Snapshot(program, fold(program), RowMap(), None, BatchSchedule())
