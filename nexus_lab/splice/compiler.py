"""Compiling a tool block: its K/V rows behind a chosen context, written to a block file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab import _core
from nexus_lab.errors import NexusError
from nexus_lab.splice.blocks import ToolBlock
from nexus_lab.splice.contexts import ContextStates
from nexus_lab.splice.identity import BlockContext
from nexus_lab.splice.model import cache_layout, model_header
from nexus_lab.splice.spread import BlockRows, RowSpread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab._core import BlockHeader
    from nexus_lab.engine import Engine

__all__ = ["BlockCompiler", "CompileError", "write_new"]

# Temporary names that are tried.
_NAMES = 8
_LOG = logging.getLogger(__name__)


class CompileError(NexusError):
    """A block cannot be compiled from this."""


class BlockCompiler:
    """Compiles blocks with one running model, in a sequence of its own.

    Parameters
    ----------
    engine
        The running model; its live sequences are left alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._contexts = ContextStates(engine)

    def compile(
        self,
        tokens: Sequence[int],
        context: BlockContext | Sequence[int] = (),
        *,
        path: Path,
        live: int | None = None,
    ) -> ToolBlock:
        """Compute the block behind `context` and write its file, atomically.

        Parameters
        ----------
        tokens
            Tokens of the block.
        context
            What stands before it: nothing, a system prompt, a typical history; or several of these.
        path
            File to write.
        live
            A sequence that begins with the tokens of `context`, each computed behind those before it. The
            block is computed behind its very cells: there, as nowhere else, it is the prefill's to the last
            bit. A consensus has no use for it.

        Raises
        ------
        CompileError
            When the block has no tokens, or its file cannot be written.
        SpliceUnavailable
            When the model's cache cannot be spliced.
        ContextFull
            When context and block do not fit beside the live sequences.
        Cancelled
            When the engine was cancelled; there is no file then.
        """
        self.check(tokens)
        behind = BlockContext.of(context)
        with self._engine.turn():
            rows = self._rows_behind(tokens, behind.tokens, shared=behind.consensus, live=live)
            if not behind.probes:
                return self._write(tokens, behind, rows, None, path)
            spread = RowSpread()
            spread.add(rows)
            for probe in behind.probes:
                spread.add(self._rows_behind(tokens, probe, shared=True, anchor=behind.anchor))
        kept = spread.mean() if behind.consensus else rows
        return self._write(tokens, behind, kept, spread.relative(), path)

    def capture(self, seq: int, tokens: Sequence[int], context: Sequence[int], *, path: Path) -> ToolBlock:
        """Write a block from rows that a live sequence holds.

        Parameters
        ----------
        seq
            Sequence that begins with `context` and then `tokens`, each computed behind the ones before it.
        tokens, context, path
            As in `compile`.
        """
        self.check(tokens)
        if self._engine.pos_max(seq) + 1 < len(context) + len(tokens):
            raise CompileError(
                f"sequence {seq} holds fewer than {len(context)} + {len(tokens)} tokens",
                next_step="prefill context and block first",
            )
        rows = self._rows(seq, tokens, len(context))
        return self._write(tokens, BlockContext.of(context), rows, None, path)

    def check(self, tokens: Sequence[int]) -> None:
        """Raise CompileError or SpliceUnavailable where there is nothing that could be compiled."""
        cache_layout(self._engine)
        if not len(tokens):
            raise CompileError("a block without tokens", next_step="give at least one token")

    def _rows_behind(
        self,
        tokens: Sequence[int],
        context: Sequence[int],
        *,
        shared: bool,
        anchor: int | None = None,
        live: int | None = None,
    ) -> BlockRows:
        """Compute the block behind `context`; its keys stand as if it began at `anchor`.

        The state of a shared context is kept for the next block. Rows behind a restored state differ from
        those behind a prefill by the order of their sums, so an anchored block must not have them.
        """
        start = len(context)
        with self._engine.scratch_sequence() as seq:
            if shared:
                self._contexts.enter(seq, context)
            elif live is not None and start:
                self._engine.copy_sequence(live, seq, 0, start)
            elif start:
                self._engine.prefill(seq, context, start=0, logits="none")
            self._engine.prefill(seq, tokens, start=start, logits="none")
            return self._rows(seq, tokens, start, shift=0 if anchor is None else anchor - start)

    def _rows(self, seq: int, tokens: Sequence[int], start: int, *, shift: int = 0) -> BlockRows:
        state = self._engine.save_state(seq, start=start, stop=start + len(tokens))
        rope = self._engine.info.rope
        if shift and rope is not None:
            state.rotate(np.full(len(tokens), shift, np.int32), rope)
        return BlockRows.of(state)

    def _write(
        self,
        tokens: Sequence[int],
        context: BlockContext,
        rows: BlockRows,
        sensitivity: NDArray[np.float32] | None,
        path: Path,
    ) -> ToolBlock:
        header = model_header(self._engine, anchor=context.anchor, context_hash=context.hash)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new(path, header, np.asarray(tokens, np.int32), rows, sensitivity)
        except OSError as error:
            raise CompileError(
                f"the block cannot be written to {path}: {error}",
                next_step="free some disk space, or let NEXUS_LAB_HOME name a folder that can be written",
            ) from error
        _LOG.info("compiled %d tokens behind %d into %s", len(tokens), context.anchor, path.name)
        return ToolBlock(path)


def write_new(
    path: Path,
    header: BlockHeader,
    tokens: NDArray[np.int32],
    rows: BlockRows,
    sensitivity: NDArray[np.float32] | None = None,
) -> None:
    """Write a block file beside what killed writers may have left.

    Its temporary name holds this process's number, which in a container is the same after every start.
    """
    for left in reversed(range(_NAMES)):
        try:
            _core.write_block(path, header, tokens, rows.keys, rows.values, sensitivity)
        except FileExistsError:
            if not left:
                raise
        else:
            return
