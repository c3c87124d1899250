"""Repairs of several stretches in one pass: the rows of the slow way, or the slow way with a reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from nexus_lab.engine import Engine, PatchFailed, SequenceState
from nexus_lab.errors import Cancelled, Decline
from nexus_lab.splice import (
    BlockLibrary,
    Full,
    Leading,
    NoRepair,
    RepairKind,
    RepairPath,
    RepairPlan,
    RepairStrategy,
    Scattered,
    SplicePath,
    SpliceResult,
    ToolBlock,
    Trailing,
    TrialCase,
    compare_logits,
    noise_floor,
    splice_block,
)

pytestmark = pytest.mark.model

DEPTH = 64


@dataclass(frozen=True)
class Given:
    """A repair of given tokens."""

    chosen: tuple[int, ...]
    name: str = "given"

    def plan(self, n_tokens: int, *_: object, **__: object) -> RepairPlan:
        return RepairPlan(RepairKind.SCATTERED, n_tokens, tuple(i for i in self.chosen if i < n_tokens))


PAIRS = Given(tuple(i for i in range(400) if i % 8 in {2, 3}))


@pytest.fixture
def live(engine: Engine, history: tuple[int, ...]) -> Iterator[int]:
    """A sequence that holds the first `DEPTH` tokens of the history, alone in the context."""
    engine.clear()
    held = engine.acquire_sequence()
    engine.prefill(held, history[:DEPTH], logits="none")
    yield held
    engine.release_sequence(held)


@pytest.fixture
def block(engine: Engine, cases: tuple[TrialCase, ...], tmp_path: Path) -> ToolBlock:
    return BlockLibrary(engine, tmp_path / "blocks").get_or_compile(cases[0].block)


@pytest.fixture
def decline(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the engine decline patched inputs from now on."""

    def now() -> None:
        declines: Mapping[str, Decline] = {**engine.declines, "input_patches": Decline("graph_inputs", "no")}
        monkeypatch.setattr(engine, "declines", MappingProxyType(declines))

    return now


def spliced(
    engine: Engine, seq: int, block: ToolBlock, strategy: RepairStrategy, rest: tuple[int, ...]
) -> tuple[SpliceResult, SequenceState]:
    result = splice_block(engine, seq, block, strategy=strategy, rest=rest)
    state = engine.save_state(seq, start=DEPTH, stop=DEPTH + block.n_tokens)
    engine.remove(seq, DEPTH)
    return result, state


def test_stretches_in_one_pass_are_those_computed_in_turn_bit_for_bit(
    engine: Engine, live: int, block: ToolBlock, cases: tuple[TrialCase, ...], decline: Callable[[], None]
):
    """Where every decode call has two tokens or more, and as many as take the same kernel."""
    fast, state = spliced(engine, live, block, PAIRS, cases[0].rest)
    assert (fast.repair_path, fast.repair_declined) == (RepairPath.ONE_PASS, None)
    assert fast.repaired == len(PAIRS.plan(block.n_tokens, DEPTH).recomputed) < block.n_tokens
    decline()
    slow, expected = spliced(engine, live, block, PAIRS, cases[0].rest)
    assert (slow.repair_path, slow.repair_declined) == (RepairPath.RUNS, engine.declines["input_patches"])
    np.testing.assert_array_equal(state.buffer, expected.buffer)
    np.testing.assert_array_equal(fast.logits, slow.logits)
    assert (slow.to_row()["repair_path"], slow.to_row()["repair_reason"]) == ("runs", "no")
    assert (fast.to_row()["repair_path"], fast.to_row()["repair_reason"]) == ("one_pass", None)
    bare, unrepaired = spliced(engine, live, block, NoRepair(), cases[0].rest)
    assert np.abs(bare.logits - fast.logits).max() > 0.1, "the repair must matter, or the test shows nothing"
    kept = ~np.isin(np.arange(block.n_tokens), fast.plan.recomputed)
    for layer in range(state.n_layer):
        np.testing.assert_array_equal(state.key(layer)[kept], unrepaired.key(layer)[kept])


def test_single_tokens_in_one_pass_are_those_computed_in_turn_but_for_rounding(
    engine: Engine, live: int, block: ToolBlock, cases: tuple[TrialCase, ...], decline: Callable[[], None]
):
    fast, state = spliced(engine, live, block, Scattered(), cases[0].rest)
    decline()
    slow, expected = spliced(engine, live, block, Scattered(), cases[0].rest)
    assert (fast.repair_path, slow.repair_path) == (RepairPath.ONE_PASS, RepairPath.RUNS)
    for layer in range(state.n_layer):
        for rows in ("key", "value"):
            new = getattr(state, rows)(layer).astype(np.float32)
            exact = getattr(expected, rows)(layer).astype(np.float32)
            if layer == 0:
                np.testing.assert_array_equal(new, exact)
            assert np.linalg.norm(new - exact) < 0.05 * np.linalg.norm(exact)
    # One position, so its own draw from the floor's distribution.
    assert compare_logits(slow.logits, fast.logits).dkl_mean < 5 * noise_floor(engine).dkl_p95


@pytest.mark.parametrize("strategy", [Leading(), Trailing(k=20), Given((20, 21, 22)), NoRepair(), Full()])
def test_one_stretch_needs_no_patches(
    engine: Engine, live: int, block: ToolBlock, strategy: RepairStrategy, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("patched")

    monkeypatch.setattr(engine, "recompute", refuse)
    result, state = spliced(engine, live, block, strategy, ())
    assert (result.repair_path, result.repair_declined) == (RepairPath.RUNS, None)
    assert len(state) == block.n_tokens


def test_a_pass_that_fails_or_does_not_fit_is_done_in_turn_with_the_reason(
    engine: Engine,
    live: int,
    block: ToolBlock,
    cases: tuple[TrialCase, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    fast, expected = spliced(engine, live, block, PAIRS, cases[0].rest)
    filler = engine.acquire_sequence()
    try:
        engine.prefill(filler, np.resize(block.tokens, 1), logits="none")
        free = engine.n_ctx - engine.used_cells() - block.n_tokens - fast.repaired // 2
        row = engine.save_state(filler)
        many = row.take(np.zeros(free, np.int64)).moved(
            np.arange(1, free + 1, dtype=np.int32), engine.info.rope
        )
        engine.restore_state(many, filler, append=True)
        tight, state = spliced(engine, live, block, PAIRS, ())
        assert (tight.path, tight.repair_path) == (SplicePath.SPLICE, RepairPath.RUNS)
        assert tight.repair_declined is not None
        assert tight.repair_declined.code == "no_room"
        assert len(state) == block.n_tokens
    finally:
        engine.release_sequence(filler)

    def fail(seq: int, *_: object, **__: object) -> None:
        engine.remove(seq, DEPTH + 2, DEPTH + 4)
        raise PatchFailed("another graph")

    monkeypatch.setattr(engine, "recompute", fail)
    failed, state = spliced(engine, live, block, PAIRS, cases[0].rest)
    assert failed.repair_declined is not None
    assert (failed.repair_declined.code, failed.repair_declined.reason) == ("pass_failed", "another graph")
    np.testing.assert_array_equal(state.buffer, expected.buffer)
    np.testing.assert_array_equal(failed.logits, fast.logits)


def test_a_cancel_in_the_pass_leaves_the_sequence_as_before(
    engine: Engine, live: int, block: ToolBlock, cases: tuple[TrialCase, ...], monkeypatch: pytest.MonkeyPatch
):
    expected = engine.prefill(live, cases[0].rest)
    engine.remove(live, DEPTH)
    before, cells = engine.save_state(live), engine.used_cells()
    recompute = engine.recompute

    def cancelled(*arguments: object, **options: object) -> object:
        def stop() -> None:
            time.sleep(0.01)
            engine.cancel()

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            return recompute(*arguments, **options)
        finally:
            stopper.join()

    monkeypatch.setattr(engine, "recompute", cancelled)
    with pytest.raises(Cancelled):
        splice_block(engine, live, block, strategy=PAIRS, rest=cases[0].rest)
    assert (engine.pos_max(live), engine.used_cells()) == (DEPTH - 1, cells)
    np.testing.assert_array_equal(engine.save_state(live).buffer, before.buffer)
    np.testing.assert_array_equal(engine.prefill(live, cases[0].rest), expected)


def test_a_pass_in_a_fragmented_context_touches_no_other_sequence(
    engine: Engine, live: int, block: ToolBlock, cases: tuple[TrialCase, ...], history: tuple[int, ...]
):
    alone, expected = spliced(engine, live, block, PAIRS, cases[0].rest)
    others = [engine.acquire_sequence() for _ in range(3)]
    try:
        for other in others:
            engine.prefill(other, history[:60], logits="none")
        engine.remove(others[0], 10, 40)
        engine.remove(others[1], 5, 55)
        kept = [engine.save_state(other).buffer for other in others]
        crowded, state = spliced(engine, live, block, PAIRS, cases[0].rest)
        assert crowded.repair_path is RepairPath.ONE_PASS
        for other, buffer in zip(others, kept, strict=True):
            np.testing.assert_array_equal(engine.save_state(other).buffer, buffer)
    finally:
        for other in others:
            engine.release_sequence(other)
    rows, wanted = state.order(), expected.order()
    np.testing.assert_array_equal(state.key(0)[rows], expected.key(0)[wanted])
    for layer in range(1, state.n_layer):
        new, exact = (s.key(layer)[o].astype(np.float32) for s, o in ((state, rows), (expected, wanted)))
        assert np.linalg.norm(new - exact) < 0.05 * np.linalg.norm(exact)
    assert compare_logits(alone.logits, crowded.logits).dkl_mean < 5 * noise_floor(engine).dkl_p95
