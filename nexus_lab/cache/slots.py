"""Live sequences that other conversations can continue from: the L0 arena over engine sequences.

A slot is a sequence of the engine together with the tokens of its *plain* prefix, the leading rows that equal
those of an ordinary prefill: these are matched by tokens alone. What a sequence holds behind (spliced rows,
rows computed after a drop, moved rows) is matched by the program that led to it, which the op tree knows.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab import _core
from nexus_lab.cache.ops import Append
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.state import IntegrityError
from nexus_lab.cache.tree import OpTree, Tier, TreeError
from nexus_lab.engine.errors import SequenceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.cache.base import BatchSchedule
    from nexus_lab.cache.row_map import RowMap
    from nexus_lab.cache.snapshots import Snapshot
    from nexus_lab.engine import Engine

__all__ = ["SequencePool", "SlotMatch", "SlotUse"]

_LOG = logging.getLogger(__name__)

N_SLOTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class SlotMatch:
    """A live sequence that begins with the tokens asked for.

    Attributes
    ----------
    seq
        Engine sequence.
    length
        How many of the tokens it holds.
    rows
        Where the copies of these rows are.
    schedule
        How they were batched.
    program
        What led to these rows.
    """

    seq: int
    length: int
    rows: RowMap
    schedule: BatchSchedule
    program: CacheProgram


@dataclass(frozen=True, slots=True)
class SlotUse:
    """A sequence of the pool, for views.

    Attributes
    ----------
    seq
        Engine sequence.
    n_plain
        Tokens of its plain prefix; 0 while nothing of it can be matched.
    warm
        Nobody leases it: it is kept until its cells or its slot are needed.
    """

    seq: int
    n_plain: int
    warm: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    seq: int
    n_plain: int
    rows: RowMap
    schedule: BatchSchedule


class SequencePool:
    """Leases engine sequences, and keeps finished ones warm until their cells or slots are needed.

    Its methods touch the context: callers hold the engine's turn.

    Parameters
    ----------
    engine
        Engine whose sequences are pooled; runners that should reuse each other's rows share one pool.
    n_slots
        Most sequences that can be matched.
    max_warm_cells
        Most cells that sequences may hold which nobody leases; None leaves that to the need of others.
    keep_tails
        Keep a finished conversation whole, not only its plain prefix: another can go on from its end
        without a copy, while every decode scans its cells.
    tree
        Where the programs of live sequences are booked, and of snapshots too when the store has the same.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        n_slots: int = N_SLOTS,
        max_warm_cells: int | None = None,
        keep_tails: bool = False,
        tree: OpTree | None = None,
    ) -> None:
        self._engine = engine
        self.tree = OpTree() if tree is None else tree
        self._keep_tails = keep_tails
        self._booked: dict[int, Snapshot] = {}
        self._seqs: dict[str, dict[int, None]] = {}
        self._max_warm_cells = engine.n_ctx if max_warm_cells is None else max_warm_cells
        self._arena = _core.L0Arena(n_slots)
        self._slots: dict[int, _Slot] = {}
        self._slot_of: dict[int, int] = {}
        self._leased: set[int] = set()
        self._warm: dict[int, None] = {}
        self._evicted = 0
        self._abandoned: deque[int] = deque()
        engine.on_pressure(self.evict_one)
        # Without a reference to the pool or the engine, which both may go before they are closed.
        weakref.finalize(self, _abandon, engine.abandoned, self._leased, self._warm).atexit = False

    def lease(self) -> int:
        """Return an empty sequence; evicts the warm one that was used longest ago when none is free.

        Raises
        ------
        SequenceError
            When every sequence is leased.
        """
        self._retire_abandoned()
        seq = self._engine.acquire_sequence()
        self._leased.add(seq)
        return seq

    def abandon(self, lease: list[int]) -> None:
        """End the leases in `lease`, whose holder was collected, when sequences or cells are next wanted.

        Touches nothing but a queue, so that it may be called from a finalizer.
        """
        self._abandoned.extend(lease)

    def _retire_abandoned(self) -> bool:
        ended = bool(self._abandoned)
        while self._abandoned:
            self.retire(self._abandoned.popleft())
        return ended

    def publish(self, seq: int, snapshot: Snapshot) -> None:
        """Say what a leased sequence holds; later matches can share it.

        Raises
        ------
        SequenceError
            When `seq` is not leased from this pool.
        """
        self._insist_leased(seq)
        self._book(seq, snapshot)
        n_plain = snapshot.state.plain_length()
        if n_plain == 0:
            self._forget(seq)
            return
        tokens = np.ascontiguousarray(snapshot.state.tokens[:n_plain])
        slot = self._slot_of.get(seq)
        if slot is None:
            if len(self._slots) == self._arena.counters()["n_slots"] and not self.evict_one():
                return  # every slot is held by a live conversation, so this one cannot be matched
            slot = self._arena.bind(None, tokens)
            self._arena.pin(slot)
        else:
            self._arena.bind(slot, tokens)
        self._slot_of[seq] = slot
        self._slots[slot] = _Slot(
            seq, n_plain, snapshot.rows.first(n_plain), snapshot.schedule.first(n_plain)
        )

    def match(self, tokens: Sequence[int]) -> SlotMatch | None:
        """Return the sequence whose plain prefix shares most leading tokens with `tokens`, if one does."""
        slot, length = self._arena.match(np.asarray(tokens, np.int32))
        if slot < 0 or length == 0:
            return None
        found = self._slots[slot]
        if found.seq in self._warm:
            self._warm[found.seq] = self._warm.pop(found.seq)
        program = CacheProgram((Append(tuple(tokens[:length])),))
        return SlotMatch(found.seq, length, found.rows.first(length), found.schedule.first(length), program)

    def match_program(self, program: CacheProgram) -> SlotMatch | None:
        """Return the sequence that holds the state of most of `program`'s beginning, if one does."""
        held = self.tree.held(program, Tier.LIVE)
        if held is None:
            return None
        beginning, entry = held
        seq = next(iter(self._seqs[entry]))
        if seq in self._warm:
            self._warm[seq] = self._warm.pop(seq)
        cut = self._booked[seq].cut(beginning)
        return SlotMatch(seq, len(cut.state), cut.rows, cut.schedule, beginning)

    def retire(self, seq: int) -> None:
        """End a lease: the plain prefix, or with `keep_tails` everything, stays warm.

        Raises
        ------
        SequenceError
            When `seq` is not leased from this pool.
        """
        self._insist_leased(seq)
        self._leased.discard(seq)
        slot = self._slot_of.get(seq)
        if not (self._keep_tails and seq in self._booked) and not self._shortened(seq):
            self._engine.release_sequence(seq)
            return
        if slot is not None:
            self._arena.unpin(slot)
        self._warm[seq] = None
        while self._warm_cells() > self._max_warm_cells:
            self.evict_one()

    def _shortened(self, seq: int) -> bool:
        """Cut a sequence to its plain prefix, if it has one that can be matched."""
        whole, slot = self._booked.get(seq), self._slot_of.get(seq)
        self._unbook(seq)
        if whole is None or slot is None:
            return False
        n_plain = self._slots[slot].n_plain
        self._engine.remove(seq, n_plain, -1)
        tokens = tuple(whole.state.tokens[:n_plain].tolist())
        self._book(seq, whole.cut(CacheProgram((Append(tokens),))))
        return True

    # -- the tree -------------------------------------------------------------------------------------------

    def _book(self, seq: int, snapshot: Snapshot) -> None:
        """Say in the tree what `seq` holds, in place of what it held before."""
        self._unbook(seq)
        program = snapshot.program
        self._booked[seq] = snapshot
        if not program.canonical_ops:
            return
        try:
            self.tree.insert(program, Tier.LIVE)
        except TreeError as error:
            _LOG.debug("sequence %d is not in the tree: %s", seq, error)
            return
        self.tree.lock(program.id)
        self._seqs.setdefault(program.id, {})[seq] = None

    def _unbook(self, seq: int) -> None:
        snapshot = self._booked.pop(seq, None)
        program_id = "" if snapshot is None else snapshot.program.id
        if seq not in self._seqs.get(program_id, {}):
            return
        self.tree.unlock(program_id)
        del self._seqs[program_id][seq]
        if not self._seqs[program_id]:
            del self._seqs[program_id]
            self.tree.remove(program_id, Tier.LIVE)

    def _warm_cells(self) -> int:
        """Count the cells of warm sequences, those that several share as often as they are shared."""
        return sum(self._booked[seq].state.n_active for seq in self._warm)

    def evict_one(self) -> bool:
        """Release the warm sequence that was used longest ago; returns whether anything was given up."""
        ended = self._retire_abandoned()
        if not self._warm:
            return ended
        seq = next(iter(self._warm))
        del self._warm[seq]
        self._unbook(seq)
        slot = self._slot_of.pop(seq, None)
        if slot is not None:
            del self._slots[slot]
            self._arena.release(slot)
        self._engine.release_sequence(seq)
        self._evicted += 1
        _LOG.debug("evicted warm sequence %d", seq)
        return True

    def close(self) -> None:
        """Release all warm sequences."""
        while self.evict_one():
            pass

    def listing(self) -> tuple[SlotUse, ...]:
        """Return the pool's sequences, leased and warm, by number; from the thread that holds the turn."""
        sizes = {item.seq: item.n_plain for item in self._slots.values()}
        held = sorted([*self._leased, *self._warm])
        return tuple(SlotUse(seq, sizes.get(seq, 0), seq in self._warm) for seq in held)

    def counters(self) -> dict[str, int]:
        """Return the counters of the L0 arena, with sequences leased, warm and evicted."""
        own = {"leased": len(self._leased), "warm": len(self._warm), "sequences_evicted": self._evicted}
        cells = {"warm_cells": self._warm_cells(), "max_warm_cells": self._max_warm_cells}
        return {**self._arena.counters(), **own, **cells}

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when slots, leases and the arena contradict each other."""
        self._arena.check_integrity()
        if {item.seq: slot for slot, item in self._slots.items()} != self._slot_of:
            raise IntegrityError("slots and their sequences differ", next_step="report this")
        if self._leased & set(self._warm) or not set(self._slot_of) <= self._leased | set(self._warm):
            raise IntegrityError("a sequence is neither leased nor warm, or both", next_step="report this")
        self._check_booked()
        for slot, item in self._slots.items():
            if len(self._arena.tokens(slot)) != item.n_plain or len(item.rows) != item.n_plain:
                raise IntegrityError(f"slot {slot} is bound to other tokens", next_step="report this")
            if self._engine.pos_max(item.seq) < item.n_plain - 1:
                raise IntegrityError(f"slot {slot} promises rows that are gone", next_step="report this")

    def _check_booked(self) -> None:
        self.tree.check_integrity()
        live = {program_id for program_id in self.tree if Tier.LIVE in self.tree.tiers(program_id)}
        if live != set(self._seqs) or not set(self._warm) <= set(self._booked):
            raise IntegrityError("the tree books other programs as live", next_step="report this")
        for seq in self._warm:
            state = self._booked[seq].state
            if not np.array_equal(self._engine.positions(seq), state.positions[state.active]):
                raise IntegrityError(f"sequence {seq} holds other positions", next_step="report this")

    def _insist_leased(self, seq: int) -> None:
        if seq not in self._leased:
            raise SequenceError(
                f"sequence {seq} is not leased from this pool", next_step="name one that lease gave, once"
            )

    def _forget(self, seq: int) -> None:
        slot = self._slot_of.pop(seq, None)
        if slot is not None:
            del self._slots[slot]
            self._arena.unpin(slot)
            self._arena.release(slot)


def _abandon(queue: deque[int], leased: set[int], warm: dict[int, None]) -> None:
    queue.extend((*leased, *warm))
