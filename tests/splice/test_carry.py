"""The shift that a recomputed head shows, carried over to the keys that are spliced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nexus_lab.engine import Engine
from nexus_lab.engine.shift import LEAST_HEAD, add_shift, common_shift
from nexus_lab.splice import BlockLibrary, Carried, Leading, RepairKind, RepairPlan, TrialCase, splice_block
from nexus_lab.splice.carry import head_shift

N_PAST = 96
BUDGET = 0.5


def test_a_shift_of_all_rows_is_found_and_noise_is_not():
    rng = np.random.default_rng(3)
    shift = rng.normal(size=192)
    noise = rng.normal(size=(60, 192))
    assert np.allclose(common_shift(shift + 0.1 * noise), shift, atol=0.15)
    assert np.abs(common_shift(noise)).max() < 0.1
    # What one half says and the other denies is not carried.
    assert not common_shift(np.concatenate([np.ones((8, 4)), -np.ones((8, 4))])).any()
    assert not common_shift(np.zeros((20, 4))).any()


def test_the_plan_is_that_of_the_leading_repair():
    plan = Carried().plan(100, 512, 0.25)
    assert plan == RepairPlan(RepairKind.CARRIED, 100, tuple(range(25)))
    assert Carried().plan(60, 512, 0.25) == RepairPlan(RepairKind.LEADING, 60, tuple(range(15)))
    assert Carried().plan(100, 512, 0.0).kind is RepairKind.NONE
    assert Carried().plan(100, 512, 1.0).kind is RepairKind.FULL


@pytest.mark.model
def test_an_added_shift_stands_in_every_key_but_for_the_rotation(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], library: BlockLibrary
):
    bundled_engine.clear()
    block = library.get_or_compile(cases[0].block, ())
    rows, before = (block.rows_at(bundled_engine, 700) for _ in range(2))
    shift = [
        np.full(rows.key(layer).shape[1], 0.25 * (layer + 1), np.float32) for layer in range(rows.n_layer)
    ]
    add_shift(rows, shift, bundled_engine.info.rope)
    for state in (rows, before):
        state.rotate(-state.positions, bundled_engine.info.rope)
    for layer, expected in enumerate(shift):
        moved = rows.key(layer).astype(np.float32) - before.key(layer)
        assert np.allclose(moved, expected, atol=0.01 * (expected[0] + np.abs(before.key(layer)).max()))
        assert np.array_equal(rows.value(layer), before.value(layer))


@pytest.mark.model
def test_behind_its_own_context_there_is_nothing_to_carry(
    engine: Engine, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case, prefix = cases[0], history[:N_PAST]
    engine.clear()
    block = BlockLibrary(engine, tmp_path / "blocks").get_or_compile(case.block, prefix)
    assert block.n_tokens * BUDGET >= LEAST_HEAD
    found = []
    for strategy in (Leading(), Carried()):
        engine.clear()
        seq = engine.acquire_sequence()
        engine.prefill(seq, prefix, logits="none")
        result = splice_block(engine, seq, block, strategy=strategy, budget=BUDGET, rest=case.rest)
        found.append(result.logits)
        engine.release_sequence(seq)
    assert result.plan.kind is RepairKind.CARRIED
    assert np.array_equal(*found)


@pytest.mark.model
def test_behind_another_context_the_keys_come_nearer(
    engine: Engine, whole_cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case, prefix = whole_cases[0], history[:N_PAST]
    engine.clear()
    block = BlockLibrary(engine, tmp_path / "blocks").get_or_compile(case.block, history[300:340])
    head = block.n_tokens // 2
    engine.clear()
    seq = engine.acquire_sequence()
    engine.prefill(seq, (*prefix, *case.block), logits="none")
    live = engine.save_state(seq, start=N_PAST + head)
    live = live.take(live.order())
    engine.remove(seq, N_PAST + head, -1)
    shift = head_shift(engine, seq, block, n_past=N_PAST, n_head=head)
    assert shift is not None
    assert head_shift(engine, seq, block, n_past=N_PAST, n_head=LEAST_HEAD - 1) is None
    plain, carried = (block.rows_at(engine, N_PAST, start=head) for _ in range(2))
    add_shift(carried, shift, engine.info.rope)
    engine.release_sequence(seq)

    def distance(rows):
        return sum(
            np.square(live.key(layer).astype(np.float32) - rows.key(layer)).sum()
            for layer in range(live.n_layer)
        )

    assert distance(carried) < distance(plain)
