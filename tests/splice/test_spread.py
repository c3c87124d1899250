"""Rows behind several contexts: mean, spread, and what is chosen by them."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.splice import BlockContext, NoProfile, RepairKind, Sensitive, block_id, choose, context_hash
from nexus_lab.splice.contracts import Fixed
from nexus_lab.splice.spread import BlockRows, RowSpread


def _rows(rng: np.random.Generator, scale: np.ndarray) -> BlockRows:
    base = np.random.default_rng(7).normal(size=(4, 5, 8))
    rows = (base + scale[:, None] * rng.normal(size=base.shape)).astype(np.float16)
    return BlockRows(list(rows[:2]), list(rows[2:]))


def test_the_spread_is_what_numpy_says_and_the_mean_lies_between():
    rng, scale = np.random.default_rng(1), np.array([0.0, 0.1, 0.0, 0.4, 0.2])
    found, spread = [_rows(rng, scale) for _ in range(4)], RowSpread()
    for rows in found:
        spread.add(rows)
    stacked = np.stack([np.stack([*rows.keys, *rows.values]) for rows in found]).astype(np.float64)
    mean = stacked.mean(axis=0)
    wanted = np.sqrt(((stacked - mean) ** 2).sum(-1).mean(0)) / np.linalg.norm(mean, axis=-1)
    np.testing.assert_allclose(spread.relative(), wanted.mean(axis=0), rtol=1e-5, atol=1e-7)
    assert spread.relative().argsort()[-2:].tolist() == [4, 3]
    assert not spread.relative()[[0, 2]].any()
    kept = spread.mean()
    np.testing.assert_array_equal(np.stack([*kept.keys, *kept.values]), mean.astype(np.float16))


def test_the_most_sensitive_tokens_are_chosen_and_of_equals_the_first():
    sensitivity = np.array([0.1, 0.5, 0.5, 0.5, 0.2], np.float32)
    plan = Sensitive(0.4).plan(5, 100, sensitivity=sensitivity)
    assert (plan.kind, plan.recomputed) == (RepairKind.PROFILE, (1, 2))
    assert Sensitive().plan(5, 100, 0.0, sensitivity=sensitivity).kind is RepairKind.NONE
    assert Sensitive().plan(5, 100, 1.0, sensitivity=sensitivity).kind is RepairKind.FULL


def test_without_a_profile_the_contract_declines_and_says_why():
    with pytest.raises(NoProfile, match="no sensitivity profile"):
        Sensitive().plan(5, 100)
    choice = choose(Fixed(Sensitive()), n_tokens=5, n_past=100, anchored=False)
    assert choice.plan.kind is RepairKind.FULL
    assert choice.declined is not None
    assert choice.declined.code == "no_profile"


def test_several_contexts_make_another_block_and_a_consensus_is_of_none_of_them():
    one, two = (1, 2, 3), (4, 5, 6)
    plain, probed = BlockContext.of(one), BlockContext(one, (two,))
    mean = BlockContext(one, (two,), consensus=True)
    assert (plain.hash, probed.hash) == (context_hash(one), context_hash(one))
    assert mean.hash not in {context_hash(one), context_hash(two)}
    assert mean.hash != BlockContext(two, (one,), consensus=True).hash
    addresses = {block_id(model="m", tokens=(9,), context=context) for context in (one, probed, mean)}
    assert len(addresses) == 3
    assert block_id(model="m", tokens=(9,), context=one) == block_id(model="m", tokens=(9,), context=plain)
