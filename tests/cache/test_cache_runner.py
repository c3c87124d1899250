"""Each operation on the real model, against the same steps written out on the engine."""

from __future__ import annotations

import numpy as np
import pytest
from direct import NOISE, Blocks, direct, kl, live_rows, rows_by_position, same_rows

from nexus_lab import _core
from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    OpKind,
    Origin,
    ProgramError,
    ProgramRunner,
    Repair,
    Repos,
    RunnerError,
    SequencePool,
    Splice,
    StartKind,
    fold,
)
from nexus_lab.engine import PatchPlan
from nexus_lab.errors import Cancelled
from nexus_lab.splice import kl_divergence

pytestmark = pytest.mark.model


def test_append_and_drop_equal_the_steps_by_hand(engine, words, runner):
    with direct(engine) as hand:
        hand.append(words[:30])
        hand.drop(8, 20)
        expected = hand.append(words[30:50])
        rows = hand.rows()
    result = runner.run(CacheProgram((Append(words[:30]), Drop(((8, 20),)), Append(words[30:50]))))
    assert np.array_equal(result.logits, expected)
    assert same_rows(live_rows(runner, engine), rows)
    assert engine.positions(result.seq).tolist() == [*range(8), *range(20, 50)]


def test_the_same_kept_tokens_differ_by_when_the_others_were_dropped(words, runner):
    trains = words[40:125]  # the second train repeats the form of the first, which is dropped
    early = CacheProgram((Append(trains[:60]), Drop(((5, 58),)), Append(trains[60:])))
    late = CacheProgram((Append(trains), Drop(((5, 58),))))
    assert fold(early).same_layout(fold(late))
    one, two = runner.run(early.append(words[125:126])), runner.run(late.append(words[125:126]))
    assert one.state.history_id != two.state.history_id
    assert kl(one.logits, two.logits) > 10 * NOISE
    assert np.array_equal(runner.run(early.append(words[125:126])).logits, one.logits)


def test_drop_that_reaches_the_newest_token(engine, words, runner):
    with direct(engine) as hand:
        hand.append(words[:20])
        expected = hand.append(words[40:48])
    result = runner.run(CacheProgram((Append(words[:20]), Append(words[20:40]), Drop(((20, 40),)))))
    assert result.logits is None
    assert result.state.next_position == 20
    result = runner.step(Append(words[40:48]))
    assert np.array_equal(result.logits, expected)
    assert engine.positions(result.seq).tolist() == list(range(28))


def test_dropping_everything_starts_anew(engine, words, runner):
    with direct(engine) as hand:
        expected = hand.append(words[10:20])
    result = runner.run(CacheProgram((Append(words[:10]), Drop(((0, 10),)), Append(words[10:20]))))
    assert np.array_equal(result.logits, expected)
    assert len(result.state) == 20


def test_repos_equals_rotation_by_hand(engine, words, runner):
    with direct(engine) as hand:
        hand.append(words[:40])
        hand.drop(5, 25)
        hand.move(25, 5)
        expected = hand.append(words[40:48])
        rows = hand.rows()
    result = runner.run(CacheProgram((Append(words[:40]), Drop(((5, 25),)), Repos(), Append(words[40:48]))))
    assert np.array_equal(result.logits, expected)
    assert same_rows(live_rows(runner, engine), rows)
    assert result.records[2].rotations == 1
    assert result.records[2].positions == ((5, 20),)


def test_repos_moves_no_cell_that_another_sequence_shares(engine, words, runner, make_runner):
    other = make_runner(pool=runner.pool, store=runner.store)
    expected = other.run(CacheProgram((Append(words[:40]),))).logits
    before = live_rows(other, engine)
    result = runner.run(CacheProgram((Append(words[:40]),)))
    assert result.start.kind is StartKind.SNAPSHOT
    runner.run(CacheProgram((Append(words[:36]), Append(words[50:54]))))
    runner.step(Drop(((4, 20),)), Repos())
    assert same_rows(live_rows(other, engine), before)
    assert np.array_equal(other.snapshot.logits, expected)


def test_thirty_repos_in_a_row_round_each_row_once(engine, words, runner):
    program = CacheProgram((Append(words[:64]),))
    for i in range(30):
        program = program.drop((2 + i, 3 + i)).repos()
    steps = runner.run(program)
    assert {record.rotations for record in steps.records if record.kind is OpKind.REPOS} == {1}
    rows = live_rows(runner, engine)
    stepwise = runner.step(Append(words[64:72])).logits
    at_once = CacheProgram((Append(words[:64]), Drop(((2, 32),)), Repos(), Append(words[64:72])))
    runner.run(at_once.prefix(3))
    assert same_rows(live_rows(runner, engine), rows)
    assert kl(runner.run(at_once).logits, stepwise) <= NOISE


def test_thirty_repos_without_room_for_copies_stay_bounded(engine, words, runner, make_runner):
    program = CacheProgram((Append(words[:64]),))
    for i in range(30):
        program = program.drop((2 + i, 3 + i)).repos()
    single = runner.run(CacheProgram((Append(words[:64]), Drop(((2, 32),)), Repos())))
    rows = live_rows(runner, engine)
    expected = runner.step(Append(words[64:72])).logits
    runner.close()
    poor = make_runner(arena=_core.BuddyArena(4096), pool=runner.pool)
    steps = poor.run(program)
    assert [r.rotations for r in steps.records if r.kind is OpKind.REPOS] == list(range(1, 31))
    assert steps.state.same_layout(single.state)
    chained = live_rows(poor, engine)
    errors = [np.linalg.norm(chained[p][0] - rows[p][0]) / np.linalg.norm(rows[p][0]) for p in rows]
    assert 0 < max(errors) < 30 * 2.0**-11
    assert kl(expected, poor.step(Append(words[64:72])).logits) <= NOISE


def test_an_anchored_splice_is_exact(engine, words, make_runner):
    blocks = Blocks(engine)
    blocks.compile("tool", words[20:50], context=words[:20])
    with direct(engine) as hand:
        hand.append(words[:20])
        hand.append(words[20:50])
        expected = hand.append(words[50:60])
    runner = make_runner(blocks=blocks)
    result = runner.run(CacheProgram((Append(words[:20]), Splice("tool", words[20:50], 20))))
    assert result.logits is None
    assert not result.declined
    assert set(result.state.origin[20:].tolist()) == {Origin.SPLICED}
    logits = runner.step(Append(words[50:60])).logits
    assert kl(expected, logits) == 0.0
    assert np.array_equal(logits, expected)


def test_a_moved_splice_is_rotated_once_and_repaired(engine, words, make_runner):
    blocks = Blocks(engine)
    block, after = words[20:36], words[36:40]
    blocks.compile("tool", block, context=words[:4])
    context = words[100:120]
    splice = CacheProgram((Append(context), Splice("tool", block, 4)))
    with direct(engine) as hand:
        hand.append(context)
        hand.append(block)
        full = hand.append(after)
        hand.drop(20, 40)
        hand.append(block[:5])
        rest = blocks.state_at("tool", 20)
        engine.restore_state(rest.take(np.arange(5, 16)), hand.seq, append=True)
        leading = hand.append(after)
    runner = make_runner(blocks=blocks)
    runner.run(splice)
    compiled, found = rows_by_position(blocks.state_at("tool", 20)), live_rows(runner, engine)
    assert same_rows({p: found[p] for p in range(20, 36)}, compiled)
    repaired = runner.run(splice.repair(range(20, 25)).append(after))
    assert np.array_equal(repaired.logits, leading)
    again = runner.run(splice.repair(range(20, 36)).append(after))
    assert np.array_equal(again.logits, full)
    # The rows of a block are rotated from its anchor, however often they move.
    runner.run(splice.drop((0, 5)).repos().drop((5, 10)).repos())
    moved, found = rows_by_position(blocks.state_at("tool", 10)), live_rows(runner, engine)
    assert same_rows({p: found[p] for p in range(10, 26)}, moved)


def test_a_splice_that_cannot_be_done_is_computed(engine, words, make_runner):
    blocks = Blocks(engine)
    blocks.compile("tool", words[20:30])
    program = CacheProgram((Append(words[:20]), Splice("tool", words[20:30], 0))).repair(range(20, 24))
    with direct(engine) as hand:
        hand.append(words[:20])
        expected = hand.append(words[20:30])
    cases = (
        (None, program, "no_block_source"),
        (blocks, CacheProgram((Append(words[:20]), Splice("other", words[20:30], 0))), "block_refused"),
        (blocks, CacheProgram((Append(words[:20]), Splice("tool", words[21:31], 0))), "block_differs"),
    )
    for source, wanted, code in cases:
        runner = make_runner(blocks=source)
        result = runner.run(wanted)
        assert result.declined[0].code == code
        assert result.records[1].kind is OpKind.SPLICE
        assert result.records[1].executed == Append(wanted.ops[1].tokens)
        assert result.program == CacheProgram((Append(words[:20]), Append(wanted.ops[1].tokens)))
        assert runner.timeline == result.program
        if wanted is program:
            assert [item.code for item in result.declined] == [code, "already_computed"]
            assert np.array_equal(result.logits, expected)


def test_scattered_repair_equals_repair_run_by_run(engine, words, make_runner):
    blocks = Blocks(engine)
    blocks.compile("tool", words[20:50])
    context = words[100:120]
    chosen = (20, 21, 25, 33, 49)
    with direct(engine) as hand:
        hand.append(context)
        rest = blocks.state_at("tool", 20)
        engine.restore_state(rest, hand.seq, append=True)
        for start, stop in ((20, 22), (25, 26), (33, 34), (49, 50)):
            aside = engine.save_state(hand.seq, start=stop) if stop < 50 else None
            hand.drop(start, -1)
            expected = hand.append(words[start:stop])
            if aside is not None:
                engine.restore_state(aside, hand.seq, append=True)
        rows = hand.rows()
    runner = make_runner(blocks=blocks)
    result = runner.run(CacheProgram((Append(context), Splice("tool", words[20:50], 0))).repair(chosen))
    assert kl(expected, result.logits) <= NOISE
    found = live_rows(runner, engine)
    assert found.keys() == rows.keys()
    for position in rows:
        if position in chosen:
            assert np.array_equal(found[position][0][0], rows[position][0][0])  # layer 0 sees no context
            error = np.linalg.norm(found[position][0] - rows[position][0])
            assert error < 0.05 * np.linalg.norm(rows[position][0])
        else:
            assert np.array_equal(found[position][0], rows[position][0])
    assert result.state.origin[list(chosen)].tolist() == [Origin.REPAIRED] * 5


def test_scattered_repair_of_everything_equals_the_prefill_and_moves_nothing(engine, words, make_runner):
    context, first, between, last = words[100:120], words[20:34], words[60:66], words[34:50]
    with direct(engine) as hand:
        # Positions stay, so that there is a hole between what will be repaired; what follows it saw nothing
        # of what was there.
        tokens = (*context, *first, *between, *last)
        with engine.input_patches(PatchPlan.for_drops(len(tokens), [(39, 34, 39)])):
            expected = hand.append(tokens)
        hand.drop(34, 39)
        rows = hand.rows()
    blocks = Blocks(engine)
    blocks.compile("first", first)
    blocks.compile("last", last)
    runner = make_runner(blocks=blocks)
    program = CacheProgram((Append(context), Splice("first", first, 0), Append(between), Drop(((34, 39),))))
    spliced = runner.run(program.then(Splice("last", last, 0)))
    chosen = (*range(20, 34), *range(39, 56))
    result = runner.step(Repair(chosen))
    assert not result.declined
    assert result.state.positions.tolist() == spliced.state.positions.tolist()
    assert engine.positions(result.seq).tolist() == [*range(34), *range(39, 56)]
    assert result.state.origin[list(chosen)].tolist() == [Origin.REPAIRED] * len(chosen)
    assert spliced.logits is None
    assert kl(expected, result.logits) <= NOISE
    found = live_rows(runner, engine)
    for position in chosen:
        error = np.linalg.norm(found[position][0] - rows[position][0])
        assert error < 0.05 * np.linalg.norm(rows[position][0])


def test_closing_behind_a_closed_engine_is_harmless(words):
    from nexus_lab.engine import Engine

    with Engine.load(n_ctx=256) as engine:
        own, shared = ProgramRunner(engine), ProgramRunner(engine, pool=SequencePool(engine))
        for runner in (own, shared):
            runner.run(CacheProgram((Append(words[:10]),)))
    for runner in (own, shared):
        runner.close()
        runner.close()
        assert runner.seq is None
        assert runner.cursor == 0
        runner.store.check_integrity()


def test_repair_of_kept_tokens_undoes_what_dropped_ones_did(engine, words, runner):
    kept = (*words[:10], *words[30:50])
    with direct(engine) as hand:
        hand.append(kept[:10])
        expected = hand.append(kept[10:])
    program = CacheProgram((Append(words[:50]), Drop(((10, 30),)), Repos()))
    stained = runner.run(program.append(words[50:51]))
    result = runner.run(program.repair(range(30, 50)))
    assert np.array_equal(result.logits, expected)
    with direct(engine) as hand:
        hand.append(kept)
        clean = hand.append(words[50:51])
    assert kl(clean, runner.step(Append(words[50:51])).logits) <= NOISE < kl(clean, stained.logits)


def test_repair_behind_a_hole_goes_through_patched_inputs(words, runner):
    program = CacheProgram((Append(words[:40]), Drop(((10, 20),)), Append(words[40:44])))
    result = runner.run(program.repair(range(20, 30)))
    assert not result.declined
    assert result.state.positions[20:30].tolist() == list(range(20, 30))
    assert np.array_equal(result.logits, runner.run(program).logits)  # the newest token was not recomputed


def test_stepping_gives_identical_logits_both_ways(engine, words, runner):
    program = CacheProgram(
        (
            Append(words[:30]),
            Drop(((5, 15),)),
            Append(words[30:40]),
            Repos(),
            Drop(((35, 40),)),
            Append(words[:4]),
        )
    )
    seen = {}
    for n, op in enumerate(program.ops, 1):
        result = runner.step(op)
        seen[n] = (result.logits, live_rows(runner, engine), result.state)
    for n in (5, 4, 3, 2, 1, 2, 6, 3, 5):
        result = runner.goto(n)
        assert runner.cursor == n
        assert not result.records
        assert result.state == seen[n][2]
        assert same_rows(live_rows(runner, engine), seen[n][1])
        assert result.logits is seen[n][0] or np.array_equal(result.logits, seen[n][0])
    assert runner.timeline == program
    assert runner.goto(0).logits is None
    assert engine.used_cells() == 0
    assert np.array_equal(runner.forward().logits, seen[1][0])
    assert runner.back().state == fold(CacheProgram())
    with pytest.raises(RunnerError):
        runner.back()
    with pytest.raises(ProgramError):
        runner.goto(7)


def test_steps_without_snapshots_are_computed_again(words, runner):
    program = CacheProgram((Append(words[:30]), Drop(((5, 15),)), Append(words[30:40])))
    first = [runner.step(op) for op in program.ops]
    runner.store.clear()
    result = runner.goto(1)
    assert result.start.kind is StartKind.SLOT  # the five tokens before the drop are as good as ever
    assert result.start.tokens == 5
    assert kl(first[0].logits, result.logits) <= NOISE
    runner.goto(0)
    runner.store.clear()
    result = runner.run(program, schedule=first[2].schedule)
    assert result.start.kind is StartKind.EMPTY
    assert np.array_equal(result.logits, first[2].logits)


def test_a_step_back_and_another_way_forks(words, runner):
    runner.run(CacheProgram((Append(words[:20]), Append(words[20:30]))))
    runner.back()
    runner.step(Append(words[40:44]))
    assert runner.timeline == CacheProgram((Append((*words[:20], *words[40:44])),))
    with pytest.raises(RunnerError):
        runner.forward()


def test_a_schedule_makes_a_second_run_bit_exact(words, runner):
    first = runner.run(CacheProgram((Append(words[:20]), Append(words[20:33]), Append(words[33:50]))))
    assert [(b.start, b.count) for b in first.schedule.batches] == [(0, 20), (20, 13), (33, 17)]
    runner.goto(0)
    runner.store.clear()
    merged = first.program.canonical()
    assert len(merged) == 1
    assert np.array_equal(runner.run(merged, schedule=first.schedule).logits, first.logits)


def test_a_full_arena_loses_nothing(words, runner, make_runner):
    program = CacheProgram((Append(words[:30]), Append(words[30:40]), Drop(((2, 4),)), Append(words[40:44])))
    expected = runner.run(program)
    runner.close()
    small = make_runner(arena=_core.BuddyArena(2**21))  # room for these rows, and for logits of two steps
    result = small.run(program)
    assert np.array_equal(result.logits, expected.logits)
    kept = [record.snapshot_declined for record in result.records]
    assert kept[:3] == [None, None, None]
    assert kept[3].code == "arena_full"
    assert small.store.counters()["declined"] == 1
    assert small.store.counters()["chunks_evicted"] == 0  # the live state needs them all
    assert all(prefix.id in small.store for prefix in list(program.prefixes())[1:4])
    small.store.check_integrity()
    back = small.goto(2)
    assert back.start.kind is StartKind.SNAPSHOT
    # What is computed again stands in other cells than at first, so its sums have another order.
    again = small.goto(4)
    assert kl_divergence(expected.logits, again.logits)[0] < 0.05
    assert again.state.positions.tolist() == expected.state.positions.tolist()


def test_what_was_only_appended_is_cut_off_without_a_snapshot(engine, words, make_runner):
    poor = make_runner(arena=_core.BuddyArena(4096))
    program = CacheProgram((Append(words[:12]), Drop(((2, 4),)), Append(words[12:16])))
    first = poor.run(program)
    rows = live_rows(poor, engine)
    poor.step(Append(words[16:20]), Append(words[20:22]))
    with engine.turn():
        engine.cancel()  # the way back decodes nothing, so it is open to a turn that was stopped
        result = poor.run(program)
    assert result.start.kind is StartKind.LIVE
    assert result.start.tokens == 16
    assert not result.records
    assert result.state == first.state
    assert same_rows(live_rows(poor, engine), rows)
    assert result.logits is None
    generation, result = poor.generate(max_tokens=1, decode_last=False)
    assert generation.tokens == (int(first.logits.argmax()),)
    assert kl(first.logits, generation.logits) <= NOISE
    assert result.program == program
    poor.run(program.prefix(2))
    with pytest.raises(RunnerError):
        poor.generate(max_tokens=1)  # computing the newest token again would not see what was dropped since


def test_repaired_rows_without_a_copy_replace_the_stale_copies(engine, words, make_runner):
    small = make_runner(arena=_core.BuddyArena(2**20))  # full after the first two appends
    small.run(CacheProgram((Append(words[:16]), Append(words[16:22]), Drop(((2, 5),)))))
    before = live_rows(small, engine)
    small.step(Repair((18, 19, 20)))
    repaired = live_rows(small, engine)
    assert not np.array_equal(repaired[19][1], before[19][1])
    small.step(Repos())
    moved = live_rows(small, engine)
    for position in range(5, 22):
        assert np.array_equal(moved[position - 3][1], repaired[position][1])


def test_steps_across_repairs_and_forks_bring_the_right_rows_back(engine, words, make_runner):
    blocks = Blocks(engine)
    blocks.compile("tool", words[20:30])
    runner = make_runner(blocks=blocks)
    start = CacheProgram((Append(words[:8]), Splice("tool", words[20:30], 0)))
    programs = [
        start,
        start.repair(range(8, 11)),
        start.repair(range(8, 11)).repair([8, 9]),
        start.append(words[30:33]),
        CacheProgram((Append(words[1:9]), Splice("tool", words[20:30], 0))),
    ]
    seen = []
    for program in programs:
        runner.run(program)
        seen.append(live_rows(runner, engine))
    assert not same_rows(seen[0], seen[1])
    for n in (0, 1, 0, 4, 1, 3, 2, 0, 2):
        result = runner.run(programs[n])
        assert not result.records
        assert same_rows(live_rows(runner, engine), seen[n])


def test_dropped_rows_leave_a_full_arena_first(words, make_runner):
    small = make_runner(arena=_core.BuddyArena(2**21))
    small.run(CacheProgram((Append(words[:4]), Append(words[4:12]), Drop(((4, 12),)))))
    first, second, third = (small.program.prefix(n).id for n in (1, 2, 3))
    steps = 0
    while second in small.store:
        start = len(small.program.layout)
        small.step(Append(words[start : start + 6]))
        steps += 1
    assert steps > 1
    assert small.store.counters()["chunks_evicted"] == 1
    assert first in small.store
    assert third in small.store
    small.store.check_integrity()


def test_generation_becomes_an_append(engine, words, runner, make_runner):
    with direct(engine) as hand:
        logits = hand.append(words[:30])
        expected = engine.generate(hand.seq, logits, max_tokens=5)
    runner.run(CacheProgram((Append(words[:30]),)))
    generation, result = runner.generate(max_tokens=5)
    assert generation.tokens == expected.tokens
    assert result.program == CacheProgram((Append(words[:30] + generation.tokens),))
    assert len(result.program) == 2
    assert np.array_equal(result.logits, expected.logits)
    assert result.schedule.cuts(30, 35) == (30, 31, 32, 33, 34, 35)
    with pytest.raises(RunnerError):
        make_runner(pool=runner.pool, store=runner.store).generate(max_tokens=1)


def test_a_stopped_operation_leaves_the_state_before_it(engine, words, runner):
    program = CacheProgram((Append(words[:30]), Drop(((5, 10),)), Append(words[30:40])))
    before = runner.run(program)
    rows = live_rows(runner, engine)
    for op in (Append(words[40:60]), Repair(tuple(range(12, 17))), Repair((12, 20, 33))):
        with engine.turn():
            engine.cancel()
            with pytest.raises(Cancelled):
                runner.step(op)
        assert runner.program == runner.timeline == program
        assert same_rows(live_rows(runner, engine), rows)
        assert np.array_equal(runner.snapshot.logits, before.logits)


def test_an_append_stopped_between_batches_is_undone_as_a_whole(engine, words, runner):
    runner.run(CacheProgram((Append(words[:10]),)))
    schedule = runner.snapshot.schedule
    for start in (10, 20):
        schedule = type(schedule)(
            (*schedule.batches, type(schedule.batches[0])(schedule.batches[0].kind, start, 10))
        )
    done = []

    def stop(n_done, n_all):
        done.append((n_done, n_all))
        engine.cancel()

    with pytest.raises(Cancelled):
        runner.run(CacheProgram((Append(words[:30]),)), schedule=schedule, on_progress=stop)
    assert done == [(10, 10)]
    assert runner.program == CacheProgram((Append(words[:10]),))
    assert engine.positions(runner.run(runner.program).seq).tolist() == list(range(10))


def test_records_tell_what_happened(words, make_runner):
    records = []
    runner = make_runner(on_op=records.append)
    program = CacheProgram((Append(words[:20]), Drop(((2, 4), (8, 9))), Repos(), Repos(), Append(())))
    result = runner.run(program)
    assert tuple(records) == result.records
    assert [record.kind.value for record in records] == ["append", "drop", "repos", "repos", "append"]
    parents = [CacheProgram().id, *(record.state_id for record in records)]
    assert [record.parent_id for record in records] == parents[:-1]
    assert records[1].state_id != records[2].state_id == records[3].state_id == records[4].state_id
    append, drop, repos, packed, _ = records
    assert (append.ranges, append.positions, append.tokens) == (((0, 20),), ((0, 20),), 20)
    assert (drop.ranges, drop.positions, drop.tokens) == (((2, 4), (8, 9)), (), 3)
    assert (repos.ranges, repos.positions) == (((4, 8), (9, 20)), ((2, 17),))
    assert (packed.ranges, packed.tokens) == ((), 0)
    assert [record.cells_used for record in records] == [20, 17, 17, 17, 17]
    assert all(record.seconds > 0 and record.declined is None for record in records)
    assert [record.index for record in records] == [0, 1, 2, 3, 4]


def test_a_borrowed_sequence_stays_the_callers(engine, words, runner):
    seq = engine.acquire_sequence()
    engine.prefill(seq, list(words[:3]))
    result = runner.run(CacheProgram((Append(words[:10]),)), seq=seq)
    assert result.seq == seq
    runner.step(Append(words[10:12]))
    assert runner.pool.counters()["live"] == 0
    runner.close()
    assert engine.pos_max(seq) == 11
    engine.release_sequence(seq)


def test_tokens_that_do_not_fit_change_nothing(engine, words, runner):
    from nexus_lab.engine import ContextFull

    runner.run(CacheProgram((Append(words[:10]),)))
    with pytest.raises(ContextFull):
        runner.step(Append(tuple(words[0] for _ in range(engine.n_ctx))))
    assert runner.program == CacheProgram((Append(words[:10]),))
    assert engine.used_cells() == 10
