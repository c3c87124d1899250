"""What the blocks of tools are made from, as a conversation would splice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nexus_lab.agent.calling import tool_block
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.splice import BlockRecipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.agent.transcript import ChatModel
    from nexus_lab.registry import ToolSpec

__all__ = ["CompileContext", "block_recipes"]

CompileContext = Literal["none", "system"]


def block_recipes(
    model: ChatModel, tools: Iterable[ToolSpec], *, system: str, context: CompileContext = "system"
) -> tuple[BlockRecipe, ...]:
    """Return the tokens of each tool's block, and those it is compiled behind.

    Parameters
    ----------
    model
        Renders and tokenises; an engine.
    tools
        The tools.
    system
        System prompt of the conversations that will splice the blocks.
    context
        ``system`` compiles them behind that prompt, where an agent looks for them; ``none`` behind nothing.

    Raises
    ------
    TemplateRewritesError
        When the model's chat template only renders whole conversations.
    """
    transcript = Transcript(model, system=system)
    opening = join_tokens(transcript.open())
    found = []
    for tool in tools:
        folded, tokens = transcript.preview(tool_block(tool, "full"))
        found.append(BlockRecipe(tool.name, tokens, opening + folded if context == "system" else ()))
    return tuple(found)
