"""Rows computed anew in their own cells: exact where sums run in the same order, and nothing else touched."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from nexus_lab.engine import ContextFull, Engine, PatchFailed, SequenceError, SequenceState, TokenError
from nexus_lab.errors import Cancelled

HEAD, BODY = 20, 60


def rows_of(state: SequenceState) -> list[np.ndarray]:
    """Bits of every key and value row, in rising order of position."""
    order = state.order()
    layers = range(state.n_layer)
    keys, values = [state.key(layer) for layer in layers], [state.value(layer) for layer in layers]
    return [rows[order].view(np.uint16) for rows in (*keys, *values)]


def numbers(rows: np.ndarray) -> np.ndarray:
    """What the bits of float16 rows mean, float32."""
    return rows.view(np.float16).astype(np.float32)


def assert_same_bits(left: SequenceState, right: SequenceState) -> None:
    for a, b in zip(rows_of(left), rows_of(right), strict=True):
        np.testing.assert_array_equal(a, b)


def spoilt(tokens: np.ndarray) -> np.ndarray:
    """The tokens with others in the body."""
    return np.concatenate([tokens[:HEAD], tokens[BODY:HEAD:-1]])


def filled(engine: Engine, *parts: np.ndarray) -> int:
    seq = engine.acquire_sequence()
    for part in parts:
        engine.prefill(seq, part, logits="none")
    return seq


def state_of(engine: Engine, *parts: np.ndarray) -> SequenceState:
    """Rows of a plain prefill in an empty context."""
    engine.clear()
    seq = filled(engine, *parts)
    state = engine.save_state(seq)
    engine.release_sequence(seq)
    engine.clear()
    return state


@pytest.mark.model
@pytest.mark.parametrize("name", ["smol", "flash"])
def test_a_body_computed_over_another_is_the_plain_prefill_bit_for_bit(
    name: str, story: np.ndarray, request: pytest.FixtureRequest
):
    engine: Engine = request.getfixturevalue(name)
    wanted = state_of(engine, story[:HEAD], story[HEAD:BODY])
    seq = filled(engine, story[:HEAD], spoilt(story)[HEAD:BODY])
    before = engine.save_state(seq)
    engine.recompute(seq, story[HEAD:BODY], np.arange(HEAD, BODY))
    assert engine.positions(seq).tolist() == list(range(BODY))
    assert engine.used_cells() == engine._runtime.context.pos_max(seq) + 1 == BODY
    found = engine.save_state(seq)
    assert_same_bits(found, wanted)
    assert not np.array_equal(rows_of(before)[-1][HEAD:], rows_of(found)[-1][HEAD:])
    np.testing.assert_array_equal(found.positions, before.positions)  # every row kept its cell


@pytest.mark.model
@pytest.mark.parametrize("name", ["smol", "flash"])
def test_scattered_rows_are_those_of_prefills_in_turn(
    name: str, story: np.ndarray, request: pytest.FixtureRequest
):
    """Stretches of two and more tokens take the same kernels as the pass; a single one has its own."""
    engine: Engine = request.getfixturevalue(name)
    chosen = np.array([22, 23, 30, 31, 32, 50, 51, 58, 59])
    source = state_of(engine, story[:HEAD], spoilt(story)[HEAD:BODY])
    rows = np.argsort(source.positions)
    slow = filled(engine, story[:HEAD])
    body = np.arange(HEAD, BODY)
    for run in np.split(body, np.flatnonzero(np.diff(np.isin(body, chosen))) + 1):
        if run[0] in chosen:
            engine.prefill(slow, story[run], logits="none")
        else:
            engine.restore_state(source.take(rows[run]), slow, append=True)
    wanted, expected = engine.save_state(slow), engine.prefill(slow, story[BODY : BODY + 10])
    engine.release_sequence(slow)
    engine.clear()
    fast = filled(engine, story[:HEAD])
    engine.restore_state(source.take(rows[HEAD:]), fast, append=True)
    engine.recompute(fast, story[chosen], chosen)
    assert_same_bits(engine.save_state(fast), wanted)
    np.testing.assert_array_equal(engine.prefill(fast, story[BODY : BODY + 10]), expected)


@pytest.mark.model
def test_single_tokens_are_mended_as_far_as_what_stands_before_them_is_right(smol: Engine, story: np.ndarray):
    chosen = np.array([25, 40, 59])
    right = smol.save_state(filled(smol, story[:BODY]))
    wrong = story[:BODY].copy()
    wrong[chosen] = story[200 : 200 + len(chosen)]
    other = filled(smol, wrong)
    stale = rows_of(smol.save_state(other))
    smol.recompute(other, story[chosen], chosen)
    found = smol.save_state(other)
    new, exact = rows_of(found), rows_of(right)
    for layer in (0, 15, 29):
        rows = [numbers(state[layer])[chosen] for state in (new, exact, stale)]
        assert np.linalg.norm(rows[2] - rows[1]) > 0.2 * np.linalg.norm(rows[1])
        assert np.linalg.norm(rows[0] - rows[1]) < 0.5 * np.linalg.norm(rows[2] - rows[1])
    np.testing.assert_array_equal(new[0], exact[0])


def test_pieces_of_a_pass_see_each_other(tiny: Engine, tiny_tokens: np.ndarray):
    """More tokens than one decode call takes, every second of them and then the last ones."""
    chosen = np.concatenate([np.arange(11, 131, 2), np.arange(131, 150)])
    assert len(chosen) > tiny.schedule.chunk_tokens
    right = filled(tiny, tiny_tokens)
    wanted = tiny.save_state(right)
    wrong = tiny_tokens.copy()
    wrong[chosen] = wrong[chosen[::-1]]
    seq = filled(tiny, wrong)
    # What follows the first wrong token was spoilt by it, so all of it is computed anew, in two passes.
    tiny.recompute(seq, tiny_tokens[11:], np.arange(11, 150))
    found = tiny.save_state(seq)
    for rows, exact in zip(rows_of(found), rows_of(wanted), strict=True):
        np.testing.assert_allclose(numbers(rows), numbers(exact), atol=4e-3)
    tiny.recompute(seq, tiny_tokens[chosen], chosen)
    for rows, exact in zip(rows_of(tiny.save_state(seq)), rows_of(wanted), strict=True):
        np.testing.assert_allclose(numbers(rows), numbers(exact), atol=4e-3)


def test_a_fragmented_cache_of_several_sequences_keeps_what_is_not_named(
    tiny: Engine, tiny_tokens: np.ndarray
):
    other = filled(tiny, tiny_tokens[:30])
    seq = filled(tiny, tiny_tokens[100:140])
    tiny.remove(other, 5, 20)
    tiny.prefill(seq, tiny_tokens[40:70])
    tidy = filled(tiny, tiny_tokens[100:140], tiny_tokens[40:70])
    cells = tiny._runtime.cell_positions
    assert np.any(np.diff(cells(seq)) < 0)
    assert np.all(np.diff(cells(tidy)) > 0)
    for held in (seq, tidy):
        tiny.remove(held, 3, 6)
    chosen, kept, before = np.array([2, 8, 9, 45, 69]), tiny.save_state(other), tiny.save_state(seq)
    for held in (seq, tidy):
        tiny.recompute(held, tiny_tokens[chosen], chosen)
    found = tiny.save_state(seq)
    np.testing.assert_array_equal(found.positions, before.positions)
    untouched = ~np.isin(found.positions[found.order()], chosen)
    for fresh, old, exact in zip(
        rows_of(found), rows_of(before), rows_of(tiny.save_state(tidy)), strict=True
    ):
        np.testing.assert_array_equal(fresh[untouched], old[untouched])
        np.testing.assert_allclose(numbers(fresh), numbers(exact), atol=4e-3)
        assert np.abs(numbers(fresh) - numbers(old)).max() > 0.1
    np.testing.assert_array_equal(tiny.save_state(other).buffer, kept.buffer)


def test_rows_that_another_sequence_shares_stay_as_they_are_there(tiny: Engine, tiny_tokens: np.ndarray):
    seq = filled(tiny, tiny_tokens[:50])
    fork = tiny.acquire_sequence()
    tiny.copy_sequence(seq, fork, 0, 40)
    before, chosen = tiny.save_state(fork), np.array([10, 11, 30, 45])
    alone = filled(tiny, tiny_tokens[:50])
    tiny.recompute(alone, tiny_tokens[80:84], chosen)
    tiny.recompute(seq, tiny_tokens[80:84], chosen)
    np.testing.assert_array_equal(tiny.save_state(fork).buffer, before.buffer)
    assert tiny.used_cells() == 50 + 50 + 3
    for rows, wanted in zip(rows_of(tiny.save_state(seq)), rows_of(tiny.save_state(alone)), strict=True):
        np.testing.assert_allclose(numbers(rows), numbers(wanted), atol=4e-3)


def test_what_cannot_be_computed_is_refused_before_anything_is_written(tiny: Engine, tiny_tokens: np.ndarray):
    seq = filled(tiny, tiny_tokens[:40])
    tiny.remove(seq, 7, 9)
    before = tiny.save_state(seq)
    for tokens, positions, error in (
        ([4, 5], [3, 8], SequenceError),
        ([4, 5], [3, 40], SequenceError),
        ([4, 5], [5, 3], PatchFailed),
        ([4], [3, 5], TokenError),
        ([], [], TokenError),
        ([10**6], [3], TokenError),
    ):
        with pytest.raises(error):
            tiny.recompute(seq, tokens, positions)
    filler = tiny.acquire_sequence()
    tiny.prefill(filler, np.resize(tiny_tokens, tiny.n_ctx - tiny.used_cells() - 2), logits="none")
    with pytest.raises(ContextFull):
        tiny.recompute(seq, tiny_tokens[:3], [1, 2, 3])
    tiny.recompute(seq, tiny_tokens[:2], [0, 1])
    np.testing.assert_array_equal(tiny.save_state(seq).buffer, before.buffer)
    with tiny.turn():
        tiny.cancel()
        with pytest.raises(Cancelled):
            tiny.recompute(seq, tiny_tokens[:2], [0, 1])
    np.testing.assert_array_equal(tiny.save_state(seq).buffer, before.buffer)


@pytest.mark.model
def test_a_cancel_in_the_pass_takes_the_half_written_rows_out(smol: Engine, story: np.ndarray):
    seq = filled(smol, story[:300])
    expected = smol.save_state(seq, stop=100)
    chosen = np.arange(100, 300, 2)

    def stop() -> None:
        time.sleep(0.02)
        smol.cancel()

    stopper = threading.Thread(target=stop)
    with smol.turn():
        stopper.start()
        with pytest.raises(Cancelled):
            smol.recompute(seq, story[chosen], chosen)
        stopper.join()
    assert smol.positions(seq).tolist() == [*range(100), *range(101, 300, 2)]
    assert smol.used_cells() == 200
    np.testing.assert_array_equal(smol.save_state(seq, stop=100).buffer, expected.buffer)
    smol.recompute(seq, story[99:100], [99])


def test_attention_of_a_pass_is_captured_at_the_true_positions(tiny: Engine, tiny_tokens: np.ndarray):
    seq = filled(tiny, tiny_tokens[:50])
    chosen = np.array([10, 20, 49])
    with tiny.capture_attention([2]) as capture:
        tiny.recompute(seq, tiny_tokens[chosen], chosen)
        tiny.recompute(seq, tiny_tokens[chosen], chosen)
    assert capture.positions.tolist() == list(range(50))
    rows = capture.rows(2)
    assert rows.shape == (tiny.info.n_head, 3, 50)
    np.testing.assert_allclose(rows.sum(axis=-1), 1.0, atol=1e-5)
    for query, position in enumerate(chosen):
        assert rows[:, query, position].all()
        assert not rows[:, query, position + 1 :].any()
