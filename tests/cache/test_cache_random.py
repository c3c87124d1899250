"""Random programs on the real model: what the engine holds is what the state says, both ways."""

from __future__ import annotations

import random

import numpy as np
import pytest
from direct import Blocks, rows_by_position, same_rows

from nexus_lab.cache import Append, CacheProgram, Drop, Repair, Repos, Splice, fold

pytestmark = pytest.mark.model

BLOCK = 4


def random_op(dice: random.Random, program: CacheProgram, words: tuple[int, ...], block: tuple[int, ...]):
    state = program.layout
    active = state.active_indices().tolist()
    kind = dice.choice(("append", "append", "splice", "repair", "drop", "drop", "repos"))
    if kind == "append" or not active:
        start = dice.randrange(len(words) - 4)
        return Append(words[start : start + dice.randint(1, 4)])
    if kind == "splice":
        return Splice("block", block, 0)
    if kind == "repair":
        first = dice.randrange(len(active))
        return Repair(tuple(active[first : first + dice.randint(1, 3)]))
    if kind == "drop":
        start = dice.randrange(len(state))
        return Drop(((start, min(len(state), start + dice.randint(1, 5))),))
    return Repos()


def held(engine, seq):
    return rows_by_position(engine.save_state(seq)) if engine.pos_max(seq) >= 0 else {}


@pytest.mark.parametrize("seed", range(3))
def test_the_engine_holds_what_the_state_says(seed, engine, words, make_runner):
    dice = random.Random(seed)  # noqa: S311 - a repeatable walk, no secret
    blocks = Blocks(engine)
    blocks.compile("block", words[:BLOCK])
    runner = make_runner(blocks=blocks)
    seen = []
    for _ in range(10):
        result = runner.step(random_op(dice, runner.program, words, words[:BLOCK]))
        state = result.state
        assert state == fold(runner.program)
        state.check_integrity()
        runner.pool.check_integrity()
        runner.store.check_integrity()
        assert engine.positions(runner.seq).tolist() == state.positions[state.active].tolist()
        if len(runner.program) > len(seen):  # a declined repair is no operation of the program
            seen.append(
                (result.logits, rows_by_position(engine.save_state(runner.seq)) if state.n_active else {})
            )
    visits = list(range(len(seen)))
    dice.shuffle(visits)
    for n in visits:
        result = runner.goto(n + 1)
        logits, rows = seen[n]
        assert engine.positions(runner.seq).tolist() == sorted(rows)
        assert same_rows(held(engine, runner.seq), rows)
        assert result.logits is logits or np.array_equal(result.logits, logits)
