"""How far the K and V rows of two states of the same tokens lie apart, per layer and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["DriftError", "KVDrift", "Rows", "key_value_drift", "row_drift"]


class DriftError(NexusError):
    """The two states do not hold the same positions of the same model."""


class Rows(Protocol):
    """What drift reads of a sequence state."""

    @property
    def n_layer(self) -> int:
        """Layers."""
        ...

    @property
    def positions(self) -> NDArray[np.int32]:
        """Position of each cell, in cell order."""
        ...

    def key(self, layer: int) -> NDArray[np.float16]:
        """K rows of a layer, float16 [n_cells, n_head_kv * head_dim]."""
        ...

    def value(self, layer: int) -> NDArray[np.float16]:
        """V rows of a layer, float16 [n_cells, n_head_kv * head_dim]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class KVDrift:
    """Distance between the rows of two states.

    Attributes
    ----------
    k_absolute, v_absolute
        Mean over the tokens of the Euclidean distance between the two rows of a head,
        float64 [n_layer, n_head_kv].
    k_relative, v_relative
        The same, divided by the mean norm of the reference's rows of that head.
    n_tokens
        Tokens averaged over.
    """

    k_absolute: NDArray[np.float64]
    k_relative: NDArray[np.float64]
    v_absolute: NDArray[np.float64]
    v_relative: NDArray[np.float64]
    n_tokens: int

    @property
    def is_zero(self) -> bool:
        """Whether every row is bit for bit the reference's."""
        return not (self.k_absolute.any() or self.v_absolute.any())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one flat record for each layer and head."""
        for layer, head in np.ndindex(self.k_absolute.shape):
            yield {
                "layer": layer,
                "head": head,
                "k_absolute": float(self.k_absolute[layer, head]),
                "k_relative": float(self.k_relative[layer, head]),
                "v_absolute": float(self.v_absolute[layer, head]),
                "v_relative": float(self.v_relative[layer, head]),
            }


def key_value_drift(reference: Rows, other: Rows, *, n_head_kv: int, start: int, stop: int) -> KVDrift:
    """Compare the rows at positions `start` to `stop` (exclusive) of two states.

    Parameters
    ----------
    reference, other
        States of the same tokens at the same positions; cells may lie in any order.
    n_head_kv
        KV heads of the model.
    start, stop
        Positions to compare, half open.

    Raises
    ------
    DriftError
        When a position is missing or doubled in one of them, or the layer counts differ.
    """
    if reference.n_layer != other.n_layer:
        raise DriftError(f"states of {reference.n_layer} and {other.n_layer} layers cannot be compared")
    cells = [_cells(state, start, stop) for state in (reference, other)]
    keys, values = [], []
    for layer in range(reference.n_layer):
        keys.append(_head_drift(reference.key(layer)[cells[0]], other.key(layer)[cells[1]], n_head_kv))
        values.append(_head_drift(reference.value(layer)[cells[0]], other.value(layer)[cells[1]], n_head_kv))
    k, v = np.asarray(keys), np.asarray(values)
    return KVDrift(k[:, 0], k[:, 1], v[:, 0], v[:, 1], stop - start)


def row_drift(reference: NDArray[Any], other: NDArray[Any], *, n_head_kv: int) -> NDArray[np.float64]:
    """Compare the rows of one layer, token by token.

    Parameters
    ----------
    reference, other
        Rows of the same tokens in the same order, [n_tokens, n_head_kv * head_dim].
    n_head_kv
        KV heads of the model.

    Returns
    -------
    numpy.ndarray
        float64 [3, n_head_kv]: absolute and relative drift as in `KVDrift`, and the signed mean of the
        difference over tokens and dimensions. NaN when there is no token.
    """
    if not len(reference):
        return np.full((3, n_head_kv), np.nan)
    shape = (reference.shape[0], n_head_kv, -1)
    p, q = (np.asarray(rows, dtype=np.float64).reshape(shape) for rows in (reference, other))
    return np.concatenate([_head_drift(reference, other, n_head_kv), (q - p).mean(axis=(0, 2))[np.newaxis]])


def _cells(state: Rows, start: int, stop: int) -> NDArray[np.intp]:
    positions = np.asarray(state.positions)
    cells = np.flatnonzero((positions >= start) & (positions < stop))
    cells = cells[np.argsort(positions[cells], kind="stable")]
    if start >= stop or not np.array_equal(positions[cells], np.arange(start, stop)):
        raise DriftError(
            f"the state does not hold each position from {start} to {stop} once",
            next_step="compare states of the same tokens, with nothing dropped between",
        )
    return cells


def _head_drift(reference: NDArray[Any], other: NDArray[Any], n_head_kv: int) -> NDArray[np.float64]:
    """Return absolute and relative drift of each head, float64 [2, n_head_kv]."""
    shape = (reference.shape[0], n_head_kv, -1)
    p, q = (np.asarray(rows, dtype=np.float64).reshape(shape) for rows in (reference, other))
    absolute = np.linalg.norm(p - q, axis=2).mean(axis=0)
    norm = np.linalg.norm(p, axis=2).mean(axis=0)
    # A head whose rows are all zero has no scale of its own: its drift counts as absolute.
    return np.stack([absolute, absolute / np.where(norm > 0, norm, 1.0)])
