"""What the blocks of tools are made from, as a conversation would splice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nexus_lab.agent.calling import tool_block
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.splice import BlockContext, BlockRecipe, typical_context

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["CompileContext", "block_recipes"]

CompileContext = Literal["none", "system", "typical"]


def block_recipes(
    engine: Engine, tools: Iterable[ToolSpec], *, system: str, context: CompileContext = "system"
) -> tuple[BlockRecipe, ...]:
    """Return the tokens of each tool's block, and those it is compiled behind.

    Parameters
    ----------
    engine
        Renders and tokenises.
    tools
        The tools.
    system
        System prompt of the conversations that will splice the blocks.
    context
        ``system`` compiles them behind that prompt, where they are exact in a conversation's first turn;
        ``typical`` behind several conversations that begin with it, for the later turns; ``none`` behind
        nothing.

    Raises
    ------
    TemplateRewritesError
        When the model's chat template only renders whole conversations.
    """
    transcript = Transcript(engine, system=system)
    opening = join_tokens(transcript.open())
    shared = typical_context(engine, system=system) if context == "typical" else None
    found = []
    for tool in tools:
        folded, tokens = transcript.preview(tool_block(tool, "full"))
        behind = shared or BlockContext.of(opening + folded if context == "system" else ())
        found.append(BlockRecipe(tool.name, tokens, behind))
    return tuple(found)
