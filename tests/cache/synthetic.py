"""Snapshots of rows that no model computed, for tests of where rows are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache import BatchSchedule, CacheProgram, DecodeKind, Snapshot, SnapshotStore, fold
from nexus_lab.cache.row_map import RowMap
from nexus_lab.engine import SequenceState

if TYPE_CHECKING:
    from nexus_lab import _core


def made_rows(template: SequenceState, positions: np.ndarray, tokens: np.ndarray) -> SequenceState:
    """Rows at `positions` that tell their token."""
    layers = range(template.n_layer)
    ones = [np.ones((len(tokens), template.key(0).shape[1]), np.float16) * tokens[:, None] for _ in layers]
    return SequenceState.from_rows(template.layout, positions, ones, ones)


class Synthetic:
    """Keeps the states of programs of appends and drops, as a runner would, without a model."""

    def __init__(self, store: SnapshotStore, template: SequenceState) -> None:
        self.store = store
        self.template = template

    def after(self, program: CacheProgram, before: Snapshot | None = None) -> Snapshot:
        """The state of `program`, whose rows up to `before` are that one's; not kept yet."""
        state = fold(program)
        rows = RowMap() if before is None else before.rows
        new = np.arange(len(rows), len(state))
        rows = rows.extended(len(new))
        fresh = new[state.active[new]]
        if len(fresh):
            chunk = self.store.chunk(
                lambda arena: self._made(state.positions[fresh], state.tokens[fresh], arena)
            )
            rows = rows.placed(fresh, chunk, None if chunk is None else np.arange(len(fresh)))
        schedule = BatchSchedule().then(DecodeKind.PREFILL, 0, len(state))
        logits = np.arange(4, dtype=np.float32) + len(state)
        return Snapshot(program, state, rows.kept(state.active), logits, schedule)

    def _made(self, positions: np.ndarray, tokens: np.ndarray, arena: _core.BuddyArena) -> SequenceState:
        return made_rows(self.template, positions, tokens).take(np.arange(len(tokens)), arena=arena)


def tells_its_tokens(snapshot: Snapshot) -> bool:
    """Whether every active row is that of its token."""
    active = snapshot.state.active_indices()
    rows = snapshot.rows.gather(active)
    return bool(np.array_equal(rows.value(0)[:, 0], snapshot.state.tokens[active].astype(np.float16)))
