"""The measurement of a scattered pass: its pairs, its figures, and that it leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.bench.splice_figures import all_figures
from nexus_lab.bench.splice_passes import pass_rows
from nexus_lab.engine import Engine
from nexus_lab.splice import TrialCase


@pytest.mark.model
def test_pairs_are_of_as_many_tokens_and_leave_the_sequence_as_it_was(
    engine: Engine, cases: tuple[TrialCase, ...], history: tuple[int, ...]
):
    engine.clear()
    seq = engine.acquire_sequence()
    try:
        engine.prefill(seq, history[:40], logits="none")
        before = engine.save_state(seq)
        rows = list(pass_rows(engine, seq, cases[0].block, repeats=2))
        np.testing.assert_array_equal(engine.save_state(seq).buffer, before.buffer)
    finally:
        engine.release_sequence(seq)
    n_tokens = len(cases[0].block)
    assert [(row["depth"], row["n_tokens"], row["n_recomputed"]) for row in rows] == [
        (40, n_tokens, -(-n_tokens // 4))
    ] * 2
    assert all(row["scattered_s"] > 0 < row["contiguous_s"] for row in rows)


def test_a_figure_is_the_median_of_the_pairs_ratios():
    rows = [
        {"depth": depth, "scattered_s": ratio * own, "contiguous_s": own}
        for depth, ratios in ((512, (1.0, 1.5, 1.1)), (64, (2.0, 2.5, 3.0)))
        for own, ratio in zip((0.1, 7.0, 2.0), ratios, strict=True)
    ]
    near, far, every = all_figures([], [], lambda kind: rows if kind == "passes" else [])
    assert {result.metric for result in (near, far, every)} == {"one_pass_ratio"}
    assert (near.case["depth"], near.value, near.n) == (64, pytest.approx(2.5), 3)
    assert (far.case["depth"], far.value) == (512, pytest.approx(1.1))
    assert far.low <= far.value <= far.high
    assert (every.case["depth"], every.value, every.n) == ("all", pytest.approx(1.75), 6)
