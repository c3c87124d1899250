"""Missing state computed at once: the same bits as one by one, and one by one where that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from cache_strategies import programs
from direct import NOISE, kl, rows_by_position, same_rows
from hypothesis import given
from test_cache_limits import Limited
from test_cache_sharing import fill

from nexus_lab.cache import Append, CacheProgram, Drop, ProgramRunner, Repos, Splice, StartKind, fold
from nexus_lab.cache.restore import passes
from nexus_lab.errors import Cancelled, Decline


def with_drops(words: tuple[int, ...]) -> CacheProgram:
    """Six segments with a drop before each but the first, one of them of rows that were dropped in part."""
    program = CacheProgram()
    for turn, drop in enumerate(((), (2, 9), (20, 30), (25, 40), (41, 43), (50, 64))):
        program = program.drop(drop) if drop else program
        program = program.append(words[20 * turn : 20 * turn + 20])
    return program


def one_by_one(engine, program: CacheProgram):
    """Rows and logits of appends and drops, by hand; a holder keeps dropped cells from being used again."""
    seq, holder = engine.acquire_sequence(), engine.acquire_sequence()
    logits, before = None, CacheProgram().layout
    for prefix in list(program.canonical().prefixes())[1:]:
        after, op = prefix.layout, prefix.ops[-1]
        if isinstance(op, Append):
            logits = engine.prefill(seq, list(op.tokens), start=before.next_position)
        else:
            for position in before.positions[: len(after)][before.active & ~after.active].tolist():
                engine.copy_sequence(seq, holder, position, position + 1)
                engine.remove(seq, position, position + 1)
        before = after
    rows = rows_by_position(engine.save_state(seq))
    engine.release_sequence(seq)
    engine.release_sequence(holder)
    engine.clear()
    return rows, logits


@given(programs(max_ops=12))
def test_passes_are_the_operations_grouped_where_one_prefill_can_do_them(program: CacheProgram):
    groups = list(passes(program.ops, CacheProgram().layout))
    assert [op for group in groups for op in group] == list(program.ops)
    done = CacheProgram()
    for group in groups:
        if len(group) > 1:
            assert isinstance(group[0], Append)
            assert isinstance(group[-1], Append)
            assert any(isinstance(op, Drop) for op in group)
            assert all(isinstance(op, Append | Drop) for op in group)
        for op in group:
            place = done.layout.next_position
            done = done.then(op)
            assert len(group) == 1 or not isinstance(op, Drop) or done.layout.next_position == place


def test_a_pass_ends_where_positions_are_given_out_anew():
    a, b = Append((1, 2, 3)), Append((4, 5))
    early, newest = Drop(((0, 1),)), Drop(((2, 3),))
    empty = CacheProgram().layout

    def sizes(*ops: object) -> list[int]:
        return [len(group) for group in passes(ops, empty)]

    assert sizes(a, early, b) == [3]
    assert sizes(a, b) == [1, 1]
    assert sizes(a, newest, b) == [1, 1, 1]
    assert sizes(a, early, b, Repos(), a, Drop(((3, 4),)), b, early) == [3, 1, 3, 1]
    assert sizes(a, early, Splice("x", (1,), 0), b) == [1, 1, 1, 1]


@pytest.mark.model
def test_one_pass_gives_the_bits_of_one_by_one(engine, words, make_runner):
    program = with_drops(words)
    rows, logits = one_by_one(engine, program)
    records = []
    runner = make_runner(on_op=records.append)
    result = runner.run(program, at_once=True)
    assert result.restored is not None
    assert (result.restored.passes, result.restored.tokens, result.restored.declined) == (1, 120, None)
    assert np.array_equal(result.logits, logits)
    assert same_rows(rows_by_position(engine.save_state(result.seq)), rows)
    assert engine.used_cells() == result.state.n_active
    assert [record.op for record in records] == list(program.ops) == [r.op for r in result.records]
    assert records[-1].snapshot_declined is None
    assert {record.snapshot_declined.code for record in records[:-1]} == {"passed_in_one_prefill"}
    assert [record.tokens for record in records[:4]] == [20, 7, 20, 10]
    dense = make_runner(pool=runner.pool).run(CacheProgram().append(words[:120]))
    assert np.abs(dense.logits - logits).max() > 0.1, "the drops must matter, or the test shows nothing"


@pytest.mark.model
def test_a_state_restored_at_once_goes_on_and_steps_back(engine, words, make_runner):
    program = with_drops(words)
    runner = make_runner()
    whole = runner.run(program, at_once=True)
    stepwise = make_runner(pool=runner.pool).run(program)
    assert whole.state == stepwise.state
    assert kl(stepwise.logits, whole.logits) <= NOISE
    back = runner.goto(5)
    assert back.state == fold(program.prefix(5))
    assert back.logits is not None
    again = runner.goto(len(program))
    assert again.start.kind is StartKind.SNAPSHOT
    assert np.array_equal(again.logits, whole.logits)
    further = runner.step(Append(words[120:130]))
    assert engine.positions(runner.seq).tolist() == further.state.positions[further.state.active].tolist()


@pytest.mark.model
def test_going_to_a_state_that_was_not_kept_can_be_at_once(words, make_runner):
    program = with_drops(words)
    runner = make_runner()
    runner.run(program)
    runner.goto(1)
    runner.store.clear()
    there = runner.goto(len(program), at_once=True)
    assert (there.start.kind, there.start.tokens) == (StartKind.LIVE, 20)
    assert (there.restored.passes, there.restored.tokens) == (1, 100)
    assert there.state == fold(program)
    assert len(runner.timeline) == len(program)
    assert runner.goto(1).restored is None


@pytest.mark.model
def test_rows_that_were_there_already_are_dropped_on_the_way(words, make_runner):
    runner = make_runner()
    runner.run(CacheProgram().append(words[:40]))
    program = runner.program.append(words[40:50]).drop((5, 30)).append(words[50:70])
    result = runner.run(program, at_once=True)
    assert (result.start.kind, result.start.tokens, result.restored.passes) == (StartKind.LIVE, 40, 1)
    expected = make_runner(pool=runner.pool).run(program)
    assert result.state == expected.state
    assert kl(expected.logits, result.logits) <= NOISE


@pytest.mark.model
def test_a_repos_ends_a_pass_and_the_next_goes_on_from_there(engine, words, make_runner):
    program = CacheProgram().append(words[:30]).append(words[30:60]).drop((10, 30)).append(words[60:80])
    program = program.drop((31, 50)).repos().append(words[80:100]).drop((60, 70)).append(words[100:120])
    expected = make_runner().run(program)
    rows = rows_by_position(engine.save_state(expected.seq))
    noise = far(rows, rows_by_position(engine.save_state(make_runner().run(program).seq)))
    result = make_runner().run(program, at_once=True)
    assert (result.restored.passes, result.restored.declined) == (2, None)
    assert result.state == expected.state
    assert kl(expected.logits, result.logits) <= NOISE
    held = rows_by_position(engine.save_state(result.seq))
    assert held.keys() == rows.keys()
    assert 0 < noise < 0.1
    assert far(rows, held) < 2 * noise  # which is what other cells alone do


def far(one, two):
    """How far rows are apart, as a share of their norm."""
    left, right = (np.stack([np.concatenate(each[p]) for p in sorted(each)]) for each in (one, two))
    left, right = left.astype(np.float32), right.astype(np.float32)
    return np.linalg.norm(left - right) / np.linalg.norm(left)


@pytest.mark.model
def test_where_inputs_cannot_be_patched_it_goes_segment_by_segment(engine, words, make_runner):
    program = with_drops(words)
    expected = make_runner().run(program)
    rows = rows_by_position(engine.save_state(expected.seq))
    limited = Limited(engine, input_patches=Decline("tensor_layout", "another layout"))
    with ProgramRunner(limited) as runner:
        result = runner.run(program, at_once=True)
        assert result.restored.passes == 0
        assert (result.restored.declined.code, result.restored.declined.instead) == (
            "tensor_layout",
            "segment by segment",
        )
        assert kl(expected.logits, result.logits) <= NOISE
        held = rows_by_position(engine.save_state(result.seq))
        assert held.keys() == rows.keys()
        assert all(prefix.id in runner.store for prefix in list(program.prefixes())[1:])
    runner.pool.close()


@pytest.mark.model
def test_a_pass_that_does_not_fit_goes_segment_by_segment(engine, words, make_runner):
    program = (
        CacheProgram()
        .append(words[:40])
        .drop((0, 30))
        .append(words[40:80])
        .drop((40, 70))
        .append(words[80:100])
    )
    seq = engine.acquire_sequence()
    try:
        fill(engine, seq, engine.n_ctx - 60)
        result = make_runner().run(program, at_once=True)
    finally:
        engine.release_sequence(seq)
    assert result.restored.declined.code == "context_full"
    assert result.restored.passes == 0
    assert result.state.n_active == 40


@pytest.mark.model
def test_a_pass_that_is_stopped_leaves_the_state_before(engine, words, make_runner):
    runner = make_runner()
    runner.run(CacheProgram().append(words[:20]))
    before = rows_by_position(engine.save_state(runner.seq))
    program = runner.program.append(words[20:40]).drop((3, 10)).append(words[40:60])
    with engine.turn():
        engine.cancel()
        with pytest.raises(Cancelled):
            runner.run(program, at_once=True)
    assert runner.program == CacheProgram().append(words[:20])
    assert same_rows(rows_by_position(engine.save_state(runner.seq)), before)
    assert runner.run(program, at_once=True).restored.passes == 1
