from __future__ import annotations

import threading

import numpy as np
import pytest

from nexus_lab.engine import ContextFull, Engine, EngineClosed, EngineError, SequenceError, TokenError


def test_the_same_schedule_gives_the_same_bits(tiny: Engine, tiny_tokens: np.ndarray):
    runs = []
    for _ in range(2):
        tiny.clear()
        seq = tiny.acquire_sequence()
        runs.append(tiny.prefill(seq, tiny_tokens, logits="all"))
        tiny.release_sequence(seq)
    assert runs[0].shape == (150, tiny.info.n_vocab)
    np.testing.assert_array_equal(runs[0], runs[1])


@pytest.mark.model
def test_the_bundled_model_repeats_its_bits(smol: Engine, story: np.ndarray):
    runs = []
    for _ in range(2):
        with smol.scratch_sequence() as seq:
            runs.append(smol.prefill(seq, story[:120]))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_last_is_the_end_of_all_and_none_is_nothing(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    every = tiny.prefill(seq, tiny_tokens, logits="all")
    tiny.remove(seq)
    # How many rows go through the output layer together is part of the schedule, hence not bit for bit.
    np.testing.assert_allclose(tiny.prefill(seq, tiny_tokens), every[-1], atol=1e-5)
    tiny.remove(seq)
    assert tiny.prefill(seq, tiny_tokens, logits="none") is None


def test_progress_is_told_per_decode_call(tiny: Engine, tiny_tokens: np.ndarray):
    seen: list[tuple[int, int]] = []
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(64, 150), (128, 150), (150, 150)]


def test_what_does_not_fit_is_refused_before_anything_is_written(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    first = tiny.prefill(seq, tiny_tokens)
    with pytest.raises(ContextFull) as caught:
        tiny.prefill(other, np.resize(tiny_tokens, tiny.n_ctx - 149))
    assert (caught.value.needed, caught.value.free) == (tiny.n_ctx - 149, tiny.n_ctx - 150)
    with pytest.raises(ContextFull):
        tiny.prefill(other, np.resize(tiny_tokens, tiny.n_ctx + 1))
    assert (tiny.pos_max(other), tiny.used_cells()) == (-1, 150)
    tiny.prefill(other, np.resize(tiny_tokens, tiny.n_ctx - 150), logits="none")
    assert tiny.used_cells() == tiny.n_ctx
    tiny.release_sequence(other)
    tiny.remove(seq)
    np.testing.assert_array_equal(tiny.prefill(seq, tiny_tokens), first)


def test_books_and_library_agree(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:50])
    tiny.copy_sequence(seq, other, 10, 30)
    tiny.remove(seq, 20, 40)
    tiny.prefill(seq, tiny_tokens[:5])
    context = tiny._runtime.context
    for name in (seq, other):
        assert tiny.pos_max(name) == context.pos_max(name)
        state = tiny.save_state(name)
        np.testing.assert_array_equal(np.sort(state.positions), tiny.positions(name))
        np.testing.assert_array_equal(tiny._runtime.cell_positions(name), state.positions)
    assert tiny.used_cells() == 10 + 10 + 10 + 5 + 10
    tiny._runtime.ledger.check_integrity()


def test_sequences_and_positions_are_checked(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:20])
    wrong = [
        lambda: tiny.prefill(seq, tiny_tokens[:2], start=19),
        lambda: tiny.prefill(seq, tiny_tokens[:2], start=25),
        lambda: tiny.prefill(other, tiny_tokens[:2], start=-1),
        lambda: tiny.prefill(99, tiny_tokens[:2]),
        lambda: tiny.remove(-1),
        lambda: tiny.copy_sequence(seq, seq),
        lambda: tiny.release_sequence(31),
    ]
    for call in wrong:
        with pytest.raises(SequenceError):
            call()
    assert tiny.used_cells() == 20
    tiny.prefill(other, tiny_tokens[:2], start=7)
    assert tiny.positions(other).tolist() == [7, 8]


def test_tokens_are_checked(tiny: Engine):
    seq = tiny.acquire_sequence()
    for tokens in ([tiny.info.n_vocab], [-1], []):
        with pytest.raises(TokenError):
            tiny.prefill(seq, tokens)
    with pytest.raises(TokenError):
        tiny.detokenize([10**9])
    with pytest.raises(TokenError):
        tiny.token_bytes(-4)


def test_all_slots_can_be_held_and_one_more_is_refused(tiny: Engine, tiny_tokens: np.ndarray):
    slots = [tiny.acquire_sequence() for _ in range(32)]
    assert sorted(slots) == list(range(32))
    for seq in slots:
        tiny.prefill(seq, tiny_tokens[:3], logits="none")
    with pytest.raises(SequenceError):
        tiny.acquire_sequence()
    with tiny.scratch_sequence() as scratch:
        assert scratch not in slots
        tiny.prefill(scratch, tiny_tokens[:3], logits="none")


def test_a_step_that_fails_rolls_back(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    tiny.prefill(seq, tiny_tokens[:10])

    def fail(done: int, _total: int) -> None:
        if done > 64:
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="own"):
        tiny.prefill(seq, tiny_tokens, on_progress=fail)
    assert (tiny.pos_max(seq), tiny.used_cells(), tiny._runtime.context.pos_max(seq)) == (9, 10, 9)


def test_four_threads_get_equal_bits(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    expected = tiny.prefill(seq, tiny_tokens)
    tiny.release_sequence(seq)
    results: list[np.ndarray] = []

    def work() -> None:
        for _ in range(4):
            with tiny.turn():
                tiny.clear()
                mine = tiny.acquire_sequence()
                tiny.prefill(mine, tiny_tokens[:70], logits="none")
                results.append(tiny.prefill(mine, tiny_tokens[70:]))
                tiny.release_sequence(mine)

    with tiny.turn():
        tiny.clear()
        mine = tiny.acquire_sequence()
        tiny.prefill(mine, tiny_tokens[:70], logits="none")
        expected = tiny.prefill(mine, tiny_tokens[70:])
        tiny.release_sequence(mine)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_a_closed_engine_says_so(tiny_path):
    engine = Engine.load(tiny_path("plain"), n_ctx=256, threads=1)
    engine.close()
    engine.close()
    for call in (engine.acquire_sequence, lambda: engine.tokenize("the"), lambda: engine.token_bytes(5)):
        with pytest.raises(EngineClosed):
            call()


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 0},
        {"n_batch": -1},
        {"threads": 0},
        {"kv_type": "q3"},
        {"capture": True, "flash_attention": True},
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, object]):
    with pytest.raises(EngineError):
        Engine.load(**options)


def test_small_batches_are_possible(tiny_path, tiny_tokens: np.ndarray):
    with Engine.load(tiny_path("plain"), n_ctx=256, n_batch=16, n_ubatch=512, threads=1) as engine:
        assert engine.schedule.chunk_tokens == 16
        assert engine.prefill(engine.acquire_sequence(), tiny_tokens[:50], logits="all").shape[0] == 50
