"""A compiled tool block: its file, the check against a running model, and its rows at a new position."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from nexus_lab import _core
from nexus_lab.engine import SequenceState
from nexus_lab.splice.base import BlockRefused
from nexus_lab.splice.model import cache_layout, model_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.engine import Engine

__all__ = ["ToolBlock", "mapped_files"]

_mapped: WeakSet[ToolBlock] = WeakSet()
_mapped_lock = Lock()


def mapped_files() -> set[tuple[int, int]]:
    """Device and inode of every block file that this process has mapped."""
    with _mapped_lock:
        return {block.identity for block in _mapped}


class ToolBlock:
    """An open block file; its rows are mapped and never changed.

    Parameters
    ----------
    path
        The ``.atb`` file.
    verify
        Check the payload's hash, which reads the whole file.

    Raises
    ------
    BlockRefused
        When the file is truncated, foreign or damaged; its `field` names what differs.
    OSError
        When it cannot be read.

    Attributes
    ----------
    identity
        Device and inode of the file.
    """

    def __init__(self, path: Path | str, *, verify: bool = False) -> None:
        self.path = Path(path)
        try:
            facts = self.path.stat()
            self._file = _core.BlockFile(self.path)
            if verify:
                self._file.verify()
        except _core.FormatError as error:
            raise BlockRefused.wrap(error, path=self.path) from error
        self.header = self._file.header
        self.tokens: tuple[int, ...] = tuple(self._file.tokens.tolist())
        self.context_hash: bytes = self.header.context_hash
        self.identity = facts.st_dev, facts.st_ino
        with _mapped_lock:
            _mapped.add(self)

    @property
    def n_tokens(self) -> int:
        """Length of the block."""
        return len(self.tokens)

    @property
    def anchor(self) -> int:
        """Position of the first token when the block was compiled."""
        return int(self.header.anchor)

    @property
    def sensitivity(self) -> NDArray[np.float32] | None:
        """How far each token's rows moved between the contexts it was compiled behind, float32 [n_tokens].

        Root mean square distance from their mean, over the mean's norm; ``None`` when there was one context.
        """
        return self._file.sensitivity

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes."""
        return int(self.header.file_bytes)

    def check(self, engine: Engine) -> None:
        """Compare the header with the running model.

        The layout of V may differ: rows are laid out anew for the cache they go into.

        Raises
        ------
        BlockRefused
            Naming the first field that differs.
        SpliceUnavailable
            When the model's cache cannot be spliced at all.
        """
        try:
            self.header.check_model(model_header(engine, v_trans=self.header.v_trans))
        except _core.FormatError as error:
            raise BlockRefused.wrap(error, path=self.path) from error

    def same_kernel(self, engine: Engine) -> bool:
        """Whether the block was compiled under the engine's attention kernel, which orders its sums."""
        return bool(self.header.v_trans == cache_layout(engine).v_trans)

    def rows_at(
        self,
        engine: Engine,
        position: int,
        *,
        start: int = 0,
        stop: int | None = None,
        arena: BuddyArena | None = None,
    ) -> SequenceState:
        """Return rows of the block, rotated once from the compiled copy.

        Parameters
        ----------
        engine
            The running model; `check` must have passed.
        position
            Position that the block's first token gets, whatever `start` is.
        start, stop
            Tokens of the block to return, half open.
        arena
            Memory for the rows.

        Returns
        -------
        SequenceState
            In the engine's cache layout; token i of the block stands at ``position + i``.
        """
        rows = slice(start, self.n_tokens if stop is None else stop)
        indices = np.arange(self.n_tokens, dtype=np.int32)[rows]
        layers = range(self.header.n_layer)
        state = SequenceState.from_rows(
            cache_layout(engine),
            position + indices,
            [self._file.key(layer)[rows] for layer in layers],
            [self._file.value(layer)[rows] for layer in layers],
            arena=arena,
        )
        shift = position - self.anchor
        if shift and engine.info.rope is not None:
            state.rotate(np.full(len(indices), shift, np.int32), engine.info.rope)
        return state
