from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from nexus_lab.engine import Engine, HiddenBlock, PatchFailed, PatchPlan, SequenceState


@dataclass(frozen=True)
class Trajectory:
    """Steps as token ranges, and the positions dropped before each."""

    steps: tuple[tuple[int, int], ...]
    drops: tuple[tuple[int, int, int], ...]  # step, first, last

    @property
    def n_tokens(self) -> int:
        return self.steps[-1][1]

    def plan(self) -> PatchPlan:
        return PatchPlan.for_drops(
            self.n_tokens, [(self.steps[step][0], first, last) for step, first, last in self.drops]
        )


# Flash attention has another kernel for calls under 64 tokens, so its steps are longer.
LONG = Trajectory(((0, 66), (66, 132), (132, 196)), ((1, 20, 40), (2, 80, 110), (2, 50, 60)))
SHORT = Trajectory(
    ((0, 40), (40, 70), (70, 75), (75, 76), (76, 140)), ((1, 5, 30), (3, 45, 60), (3, 71, 73), (4, 0, 2))
)


def step_by_step(engine: Engine, tokens: np.ndarray, path: Trajectory) -> tuple[SequenceState, np.ndarray]:
    """Drop and prefill for real; a second holder keeps the dropped cells, so that both runs lay out alike."""
    seq, holder = engine.acquire_sequence(), engine.acquire_sequence()
    logits = None
    for step, (first, last) in enumerate(path.steps):
        for when, start, stop in path.drops:
            if when == step:
                engine.copy_sequence(seq, holder, start, stop)
                engine.remove(seq, start, stop)
        logits = engine.prefill(seq, tokens[first:last])
    state = engine.save_state(seq)
    engine.release_sequence(seq)
    engine.release_sequence(holder)
    return state, logits


def in_one_pass(engine: Engine, tokens: np.ndarray, path: Trajectory) -> tuple[SequenceState, np.ndarray]:
    seq = engine.acquire_sequence()
    with engine.input_patches(path.plan()) as report:
        logits = engine.prefill(seq, tokens[: path.n_tokens])
    assert report.cells.tolist() == list(range(path.n_tokens))
    for _, start, stop in path.drops:
        engine.remove(seq, start, stop)
    state = engine.save_state(seq)
    engine.release_sequence(seq)
    return state, logits


def assert_same_bits(left: SequenceState, right: SequenceState) -> None:
    a, b = left.order(), right.order()
    np.testing.assert_array_equal(left.positions[a], right.positions[b])
    for layer in range(left.n_layer):
        np.testing.assert_array_equal(left.key(layer)[a].view(np.uint16), right.key(layer)[b].view(np.uint16))
        np.testing.assert_array_equal(
            left.value(layer)[a].view(np.uint16), right.value(layer)[b].view(np.uint16)
        )


@pytest.mark.model
@pytest.mark.parametrize(("name", "path"), [("smol", SHORT), ("flash", LONG)])
def test_a_trajectory_with_drops_in_one_pass_is_bit_exact(
    name: str, path: Trajectory, story: np.ndarray, request: pytest.FixtureRequest
):
    engine: Engine = request.getfixturevalue(name)
    state, logits = step_by_step(engine, story, path)
    engine.clear()
    patched, patched_logits = in_one_pass(engine, story, path)
    assert_same_bits(patched, state)
    np.testing.assert_array_equal(patched_logits, logits)
    engine.clear()
    seq = engine.acquire_sequence()
    undropped = engine.prefill(seq, story[: path.n_tokens])
    assert np.abs(undropped - logits).max() > 0.1, "the drops must matter, or the test shows nothing"


@pytest.mark.parametrize("path", [LONG, SHORT])
def test_pieces_of_a_patched_prefill_fit_together(path: Trajectory, tiny: Engine):
    tokens = np.random.default_rng(5).integers(3, 269, path.n_tokens).astype(np.int32)
    assert path.n_tokens > 2 * tiny.schedule.chunk_tokens
    state, logits = step_by_step(tiny, tokens, path)
    tiny.clear()
    patched, patched_logits = in_one_pass(tiny, tokens, path)
    np.testing.assert_array_equal(patched.positions, state.positions)
    for layer in range(state.n_layer):
        np.testing.assert_allclose(
            patched.key(layer).astype(np.float32), state.key(layer).astype(np.float32), atol=4e-3
        )
    np.testing.assert_allclose(patched_logits, logits, atol=1e-3)


def test_a_plan_finds_cells_in_a_fragmented_cache(tiny: Engine, tiny_tokens: np.ndarray):
    """Cells of several sequences interleave; hiding goes by position all the same."""
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(other, tiny_tokens[:30])
    tiny.prefill(seq, tiny_tokens[:40])
    tiny.remove(other, 5, 20)
    tiny.prefill(seq, tiny_tokens[40:70])
    cells = tiny._runtime.cell_positions(seq)
    assert np.any(np.diff(cells) < 0), "the layout must be out of order for this test"
    plan = PatchPlan(n_tokens=30, hidden=(HiddenBlock(0, 30, 10, 45),))
    with tiny.input_patches(plan):
        patched = tiny.prefill(seq, tiny_tokens[70:100])
    tiny.remove(seq, 70)
    tiny.remove(seq, 10, 45)
    np.testing.assert_allclose(patched, tiny.prefill(seq, tiny_tokens[70:100]), atol=1e-3)


def test_a_plan_for_other_tokens_is_refused_and_nothing_is_written(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    with pytest.raises(PatchFailed), tiny.input_patches(PatchPlan(n_tokens=7)):
        tiny.prefill(seq, tiny_tokens[:8])
    assert tiny.used_cells() == 0
    first = tiny.prefill(seq, tiny_tokens[:8])
    tiny.remove(seq)
    with tiny.input_patches(PatchPlan(n_tokens=8, positions=np.arange(100, 108, dtype=np.int32))):
        patched = tiny.prefill(seq, tiny_tokens[:8])
        tiny.remove(seq)
        second = tiny.prefill(seq, tiny_tokens[:8])
    assert not np.array_equal(patched, first)
    np.testing.assert_array_equal(second, first)


@pytest.mark.model
def test_captured_rows_are_causal_and_sum_to_one(smol: Engine, story: np.ndarray):
    seq = smol.acquire_sequence()
    smol.prefill(seq, story[:20], logits="none")
    with smol.capture_attention([0, 29]) as capture:
        captured = smol.prefill(seq, story[20:50])
    for layer in (0, 29):
        rows = capture.rows(layer)
        assert rows.shape == (smol.info.n_head, 30, 50)
        np.testing.assert_allclose(rows.sum(axis=-1), 1.0, atol=1e-5)
        assert not np.triu(rows[0], k=21).any()
    smol.remove(seq, 20)
    np.testing.assert_array_equal(smol.prefill(seq, story[20:50]), captured)


def test_captures_follow_drops_pieces_and_queries(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(other, tiny_tokens[:10])
    tiny.prefill(seq, tiny_tokens[:10])
    tiny.remove(other, 3, 6)
    tiny.remove(seq, 2, 5)
    plan = PatchPlan(n_tokens=100, hidden=(HiddenBlock(50, 100, 6, 9), HiddenBlock(70, 100, 20, 40)))
    with tiny.input_patches(plan), tiny.capture_attention([2]) as every:
        tiny.prefill(seq, tiny_tokens[:100])
    rows = every.rows(2)
    np.testing.assert_array_equal(every.positions, tiny.positions(seq))
    np.testing.assert_allclose(rows.sum(axis=-1), 1.0, atol=1e-5)
    at = {int(position): column for column, position in enumerate(every.positions)}
    assert rows[:, :50, at[6]].all()
    assert not rows[:, 50:, at[6]].any()
    assert not rows[:, 70:, at[20] : at[39] + 1].any()
    tiny.remove(seq, 10)
    with tiny.input_patches(plan), tiny.capture_attention([2], n_queries=5) as some:
        tiny.prefill(seq, tiny_tokens[:100])
    np.testing.assert_array_equal(some.rows(2), rows[:, 95:])


def test_captures_are_refused_where_they_cannot_be(tiny: Engine, flash: Engine):
    with pytest.raises(PatchFailed, match="flash attention"), flash.capture_attention([0]):
        pass
    with pytest.raises(PatchFailed, match="layers"), tiny.capture_attention([5]):
        pass
    with pytest.raises(PatchFailed, match="layers"), tiny.capture_attention([]):
        pass
