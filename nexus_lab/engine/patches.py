"""What a prefill is to have changed in its graph inputs, or read back from its graph.

Positions in a plan are those llama.cpp gives to cells: the tokens of a patched prefill get consecutive ones
after the sequence's last, whatever RoPE position the plan gives them.

Against the same steps taken one by one, with the cells laid out alike, a patched prefill gives the same bits.
With flash attention that holds where every decode call of both has at least 64 tokens: for shorter ones
llama.cpp has another kernel, which rounds otherwise. Without it, it holds where none has a single token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.errors import PatchFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["AttentionCapture", "HiddenBlock", "PatchPlan", "PatchReport"]


@dataclass(frozen=True, slots=True)
class HiddenBlock:
    """Queries [first_query, last_query) do not see the cells at [first_position, last_position)."""

    first_query: int
    last_query: int
    first_position: int
    last_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """Patches for one prefill.

    Attributes
    ----------
    n_tokens
        Tokens of the prefill.
    positions
        RoPE position of each token, int32 [n_tokens]; ``None`` leaves those of the cells.
    hidden
        What its queries must not see, beyond what comes after them.
    in_place
        Write the rows over those that the sequence holds at `positions`; the cells of the prefill itself are
        left as they are, for the caller to remove. Each query sees what stands at its position or before.
    """

    n_tokens: int
    positions: NDArray[np.int32] | None = None
    hidden: tuple[HiddenBlock, ...] = ()
    in_place: bool = False

    def __post_init__(self) -> None:
        if self.positions is not None and self.positions.shape != (self.n_tokens,):
            raise PatchFailed(f"{len(self.positions)} positions for {self.n_tokens} tokens", next_step=_FIX)
        if self.in_place and (self.positions is None or self.hidden):
            raise PatchFailed("rows written in place need positions, and hide nothing else", next_step=_FIX)
        for block in self.hidden:
            if not 0 <= block.first_query <= block.last_query <= self.n_tokens:
                raise PatchFailed(f"{block} names queries outside [0, {self.n_tokens})", next_step=_FIX)

    @classmethod
    def for_drops(cls, n_tokens: int, drops: Sequence[tuple[int, int, int]]) -> PatchPlan:
        """Plan for a trajectory with drops, computed as one prefill.

        Parameters
        ----------
        drops
            (when, first, last): from token `when` of the prefill on, positions [first, last) are not seen.
            The caller removes them from the sequence afterwards.
        """
        hidden = tuple(HiddenBlock(when, n_tokens, first, last) for when, first, last in drops)
        return cls(n_tokens=n_tokens, hidden=hidden)

    @classmethod
    def for_recompute(cls, positions: NDArray[np.int32]) -> PatchPlan:
        """Plan for computing the rows at `positions` anew, in their true context and in the cells they have.

        Parameters
        ----------
        positions
            int32 [n], rising; the sequence holds each of them.
        """
        if np.any(np.diff(positions) <= 0):
            raise PatchFailed("positions to recompute must rise", next_step="sort them, and name each once")
        rising = np.ascontiguousarray(positions, np.int32)
        return cls(n_tokens=len(rising), positions=rising, in_place=True)

    def piece(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Hidden ranges of the queries [first, last): offsets int64 [n + 1] into ranges int32 [m, 2]."""
        n_queries = last - first
        queries: list[NDArray[np.int64]] = []
        ranges: list[NDArray[np.int32]] = []
        for block in self.hidden:
            begin, end = max(block.first_query, first) - first, min(block.last_query, last) - first
            if begin < end:
                queries.append(np.arange(begin, end))
                ranges.append(
                    np.tile(np.array([block.first_position, block.last_position], np.int32), (end - begin, 1))
                )
        if not queries:
            return np.zeros(n_queries + 1, np.int64), np.zeros((0, 2), np.int32)
        query = np.concatenate(queries)
        order = np.argsort(query, kind="stable")
        offsets = np.searchsorted(query[order], np.arange(n_queries + 1)).astype(np.int64)
        return offsets, np.ascontiguousarray(np.concatenate(ranges)[order])

    def attended(self, held: NDArray[np.int32], first: int, n_tokens: int, begin: int) -> int:
        """Count the cells that queries [first, first + n_tokens) attend to, summed over them.

        Parameters
        ----------
        held
            Positions that the sequence holds before these tokens, rising; the tokens of the prefill that came
            before them included.
        begin
            Position of the prefill's first token.
        """
        if self.in_place and self.positions is not None:
            behind = held[held < begin]  # what is written in place stands there, the cells of the prefill go
            places = self.positions[first : first + n_tokens]
            return int(np.searchsorted(behind, places, side="right").sum())
        own = np.concatenate([held, np.arange(begin + first, begin + first + n_tokens, dtype=np.int32)])
        seen = n_tokens * len(held) + n_tokens * (n_tokens + 1) // 2
        for block in self.hidden:
            queries = np.arange(max(block.first_query, first), min(block.last_query, first + n_tokens))
            if queries.size:
                last = np.minimum(block.last_position, begin + queries + 1)
                lower, upper = np.searchsorted(own, block.first_position), np.searchsorted(own, last)
                seen -= int(np.maximum(upper - lower, 0).sum())
        return seen


@dataclass(slots=True)
class PatchReport:
    """What a patched prefill did; filled in when it has run.

    Attributes
    ----------
    cells
        Physical cell of each token's row, int64 [n_tokens].
    n_kv
        Cells the last graph attended over.
    """

    cells: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    n_kv: int = 0


@dataclass(slots=True)
class AttentionCapture:
    """Attention rows of one prefill; filled in when it has run.

    Attributes
    ----------
    layers
        Layers asked for.
    n_queries
        The last queries of the prefill that are kept; ``None`` for all.
    positions
        Positions that the columns stand for, rising, int32 [n_keys].
    """

    layers: tuple[int, ...]
    n_queries: int | None
    positions: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    _pieces: list[NDArray[np.float32]] = field(default_factory=list)
    _cells: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = field(default_factory=list)

    def rows(self, layer: int) -> NDArray[np.float32]:
        """Attention of `layer`, float32 [n_head, n_queries, n_keys], keys in rising position order."""
        index = self.layers.index(layer)
        parts = [
            self._by_position(piece[index], cells, positions)
            for piece, (cells, positions) in zip(self._pieces, self._cells, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def _by_position(
        self, piece: NDArray[np.float32], cells: NDArray[np.int64], positions: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Put the sequence's columns at their place in `self.positions`; later keys weigh nothing."""
        rows = np.zeros((*piece.shape[:2], len(self.positions)), np.float32)
        rows[..., np.searchsorted(self.positions, positions)] = piece[..., cells]
        return rows

    def add(self, piece: NDArray[np.float32], cells: NDArray[np.int64], positions: NDArray[np.int32]) -> None:
        """Append one graph's rows, [layer, head, query, cell], with the sequence's cells and positions."""
        self._pieces.append(piece)
        self._cells.append((cells, positions))
        self.positions = np.union1d(self.positions, positions).astype(np.int32)


_FIX = "make the plan for the very tokens of the next prefill"
