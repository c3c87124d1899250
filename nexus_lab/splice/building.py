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

__all__ = ["BlockRecipe", "BuildReport", "QuotaTooSmall", "build_blocks", "file_bytes"]

# The layout of a block file, see block_file.hpp: header, a token id each, with a profile a float32 each.
_HEADER, _WORD, _PAGE = 128, 4, 2 << 20


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


def file_bytes(engine: Engine, recipe: BlockRecipe) -> int:
    """Length that the file of a block will have; its keys and its values begin on pages of 2 MiB each."""
    header, n_tokens = model_header(engine), len(recipe.tokens)
    of_token = _WORD * (2 if recipe.context.probes else 1)
    keys = _paged(_HEADER + n_tokens * of_token)
    values = _paged(keys + n_tokens * int(header.n_layer) * int(header.k_row_bytes))
    return values + n_tokens * int(header.n_layer) * int(header.v_row_bytes)


def _paged(n_bytes: int) -> int:
    return -(-n_bytes // _PAGE) * _PAGE


def _check_quota(library: BlockLibrary, recipes: Sequence[BlockRecipe]) -> None:
    if library.quota is None:
        return
    files = {library.address(recipe.tokens, recipe.context): recipe for recipe in recipes}
    needed = sum(file_bytes(library.engine, recipe) for recipe in files.values())
    if needed > library.quota:
        raise QuotaTooSmall(
            f"{len(files)} blocks take {needed} bytes, and the quota is {library.quota}",
            next_step="give a larger quota, or fewer tools",
        )
