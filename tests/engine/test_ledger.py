from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.engine.ledger import CellLedger

N_CELLS, N_SEQ = 24, 3


class NaiveBooks:
    """The same books as a set of (cell, sequence, position)."""

    def __init__(self) -> None:
        self.next_cell = 0
        self.held: set[tuple[int, int, int]] = set()

    def used(self) -> int:
        return len({cell for cell, _, _ in self.held})

    def positions(self, seq: int) -> list[int]:
        return sorted(position for _, owner, position in self.held if owner == seq)

    def add(self, seq: int, positions: list[int]) -> None:
        for position in positions:
            self.held.add((self.next_cell, seq, position))
            self.next_cell += 1

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        self.held |= {
            (c, dst, p) for c, s, p in self.held if s == src and start <= p and (stop < 0 or p < stop)
        }

    def remove(self, seq: int, start: int, stop: int) -> None:
        self.held -= {
            (c, s, p) for c, s, p in self.held if s == seq and start <= p and (stop < 0 or p < stop)
        }


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "copy", "remove"]),
        st.integers(0, N_SEQ - 1),
        st.integers(0, N_SEQ - 1),
        st.integers(0, 30),
        st.integers(-1, 30),
    ),
    max_size=25,
)


@given(steps)
def test_the_books_agree_with_naive_ones(history: list[tuple[str, int, int, int, int]]):
    ledger, naive = CellLedger(N_CELLS), NaiveBooks()
    for step, seq, other, start, stop in history:
        if step == "add":
            positions = list(range(ledger.pos_max(seq) + 1, ledger.pos_max(seq) + 1 + start % 5))
            if len(positions) > ledger.free:
                with pytest.raises(ValueError, match="free"):
                    ledger.add(seq, np.array(positions, np.int32))
                continue
            ledger.add(seq, np.array(positions, np.int32))
            naive.add(seq, positions)
        elif step == "copy":
            if ledger.overlap(seq, other, start, stop) is None:
                ledger.copy(seq, other, start, stop)
                naive.copy(seq, other, start, stop)
        else:
            ledger.remove(seq, start, stop)
            naive.remove(seq, start, stop)
        ledger.check_integrity()
        assert ledger.used == naive.used()
        for name in range(N_SEQ):
            assert ledger.positions(name).tolist() == naive.positions(name)


def test_shared_cells_are_freed_with_their_last_holder():
    ledger = CellLedger(8)
    ledger.add(0, np.arange(5, dtype=np.int32))
    ledger.copy(0, 1, 1, 4)
    assert (ledger.used, ledger.freed_by_clearing(0), ledger.freed_by_clearing(1)) == (5, 2, 0)
    ledger.remove(0, 0, -1)
    assert (ledger.used, ledger.free, ledger.pos_max(1)) == (3, 5, 3)


def test_rows_may_be_added_below_what_is_held():
    ledger = CellLedger(8)
    ledger.add(0, np.array([5, 6], np.int32))
    ledger.add(0, np.array([2, 1], np.int32))
    assert ledger.positions(0).tolist() == [1, 2, 5, 6]
    ledger.check_integrity()
