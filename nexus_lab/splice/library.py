"""Compiled blocks on disk: addressed by content, compiled when first asked for, safe for two processes."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING
from weakref import ref

from nexus_lab.errors import Cancelled, NexusError
from nexus_lab.paths import NotWritten, atomic_write, home
from nexus_lab.splice.base import BlockRefused
from nexus_lab.splice.blocks import ToolBlock, mapped_files
from nexus_lab.splice.compiler import BlockCompiler, CompileError
from nexus_lab.splice.identity import BlockContext, block_id
from nexus_lab.splice.model import block_fingerprint, model_name
from nexus_lab.splice.shelf import DEFAULT_QUOTA, BlockEntry, compiling, entries, touch, trim

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from nexus_lab.engine import Engine, SequenceState

__all__ = ["MODEL_FILE", "BlockLibrary", "BlockUnknown", "LibraryBlocks", "library_root"]

_LOG = logging.getLogger(__name__)

MODEL_FILE = "model.json"
"""Says in a folder of blocks of which model they are, and under which build of llama.cpp."""

_WARM = 8
_ATTEMPTS = 3


def library_root() -> Path:
    """Folder of the compiled blocks of all models, in the package's data folder."""
    return home() / "blocks"


class BlockUnknown(NexusError):
    """The library holds no block of that address, and was not told how to compile it."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    tokens: tuple[int, ...]
    context: BlockContext

    @classmethod
    def of(cls, tokens: Sequence[int], context: BlockContext | Sequence[int]) -> _Recipe:
        return cls(tuple(tokens), BlockContext.of(context))


@dataclass(frozen=True, slots=True)
class _Open:
    block: ref[ToolBlock]
    stamp: tuple[int, int, int]


class BlockLibrary:
    """The blocks of one model under one build of llama.cpp.

    A block's address covers its tokens, its context, the model, the build, the rotation, the cache layout and
    the size of decode calls, so that anything else is another block. Those of another build have a folder of
    their own. Files appear whole, by renaming, and of two processes that want the same block one compiles it
    and the other waits. An open block keeps the file it was read from.

    Every compile keeps the folder within its quota: the blocks used longest ago go, of whatever model, but
    never one that this process has open. Another process that has one open keeps it, too, until it closes it.

    Parameters
    ----------
    engine
        The running model, which compiles what is missing.
    root
        Folder of the blocks of all models; by default that in the package's data folder.
    quota
        Bytes that all of them may take, by the lengths of their files, which have holes and take less on
        disk; ``None`` sets no limit.
    """

    def __init__(
        self, engine: Engine, root: Path | None = None, *, quota: int | None = DEFAULT_QUOTA
    ) -> None:
        self.engine = engine
        self.quota = quota
        self._compiler = BlockCompiler(engine)
        self._recipes: dict[str, _Recipe] = {}
        self._open: dict[str, _Open] = {}
        # Kept open although nobody asks for them now, since opening one reads all of it.
        self._warm: OrderedDict[str, ToolBlock] = OrderedDict()
        self._lock = Lock()
        self.root = root or library_root()
        self.folder = self.root / block_fingerprint(engine)

    def address(self, tokens: Sequence[int], context: BlockContext | Sequence[int] = ()) -> str:
        """Address of the block of `tokens` behind `context`, whether it is there or not."""
        return block_id(model=model_name(self.engine), tokens=tokens, context=context)

    def path(self, address: str) -> Path:
        """File of an address, whether it is there or not."""
        return self.folder / f"{address}.atb"

    def get_or_compile(
        self,
        tokens: Sequence[int],
        context: BlockContext | Sequence[int] = (),
        *,
        live: int | None = None,
    ) -> ToolBlock:
        """Return the block of `tokens` behind `context`, from its file where that is whole and this model's.

        Parameters
        ----------
        live
            A sequence that begins with `context`, for a compile behind its very cells; see
            `BlockCompiler.compile`.

        Raises
        ------
        CompileError, SpliceUnavailable, ContextFull, Cancelled
            When it has to be compiled and cannot be.
        """
        recipe = _Recipe.of(tokens, context)
        address = self.address(tokens, context)
        with self._lock:
            self._recipes[address] = recipe
        return self._find(address, recipe) or self._compiled(address, recipe, live)

    def find(self, tokens: Sequence[int], context: BlockContext | Sequence[int] = ()) -> ToolBlock | None:
        """Return the block of `tokens` behind exactly `context` when it is there; compiles nothing."""
        return self._find(self.address(tokens, context), _Recipe.of(tokens, context))

    def capture(self, seq: int, tokens: Sequence[int], context: Sequence[int]) -> ToolBlock:
        """Keep a block that `seq` computed behind `context`, so that the same context finds it anchored."""
        address = self.address(tokens, context)
        block = self._compiler.capture(seq, tokens, context, path=self.path(address))
        with self._lock:
            self._recipes[address] = _Recipe.of(tokens, context)
        block = self._keep(address, block)
        self.trim()
        return block

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

    def trim(self) -> tuple[BlockEntry, ...]:
        """Bring the folder within the quota; returns what was removed."""
        if self.quota is None or sum(entry.nbytes for entry in entries(self.root)) <= self.quota:
            return ()
        with self._lock:
            self._warm.clear()
        gone = trim(self.root, self.quota, spared=mapped_files())
        if gone:
            _LOG.info("evicted %d blocks to stay within %d bytes", len(gone), self.quota)
        return gone

    def _find(self, address: str, recipe: _Recipe) -> ToolBlock | None:
        try:
            return self._load(address, recipe)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except BlockRefused as refused:
            _LOG.warning("%s; it is compiled again", refused.problem)
            return None

    def _compiled(self, address: str, recipe: _Recipe, live: int | None) -> ToolBlock:
        """Compile a block, or wait for the process that does."""
        self._compiler.check(recipe.tokens)
        path = self.path(address)
        # The turn first: who waits for the file holds no one up that has the file and waits for the turn.
        with self.engine.turn(), compiling(path, check=self._check_stopped):
            block = self._find(address, recipe) if path.exists() else None
            if block is None:
                block = self._keep(address, self._written(path, recipe, live))
        self._name_model()
        self.trim()
        return block

    def _written(self, path: Path, recipe: _Recipe, live: int | None) -> ToolBlock:
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # another process made room, and took this one
                return self._compiler.compile(recipe.tokens, recipe.context, path=path, live=live)
        raise CompileError(
            f"the block {path.name} is removed as soon as it is written",
            next_step="give the library a larger quota, in every process that uses it",
        )

    def _check_stopped(self) -> None:
        if self.engine.cancelled:
            raise Cancelled("stopped while another process compiles the block", next_step="ask again")

    def _name_model(self) -> None:
        path = self.folder / MODEL_FILE
        if not path.exists():
            info = self.engine.info
            facts = {
                "name": info.name,
                "sha256": info.sha256,
                "fingerprint": info.fingerprint,
                "build": self.engine.build,
            }
            with suppress(NotWritten):
                atomic_write(path, json.dumps(facts).encode())

    def _load(self, address: str, recipe: _Recipe | None) -> ToolBlock:
        path = self.path(address)
        try:
            stamp = _stamp(path.stat())
            block = self._kept(address, stamp)
            if block is None:
                block = ToolBlock(path, verify=True)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise BlockRefused("file", expected="readable", found=error.strerror, path=path) from error
        block.check(self.engine)
        if recipe is not None:
            _check_recipe(block, recipe)
        touch(path)
        return self._hold(address, block, stamp)

    def _kept(self, address: str, stamp: tuple[int, int, int]) -> ToolBlock | None:
        kept = self._open.get(address)
        return kept.block() if kept is not None and kept.stamp == stamp else None

    def _keep(self, address: str, block: ToolBlock) -> ToolBlock:
        touch(block.path)  # by the clock of every other use: that of the file system may lag behind
        try:
            stamp = _stamp(block.path.stat())
        except FileNotFoundError:
            return block  # evicted already: good for whoever asked for it, and compiled again for the next
        return self._hold(address, block, stamp)

    def _hold(self, address: str, block: ToolBlock, stamp: tuple[int, int, int]) -> ToolBlock:
        with self._lock:
            self._open[address] = _Open(ref(block), stamp)
            self._warm[address] = block
            self._warm.move_to_end(address)
            while len(self._warm) > _WARM:
                self._warm.popitem(last=False)
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
        ("anchor", recipe.context.anchor, block.anchor == recipe.context.anchor),
        ("context_hash", "that of the context asked for", block.context_hash == recipe.context.hash),
    )
    for field, expected, holds in facts:
        if not holds:
            found = block.anchor if field == "anchor" else "another"
            raise BlockRefused(field, expected=expected, found=found, path=block.path)


def _stamp(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
