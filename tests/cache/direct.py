"""The same operations written out on the engine, step by step: what the runner is compared with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexus_lab.engine import Engine, SequenceState


# D_KL in nats that this model shows between two cell layouts of one state; measured at about 0.005.
NOISE = 0.02


class Direct:
    """One sequence, driven by hand; positions are the caller's business."""

    def __init__(self, engine: Engine, seq: int) -> None:
        self.engine = engine
        self.seq = seq

    def append(self, tokens: Sequence[int]) -> np.ndarray:
        logits = self.engine.prefill(self.seq, list(tokens))
        assert logits is not None
        return logits

    def drop(self, start: int, stop: int) -> None:
        self.engine.remove(self.seq, start, stop)

    def move(self, first: int, to: int) -> None:
        """Move all rows from position `first` on, packed, to `to`."""
        rows = self.engine.save_state(self.seq, start=first)
        rows = rows.take(rows.order())
        target = np.arange(to, to + rows.n_cells, dtype=np.int32)
        self.engine.remove(self.seq, first)
        self.engine.restore_state(rows.moved(target, self.engine.info.rope), self.seq, append=True)

    def rows(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return rows_by_position(self.engine.save_state(self.seq))


@contextmanager
def direct(engine: Engine) -> Iterator[Direct]:
    seq = engine.acquire_sequence()
    try:
        yield Direct(engine, seq)
    finally:
        engine.release_sequence(seq)


def rows_by_position(state: SequenceState) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """All layers' keys and values of each position."""
    keys = np.stack([state.key(layer) for layer in range(state.n_layer)], axis=1)
    values = np.stack([state.value(layer) for layer in range(state.n_layer)], axis=1)
    return {int(p): (keys[i], values[i]) for i, p in enumerate(state.positions)}


def same_rows(one: dict, two: dict) -> bool:
    return one.keys() == two.keys() and all(
        np.array_equal(one[p][0], two[p][0]) and np.array_equal(one[p][1], two[p][1]) for p in one
    )


def kl(reference: np.ndarray, other: np.ndarray) -> float:
    """D_KL(reference || other) over the whole vocabulary, in nats."""
    p, q = (x.astype(np.float64) - x.max() for x in (reference, other))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return float(np.sum(np.exp(p) * (p - q)))


class Blocks:
    """A block source that compiles with the engine itself, behind a given context."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._compiled: dict[str, tuple[tuple[int, ...], int, SequenceState]] = {}

    def compile(self, name: str, tokens: Sequence[int], context: Sequence[int] = ()) -> None:
        with self._engine.scratch_sequence() as seq:
            if context:
                self._engine.prefill(seq, list(context), logits="none")
            self._engine.prefill(seq, list(tokens), logits="none")
            rows = self._engine.save_state(seq, start=len(context))
        self._compiled[name] = (tuple(tokens), len(context), rows.take(rows.order()))

    def tokens(self, block_id: str) -> tuple[int, ...]:
        if block_id not in self._compiled:
            raise NexusError(f"no block {block_id}", next_step="compile it")
        return self._compiled[block_id][0]

    def state_at(self, block_id: str, position: int) -> SequenceState:
        tokens, _, rows = self._compiled[block_id]
        target = np.arange(position, position + len(tokens), dtype=np.int32)
        return rows.moved(target, self._engine.info.rope)


def live_rows(runner, engine):
    return rows_by_position(engine.save_state(runner.seq))
