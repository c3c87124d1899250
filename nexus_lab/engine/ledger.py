"""Book-keeping of which sequence holds which cell, so that "does it fit?" has an answer before anything runs.

llama.cpp tells a sequence's last position but neither its other positions nor how many cells are taken. All
operations go through the engine, so its books are exact. Cells are chosen as llama.cpp chooses them (the
first free ones from its search head on), so that the highest one in use is known too, up to which every
query scans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SCAN_STEP", "CellLedger", "first_common", "in_scan_steps"]


class CellLedger:
    """Cells of a unified KV cache and the sequences that share them.

    Parameters
    ----------
    n_cells
        Size of the cache.
    """

    def __init__(self, n_cells: int) -> None:
        self._holders = np.zeros(n_cells, np.int32)
        self._positions: dict[int, NDArray[np.int32]] = {}
        self._cells: dict[int, NDArray[np.int64]] = {}
        self._head = 0

    @property
    def used(self) -> int:
        """Cells that some sequence holds."""
        return int(np.count_nonzero(self._holders))

    @property
    def free(self) -> int:
        """Cells that no sequence holds."""
        return len(self._holders) - self.used

    @property
    def top(self) -> int:
        """Number of the highest cell in use, plus one."""
        used = np.flatnonzero(self._holders)
        return int(used[-1]) + 1 if len(used) else 0

    @property
    def scanned(self) -> int:
        """Cells that each query of a decode would scan now: up to the highest in use, in whole steps."""
        return min(len(self._holders), in_scan_steps(self.top))

    def positions(self, seq: int) -> NDArray[np.int32]:
        """Positions of `seq`, rising, int32 [n]; a view that is not to be written."""
        return self._positions.get(seq, _NO_POSITIONS)

    def pos_max(self, seq: int) -> int:
        """Last position of `seq`, -1 when it is empty."""
        positions = self.positions(seq)
        return int(positions[-1]) if len(positions) else -1

    def freed_by_clearing(self, seq: int) -> int:
        """Cells that become free when `seq` is emptied."""
        cells = self._cells.get(seq)
        return 0 if cells is None else int(np.count_nonzero(self._holders[cells] == 1))

    def shared(self, seq: int, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return those of `positions`, all held by `seq`, whose cells another sequence holds too."""
        if not len(positions):
            return positions
        cells = self._cells[seq][np.searchsorted(self._positions[seq], positions)]
        return positions[self._holders[cells] > 1]

    def add(self, seq: int, positions: NDArray[np.int32]) -> None:
        """Give `seq` fresh cells at `positions`, in this order."""
        n, free = len(positions), np.flatnonzero(self._holders == 0)
        if len(free) < n:
            raise ValueError(f"{n} cells wanted, {len(free)} free")
        if n == 0:
            return
        # As llama.cpp's find_slot: on from the head, or from 0 where enough lies free before it.
        head = 0 if self._head > self.used + 2 * n else self._head
        cells = np.roll(free, -int(np.searchsorted(free, head)))[:n]
        self._head = int(cells[-1]) + 1
        self._join(seq, positions, cells)

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """Let `dst` share the cells of `src` at positions in [start, stop)."""
        kept = self._range(src, start, stop)
        if kept.stop > kept.start:
            self._join(dst, self._positions[src][kept], self._cells[src][kept])

    def remove(self, seq: int, start: int, stop: int) -> None:
        """Take the positions in [start, stop) from `seq`."""
        gone = self._range(seq, start, stop)
        if gone.stop <= gone.start:
            return
        cells = self._cells[seq][gone]
        self._holders[cells] -= 1
        freed = cells[self._holders[cells] == 0]
        if len(freed):
            self._head = min(self._head, int(freed.min()))
        self._positions[seq] = np.delete(self._positions[seq], gone)
        self._cells[seq] = np.delete(self._cells[seq], gone)

    def overlap(self, src: int, dst: int, start: int, stop: int) -> int | None:
        """First position in [start, stop) that both sequences hold, or ``None``."""
        return first_common(self.positions(src)[self._range(src, start, stop)], self.positions(dst))

    def clear(self) -> None:
        """Forget everything."""
        self._holders[:] = 0
        self._head = 0
        self._positions.clear()
        self._cells.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError when the books contradict themselves."""
        counted = np.zeros_like(self._holders)
        for seq, cells in self._cells.items():
            if len(cells) != len(self._positions[seq]) or len(np.unique(cells)) != len(cells):
                raise AssertionError(f"sequence {seq}: cells and positions differ")
            if np.any(np.diff(self._positions[seq]) <= 0):
                raise AssertionError(f"sequence {seq}: positions do not rise")
            counted[cells] += 1
        if not np.array_equal(counted, self._holders):
            raise AssertionError("holders were miscounted")

    def _range(self, seq: int, start: int, stop: int) -> slice:
        positions = self.positions(seq)
        first = int(np.searchsorted(positions, start))
        last = len(positions) if stop < 0 else int(np.searchsorted(positions, stop))
        return slice(first, max(first, last))

    def _join(self, seq: int, positions: NDArray[np.int32], cells: NDArray[np.int64]) -> None:
        if len(positions) == 0:
            return
        self._holders[cells] += 1
        merged = np.concatenate([self.positions(seq), positions]).astype(np.int32)
        held = np.concatenate([self._cells.get(seq, _NO_CELLS), cells])
        if np.any(np.diff(merged) < 0):
            order = np.argsort(merged, kind="stable")
            merged, held = merged[order], held[order]
        self._positions[seq], self._cells[seq] = merged, held


def in_scan_steps(n_cells: int) -> int:
    """Return how many cells a graph scans to see the first `n_cells`, at least one step."""
    return -(-max(n_cells, 1) // SCAN_STEP) * SCAN_STEP


def first_common(left: NDArray[np.int32], right: NDArray[np.int32]) -> int | None:
    """Return the smallest value in both arrays, or ``None``."""
    common = np.intersect1d(left, right)
    return int(common[0]) if len(common) else None


SCAN_STEP = 256
"""llama.cpp rounds the cells that a graph scans up to a multiple of this."""
_NO_POSITIONS = np.zeros(0, np.int32)
_NO_CELLS = np.zeros(0, np.int64)
