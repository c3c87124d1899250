"""Blocks compiled ahead are those that an agent looks for."""

from __future__ import annotations

import pytest

from nexus_lab.agent.blocks import block_recipes
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
    assert behind.context == agent.conversation.tokens
    assert alone.context == ()
