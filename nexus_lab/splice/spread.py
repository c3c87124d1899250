"""The rows of one block behind several contexts: their mean, and how far each token's move."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine import SequenceState

__all__ = ["BlockRows", "RowSpread"]


class BlockRows(NamedTuple):
    """K and V of a block, one float16 [n_tokens, width] per layer, in position order."""

    keys: list[NDArray[np.float16]]
    values: list[NDArray[np.float16]]

    @classmethod
    def of(cls, state: SequenceState) -> BlockRows:
        """Return the rows of a state, sorted by position."""
        order = state.order()
        layers = range(state.n_layer)
        return cls(
            [np.ascontiguousarray(state.key(layer)[order]) for layer in layers],
            [np.ascontiguousarray(state.value(layer)[order]) for layer in layers],
        )


class RowSpread:
    """Gathers the rows of a block behind one context after another; holds one copy of them.

    All keys must be rotated to the same anchor.
    """

    def __init__(self) -> None:
        self._n = 0
        self._sums: list[NDArray[np.float64]] = []
        self._squares: list[NDArray[np.float64]] = []

    def add(self, rows: BlockRows) -> None:
        """Take the rows behind one more context."""
        parts = [np.asarray(layer, np.float64) for layer in (*rows.keys, *rows.values)]
        squares = [np.einsum("ij,ij->i", part, part) for part in parts]
        if self._n:
            parts = [total + part for total, part in zip(self._sums, parts, strict=True)]
            squares = [total + part for total, part in zip(self._squares, squares, strict=True)]
        self._sums, self._squares, self._n = parts, squares, self._n + 1

    def mean(self) -> BlockRows:
        """Mean of the rows: of all single rows the one with the least squared distance to them."""
        means = [(total / self._n).astype(np.float16) for total in self._sums]
        half = len(means) // 2
        return BlockRows(means[:half], means[half:])

    def relative(self) -> NDArray[np.float32]:
        """Root mean square distance of a token's rows from their mean, over the mean's norm.

        Returns
        -------
        numpy.ndarray
            float32 [n_tokens]: K and V of all layers, averaged.
        """
        found = []
        for total, square in zip(self._sums, self._squares, strict=True):
            mean = total / self._n
            norm = np.einsum("ij,ij->i", mean, mean)
            variance = np.maximum(square / self._n - norm, 0.0)
            found.append(np.sqrt(variance / np.where(norm > 0, norm, 1.0)))
        return np.asarray(np.mean(found, axis=0), np.float32)
