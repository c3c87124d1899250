"""Compiled blocks on disk: addressed by content, compiled when first asked for, safe for two processes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from nexus_lab.errors import NexusError
from nexus_lab.paths import home
from nexus_lab.splice.base import BlockRefused
from nexus_lab.splice.blocks import ToolBlock
from nexus_lab.splice.compiler import BlockCompiler
from nexus_lab.splice.identity import block_id, context_hash
from nexus_lab.splice.model import model_name

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from nexus_lab.engine import Engine, SequenceState

__all__ = ["BlockLibrary", "BlockUnknown", "LibraryBlocks"]

_LOG = logging.getLogger(__name__)


class BlockUnknown(NexusError):
    """The library holds no block of that address, and was not told how to compile it."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    tokens: tuple[int, ...]
    context: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    block: ToolBlock
    stamp: tuple[int, int, int]


class BlockLibrary:
    """The blocks of one model.

    A block's address covers its tokens, its context, the model, the rotation and the cache layout, so that
    anything else is another block. Files appear whole, by renaming: of two processes that compile the same
    block, the later file takes the place of the earlier. An open block keeps the file it was read from.

    Parameters
    ----------
    engine
        The running model, which compiles what is missing.
    root
        Folder of the blocks; by default ``blocks`` in the package's data folder.
    """

    def __init__(self, engine: Engine, root: Path | None = None) -> None:
        self.engine = engine
        self._compiler = BlockCompiler(engine)
        self._recipes: dict[str, _Recipe] = {}
        self._open: dict[str, _Open] = {}
        self._lock = Lock()
        self.folder = (root or home() / "blocks") / engine.info.fingerprint

    def address(self, tokens: Sequence[int], context: Sequence[int] = ()) -> str:
        """Address of the block of `tokens` behind `context`, whether it is there or not."""
        return block_id(model=model_name(self.engine), tokens=tokens, context=context)

    def path(self, address: str) -> Path:
        """File of an address, whether it is there or not."""
        return self.folder / f"{address}.atb"

    def get_or_compile(self, tokens: Sequence[int], context: Sequence[int] = ()) -> ToolBlock:
        """Return the block of `tokens` behind `context`, from its file where that is whole and this model's.

        Raises
        ------
        CompileError, SpliceUnavailable, ContextFull, Cancelled
            When it has to be compiled and cannot be.
        """
        recipe = _Recipe(tuple(tokens), tuple(context))
        address = self.address(tokens, context)
        with self._lock:
            self._recipes[address] = recipe
        found = self._find(address, recipe)
        if found is not None:
            return found
        block = self._compiler.compile(recipe.tokens, recipe.context, path=self.path(address))
        return self._keep(address, block)

    def find(self, tokens: Sequence[int], context: Sequence[int] = ()) -> ToolBlock | None:
        """Return the block of `tokens` behind exactly `context` when it is there; compiles nothing."""
        return self._find(self.address(tokens, context), _Recipe(tuple(tokens), tuple(context)))

    def capture(self, seq: int, tokens: Sequence[int], context: Sequence[int]) -> ToolBlock:
        """Keep a block that `seq` computed behind `context`, so that the same context finds it anchored."""
        address = self.address(tokens, context)
        block = self._compiler.capture(seq, tokens, context, path=self.path(address))
        with self._lock:
            self._recipes[address] = _Recipe(tuple(tokens), tuple(context))
        return self._keep(address, block)

    def get(self, address: str) -> ToolBlock:
        """Return the block of an address; compiles it again when its file is gone or bad.

        Raises
        ------
        BlockUnknown
            When there is no file, and the library has not been asked for these tokens before.
        BlockRefused
            When there is a file that cannot be used, likewise.
        """
        recipe = self._recipes.get(address)
        if recipe is not None:
            return self.get_or_compile(recipe.tokens, recipe.context)
        try:
            return self._load(address, None)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BlockUnknown(
                f"there is no compiled block {address}", next_step="ask the library for its tokens first"
            ) from error

    def addresses(self) -> list[str]:
        """Addresses of the blocks of this model that have a file, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.atb"))

    def _find(self, address: str, recipe: _Recipe) -> ToolBlock | None:
        try:
            return self._load(address, recipe)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except BlockRefused as refused:
            _LOG.warning("%s; it is compiled again", refused.problem)
            return None

    def _load(self, address: str, recipe: _Recipe | None) -> ToolBlock:
        path = self.path(address)
        try:
            stamp = _stamp(path.stat())
            kept = self._open.get(address)
            if kept is not None and kept.stamp == stamp:
                return kept.block
            block = ToolBlock(path, verify=True)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise BlockRefused("file", expected="readable", found=error.strerror, path=path) from error
        block.check(self.engine)
        if recipe is not None:
            _check_recipe(block, recipe)
        with self._lock:
            self._open[address] = _Open(block, stamp)
        return block

    def _keep(self, address: str, block: ToolBlock) -> ToolBlock:
        with self._lock:
            self._open[address] = _Open(block, _stamp(block.path.stat()))
        return block


class LibraryBlocks:
    """Gives the compiled blocks of a library to a cache program's runner.

    Parameters
    ----------
    library
        Where the blocks are; ``block_id`` of an operation is their address.
    """

    def __init__(self, library: BlockLibrary) -> None:
        self._library = library

    def tokens(self, block_id: str) -> Sequence[int]:
        """Token ids of the block."""
        return self._library.get(block_id).tokens

    def state_at(self, block_id: str, position: int) -> SequenceState:
        """Rows of the block, rotated once from its anchor to start at `position`."""
        return self._library.get(block_id).rows_at(self._library.engine, position)


def _check_recipe(block: ToolBlock, recipe: _Recipe) -> None:
    facts = (
        ("tokens", f"{len(recipe.tokens)} tokens asked for", block.tokens == recipe.tokens),
        ("anchor", len(recipe.context), block.anchor == len(recipe.context)),
        ("context_hash", "that of the context asked for", block.context_hash == context_hash(recipe.context)),
    )
    for field, expected, holds in facts:
        if not holds:
            found = block.anchor if field == "anchor" else "another"
            raise BlockRefused(field, expected=expected, found=found, path=block.path)


def _stamp(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
