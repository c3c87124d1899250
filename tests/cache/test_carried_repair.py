"""A repair that carries, on the real model: what moves, what does not, and where it is declined."""

from __future__ import annotations

import numpy as np
import pytest
from direct import NOISE, Blocks, kl, live_rows, same_rows

from nexus_lab.cache import Append, CacheProgram, Splice
from nexus_lab.engine import rotate_keys

pytestmark = pytest.mark.model


def test_a_carried_repair_shifts_the_rest_of_the_splice_and_moves_with_it(engine, words, make_runner):
    blocks = Blocks(engine)
    block, context, after = words[20:60], words[100:120], words[60:64]
    blocks.compile("tool", block, context=words[:4])
    splice = CacheProgram((Append(context), Splice("tool", block, 4)))
    head = range(20, 40)
    runner = make_runner(blocks=blocks)
    leading = runner.run(splice.repair(head))
    plain = live_rows(runner, engine)
    carried = runner.run(splice.repair(head, carry=True))
    assert not carried.declined
    found = live_rows(runner, engine)
    assert same_rows({p: found[p] for p in head}, {p: plain[p] for p in head})
    rest = range(40, 60)
    assert all(np.array_equal(found[p][1], plain[p][1]) for p in rest)  # values are those of the file
    moved = [
        np.stack([found[p][0][layer] - plain[p][0][layer] for p in rest])
        for layer in range(engine.info.n_layer)
    ]
    rotate_keys(moved, -np.array(rest, np.int32), engine.info.rope)
    shift = np.stack([layer.mean(axis=0) for layer in moved])
    assert np.abs(shift).max() > 0.05
    # Without their rotation all keys have moved by the same, but for the rounding of large ones.
    assert np.abs(np.stack(moved) - shift[:, np.newaxis]).max() < 0.02
    logits = runner.step(Append(after)).logits
    # There and back: the shifted rows are kept as they are.
    runner.goto(1)
    again = runner.run(splice.repair(head, carry=True).append(after))
    assert kl(logits, again.logits) <= NOISE
    back = live_rows(runner, engine)
    assert same_rows({p: back[p] for p in rest}, {p: found[p] for p in rest})
    # A repos turns what was shifted.
    runner.run(splice.repair(head, carry=True).drop((0, 10)).repos())
    turned = live_rows(runner, engine)
    assert np.array_equal(turned[30][1], found[40][1])
    assert not np.array_equal(turned[30][0], found[40][0])
    assert leading.program != carried.program


def test_only_the_head_of_the_newest_splice_is_carried_from(engine, words, make_runner):
    blocks = Blocks(engine)
    block, context = words[20:60], words[100:120]
    blocks.compile("tool", block)
    splice = CacheProgram((Append(context), Splice("tool", block, 0)))
    runner = make_runner(blocks=blocks)
    for wanted in (
        splice.repair(range(21, 40), carry=True),
        splice.repair((20, 22), carry=True),
        splice.repair(range(20, 60), carry=True),
        splice.append(words[60:62]).repair(range(20, 40), carry=True),
    ):
        result = runner.run(wanted)
        assert [item.code for item in result.declined] == ["no_head_of_a_splice"]
        assert result.program == CacheProgram(wanted.ops[:-1])
    # Too short a head says nothing, and the repair is the leading one.
    short = runner.run(splice.repair(range(20, 24), carry=True).append(words[60:62])).logits
    assert np.array_equal(short, runner.run(splice.repair(range(20, 24)).append(words[60:62])).logits)
