"""D_KL and the other measures over logits, against plain references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import rel_entr, softmax

from nexus_lab.splice.measures import (
    LogitsError,
    compare_logits,
    kl_divergence,
    top1_agreement,
    top_k_overlap,
)

logits = arrays(np.float32, (3, 17), elements=st.floats(-60, 60, width=32))


def test_kl_of_two_coins_worked_by_hand():
    p, q = np.log([0.5, 0.5]), np.log([0.9, 0.1])
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert kl_divergence(p, q)[0] == pytest.approx(expected, rel=1e-12)
    assert kl_divergence(q, p)[0] != pytest.approx(expected, rel=1e-3)


@given(logits, logits)
def test_kl_agrees_with_scipy_and_is_never_negative(p: np.ndarray, q: np.ndarray):
    expected = rel_entr(softmax(p.astype(np.float64), axis=1), softmax(q.astype(np.float64), axis=1)).sum(
        axis=1
    )
    found = kl_divergence(p, q)
    assert (found >= 0).all()
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-6, atol=1e-9)


@given(logits, st.floats(-100, 100))
def test_equal_logits_diverge_by_exactly_nothing_and_a_shift_by_rounding(p: np.ndarray, shift: float):
    assert (kl_divergence(p, p.copy()) == 0).all()
    assert (kl_divergence(p, p.astype(np.float64) + shift) < 1e-9).all()


def test_float64_sees_a_divergence_that_float32_rounds_away():
    rng = np.random.default_rng(0)
    p = rng.normal(size=49_152).astype(np.float32) * 4
    q = p.copy()
    q[7] += np.float32(1e-3)
    assert 0 < kl_divergence(p, q)[0] < 1e-9


def test_top1_and_top_k_count_what_is_shared():
    p = np.array([[5.0, 4, 3, 2, 1, 0, -1], [0, 1, 2, 3, 4, 5, 6]])
    q = np.array([[5.0, 4, 3, 2, -9, 0, -1], [6, 5, 4, 3, 2, 1, 0]])
    assert top1_agreement(p, q).tolist() == [True, False]
    assert top_k_overlap(p, q, k=5).tolist() == [0.8, 0.6]
    assert top_k_overlap(p, q, k=100).tolist() == [1.0, 1.0]


def test_a_comparison_holds_every_measure():
    p = np.eye(6)[[0, 1, 2, 3]] * 9
    q = np.eye(6)[[0, 1, 5, 3]] * 9
    fidelity = compare_logits(p, q, noise_floor=0.5)
    assert fidelity.n_positions == 4
    assert fidelity.top1 == 0.75
    assert fidelity.greedy_match == 2
    assert fidelity.dkl_mean == pytest.approx(sum(kl_divergence(p, q)) / 4)
    assert fidelity.excess == pytest.approx(fidelity.dkl_mean - 0.5)
    same = compare_logits(p, p)
    assert (same.greedy_match, same.top1, same.dkl_mean, same.excess) == (4, 1.0, 0.0, None)
    assert set(same.to_row()) >= {"dkl_mean", "dkl_p95", "top1_agreement", "noise_floor"}


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(LogitsError, match="shapes"):
        kl_divergence(np.zeros(3), np.zeros(4))
    with pytest.raises(LogitsError, match="shapes"):
        kl_divergence(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(LogitsError, match="finite"):
        kl_divergence(np.zeros(3), np.array([0, -np.inf, 0]))
