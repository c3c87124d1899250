"""Splices in every cache layout, on small random models: rows are compared, since such logits say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from layout_cases import (
    ALL_LAYERS_BOUND,
    CASES,
    DECLINED,
    FIRST_LAYER_BOUND,
    REFUSED,
    SPLICED,
    TABLE,
    Case,
    table,
)
from tiny_models import KINDS, N_LAYER, WINDOW

from nexus_lab.engine import EngineError, rotate_keys
from nexus_lab.engine.shift import LEAST_HEAD
from nexus_lab.splice import (
    BlockCompiler,
    Carried,
    Exact,
    Full,
    Leading,
    NoRepair,
    Scattered,
    SplicePath,
    SpliceUnavailable,
    splice_block,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexus_lab.engine import Engine, SequenceState

_TOKENS = np.random.default_rng(11).integers(3, 269, 400).astype(np.int32)
CONTEXT, BLOCK, REST = _TOKENS[:150], _TOKENS[150:210], _TOKENS[210:222]
# Tokens before the block and in it: all within a window, and both longer than one.
PLACES = {"inside": (9, 14), "beyond": (len(CONTEXT), len(BLOCK))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module", params=SPLICED, ids=lambda case: case.id)
def loaded(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    with request.param.load(folder) as engine:
        yield engine


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """An engine per layout, empty."""
    loaded.clear()
    yield loaded
    for seq in range(32):
        if seq not in loaded._slots:
            loaded.release_sequence(seq)
    assert loaded.used_cells() == 0


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    """Context and block."""
    n_context, n_block = PLACES[request.param]
    return CONTEXT[:n_context], BLOCK[:n_block]


def assert_same_rows(left: SequenceState, right: SequenceState) -> None:
    orders = left.order(), right.order()
    np.testing.assert_array_equal(left.positions[orders[0]], right.positions[orders[1]])
    assert left.n_layer == right.n_layer == N_LAYER
    for layer in range(left.n_layer):
        for read in ("key", "value"):
            a, b = (
                getattr(state, read)(layer)[order] for state, order in zip((left, right), orders, strict=True)
            )
            np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


def errors(found: SequenceState, wanted: SequenceState) -> np.ndarray:
    """Relative error of each layer's keys and values, float64 [2, n_layer]."""
    orders = found.order(), wanted.order()
    np.testing.assert_array_equal(found.positions[orders[0]], wanted.positions[orders[1]])
    out = np.empty((2, found.n_layer))
    for layer in range(found.n_layer):
        for row, read in enumerate(("key", "value")):
            a = getattr(found, read)(layer)[orders[0]].astype(np.float64)
            b = getattr(wanted, read)(layer)[orders[1]].astype(np.float64)
            out[row, layer] = np.linalg.norm(a - b) / np.linalg.norm(b)
    return out


def prefilled(engine: Engine, *parts: np.ndarray, start: int = 0) -> int:
    seq = engine.acquire_sequence()
    for part in parts:
        engine.prefill(seq, part, start=start, logits="none")
        start += len(part)
    return seq


def test_every_kind_is_in_the_table():
    assert {case.kind for case in CASES} == set(KINDS)
    assert len({case.id for case in CASES}) == len(CASES)


def test_a_full_repair_is_the_prefill_bit_for_bit(
    engine: Engine, place: tuple[np.ndarray, np.ndarray], tmp_path: Path
):
    context, tokens = place
    block = BlockCompiler(engine).compile(tokens.tolist(), path=tmp_path / "block.atb")
    seq = prefilled(engine, context, tokens)
    wanted, logits = engine.save_state(seq), engine.prefill(seq, REST)
    engine.remove(seq, len(context))
    result = splice_block(engine, seq, block, strategy=Full(), rest=REST.tolist())
    assert (result.path, result.declined) == (SplicePath.PREFILL, None)
    np.testing.assert_array_equal(result.logits, logits)
    engine.remove(seq, len(context) + len(tokens))
    assert_same_rows(engine.save_state(seq), wanted)


def test_an_anchored_splice_is_the_prefill_bit_for_bit(
    engine: Engine, place: tuple[np.ndarray, np.ndarray], tmp_path: Path
):
    context, tokens = place
    block = BlockCompiler(engine).compile(tokens.tolist(), context.tolist(), path=tmp_path / "block.atb")
    seq = prefilled(engine, context, tokens)
    wanted, logits = engine.save_state(seq), engine.prefill(seq, REST)
    engine.remove(seq, len(context))
    result = splice_block(
        engine, seq, block, contract=Exact(), preceding=context.tolist(), rest=REST.tolist()
    )
    assert (result.path, result.anchored, result.repaired) == (SplicePath.SPLICE, True, 0)
    np.testing.assert_array_equal(result.logits, logits)
    engine.remove(seq, len(context) + len(tokens))
    assert_same_rows(engine.save_state(seq), wanted)


def test_a_moved_block_has_the_keys_that_are_computed_there(
    engine: Engine, place: tuple[np.ndarray, np.ndarray], tmp_path: Path
):
    context, tokens = place
    n_past = len(context)
    block = BlockCompiler(engine).compile(tokens.tolist(), path=tmp_path / "block.atb")
    seq = prefilled(engine, context)
    result = splice_block(engine, seq, block, strategy=NoRepair())
    assert (result.path, result.spliced) == (SplicePath.SPLICE, len(tokens))
    spliced = engine.save_state(seq, start=n_past)
    engine.release_sequence(seq)
    behind = engine.save_state(prefilled(engine, context, tokens), start=n_past)
    alone = engine.save_state(prefilled(engine, tokens, start=n_past))
    drift = errors(spliced, behind)
    # Values of the model's first layer depend on their token alone, which tells the layer.
    first = int(np.argmin(drift[1]))
    assert drift[1, first] == 0
    assert drift[0, first] < FIRST_LAYER_BOUND
    assert np.sort(drift[1])[1] > 10 * ALL_LAYERS_BOUND, "the other layers have not seen the context"
    assert errors(spliced, alone).max() < ALL_LAYERS_BOUND


def test_a_scattered_repair_computes_its_tokens_where_they_stand(
    engine: Engine, place: tuple[np.ndarray, np.ndarray], tmp_path: Path
):
    """In one pass where inputs can be patched, stretch by stretch where not."""
    context, tokens = place
    block = BlockCompiler(engine).compile(tokens.tolist(), path=tmp_path / "block.atb")
    seq = prefilled(engine, context)
    result = splice_block(engine, seq, block, strategy=Scattered(), budget=0.5)
    assert (result.path, result.repaired) == (SplicePath.SPLICE, -(-len(tokens) // 2))
    repaired = engine.save_state(seq, start=len(context))
    engine.release_sequence(seq)
    behind = engine.save_state(prefilled(engine, context, tokens), start=len(context))
    drift = errors(repaired, behind)
    assert drift[0, int(np.argmin(drift[1]))] < FIRST_LAYER_BOUND
    spliced = block.rows_at(engine, len(context))
    chosen = np.array(result.plan.recomputed)
    rest = np.setdiff1d(np.arange(len(tokens)), chosen)
    assert_same_rows(repaired.take(repaired.order()[rest]), spliced.take(rest))
    # A token that is computed anew sees its context, so it comes nearer to the prefill's rows.
    nearer = [
        errors(state.take(state.order()[chosen]), behind.take(behind.order()[chosen])).mean()
        for state in (repaired, spliced)
    ]
    assert nearer[0] < 0.8 * nearer[1]


def test_a_carried_repair_moves_all_keys_alike_but_for_their_rotation(engine: Engine, tmp_path: Path):
    context, tokens = CONTEXT, BLOCK
    block = BlockCompiler(engine).compile(tokens.tolist(), path=tmp_path / "block.atb")
    found = []
    for strategy in (Leading(), Carried()):
        seq = prefilled(engine, context)
        result = splice_block(engine, seq, block, strategy=strategy, budget=0.75)
        rows = engine.save_state(seq, start=len(context) + result.plan.count)
        found.append(rows.take(rows.order()))
        engine.release_sequence(seq)
    leading, carried = found
    assert result.plan.count >= LEAST_HEAD
    moved = [carried.key(layer) - leading.key(layer) for layer in range(leading.n_layer)]
    if engine.info.rope is not None:
        rotate_keys(moved, -leading.positions, engine.info.rope)
    for layer, rows in enumerate(moved):
        largest = np.abs(leading.key(layer).astype(np.float32)).max()
        assert np.ptp(rows.astype(np.float32), axis=0).max() < 0.01 * largest
        np.testing.assert_array_equal(carried.value(layer), leading.value(layer))
    assert any(np.abs(rows).max() > 0 for rows in moved)


def test_a_state_comes_back_bit_for_bit(engine: Engine, place: tuple[np.ndarray, np.ndarray]):
    context, tokens = place
    seq = prefilled(engine, context, tokens)
    state, logits = engine.save_state(seq), engine.prefill(seq, REST)
    assert state.n_cells == len(context) + len(tokens)
    assert_same_rows(engine.save_state(seq, stop=state.n_cells), state)
    engine.release_sequence(seq)
    engine.clear()
    back = engine.acquire_sequence()
    engine.restore_state(state, back)
    assert_same_rows(engine.save_state(back), state)
    np.testing.assert_array_equal(engine.prefill(back, REST), logits)


def test_a_sequence_can_be_cut_back_beyond_the_window(engine: Engine):
    """The sliding layers' cache keeps all, so that what comes into view again is there."""
    seq = prefilled(engine, CONTEXT)
    wanted = engine.prefill(seq, REST)
    engine.prefill(seq, BLOCK, logits="none")
    engine.prefill(seq, BLOCK, logits="none")
    engine.remove(seq, len(CONTEXT))
    np.testing.assert_array_equal(engine.prefill(seq, REST), wanted)


def test_what_has_left_a_window_is_not_given_away(engine: Engine):
    """Free cells before and behind a sequence lead the next prefill past it."""
    before = prefilled(engine, CONTEXT[:100])
    kept = prefilled(engine, CONTEXT)
    wanted = engine.save_state(kept)
    behind = prefilled(engine, CONTEXT[:100])
    engine.release_sequence(before)
    held = [prefilled(engine, CONTEXT[:50])]
    engine.release_sequence(behind)
    held.append(prefilled(engine, CONTEXT))
    assert_same_rows(engine.save_state(kept), wanted)
    fork = engine.acquire_sequence()
    engine.copy_sequence(kept, fork, 0, 60)
    engine.remove(kept, 60)
    logits = [engine.prefill(seq, REST) for seq in (kept, fork)]
    np.testing.assert_array_equal(engine.save_state(kept, stop=60).n_cells, 60)
    for seq in (*held, kept, fork):
        engine.release_sequence(seq)
    engine.clear()
    fresh = engine.prefill(prefilled(engine, CONTEXT[:60]), REST)
    for found in logits:
        np.testing.assert_allclose(found, fresh, atol=0.02 * float(np.abs(fresh).max()))


@pytest.mark.parametrize("case", DECLINED, ids=lambda case: case.id)
def test_what_is_declined_is_declined_with_a_reason_and_runs_otherwise(
    case: Case, folder: Path, tmp_path: Path
):
    with case.load(folder) as engine:
        decline = engine.declines["splice"]
        assert decline.code == case.declined
        assert len(decline.reason) > 20
        seq = engine.acquire_sequence()
        logits = engine.prefill(seq, CONTEXT[:70])
        assert len(engine.generate(seq, logits, max_tokens=5).tokens) <= 5
        with pytest.raises(SpliceUnavailable, match=decline.reason.split("(")[0].strip()):
            BlockCompiler(engine).compile([5, 6], path=tmp_path / "block.atb")
        engine.release_sequence(seq)
        assert engine.used_cells() == 0


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_what_cannot_be_loaded_says_so(case: Case, folder: Path):
    with pytest.raises(EngineError) as caught:
        case.load(folder)
    assert type(caught.value).__name__ == case.declined


def test_the_window_is_shorter_than_what_the_tests_put_behind_it():
    assert PLACES["inside"][0] + PLACES["inside"][1] + len(REST) > WINDOW > sum(PLACES["inside"])
    assert min(PLACES["beyond"]) > WINDOW


def test_the_table_is_what_the_cases_find():
    assert TABLE.read_text(encoding="utf-8") == table(), "write it anew: python tests/layout_cases.py"
