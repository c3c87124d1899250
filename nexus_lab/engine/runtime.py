"""Operations on the context's sequences: checked, booked, interruptible, and undone when they fail."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nexus_lab.engine.armed import ArmedPrefill
from nexus_lab.engine.base import N_SCRATCH, N_SLOTS, DecodeCall
from nexus_lab.engine.errors import (
    ContextFull,
    EngineClosed,
    EngineError,
    PatchFailed,
    SequenceError,
    StateMismatch,
    StateRestoreFailed,
    TokenError,
)
from nexus_lab.engine.ledger import CellLedger, first_common
from nexus_lab.engine.native import LogTail
from nexus_lab.engine.patches import PatchPlan, PatchReport
from nexus_lab.engine.state import SequenceState, state_buffer
from nexus_lab.engine.turn import TurnLock
from nexus_lab.engine.worker import Worker
from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from weakref import WeakMethod

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena, EvalBridge, StateLayout
    from nexus_lab.engine.context import LlamaContext
    from nexus_lab.engine.patches import AttentionCapture

__all__ = ["Runtime"]

T = TypeVar("T")
_ABORTED, _NO_SLOT = 2, 1


class Runtime:
    """Owns a context, its worker thread, its lock and its books.

    Parameters
    ----------
    make_context
        Builds the context; runs on the worker.
    bridge
        Native callbacks that the context was, or will be, made with.
    """

    def __init__(self, make_context: Callable[[], LlamaContext], bridge: EvalBridge) -> None:
        self.bridge = bridge
        self.turn_lock = TurnLock(on_cancel=bridge.request_abort, on_release=bridge.clear_abort)
        self.worker = Worker(on_interrupt=bridge.request_abort)
        self.template: StateLayout | None = None
        self._scratch = list(range(N_SLOTS, N_SLOTS + N_SCRATCH))
        self._armed: ArmedPrefill | None = None
        self._closed = False
        self.reclaimers: list[WeakMethod[Callable[[], bool]]] = []
        self.abandoned: deque[int] = deque()
        self.meters: list[Callable[[DecodeCall], None]] = []
        self.context = self._make(make_context)
        self.ledger = CellLedger(self.context.n_ctx)
        self.window = self.context.window

    def _make(self, make_context: Callable[[], LlamaContext]) -> LlamaContext:
        made: list[LlamaContext] = []
        try:
            self.worker.call(lambda: made.append(make_context()))
        except BaseException:
            # An interruption may come when the context is there already.
            for context in made:
                self.worker.call_to_end(context.free)
            self.worker.close()
            raise
        return made[0]

    def close(self) -> None:
        """Free the context; waits for a running turn."""
        with self.turn_lock.hold():
            if self._closed:
                return
            self._closed = True
            self.worker.call_to_end(self.context.free)
            self.worker.close()

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Hold the lock for one public operation, on an engine that is open."""
        with self.turn_lock.hold():
            if self._closed:
                raise EngineClosed("the engine is closed", next_step="load it again")
            yield

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled when the running turn has been asked to stop."""
        if self.turn_lock.cancelled:
            raise Cancelled("stopped on request", next_step="start the turn again; the context is as before")

    # -- room ---------------------------------------------------------------------------------------------

    def reclaim(self) -> bool:
        """Let a holder of something dispensable give it up; returns whether one did."""
        self.reclaimers = [held for held in self.reclaimers if held() is not None]
        return any(release() for held in self.reclaimers if (release := held()) is not None)

    def make_room(self, n_cells: int, instead_of: int | None = None) -> None:
        """Raise ContextFull unless `n_cells` fit once what is dispensable has gone.

        Parameters
        ----------
        instead_of
            A sequence that will be emptied first. What it shares with something dispensable becomes free
            with it, so its cells are counted anew each time.
        """
        while n_cells > (room := self._room(instead_of)):
            if not self.reclaim():
                raise ContextFull(n_cells, room, self.context.n_ctx)

    def _room(self, instead_of: int | None) -> int:
        freed = 0 if instead_of is None else self.ledger.freed_by_clearing(instead_of)
        return self.ledger.free + freed

    # -- sequences ----------------------------------------------------------------------------------------

    def check_sequence(self, seq: int) -> None:
        """Raise SequenceError unless `seq` exists."""
        if not 0 <= seq < N_SLOTS + N_SCRATCH:
            raise SequenceError(
                f"there is no sequence {seq}",
                next_step=f"acquire one; ids go from 0 to {N_SLOTS + N_SCRATCH - 1}",
            )

    def pos_max(self, seq: int) -> int:
        """Last position of `seq`, -1 when it is empty."""
        self.check_sequence(seq)
        return self.ledger.pos_max(seq)

    @contextmanager
    def scratch(self) -> Iterator[int]:
        """Lend a sequence for the block and empty it afterwards."""
        with self.operation():
            if not self._scratch:
                raise SequenceError("all scratch sequences are lent", next_step="end an outer block first")
            seq = self._scratch.pop()
            try:
                yield seq
            finally:
                self._scratch.append(seq)
                self.roll_back(seq, 0)

    def remove(self, seq: int, start: int, stop: int) -> None:
        """See `Engine.remove`."""
        self.check_sequence(seq)
        self.worker.call(lambda: self._remove(seq, start, stop))

    def roll_back(self, seq: int, start: int) -> None:
        """Remove what follows `start` from `seq`, whatever interrupts.

        A cache that cannot be cut there (a recurrent one) loses the whole sequence instead.
        """
        self.worker.call_to_end(lambda: self._cut(seq, start))

    def _cut(self, seq: int, start: int) -> None:
        try:
            self._remove(seq, start, -1)
        except SequenceError:
            self._remove(seq, 0, -1)

    def _remove(self, seq: int, start: int, stop: int) -> None:
        if not self.context.remove(seq, start, stop):
            raise SequenceError(
                f"this model's cache cannot remove [{start}, {stop}) from sequence {seq}",
                next_step="remove the whole sequence and prefill again",
            )
        self.ledger.remove(seq, start, stop)

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """See `Engine.copy_sequence`."""
        self.check_sequence(src)
        self.check_sequence(dst)
        common = self.ledger.overlap(src, dst, start, stop)
        if common is not None:
            raise SequenceError(
                f"sequence {dst} already holds position {common} of sequence {src}",
                next_step="remove the range from the destination first",
            )
        self.worker.call(lambda: self._copy(src, dst, start, stop))

    def _copy(self, src: int, dst: int, start: int, stop: int) -> None:
        self.context.copy(src, dst, start, stop)
        self.ledger.copy(src, dst, start, stop)

    def clear(self) -> None:
        """See `Engine.clear`."""
        self.worker.call(self._clear)

    def _clear(self) -> None:
        self.context.clear()
        self.ledger.clear()

    # -- prefill ------------------------------------------------------------------------------------------

    def prefill(
        self,
        seq: int,
        tokens: NDArray[np.int32],
        *,
        start: int | None = None,
        logits: str = "last",
        generated: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32] | None:
        """See `Engine.prefill`; `tokens` are checked."""
        begin = self._check_prefill(seq, tokens, start)
        armed, self._armed = self._armed, None
        if armed is not None:
            armed.begin(self, seq, len(tokens), begin)
        job = _Prefill(seq, tokens, begin, logits, armed, generated=generated)
        try:
            for first in range(0, len(tokens), self.context.chunk_tokens):
                self._prefill_chunk(job, first)
                if on_progress is not None:
                    on_progress(min(first + self.context.chunk_tokens, len(tokens)), len(tokens))
        except BaseException:
            if not self.turn_lock.cancelled:
                self.bridge.clear_abort()
            self.roll_back(seq, begin)
            raise
        if logits == "none":
            return None
        return job.rows[0] if logits == "last" else np.concatenate(job.rows)

    def _check_prefill(self, seq: int, tokens: NDArray[np.int32], start: int | None) -> int:
        self.check_sequence(seq)
        self.raise_if_cancelled()
        if len(tokens) == 0:
            raise TokenError("there are no tokens to prefill", next_step="give at least one")
        following = self.ledger.pos_max(seq) + 1
        if start is not None and (start < 0 or (following > 0 and start != following)):
            raise SequenceError(
                f"sequence {seq} continues at position {following}, not at {start}",
                next_step="remove the tokens from that position on first",
            )
        self.make_room(len(tokens))
        return following if start is None else start

    def _prefill_chunk(self, job: _Prefill, first: int) -> None:
        last = min(first + self.context.chunk_tokens, len(job.tokens))
        ends = last == len(job.tokens)
        outputs = np.full(last - first, job.logits == "all", np.int8)
        outputs[-1] |= job.logits == "last" and ends
        status, tail = self.worker.call(lambda: self._decode(job, first, last, outputs))
        if status != 0:
            raise self._decode_error(status, tail, last - first)
        if job.logits == "all":
            job.rows.append(self.context.all_logits(last - first))
        elif job.logits == "last" and ends:
            job.rows.append(self.context.last_logits())

    def _decode(self, job: _Prefill, first: int, last: int, outputs: NDArray[np.int8]) -> tuple[int, str]:
        start, n_tokens = job.begin + first, last - first
        if job.armed is not None:
            job.armed.arm(first, n_tokens, start)
        with LogTail() as tail:
            try:
                status = self.context.decode(job.tokens[first:last], start, job.seq, outputs)
            finally:
                if job.armed is not None:
                    job.armed.disarm(n_tokens, start)
        if status == 0:
            held = self.ledger.positions(job.seq)
            self.ledger.add(job.seq, np.arange(start, start + n_tokens, dtype=np.int32))
            self._meter(job, held, first, n_tokens)
        return status, tail.text()

    def _meter(self, job: _Prefill, held: NDArray[np.int32], first: int, n_tokens: int) -> None:
        if not self.meters:
            return
        plan = job.armed.plan if job.armed is not None else None
        seen = n_tokens * len(held) + n_tokens * (n_tokens + 1) // 2
        if plan is not None:
            seen = plan.attended(held, first, n_tokens, job.begin)
        call = DecodeCall(
            tokens=n_tokens,
            attended=seen,
            scanned=n_tokens * self.ledger.scanned,
            used=self.ledger.used,
            generated=job.generated,
        )
        for meter in self.meters:
            meter(call)

    def _decode_error(self, status: int, tail: str, n_tokens: int) -> EngineError | Cancelled:
        if status == _ABORTED and self.turn_lock.cancelled:
            return Cancelled("stopped on request", next_step="start the turn again; the context is as before")
        if status == _NO_SLOT:
            return ContextFull(n_tokens, self.ledger.free, self.context.n_ctx)
        return EngineError(
            f"llama.cpp could not decode (status {status}): {tail or 'it gives no reason'}",
            next_step="the tokens have been removed again; retry, or load the engine anew",
        )

    def recompute(
        self,
        seq: int,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        *,
        logits: str = "none",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32] | None:
        """See `Engine.recompute`; `tokens` are checked.

        The tokens are prefilled behind the sequence, into cells that are given back at the end: there they
        satisfy llama.cpp, which decodes nowhere else, while the patched graph computes and stores their rows
        where they belong. So no row is copied, and no position changes.
        """
        self.check_sequence(seq)
        self.raise_if_cancelled()
        if positions.shape != tokens.shape:
            raise TokenError(
                f"{len(positions)} positions for {len(tokens)} tokens", next_step="give one for each"
            )
        if not len(tokens):
            raise TokenError("there are no tokens to compute anew", next_step="give at least one")
        plan = PatchPlan.for_recompute(positions)
        held = self.ledger.positions(seq)
        missing = np.setdiff1d(positions, held)
        if len(missing):
            raise SequenceError(
                f"sequence {seq} holds nothing at position {missing[0]}", next_step="prefill it instead"
            )
        shared = self.ledger.shared(seq, positions)
        self.make_room(len(tokens) + len(shared))
        armed = ArmedPrefill.extended(self._armed, plan=plan, report=PatchReport(), capture=None)
        copies = self._copies(seq, shared) if len(shared) else None
        behind = int(held[-1]) + 1
        try:
            if copies is not None:
                self.worker.call(lambda: self._remove_each(seq, shared))
                self.restore(copies, seq, append=True)
            self._armed = armed
            return self.prefill(seq, tokens, start=behind, logits=logits, on_progress=on_progress)
        except BaseException:
            # Some layers of these rows may be new and others old.
            self.worker.call_to_end(lambda: self._remove_each(seq, positions))
            raise
        finally:
            self._armed = None
            self.roll_back(seq, behind)

    def _copies(self, seq: int, positions: NDArray[np.int32]) -> SequenceState:
        with self.scratch() as scratch:
            self.worker.call(lambda: self._copy_each(seq, scratch, positions))
            return self.save(scratch)

    def _copy_each(self, src: int, dst: int, positions: NDArray[np.int32]) -> None:
        for position in positions.tolist():
            self._copy(src, dst, position, position + 1)

    def _remove_each(self, seq: int, positions: NDArray[np.int32]) -> None:
        for position in positions.tolist():
            self._remove(seq, position, position + 1)

    # -- state --------------------------------------------------------------------------------------------

    def save(self, seq: int, *, arena: BuddyArena | None = None) -> SequenceState:
        """See `Engine.save_state`."""
        self.check_sequence(seq)
        positions = self.ledger.positions(seq)
        if not self.window or len(positions) == 0 or positions[-1] - positions[0] < self.window:
            return self.worker.call(lambda: SequenceState(self._read_state(seq, arena)))
        # A state leaves out what sliding layers no longer see from its last token, so it is read in pieces.
        starts = range(int(positions[0]), int(positions[-1]) + 1, self.window)
        pieces = [piece for start in starts if (piece := self._save_piece(seq, start)).n_cells]
        return SequenceState.joined(pieces, arena=arena)

    def _save_piece(self, seq: int, start: int) -> SequenceState:
        with self.scratch() as scratch:
            self.copy(seq, scratch, start, start + self.window)
            return self.worker.call(lambda: SequenceState(self._read_state(scratch, None)))

    def _read_state(self, seq: int, arena: BuddyArena | None) -> NDArray[np.uint8]:
        buffer = state_buffer(self.context.state_size(seq), arena)
        written = self.context.read_state(seq, buffer)
        if written != buffer.nbytes:
            raise StateMismatch(
                f"llama.cpp wrote {written} bytes of a state of {buffer.nbytes}",
                next_step="prefill the tokens instead",
            )
        if self.window:
            _align(buffer)
        return buffer

    def restore(self, state: SequenceState, seq: int, *, append: bool) -> None:
        """See `Engine.restore_state`."""
        self.check_sequence(seq)
        self._check_state(state)
        if not append:
            self.make_room(state.n_cells, instead_of=seq)
            self.worker.call(lambda: self._restore(state, seq))
            return
        common = first_common(np.asarray(state.positions), self.ledger.positions(seq))
        if common is not None:
            raise SequenceError(
                f"sequence {seq} already holds position {common} of the state",
                next_step="remove the range from the sequence first, or move the state",
            )
        self.make_room(state.n_cells)
        with self.scratch() as scratch:
            self.worker.call(lambda: self._append(state, scratch, seq))

    def _append(self, state: SequenceState, scratch: int, seq: int) -> None:
        self._restore(state, scratch)
        self._copy(scratch, seq, 0, -1)

    def _check_state(self, state: SequenceState) -> None:
        if state.n_cells and self.template is not None and not same_family(state.layout, self.template):
            raise StateMismatch(
                "the state was saved by a context of another model, KV type or flash attention setting",
                next_step="prefill the tokens instead, or load with the settings the state was saved under",
            )
        positions = state.positions
        if len(positions) and (positions.min() < 0 or len(np.unique(positions)) != len(positions)):
            raise StateMismatch(
                "the state's positions are negative or repeat", next_step="prefill the tokens instead"
            )

    def _restore(self, state: SequenceState, seq: int) -> None:
        self.write_state(seq, state.buffer)
        self.ledger.remove(seq, 0, -1)
        if state.n_cells:
            self.ledger.add(seq, state.positions)

    def write_state(self, seq: int, buffer: NDArray[np.uint8]) -> None:
        """Replace `seq` by the state in `buffer`; on the worker only. A refusal leaves `seq` empty."""
        with LogTail() as tail:
            read = self.context.write_state(seq, buffer)
        if read != buffer.nbytes:
            self._remove(seq, 0, -1)
            words = tail.text() or f"it read {read} bytes"
            raise StateRestoreFailed(
                f"llama.cpp refused the state of {buffer.nbytes} bytes: {words}",
                next_step="prefill the tokens instead; the sequence has been cleared",
            )

    # -- patches and captures -----------------------------------------------------------------------------

    @contextmanager
    def arm(
        self, *, plan: PatchPlan | None, report: PatchReport | None, capture: AttentionCapture | None
    ) -> Iterator[None]:
        """Let the first prefill of the block run under a plan."""
        with self.operation():
            outer = self._armed
            self._armed = ArmedPrefill.extended(outer, plan=plan, report=report, capture=capture)
            try:
                yield
            finally:
                self._armed = outer

    def cell_positions(self, seq: int) -> NDArray[np.int32]:
        """Positions of `seq` in ascending cell order, int32 [n]."""
        held = self.ledger.positions(seq)
        found = self.worker.call(lambda: self.context.cell_positions(seq, len(held)))
        if found is None or not np.array_equal(np.sort(found), held):
            found = self.save(seq).positions
        if not np.array_equal(np.sort(found), held):
            raise PatchFailed("the cells of the sequence cannot be mapped", next_step="prefill step by step")
        return found


def _align(buffer: NDArray[np.uint8]) -> None:
    from nexus_lab import _core

    try:
        _core.align_state(buffer.data)
    except _core.FormatError as error:
        raise StateMismatch(
            f"this sequence state cannot be read: {error}", next_step="prefill the tokens instead"
        ) from error


@dataclass(slots=True)
class _Prefill:
    """One prefill on its way through the decode calls."""

    seq: int
    tokens: NDArray[np.int32]
    begin: int
    logits: str
    armed: ArmedPrefill | None
    generated: bool = False
    rows: list[NDArray[np.float32]] = field(default_factory=list)


def same_family(left: StateLayout, right: StateLayout) -> bool:
    """Whether two layouts differ in nothing but their cells."""
    if left.v_trans != right.v_trans or left.section_layers != right.section_layers:
        return False
    return all(
        (a.k_type, a.k_row_bytes, a.v_type, a.n_embd_v) == (b.k_type, b.k_row_bytes, b.v_type, b.n_embd_v)
        for a, b in zip(left.layers, right.layers, strict=True)
    )
