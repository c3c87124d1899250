"""Blocks compiled ahead are those that an agent looks for."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.agent.blocks import block_recipes
from nexus_lab.cache import Repair
from nexus_lab.splice import (
    BlockCompiler,
    BlockLibrary,
    BlockUnknown,
    Carried,
    build_blocks,
    splice_block,
)

pytestmark = pytest.mark.model


def test_an_agent_finds_what_was_built_ahead(make_agent, monkeypatch):
    agent = make_agent("hello", schema_mode="splice(paper)")
    recipes = block_recipes(agent.engine, agent.tools.registry.tools, system=agent.system)
    assert build_blocks(agent.library, recipes).compiled == ("echo",)
    (address,) = agent.library.addresses()

    def refuse(*_arguments, **_options):
        pytest.fail("compiled again")

    monkeypatch.setattr(BlockCompiler, "compile", refuse)
    agent.compile_block("echo")
    assert agent.ask("Say hello").splice.block == address


def test_a_context_of_none_compiles_the_same_tokens_behind_nothing(make_agent):
    agent = make_agent("hello")
    tools = agent.tools.registry.tools
    (behind,) = block_recipes(agent.engine, tools, system=agent.system)
    (alone,) = block_recipes(agent.engine, tools, system=agent.system, context="none")
    assert behind.tokens == alone.tokens
    assert behind.context.tokens == agent.conversation.tokens
    assert alone.context.tokens == ()


def test_the_later_turns_take_the_block_behind_typical_conversations_where_it_was_built(make_agent):
    agent = make_agent("hello", schema_mode="splice(fixed)", repair_budget=0.5)
    typical = block_recipes(agent.engine, agent.tools.registry.tools, system=agent.system, context="typical")
    assert typical[0].context.consensus
    build_blocks(agent.library, typical)
    (built,) = agent.library.addresses()
    first, second = (agent.ask("Say hello").splice for _ in range(2))
    assert first.block not in {built, None}, "the first turn's block is exact behind the system prompt"
    assert second.block == built


def test_the_negative_control_runs_in_a_turn_as_any_repair_does(make_agent):
    agent = make_agent("hello", schema_mode="splice(fixed)", repair="scattered", repair_budget=0.5)
    row = agent.ask("Say hello").splice
    assert (row.path, row.strategy, row.decline) == ("repaired", "scattered", None)
    assert row.repaired == -(-row.n_tokens // 2)
    (repair,) = [op for op in agent.conversation.runner.timeline.ops if isinstance(op, Repair)]
    assert repair.selection == tuple(
        row.n_past + i * row.n_tokens // row.repaired for i in range(row.repaired)
    )


def test_a_turn_carries_the_shift_of_the_head_as_the_lab_measures_it(make_agent):
    agent = make_agent("hello", schema_mode="splice(fixed)", repair="carried", repair_budget=0.5)
    agent.ask("Say hello")
    row = agent.ask("Say hello again").splice
    assert (row.path, row.strategy, row.decline) == ("repaired", "carried", None)
    runner = agent.conversation.runner
    repairs = [op for op in runner.timeline.ops if isinstance(op, Repair)]
    assert repairs[-1] == Repair(tuple(range(row.n_past, row.n_past + row.repaired)), carry=True)
    place = runner.timeline.ops.index(repairs[-1])
    runner.goto(place + 1)
    live = _rows_behind(agent, row.n_past)
    # Measured from the same rows in front, by the lab's own way.
    runner.goto(place - 1)
    with agent.engine.turn(), agent.engine.scratch_sequence() as seq:
        agent.engine.copy_sequence(runner.seq, seq)
        block = agent.library.get(row.block)
        splice_block(agent.engine, seq, block, strategy=Carried(), budget=row.repaired / row.n_tokens)
        measured = agent.engine.save_state(seq, start=row.n_past)
    measured = measured.take(measured.order())
    for layer in range(live.n_layer):
        near = np.abs(live.key(layer).astype(np.float32) - measured.key(layer)).max()
        assert near < 0.05 * np.abs(measured.key(layer)).max()


def test_a_block_that_is_lost_before_it_is_spliced_counts_as_prefilled(make_agent, monkeypatch):
    agent = make_agent("hello", schema_mode="splice(fixed)", repair_budget=0.5)
    agent.ask("Say hello")

    def lost(_library, address):
        raise BlockUnknown(f"there is no compiled block {address}", next_step="compile it")

    monkeypatch.setattr(BlockLibrary, "get", lost)
    turn = agent.ask("Say hello again")
    row = turn.splice
    assert (row.path, row.strategy, row.repaired, row.block) == ("prefill", "full", row.n_tokens, None)
    assert row.decline.code == "block_refused"
    assert turn.reused_tokens < row.n_tokens
    assert turn.arguments == {"text": "hello"}


def _rows_behind(agent, n_past):
    rows = agent.engine.save_state(agent.conversation.runner.seq, start=n_past)
    return rows.take(rows.order())
