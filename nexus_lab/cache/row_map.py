"""Where the canonical copies of KV rows are, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache.state import IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine import SequenceState

__all__ = ["RowChunk", "RowMap"]


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
