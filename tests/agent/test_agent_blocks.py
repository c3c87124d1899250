"""Blocks compiled ahead are those that an agent looks for."""

from __future__ import annotations

import pytest

from nexus_lab.agent.blocks import block_recipes
from nexus_lab.cache import Repair
from nexus_lab.splice import BlockCompiler, build_blocks

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
