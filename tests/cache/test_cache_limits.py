"""What happens where an engine declines part of its work, and with the other layout of values."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from direct import Blocks, direct, rows_by_position, same_rows

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    OpKind,
    ProgramRunner,
    Repair,
    Repos,
    Splice,
    StartKind,
)
from nexus_lab.cache.snapshots import DEFAULT_ARENA_BYTES, SnapshotStore
from nexus_lab.engine import StateMismatch, StateRestoreFailed
from nexus_lab.errors import Decline

pytestmark = pytest.mark.model


class Limited:
    """The real engine, with more of it declined."""

    def __init__(self, engine, **declines):
        self._engine = engine
        self.declines = {**engine.declines, **declines}

    def __getattr__(self, name):
        return getattr(self._engine, name)


@pytest.fixture
def unreadable(engine):
    """An engine whose states cannot be taken apart, as with quantized keys."""
    limited = Limited(engine, splice=Decline("quantized_k", "keys are quantized"))
    with ProgramRunner(limited, blocks=Blocks(engine)) as runner:
        yield runner
    runner.pool.close()


def test_a_state_that_cannot_be_read_still_runs(engine, words, unreadable):
    with direct(engine) as hand:
        hand.append(words[:20])
        hand.drop(5, 9)
        expected = hand.append(words[20:26])
    program = CacheProgram((Append(words[:20]),)).drop((5, 9)).append(words[20:26])
    result = unreadable.run(program)
    assert np.array_equal(result.logits, expected)
    assert {record.snapshot_declined.code for record in result.records} == {"quantized_k"}
    assert unreadable.store.counters()["chunks"] == 0
    back = unreadable.goto(1)  # computed again, since there is no snapshot
    assert back.start.kind is StartKind.SLOT
    assert back.start.tokens == 5
    assert np.array_equal(unreadable.goto(3).logits, expected)


def test_what_needs_readable_states_is_declined(words, unreadable):
    program = CacheProgram((Append(words[:20]),)).drop((5, 9))
    result = unreadable.run(program.repos().then(Splice("tool", words[20:24], 0)).repair([12]))
    assert [record.kind for record in result.records if record.declined] == [
        OpKind.REPOS,
        OpKind.SPLICE,
        OpKind.REPAIR,
    ]
    assert {item.code for item in result.declined} == {"quantized_k"}
    assert result.program == program.append(words[20:24])
    assert unreadable.timeline == result.program
    assert result.records[2].executed is None
    assert result.records[2].state_id == result.records[2].parent_id
    assert result.state.next_position == 24


def test_without_patched_inputs_repair_goes_run_by_run(engine, words):
    blocks = Blocks(engine)
    blocks.compile("tool", words[20:40])
    with direct(engine) as hand:
        hand.append(words[100:110])
        engine.restore_state(blocks.state_at("tool", 10), hand.seq, append=True)
        for start, stop in ((10, 12), (20, 23)):
            aside = engine.save_state(hand.seq, start=stop)
            hand.drop(start, -1)
            hand.append(words[start + 10 : stop + 10])
            engine.restore_state(aside, hand.seq, append=True)
        rows = hand.rows()
    limited = Limited(engine, input_patches=Decline("tensor_layout", "another layout"))
    with ProgramRunner(limited, blocks=blocks) as runner:
        start = CacheProgram((Append(words[100:110]), Splice("tool", words[20:40], 0)))
        runner.run(start.repair([10, 11, 20, 21, 22]))
        assert same_rows(rows_by_position(engine.save_state(runner.seq)), rows)
        before = runner.run(start.drop((9, 10)))
        result = runner.step(*start.repair([10]).ops[-1:])
        assert result.declined[0].code == "position_hole"
        assert result.program == before.program
        after = runner.step(*start.repos().drop((0, 1)).repos().repair([10]).ops[-3:])
        assert not after.declined
    runner.pool.close()


def test_flash_attention_keeps_values_in_rows(words):
    from nexus_lab.engine import Engine

    with Engine.load(n_ctx=256, threads=1, flash_attention=True) as engine:
        blocks = Blocks(engine)
        blocks.compile("tool", words[20:30], context=words[:10])
        with direct(engine) as hand:
            hand.append(words[:10])
            hand.append(words[20:30])
            hand.drop(2, 6)
            hand.move(6, 2)
            expected = hand.append(words[30:34])
            rows = hand.rows()
        with ProgramRunner(engine, blocks=blocks) as runner:
            program = CacheProgram((Append(words[:10]), Splice("tool", words[20:30], 10)))
            result = runner.run(program.drop((2, 6)).repos().append(words[30:34]))
            assert np.array_equal(result.logits, expected)
            assert same_rows(rows_by_position(engine.save_state(runner.seq)), rows)
            runner.goto(1)
            assert np.array_equal(runner.goto(5).logits, expected)
            assert same_rows(rows_by_position(engine.save_state(runner.seq)), rows)
        runner.pool.close()


class Failing(Limited):
    """The real engine, one of whose methods fails at its n-th call from now on."""

    def __init__(self, engine):
        super().__init__(engine)
        self._plan = {}

    def fail(self, name, call, error, *, wipe=None):
        """Let the `call`-th call of `name` raise `error`, after emptying the sequence in argument `wipe`."""
        self._plan[name] = [call, error, wipe]

    def __getattr__(self, name):
        method = super().__getattr__(name)
        return (
            (lambda *args, **options: self._call(name, method, args, options)) if callable(method) else method
        )

    def _call(self, name, method, args, options):
        plan = self._plan.get(name)
        if plan is not None:
            plan[0] -= 1
            if plan[0] == 0:
                del self._plan[name]
                if plan[2] is not None:
                    self._engine.remove(args[plan[2]])
                raise plan[1]
        return method(*args, **options)


@pytest.mark.parametrize(
    ("op", "failure", "wipe"),
    [
        (Drop(((2, 4), (8, 9))), ("remove", 2, KeyboardInterrupt()), None),
        (Repos(), ("restore_state", 1, StateRestoreFailed("refused")), 1),
        (Repos(), ("remove", 1, KeyboardInterrupt()), None),
        (Repair((6, 7)), ("recompute", 1, StateRestoreFailed("refused")), None),
        (Repair((6, 7, 14)), ("recompute", 1, StateMismatch("unreadable")), None),
    ],
)
def test_an_operation_that_fails_half_way_is_undone(engine, words, op, failure, wipe):
    failing = Failing(engine)
    with ProgramRunner(failing) as runner:
        program = CacheProgram((Append(words[:16]),)).drop((3, 6)).append(words[16:18])
        before = runner.run(program)
        rows = rows_by_position(engine.save_state(runner.seq))
        failing.fail(*failure, wipe=wipe)
        with pytest.raises(type(failure[2])):
            runner.step(op)
        assert runner.program == program
        assert same_rows(rows_by_position(engine.save_state(runner.seq)), rows)
        assert not runner.step(op).declined
        assert np.array_equal(runner.run(program).logits, before.logits)
    runner.pool.close()


def test_when_even_the_undo_fails_the_snapshots_remain(engine, words):
    failing = Failing(engine)
    with ProgramRunner(failing) as runner:
        program = CacheProgram((Append(words[:16]),)).drop((3, 6))
        before = runner.run(program)
        failing.fail("prefill", 1, StateMismatch("first"))
        failing.fail("restore_state", 1, StateRestoreFailed("second"))
        with pytest.raises(StateRestoreFailed):
            runner.step(Repair((8, 9)))
        assert engine.pos_max(runner.seq) == -1
        assert runner.program == CacheProgram()
        result = runner.run(program)
        assert result.start.kind is StartKind.SNAPSHOT
        assert np.array_equal(result.logits, before.logits)
    runner.pool.close()


def test_the_arena_grows_with_the_rows_of_a_full_context(engine):
    capacity = SnapshotStore.for_engine(engine).counters()["arena_capacity_bytes"]
    assert capacity == DEFAULT_ARENA_BYTES
    larger = SimpleNamespace(info=replace(engine.info, n_layer=48, n_head_kv=8, head_dim_k=128), n_ctx=8192)
    assert SnapshotStore.for_engine(larger).counters()["arena_capacity_bytes"] > 2 * capacity
