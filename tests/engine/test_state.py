from __future__ import annotations

import numpy as np
import pytest

from nexus_lab import _core
from nexus_lab.engine import (
    ContextFull,
    Engine,
    SequenceError,
    SequenceState,
    StateMemoryFull,
    StateMismatch,
    StateRestoreFailed,
)


def as_rows(state: SequenceState) -> list[np.ndarray]:
    order = state.order()
    return [rows[order] for layer in range(state.n_layer) for rows in (state.key(layer), state.value(layer))]


def assert_same_rows(left: SequenceState, right: SequenceState) -> None:
    np.testing.assert_array_equal(np.sort(left.positions), np.sort(right.positions))
    for a, b in zip(as_rows(left), as_rows(right), strict=True):
        np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


def continue_with(engine: Engine, seq: int, tokens: np.ndarray) -> np.ndarray:
    logits = engine.prefill(seq, tokens)
    engine.remove(seq, engine.pos_max(seq) + 1 - len(tokens))
    return logits


@pytest.mark.model
@pytest.mark.parametrize("name", ["smol", "flash"])
def test_a_saved_sequence_comes_back(name: str, story: np.ndarray, request: pytest.FixtureRequest):
    engine: Engine = request.getfixturevalue(name)
    seq, other = engine.acquire_sequence(), engine.acquire_sequence()
    engine.prefill(seq, story[:60])
    state = engine.save_state(seq)
    assert bool(state.layout.v_trans) == (name == "smol")
    assert (state.n_cells, state.n_layer) == (60, 30)
    engine.restore_state(state, other)
    assert_same_rows(engine.save_state(other), state)
    engine.release_sequence(seq)
    engine.release_sequence(other)
    back = engine.acquire_sequence()
    engine.restore_state(state, back)
    restored = continue_with(engine, back, story[60:70])
    engine.remove(back)
    engine.prefill(back, story[:60])
    np.testing.assert_array_equal(restored, continue_with(engine, back, story[60:70]))


@pytest.mark.model
@pytest.mark.parametrize("name", ["smol", "flash"])
def test_keys_moved_to_the_cursor_are_those_computed_there(
    name: str, story: np.ndarray, request: pytest.FixtureRequest
):
    engine: Engine = request.getfixturevalue(name)
    seq, other = engine.acquire_sequence(), engine.acquire_sequence()
    engine.prefill(seq, story[:40], logits="none")
    engine.prefill(other, story[:40], start=300, logits="none")
    here, there = engine.save_state(seq), engine.save_state(other)
    moved = here.moved(here.positions + 300, engine.info.rope)
    np.testing.assert_array_equal(np.sort(moved.positions), np.arange(300, 340))
    for layer in range(here.n_layer):
        wanted = there.key(layer)[there.order()].astype(np.float32)
        found = moved.key(layer)[moved.order()].astype(np.float32)
        assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)
        assert np.linalg.norm(found) == pytest.approx(
            np.linalg.norm(here.key(layer).astype(np.float32)), rel=1e-3
        )


def test_a_move_of_nothing_keeps_the_bits_and_the_source_is_untouched(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:20])
    state = tiny.save_state(seq)
    before = state.buffer.copy()
    assert_same_rows(state.moved(state.positions, tiny.info.rope), state)
    away = state.moved(state.positions + 50, tiny.info.rope)
    np.testing.assert_array_equal(state.buffer, before)
    assert not np.array_equal(away.key(0), state.key(0))
    np.testing.assert_array_equal(away.value(0), state.value(0))


def test_part_of_a_sequence_can_be_saved_and_added_to_another(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:60])
    part = tiny.save_state(seq, start=30, stop=50)
    np.testing.assert_array_equal(np.sort(part.positions), np.arange(30, 50))
    tiny.prefill(other, tiny_tokens[:30])
    tiny.restore_state(part, other, append=True)
    assert tiny.positions(other).tolist() == list(range(50))
    assert tiny.used_cells() == 110
    with pytest.raises(SequenceError, match="position 30"):
        tiny.restore_state(part, other, append=True)
    tiny.remove(seq, 50)
    np.testing.assert_allclose(
        continue_with(tiny, other, tiny_tokens[60:70]),
        continue_with(tiny, seq, tiny_tokens[60:70]),
        atol=0.05,
    )


def test_rows_can_be_taken_in_any_order(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:30])
    state = tiny.save_state(seq)
    rows = np.array([7, 3, 22])
    taken = state.take(rows)
    np.testing.assert_array_equal(taken.positions, state.positions[rows])
    np.testing.assert_array_equal(taken.key(2), state.key(2)[rows])
    np.testing.assert_array_equal(taken.value(2), state.value(2)[rows])
    masked = state.take(state.positions < 5)
    assert sorted(masked.positions.tolist()) == [0, 1, 2, 3, 4]
    tiny.restore_state(taken, seq)
    assert tiny.positions(seq).tolist() == [3, 7, 22]


def test_states_live_in_an_arena(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:30])
    plain = tiny.save_state(seq)
    arena = _core.BuddyArena(1 << 20)
    state = tiny.save_state(seq, arena=arena)
    moved = state.moved(state.positions + 5, tiny.info.rope, arena=arena)
    assert_same_rows(state, plain)
    assert arena.counters()["used_bytes"] >= 2 * state.nbytes
    del state, moved
    assert arena.counters()["used_bytes"] == 0
    with pytest.raises(StateMemoryFull):
        tiny.save_state(seq, arena=_core.BuddyArena(4096))


def test_a_restore_that_does_not_fit_changes_nothing(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(seq, np.resize(tiny_tokens, 300))
    state = tiny.save_state(seq)
    tiny.prefill(other, tiny_tokens[:10])
    with pytest.raises(ContextFull):
        tiny.restore_state(state, other)
    assert tiny.positions(other).tolist() == list(range(10))
    tiny.restore_state(state, seq)
    assert tiny.used_cells() == 310


@pytest.mark.model
def test_a_state_of_another_kind_of_context_is_refused(
    smol: Engine, flash: Engine, tiny: Engine, story: np.ndarray
):
    seq, other, third = smol.acquire_sequence(), flash.acquire_sequence(), tiny.acquire_sequence()
    smol.prefill(seq, story[:5])
    state = smol.save_state(seq)
    for engine, target in ((flash, other), (tiny, third)):
        with pytest.raises(StateMismatch):
            engine.restore_state(state, target)


def test_buffers_that_are_no_state_are_refused(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:9])
    good = tiny.save_state(seq)
    for buffer in (good.buffer[:-1], good.buffer[:20], np.zeros(64, np.uint8)):
        with pytest.raises(StateMismatch):
            SequenceState(np.ascontiguousarray(buffer))
    twice = SequenceState(good.buffer.copy())
    _core.set_state_positions(twice.buffer, twice.layout, np.zeros(9, np.int32))
    with pytest.raises(StateMismatch, match="repeat"):
        tiny.restore_state(SequenceState(twice.buffer), seq)


CORRUPTIONS = {
    "magic": lambda data: data.__setitem__(slice(0, 4), 7),
    "two streams": lambda data: data.__setitem__(8, 2),
    "too many cells": lambda data: data.__setitem__(slice(12, 16), np.array([0, 0, 1, 0], np.uint8)),
    "key type": lambda data: data.__setitem__(16 + 12 * 40 + 8, 3),
    "a layer too many": lambda data: data.__setitem__(16 + 12 * 40 + 4, 9),
}


@pytest.mark.parametrize("kind", [*CORRUPTIONS, "cut in a tensor"])
def test_a_refused_state_leaves_the_sequence_empty_and_later_inference_right(
    kind: str, tiny: Engine, tiny_tokens: np.ndarray
):
    seq = tiny.acquire_sequence()
    expected = tiny.prefill(seq, tiny_tokens)
    tiny.remove(seq, 40)
    data = tiny.save_state(seq).buffer.copy()
    if kind == "cut in a tensor":
        data = data[: len(data) - 1000].copy()
    else:
        CORRUPTIONS[kind](data)
    runtime = tiny._runtime
    with pytest.raises(StateRestoreFailed), tiny.turn():
        runtime.worker.call(lambda: runtime.write_state(seq, data))
    assert (tiny.pos_max(seq), runtime.context.pos_max(seq), tiny.used_cells()) == (-1, -1, 0)
    np.testing.assert_array_equal(tiny.prefill(seq, tiny_tokens), expected)
