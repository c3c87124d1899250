"""Holes that drops leave in the cells, and rows that move down into them."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.cache import Append, Drop
from nexus_lab.cache.compaction import compact, compaction_pays


def test_it_pays_where_many_cells_are_scanned_in_vain():
    assert compaction_pays(scanned=4096, used=1000, rows=1000)
    assert not compaction_pays(scanned=1024, used=1000, rows=1000)
    assert not compaction_pays(scanned=4096, used=1000, rows=1000, tokens_ahead=1)


@pytest.mark.model
def test_rows_move_down_and_stay_the_same(engine, words, make_runner):
    runner = make_runner()
    long = (words * 8)[:900]
    runner.step(Append(long))
    runner.step(Drop(((100, 800),)))
    state = runner.snapshot.state
    before = engine.save_state(runner.seq)
    scanned = engine.scanned_cells()
    assert compact(engine, runner) == scanned - engine.scanned_cells() > 0
    assert engine.scanned_cells() == 256
    assert engine.used_cells() == state.n_active
    after = engine.save_state(runner.seq)
    for layer in (0, 29):
        for rows in ("key", "value"):
            one, two = (getattr(item.take(item.order()), rows)(layer) for item in (before, after))
            assert np.array_equal(one, two)
    assert runner.snapshot.state == state
    result = runner.step(Append(words[:5]))
    assert result.state.n_active == 205
    assert compact(engine, make_runner()) == 0
