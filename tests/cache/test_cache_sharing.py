"""Sequences shared between conversations: plain prefixes only, evicted when cells or slots are needed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from direct import NOISE, Blocks, direct, kl, rows_by_position, same_rows

from nexus_lab import _core
from nexus_lab.cache import (
    Append,
    CacheProgram,
    IntegrityError,
    ProgramRunner,
    Repos,
    SequencePool,
    Splice,
    StartKind,
)
from nexus_lab.engine import ContextFull, SequenceError, SequenceState
from nexus_lab.errors import Cancelled

pytestmark = pytest.mark.model


def fill(engine, seq, n_cells):
    """Occupy cells with rows of no meaning, without computing them."""
    with engine.scratch_sequence() as scratch:
        engine.prefill(scratch, [1], logits="none")
        one = engine.save_state(scratch)
    rows = np.zeros(n_cells, np.int64)
    keys = [one.key(layer)[rows] for layer in range(one.n_layer)]
    values = [one.value(layer)[rows] for layer in range(one.n_layer)]
    positions = np.arange(n_cells, dtype=np.int32)
    engine.restore_state(SequenceState.from_rows(one.layout, positions, keys, values), seq)


def test_a_shared_prefix_is_copied_and_costs_no_cells(engine, words, make_runner):
    first = make_runner()
    first.run(CacheProgram((Append(words[:30]), Append(words[30:40]))))
    second = make_runner(pool=first.pool)  # a store of its own, so that only the sequence can be shared
    result = second.run(CacheProgram((Append(words[:36]), Append(words[60:64]))))
    assert result.start.kind is StartKind.SLOT
    assert result.start.tokens == 36
    assert [(r.tokens, r.reused) for r in result.records] == [(36, 36), (4, 0)]
    assert engine.used_cells() == 44
    assert [(b.start, b.count) for b in result.schedule.batches] == [(0, 30), (30, 6), (36, 4)]
    source, copied = rows(engine, first), rows(engine, second)
    assert same_rows({p: source[p] for p in range(36)}, {p: copied[p] for p in range(36)})
    assert first.pool.counters()["matched_tokens"] == 36
    back = second.goto(1)  # the shared part alone has no logits, so its newest token is computed again
    assert back.start.kind is StartKind.LIVE
    assert back.logits is not None
    assert engine.used_cells() == 41


def rows(engine, runner):
    return rows_by_position(engine.save_state(runner.seq))


def test_the_last_token_is_computed_for_its_logits(words, make_runner):
    first = make_runner()
    logits = first.run(CacheProgram((Append(words[:20]), Append(words[20:21])))).logits
    result = make_runner(pool=first.pool).run(CacheProgram((Append(words[:21]),)))
    assert result.start.tokens == 20
    assert np.array_equal(result.logits, logits)


def test_what_stands_behind_a_plain_prefix_is_never_handed_out(engine, words, make_runner):
    blocks = Blocks(engine)
    blocks.compile("tool", words[5:10])
    first = make_runner(blocks=blocks)
    start = CacheProgram((Append(words[:15]),))
    spliced = CacheProgram((Append(words[:5]), Splice("tool", words[5:10], 0)))
    for program, plain in (
        (start.drop((6, 7)), 6),
        (start.drop((6, 7)).append(words[15:17]).repos(), 6),
        (spliced.repair(range(5, 10)).append(words[10:12]), 5),
        (start.drop((0, 3)), 0),
        (start.drop((12, 15)).append(words[12:15]), 12),
        (spliced.append(words[10:15]), 5),
    ):
        first.run(program)
        first.pool.check_integrity()
        match = first.pool.match(words[:15])
        assert (0 if match is None else match.length) == plain
        with make_runner(pool=first.pool) as second:
            result = second.run(CacheProgram((Append(words[:15]),)))
            assert result.start.tokens == plain
        first.pool.close()
    with direct(engine) as hand:
        hand.append(words[:5])
        expected = hand.append(words[5:15])
    assert kl(expected, result.logits) <= NOISE  # computed in other cells


def test_an_append_that_fails_gives_back_what_it_had_shared(engine, words, make_runner):
    first = make_runner()
    first.run(CacheProgram((Append(words[:20]),)))
    records = []
    second = make_runner(pool=first.pool, on_op=records.append)
    with engine.turn():
        engine.cancel()
        with pytest.raises(Cancelled):
            second.run(CacheProgram((Append(words[:24]),)))
    assert [record.reused for record in records] == [20]
    assert second.program == CacheProgram()
    assert engine.pos_max(second.seq) == -1
    second.pool.check_integrity()
    result = second.run(CacheProgram((Append(words[:20]),)))
    assert result.start.tokens == 19
    assert result.logits is not None


def test_a_finished_conversation_stays_warm_without_its_tail(engine, words, make_runner):
    pool = SequencePool(engine)
    first = make_runner(pool=pool)
    first.run(CacheProgram((Append(words[:20]),)).drop((10, 12)).append(words[20:30]))
    first.close()
    assert engine.used_cells() == 10
    assert pool.counters()["warm"] == 1
    second = make_runner(pool=pool)
    assert second.run(CacheProgram((Append(words[:20]),))).start.tokens == 10
    assert pool.evict_one()
    assert not pool.evict_one()
    assert engine.used_cells() == 20
    pool.check_integrity()


def test_warm_sequences_make_room_for_cells(engine, words, make_runner):
    pool = SequencePool(engine)
    for start in (0, 40):
        with ProgramRunner(engine, pool=pool) as runner:
            runner.run(CacheProgram((Append(words[start : start + 6]),)))
    seq = engine.acquire_sequence()
    try:
        fill(engine, seq, engine.n_ctx - 14)
        runner = make_runner(pool=pool)
        runner.run(CacheProgram((Append(words[80:84]),)))
        assert pool.counters()["warm"] == 1  # the older of the two has gone
        assert pool.match(words[40:46]) is not None
        pool.check_integrity()
        with pytest.raises(ContextFull):
            runner.step(Append(words[90:110]))
        assert pool.counters()["warm"] == 0
        assert runner.program == CacheProgram((Append(words[80:84]),))
    finally:
        engine.release_sequence(seq)


def test_warm_sequences_make_room_for_everybody_on_the_engine(engine, words):
    pool = SequencePool(engine)
    with ProgramRunner(engine, pool=pool) as runner:
        runner.run(CacheProgram((Append(words[:20]),)))
    with engine.scratch_sequence() as seq:
        fill(engine, seq, engine.n_ctx - 25)
        engine.prefill(seq, words[40:50], logits="none")
        assert pool.counters()["warm"] == 0
        with pytest.raises(ContextFull):
            engine.make_room(16)
        engine.make_room(15)
    pool.check_integrity()


def test_a_runner_with_a_pool_of_its_own_leaves_nothing_behind(engine, words):
    with ProgramRunner(engine) as runner:
        runner.run(CacheProgram((Append(words[:20]),)))
    assert engine.used_cells() == 0


def test_a_runner_that_was_forgotten_gives_its_sequence_up(engine, words):
    pool = SequencePool(engine)
    for shared in (None, pool):
        for _ in range(33):
            ProgramRunner(engine, pool=shared).run(CacheProgram((Append(words[:5]),)))
            gc.collect()
    pool.check_integrity()
    engine.make_room(engine.n_ctx)
    assert engine.used_cells() == 0
    assert pool.counters()["leased"] == pool.counters()["warm"] == 0


def test_a_forgotten_engine_is_not_kept_by_what_it_was_used_for(words):
    from nexus_lab.engine import Engine

    engine = Engine.load(n_ctx=64, threads=1)
    runner = ProgramRunner(engine)
    runner.run(CacheProgram((Append(words[:5]),)))
    gone = weakref.ref(engine)
    del engine, runner
    gc.collect()
    assert gone() is None


def test_a_pool_ends_only_its_own_leases_and_each_once(engine, words):
    pool, other = SequencePool(engine), SequencePool(engine)
    seq = other.lease()
    with pytest.raises(SequenceError, match="not leased"):
        pool.retire(seq)
    with ProgramRunner(engine, pool=pool) as runner:
        warm = runner.run(CacheProgram((Append(words[:5]),))).seq
    with pytest.raises(SequenceError, match="not leased"):
        pool.retire(warm)
    pool.check_integrity()
    other.retire(seq)
    pool.close()


def test_a_sequence_that_does_not_exist_leaves_the_runner_as_it_was(words, make_runner):
    runner = make_runner()
    program = CacheProgram((Append(words[:5]),))
    seq = runner.run(program).seq
    with pytest.raises(SequenceError):
        runner.run(program, seq=99)
    assert (runner.program, runner.seq) == (program, seq)


def test_warm_sequences_make_room_for_leases(engine, words):
    pool = SequencePool(engine)
    with ProgramRunner(engine, pool=pool) as runner:
        runner.run(CacheProgram((Append(words[:5]),)))
    leased = [pool.lease() for _ in range(32)]
    assert pool.counters()["sequences_evicted"] == 1
    with pytest.raises(SequenceError):
        pool.lease()
    for seq in leased:
        pool.retire(seq)
    pool.check_integrity()
    assert pool.counters()["leased"] == 0


def test_repos_survives_a_context_without_free_cells(engine, words, make_runner):
    seq = engine.acquire_sequence()
    try:
        runner = make_runner()
        expected = runner.run(CacheProgram((Append(words[:30]),)).drop((5, 15)).repos())
        before = rows(engine, runner)
        runner.goto(2)
        fill(engine, seq, engine.n_ctx - engine.used_cells())
        assert np.array_equal(runner.goto(3).logits, expected.logits)
        assert same_rows(rows(engine, runner), before)
    finally:
        engine.release_sequence(seq)


def test_a_moved_tail_that_finds_no_cells_comes_back(engine, words, make_runner):
    first = make_runner()
    first.run(CacheProgram((Append(words[:30]),)))
    second = make_runner(pool=first.pool, store=first.store)
    program = CacheProgram((Append(words[:29]),)).append(words[29:32]).drop((5, 15))
    second.run(program)
    before = rows(engine, second)
    seq = engine.acquire_sequence()
    try:
        # The tail's cells stay with the first conversation, so a moved copy needs as many new ones.
        fill(engine, seq, engine.n_ctx - engine.used_cells())
        with pytest.raises(ContextFull):
            second.step(*CacheProgram((Append(words[:29]),)).drop((5, 15)).repos().ops[-1:])
        assert second.program == program
        assert same_rows(rows(engine, second), before)
    finally:
        engine.release_sequence(seq)


def test_a_moved_tail_takes_the_cells_it_shared_with_a_warm_sequence(engine, words, make_runner):
    pool = SequencePool(engine)
    with make_runner(pool=pool) as first:
        first.run(CacheProgram((Append(words[:30]),)))
        second = make_runner(pool=pool, store=first.store)
        second.run(CacheProgram((Append(words[:29]),)).append(words[29:32]).drop((5, 15)))
    seq = engine.acquire_sequence()
    try:
        # Evicting the warm sequence frees no cell by itself: the tail of the other one has them too.
        fill(engine, seq, engine.n_ctx - engine.used_cells())
        second.step(Repos())
        assert second.snapshot.state.next_position == 22
        assert pool.counters()["warm"] == 0
    finally:
        engine.release_sequence(seq)


def test_snapshots_are_shared_through_a_store(words, make_runner):
    first = make_runner()
    expected = first.run(CacheProgram((Append(words[:20]),)).drop((3, 8)).append(words[20:24]))
    second = make_runner(pool=first.pool, store=first.store)
    result = second.run(CacheProgram((Append(words[:20]),)).drop((3, 8)).append(words[20:28]))
    assert result.start.kind is StartKind.LIVE or result.start.tokens >= 20
    assert second.run(expected.program).start.kind is StartKind.SNAPSHOT
    assert np.array_equal(second.snapshot.logits, expected.logits)


def test_the_number_of_snapshots_is_bounded(words, make_runner):
    from nexus_lab.cache import SnapshotStore

    runner = make_runner(store=SnapshotStore(_core.BuddyArena(2**22), max_snapshots=2))
    runner.run(CacheProgram((Append(words[:4]), Append(words[4:6]), Append(words[6:8]))))
    counters = runner.store.counters()
    assert counters["snapshots"] == 2
    assert counters["snapshots_evicted"] == 1
    assert counters["arena_capacity_bytes"] == 2**22
    assert CacheProgram((Append(words[:4]),)).id not in runner.store


def test_integrity_checks_find_what_is_wrong(engine, words, make_runner):
    runner = make_runner()
    result = runner.run(CacheProgram((Append(words[:6]),)))
    engine.remove(result.seq, 3)
    with pytest.raises(IntegrityError):
        runner.pool.check_integrity()
    chunk = runner.snapshot.rows.chunks[0]
    state, chunk.state = chunk.state, None
    with pytest.raises(IntegrityError):
        runner.store.check_integrity()
    chunk.state = state
    runner.run(CacheProgram((Append(words[6:9]),)))
