"""What a decode costs: the cells it attends to and scans, against the graph's own account."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.engine import HiddenBlock, PatchPlan
from nexus_lab.engine.ledger import SCAN_STEP, CellLedger

N_STEPS = 40


def test_cells_are_chosen_from_the_head_on():
    ledger = CellLedger(1024)
    ledger.add(0, np.arange(10, dtype=np.int32))
    ledger.add(1, np.arange(4, dtype=np.int32))
    assert ledger.top == 14
    ledger.remove(0, 2, 5)
    ledger.add(1, np.arange(4, 9, dtype=np.int32))  # three into the hole, two behind
    assert (ledger.top, ledger.used) == (16, 16)
    ledger.remove(1, 0, -1)
    assert ledger.top == 10
    ledger.clear()
    assert (ledger.top, ledger.scanned) == (0, SCAN_STEP)


def test_hidden_cells_are_not_attended():
    plan = PatchPlan(n_tokens=6, hidden=(HiddenBlock(2, 6, 0, 3),))
    held = np.arange(4, dtype=np.int32)
    plain = 6 * 4 + 21
    assert plan.attended(held, 0, 6, 4) == plain - 4 * 3
    later = np.arange(7, dtype=np.int32)
    assert plan.attended(held, 0, 3, 4) + plan.attended(later, 3, 3, 4) == plain - 4 * 3


@pytest.mark.model
def test_the_books_know_which_cells_the_graph_uses(bundled_engine):
    engine, rng = bundled_engine, np.random.default_rng(0)
    engine.clear()
    calls = []
    sequences = [engine.acquire_sequence() for _ in range(3)]
    try:
        with engine.metered(calls.append):
            for _ in range(N_STEPS):
                seq, other = rng.choice(sequences, 2, replace=False).tolist()
                held = engine.positions(seq)
                match rng.integers(5):
                    case 0 if len(held):
                        start = int(rng.integers(held[-1] + 1))
                        engine.remove(seq, start, start + int(rng.integers(1, 60)))
                    case 1 if len(held):
                        engine.remove(other)
                        engine.copy_sequence(seq, other, 0, int(rng.integers(1, held[-1] + 2)))
                    case 2 if len(held):
                        engine.restore_state(engine.save_state(seq), other)
                    case _:
                        n = int(rng.integers(2, 40))
                        if engine.n_ctx - engine.used_cells() < n:
                            engine.remove(seq)
                        held = engine.positions(seq)
                        with engine.input_patches(PatchPlan(n_tokens=n)) as report:
                            engine.prefill(seq, rng.integers(300, 900, n), logits="none")
                        assert calls[-1].scanned == n * report.n_kv
                        assert calls[-1].attended == n * len(held) + n * (n + 1) // 2
                        assert calls[-1].used == engine.used_cells()
                        cells = engine._runtime.ledger._cells[seq]
                        assert sorted(report.cells) == sorted(cells[-n:])
    finally:
        for seq in sequences:
            engine.release_sequence(seq)
    assert len(calls) > N_STEPS // 3


@pytest.mark.model
def test_a_generation_is_told_apart(bundled_engine):
    engine, calls = bundled_engine, []
    seq = engine.acquire_sequence()
    try:
        with engine.metered(calls.append):
            logits = engine.prefill(seq, engine.tokenize("Once upon a time"))
            engine.generate(seq, logits, max_tokens=3)
        engine.prefill(seq, engine.tokenize(" there"), logits="none")
    finally:
        engine.release_sequence(seq)
    assert [call.generated for call in calls] == [False, True, True, True]
    assert [call.tokens for call in calls[1:]] == [1, 1, 1]
