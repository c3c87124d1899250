"""Splices on the bundled model: exact where they can be, repaired where not, and declined with a reason."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nexus_lab import _core
from nexus_lab.cache import CacheProgram, ProgramRunner
from nexus_lab.engine import ContextFull, Engine
from nexus_lab.errors import Cancelled
from nexus_lab.splice import (
    BlockLibrary,
    Bounded,
    Calibration,
    CalibrationSample,
    Exact,
    Full,
    Leading,
    LibraryBlocks,
    NoRepair,
    Paper,
    RepairKind,
    RepairStrategy,
    SplicePath,
    ToolBlock,
    Trailing,
    TrialCase,
    compare_logits,
    context_hash,
    ended,
    growing_prefix,
    key_value_drift,
    measure_reference,
    measure_splice,
    message_ending,
    noise_floor,
    prompt_tokens,
    save_calibration,
    shadow_prefill,
    splice_block,
)

pytestmark = pytest.mark.model

DEPTH = 64


@pytest.fixture
def seq(engine: Engine) -> Iterator[int]:
    """A sequence of a context that is otherwise empty, so that cells come in the same order every time."""
    engine.clear()
    held = engine.acquire_sequence()
    yield held
    engine.release_sequence(held)


@pytest.fixture
def live(bundled_engine: Engine, history: tuple[int, ...]) -> Iterator[int]:
    """A sequence that holds the first `DEPTH` tokens of the history."""
    bundled_engine.clear()
    held = bundled_engine.acquire_sequence()
    bundled_engine.prefill(held, history[:DEPTH], logits="none")
    yield held
    bundled_engine.release_sequence(held)


def _library(engine: Engine, tmp_path: Path) -> BlockLibrary:
    return BlockLibrary(engine, tmp_path / "blocks")


def test_an_anchored_splice_is_the_prefill_bit_for_bit(
    engine: Engine, seq: int, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case, context = cases[0], history[:DEPTH]
    block = _library(engine, tmp_path).get_or_compile(case.block, context)
    engine.prefill(seq, context, logits="none")
    reference = measure_reference(engine, seq, case)
    for contract in (Exact(), Bounded(1e-6)):
        result = splice_block(engine, seq, block, contract=contract, preceding=context, rest=case.rest)
        assert (result.path, result.anchored, result.repaired, result.declined) == (
            SplicePath.SPLICE,
            True,
            0,
            None,
        )
        assert result.logits is not None
        np.testing.assert_array_equal(result.logits, reference.logits[0])
        engine.remove(seq, DEPTH)
    trial = measure_splice(engine, seq, case, block, reference, strategy=NoRepair(), preceding=context)
    assert trial.fidelity.dkl_mean == trial.fidelity.dkl_p95 == 0
    assert (trial.fidelity.top1, trial.fidelity.greedy_match) == (1.0, 1 + len(case.answer))
    assert trial.result.ttft_s is not None
    assert trial.result.ttft_s >= trial.result.seconds > 0


def test_a_block_compiled_behind_the_live_cells_is_the_prefill_bit_for_bit_there(
    engine: Engine, seq: int, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    # 45 tokens: a whole number of vectors further on, the sums would run in the same order anyway.
    case, context = cases[0], history[:45]
    with engine.scratch_sequence() as other:
        engine.prefill(other, history[:60], logits="none")  # so that the live cells are not the first
        engine.prefill(seq, context, logits="none")
        block = _library(engine, tmp_path).get_or_compile(case.block, context, live=seq)
        assert (engine.pos_max(seq), block.anchor) == (44, 45)
        reference = measure_reference(engine, seq, case)
        trial = measure_splice(engine, seq, case, block, reference, strategy=NoRepair(), preceding=context)
    assert trial.result.anchored
    assert trial.fidelity.dkl_mean == trial.fidelity.dkl_p95 == 0


def test_an_equal_position_behind_other_tokens_is_not_anchored(
    engine: Engine, seq: int, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case, context, other = cases[0], history[:DEPTH], history[100 : 100 + DEPTH]
    block = _library(engine, tmp_path).get_or_compile(case.block, context)
    reference = engine.prefill(seq, (*other, *case.block, *case.rest))
    engine.remove(seq)
    engine.prefill(seq, other, logits="none")
    result = splice_block(engine, seq, block, contract=Exact(), preceding=other, rest=case.rest)
    assert (result.path, result.anchored, result.spliced) == (SplicePath.PREFILL, False, 0)
    assert result.declined is not None
    assert result.declined.code == "not_anchored"
    assert result.contract == "exact"
    # One prefill against two: the same tokens in other batches.
    assert compare_logits(reference, result.logits).dkl_mean < 0.02


def test_full_repair_in_the_same_cells_is_exact_and_drift_is_where_the_splice_is(
    engine: Engine, seq: int, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case = cases[1]
    block = _library(engine, tmp_path).get_or_compile(case.block)
    engine.prefill(seq, history[:DEPTH], logits="none")
    reference = measure_reference(engine, seq, case)
    trial = measure_splice(engine, seq, case, block, reference, strategy=Full())
    assert (trial.fidelity.dkl_mean, trial.result.path) == (0, SplicePath.PREFILL)
    assert trial.result.declined is None
    stop = DEPTH + len(case.block)
    states = []
    for strategy in (Full(), Leading()):
        result = splice_block(engine, seq, block, strategy=strategy, budget=0.25)
        assert (result.logits, result.ttft_s) == (None, None)
        states.append(engine.save_state(seq, start=DEPTH))
        engine.remove(seq, DEPTH)
    repaired = -(-len(case.block) // 4)
    heads = engine.info.n_head_kv
    head = key_value_drift(*states, n_head_kv=heads, start=DEPTH, stop=DEPTH + repaired)
    tail = key_value_drift(*states, n_head_kv=heads, start=DEPTH + repaired, stop=stop)
    # In the head only the batch differs from the reference's; in the tail the context differs.
    assert head.k_relative.mean() < 0.2 * tail.k_relative.mean()
    # The first layer sees tokens alone, so its rows differ by the rounding of one rotation.
    assert tail.v_absolute[0].max() == 0
    assert 0 < tail.k_relative[0].max() < 2e-3 < tail.k_relative[-1].max()


def test_repairs_rank_as_they_should(
    bundled_engine: Engine, whole_cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    library = _library(bundled_engine, tmp_path)
    bundled_engine.clear()
    found: dict[str, list[float]] = {"none": [], "leading": [], "trailing": [], "unmoved": []}
    strategies = (NoRepair(), Leading(), Trailing())
    with growing_prefix(bundled_engine, history) as grow:
        seq = grow(128)
        for case in whole_cases:
            block = library.get_or_compile(case.block)
            reference = measure_reference(bundled_engine, seq, case)
            for chosen in strategies:
                trial = measure_splice(
                    bundled_engine, seq, case, block, reference, strategy=chosen, budget=0.25
                )
                found[chosen.name].append(trial.fidelity.dkl_mean)
            found["unmoved"].append(_without_rotation(bundled_engine, seq, case, block, reference.logits))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    # Measured at a fifth of both; half leaves room for another build of llama.cpp.
    assert mean["leading"] < 0.5 * mean["none"], mean
    assert mean["leading"] < 0.5 * mean["trailing"], mean
    assert mean["unmoved"] > 2 * mean["none"], mean


def _without_rotation(
    engine: Engine, seq: int, case: TrialCase, block: ToolBlock, reference: np.ndarray
) -> float:
    """D_KL of a splice whose keys keep the rotation of their anchor: the negative control."""
    start = engine.pos_max(seq) + 1
    state = block.rows_at(engine, start)
    state.rotate(np.full(len(state), block.anchor - start, np.int32), engine.info.rope)
    engine.restore_state(state, seq, append=True)
    first = engine.prefill(seq, case.rest)
    rows = engine.prefill(seq, case.answer, logits="all")
    engine.remove(seq, start)
    return compare_logits(reference, np.concatenate([first[np.newaxis], rows])).dkl_mean


def test_the_paper_s_contract_decodes_the_suffix_again(
    bundled_engine: Engine, live: int, cases: tuple[TrialCase, ...], tmp_path: Path
):
    block = _library(bundled_engine, tmp_path).get_or_compile(cases[0].block)
    contract = Paper(k=2, m=32, r_base=0.1)
    result = splice_block(bundled_engine, live, block, contract=contract)
    assert result.plan.kind is RepairKind.FULL  # K * M is the depth
    bundled_engine.remove(live, DEPTH)
    result = splice_block(bundled_engine, live, block, contract=replace(contract, k=9))
    assert result.plan.kind is RepairKind.TRAILING
    assert result.repaired == math.ceil(block.n_tokens * (0.1 + 32 / (32 * 8) * 0.9))
    assert result.plan.recomputed[-1] == block.n_tokens - 1
    row = result.to_row()
    assert row["contract"] == "paper"
    assert row["spliced"] + row["repaired"] == block.n_tokens


def test_a_block_of_the_other_v_layout_is_converted_but_never_called_exact(
    bundled_engine: Engine,
    flash_engine: Engine,
    cases: tuple[TrialCase, ...],
    history: tuple[int, ...],
    tmp_path: Path,
):
    case, context = cases[2], history[:DEPTH]
    block = _library(bundled_engine, tmp_path).get_or_compile(case.block, context)
    flash_engine.clear()
    seq = flash_engine.acquire_sequence()
    try:
        flash_engine.prefill(seq, context, logits="none")
        reference = measure_reference(flash_engine, seq, case)
        trial = measure_splice(
            flash_engine, seq, case, block, reference, strategy=NoRepair(), preceding=context
        )
        assert (trial.result.path, trial.result.anchored) == (SplicePath.SPLICE, False)
        # Same tokens, same context, another kernel: what is left is rounding.
        assert trial.fidelity.dkl_mean < 0.02
    finally:
        flash_engine.release_sequence(seq)


def test_a_quantized_cache_declines_and_prefills_with_the_same_logits(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    case, context = cases[0], history[:40]
    block = _library(bundled_engine, tmp_path).get_or_compile(case.block)
    with Engine.load(n_ctx=256, kv_type="q8_0", flash_attention=True) as quantized:
        seq = quantized.acquire_sequence()
        quantized.prefill(seq, context, logits="none")
        result = splice_block(quantized, seq, block, strategy=Leading(), preceding=context, rest=case.rest)
        quantized.clear()
        quantized.prefill(seq, context, logits="none")
        quantized.prefill(seq, case.block, logits="none")
        reference = quantized.prefill(seq, case.rest)
    assert (result.path, result.declined) == (SplicePath.PREFILL, quantized.declines["splice"])
    assert result.plan.kind is RepairKind.FULL
    np.testing.assert_array_equal(result.logits, reference)


@pytest.mark.parametrize("strategy", [Leading(), Trailing(), NoRepair()])
def test_a_cancel_leaves_the_sequence_as_before(
    bundled_engine: Engine, live: int, cases: tuple[TrialCase, ...], tmp_path: Path, strategy: RepairStrategy
):
    case = cases[0]
    block = _library(bundled_engine, tmp_path).get_or_compile(case.block)
    expected = bundled_engine.prefill(live, case.rest)
    bundled_engine.remove(live, DEPTH)
    before = bundled_engine.save_state(live)
    cells = bundled_engine.used_cells()
    for delay in (0.0, 0.02):
        with pytest.raises(Cancelled):
            _cancelled_splice(bundled_engine, live, block, strategy, delay)
        assert bundled_engine.pos_max(live) == DEPTH - 1
        assert bundled_engine.used_cells() == cells
        after = bundled_engine.save_state(live)
        np.testing.assert_array_equal(before.buffer, after.buffer)
    np.testing.assert_array_equal(bundled_engine.prefill(live, case.rest), expected)


def _cancelled_splice(
    engine: Engine, seq: int, block: ToolBlock, strategy: RepairStrategy, delay: float
) -> None:
    def stop() -> None:
        time.sleep(delay)
        engine.cancel()

    stopper = threading.Thread(target=stop)
    # The rest is long enough that the cancel finds the engine at work, whatever the repair.
    with engine.turn():
        stopper.start()
        try:
            splice_block(engine, seq, block, strategy=strategy, budget=0.5, rest=block.tokens * 4)
        finally:
            stopper.join()


def test_a_prompt_that_does_not_fit_leaves_the_sequence_as_before(
    bundled_engine: Engine, live: int, cases: tuple[TrialCase, ...], tmp_path: Path
):
    block = _library(bundled_engine, tmp_path).get_or_compile(cases[0].block)
    cells = bundled_engine.used_cells()
    with pytest.raises(ContextFull):
        splice_block(bundled_engine, live, block, strategy=NoRepair(), rest=[1] * bundled_engine.n_ctx)
    assert (bundled_engine.pos_max(live), bundled_engine.used_cells()) == (DEPTH - 1, cells)


def test_a_shadow_measures_beside_the_live_sequence_and_stands_outside_the_ttft(
    bundled_engine: Engine, live: int, cases: tuple[TrialCase, ...], tmp_path: Path
):
    case = cases[0]
    block = _library(bundled_engine, tmp_path).get_or_compile(case.block)
    arena = _core.BuddyArena(1 << 24)
    result = splice_block(bundled_engine, live, block, strategy=Leading(), rest=case.rest, arena=arena)
    assert arena.counters()["allocations"] == 1
    arena.check_integrity()
    end = bundled_engine.pos_max(live)
    floor = noise_floor(bundled_engine)
    shadow = shadow_prefill(bundled_engine, live, result, case.block, case.rest, floor=floor, drift=True)
    assert bundled_engine.pos_max(live) == end
    assert shadow.declined is None
    assert shadow.fidelity is not None
    assert shadow.fidelity.dkl_mean > 0
    assert shadow.fidelity.noise_floor == floor.dkl
    assert shadow.drift is not None
    assert shadow.drift.k_absolute.shape == (bundled_engine.info.n_layer, bundled_engine.info.n_head_kv)
    assert shadow.drift.n_tokens == block.n_tokens
    assert shadow.seconds > 0
    filler = bundled_engine.acquire_sequence()
    try:
        free = bundled_engine.n_ctx - bundled_engine.used_cells()
        bundled_engine.restore_state(_filler(bundled_engine, free - 10), filler)
        declined = shadow_prefill(bundled_engine, live, result, case.block, case.rest).declined
        assert declined is not None
        assert declined.code == "shadow_no_room"
    finally:
        bundled_engine.release_sequence(filler)


def _filler(engine: Engine, n_cells: int):
    """A state of many cells without the time to compute them."""
    with engine.scratch_sequence() as seq:
        engine.prefill(seq, [1], start=0, logits="none")
        row = engine.save_state(seq)
    big = row.take(np.zeros(n_cells, np.int64))
    return big.moved(np.arange(n_cells, dtype=np.int32), engine.info.rope)


def test_the_noise_floor_is_measured_once_and_is_small_but_not_nothing(bundled_engine: Engine):
    floor = noise_floor(bundled_engine)
    assert floor is noise_floor(bundled_engine)
    assert 0 < floor.permuted.dkl_mean < 0.05
    assert floor.dkl == max(floor.permuted.dkl_mean, floor.batch_split.dkl_mean)
    assert floor.permuted.n_positions == 3 * floor.batch_split.n_positions


def test_a_calibration_lets_bounded_splice_inside_it_and_prefill_outside(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], history: tuple[int, ...], nexus_home: Path
):
    library = BlockLibrary(bundled_engine)
    assert library.folder.is_relative_to(nexus_home)
    bundled_engine.clear()
    context = history[:8]
    calibration = Calibration.measured(
        [CalibrationSample(depth, len(cases[0].block), {0.0: 0.2, 0.5: 0.1}) for depth in (32, 64)],
        fingerprint=bundled_engine.info.fingerprint,
        context_hash=context_hash(context).hex(),
        flash_attention=False,
        strategy="leading",
        quantile=0.5,
        noise_floor=0.01,
    )
    save_calibration(calibration)
    block = library.get_or_compile(cases[0].block, context)
    generous = max(cell.dkl_upper for cell in calibration.cells)
    with growing_prefix(bundled_engine, history) as grow:
        seq = grow(24)
        assert _bounded(bundled_engine, seq, block, generous) == "outside_calibration"
        seq = grow(50)
        assert _bounded(bundled_engine, seq, block, generous) == "spliced"
        assert _bounded(bundled_engine, seq, block, 1e-9) == "bound_not_reached"
        other = library.get_or_compile(cases[0].block, history[:9])
        assert _bounded(bundled_engine, seq, other, generous) == "not_calibrated"
        save_calibration(calibration).write_text("{")
        assert _bounded(bundled_engine, seq, block, generous) == "calibration_refused"


def _bounded(engine: Engine, seq: int, block: ToolBlock, epsilon: float) -> str:
    start = engine.pos_max(seq) + 1
    result = splice_block(engine, seq, block, contract=Bounded(epsilon))
    engine.remove(seq, start)
    assert (result.declined is None) == (result.path is SplicePath.SPLICE)
    return "spliced" if result.declined is None else result.declined.code


def test_the_cache_runner_splices_from_the_library(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], history: tuple[int, ...], tmp_path: Path
):
    library = _library(bundled_engine, tmp_path)
    block = library.get_or_compile(cases[0].block, history[:8])
    address = library.address(cases[0].block, history[:8])
    bundled_engine.clear()
    runner = ProgramRunner(bundled_engine, blocks=LibraryBlocks(library))
    program = CacheProgram().append(history[:DEPTH]).splice(address, block.tokens, anchor=block.anchor)
    run = runner.run(program.append(cases[0].rest))
    assert run.declined == ()
    state = bundled_engine.save_state(run.seq, start=DEPTH, stop=DEPTH + block.n_tokens)
    rows = block.rows_at(bundled_engine, DEPTH)
    assert key_value_drift(
        rows, state, n_head_kv=bundled_engine.info.n_head_kv, start=DEPTH, stop=DEPTH + block.n_tokens
    ).is_zero
    unknown = program.splice("00" * 20, (1, 2, 3), anchor=0)
    assert [decline.code for decline in runner.run(unknown).declined] == ["block_refused"]


def test_a_growing_prefix_ends_with_a_whole_message_at_every_depth(bundled_engine: Engine):
    bundled_engine.clear()
    ending = message_ending(bundled_engine)
    assert bundled_engine.tokenize("<|im_end|>\n") == list(ending)
    tokens = prompt_tokens(bundled_engine, 60, seed=3)
    with growing_prefix(bundled_engine, tokens, ending) as grow:
        for depth in (1, 20, 20, 45):
            seq = grow(depth)
            kept = max(1, depth - len(ending))
            assert bundled_engine.pos_max(seq) + 1 == depth
            grown = bundled_engine.save_state(seq)
            with bundled_engine.scratch_sequence() as other:
                fresh = [*tokens[:kept], *(ending if depth > 1 else ())]
                assert fresh == list(ended(tokens, depth, ending))
                bundled_engine.prefill(other, fresh, start=0, logits="none")
                again = bundled_engine.save_state(other)
            for layer in range(grown.n_layer):
                one, two = (state.value(layer)[state.order()].astype(np.float32) for state in (grown, again))
                # Decoded in other calls, so only about equal; another token would be as far as 1.
                assert np.linalg.norm(one - two) < 0.1 * np.linalg.norm(two)
