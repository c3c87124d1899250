"""Compiling many blocks ahead of their use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexus_lab.errors import NexusError
from nexus_lab.splice.identity import BlockContext
from nexus_lab.splice.model import model_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.splice.library import BlockLibrary

__all__ = ["BlockRecipe", "BuildReport", "QuotaTooSmall", "build_blocks", "payload_bytes"]


class QuotaTooSmall(NexusError):
    """The blocks to build would evict each other."""


@dataclass(frozen=True, slots=True)
class BlockRecipe:
    """What a tool's block is made from.

    Attributes
    ----------
    tool
        Name of the tool.
    tokens
        Tokens of the block.
    context
        What it is compiled behind.
    """

    tool: str
    tokens: tuple[int, ...]
    context: BlockContext = field(default_factory=BlockContext)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did.

    Attributes
    ----------
    compiled, found
        Names of the tools whose blocks were compiled, and of those whose blocks were there.
    nbytes
        Length of the files of all of them, in bytes.
    """

    compiled: tuple[str, ...]
    found: tuple[str, ...]
    nbytes: int


def build_blocks(
    library: BlockLibrary,
    recipes: Sequence[BlockRecipe],
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> BuildReport:
    """Compile what is missing; a build that was stopped goes on where it was.

    Parameters
    ----------
    on_progress
        Called with the blocks done and all of them, before the first and after each.

    Raises
    ------
    QuotaTooSmall
        When the blocks do not fit the library's quota; nothing is compiled then.
    CompileError, SpliceUnavailable, ContextFull, Cancelled
        When a block cannot be compiled; those before it stay.
    """
    _check_quota(library, recipes)
    compiled: list[str] = []
    found: list[str] = []
    nbytes = 0
    tell = on_progress or (lambda _done, _total: None)
    tell(0, len(recipes))
    for done, recipe in enumerate(recipes, start=1):
        block = library.find(recipe.tokens, recipe.context)
        (compiled if block is None else found).append(recipe.tool)
        block = block or library.get_or_compile(recipe.tokens, recipe.context)
        nbytes += block.nbytes
        tell(done, len(recipes))
    return BuildReport(compiled=tuple(compiled), found=tuple(found), nbytes=nbytes)


def payload_bytes(engine: Engine, n_tokens: int) -> int:
    """Bytes of keys and values of `n_tokens`; a file is somewhat longer, since its parts begin on pages."""
    header = model_header(engine)
    return n_tokens * int(header.n_layer) * (int(header.k_row_bytes) + int(header.v_row_bytes))


def _check_quota(library: BlockLibrary, recipes: Sequence[BlockRecipe]) -> None:
    if library.quota is None:
        return
    needed = payload_bytes(library.engine, sum(len(recipe.tokens) for recipe in recipes))
    if needed > library.quota:
        raise QuotaTooSmall(
            f"{len(recipes)} blocks take at least {needed} bytes, and the quota is {library.quota}",
            next_step="give a larger quota, or fewer tools",
        )
