"""Requests that belong to a tool, as INT8 vectors: what comes with the package, and corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab import _core
from nexus_lab.routing.index import clip_of, quantise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing.index import QuantisedQuery

    Floats = NDArray[np.float32]

__all__ = ["ExampleIndex", "ExampleScores"]

_NEAREST = 3


class ExampleScores(NamedTuple):
    """How near a request is to the examples of some tools.

    Attributes
    ----------
    best, mean
        float32 [n_tools]: cosine of the nearest example, and the mean of the three nearest; -1 where a tool
        has none.
    nearest
        int64 [n_tools]: which example is the nearest, for `ExampleIndex.text`; -1 where there is none.
    """

    best: Floats
    mean: Floats
    nearest: NDArray[np.int64]


class ExampleIndex:
    """Examples of tools, which come and go.

    Parameters
    ----------
    dim
        Length of a vector.
    kernel
        Scan kernel of the native core.
    """

    def __init__(self, dim: int, *, kernel: str = "auto") -> None:
        self._clip = clip_of(dim)
        self._matrix = _core.Int8Matrix(dim, kernel=kernel)
        self._rows: list[tuple[str, str]] = []
        self._n_tools: int | None = None
        self._order: tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def n_tools(self) -> int:
        """Tools that have an example."""
        if self._n_tools is None:
            self._n_tools = len({owner for owner, _ in self._rows})
        return self._n_tools

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the examples of the tool `key`, oldest first."""
        return tuple(text for owner, text in self._rows if owner == key)

    def text(self, place: int) -> str:
        """Return the example at a place that `scores` gave."""
        return self._rows[place][1]

    def extend(self, key: str, texts: Sequence[str], vectors: Floats) -> None:
        """Add examples of the tool `key`; `vectors` is float32 [len(texts), dim] of unit norm."""
        self._matrix.append(quantise(vectors, self._clip))
        self._rows += [(key, text) for text in texts]
        self._order = self._n_tools = None

    def drop(self, key: str, text: str | None = None) -> None:
        """Forget one example of the tool `key`, or all of them."""
        for place in reversed(range(len(self._rows))):
            owner, known = self._rows[place]
            if owner == key and (text is None or known == text):
                self._matrix.remove_row(place)
                del self._rows[place]
        self._order = self._n_tools = None

    def scores(self, query: QuantisedQuery, names: tuple[str, ...]) -> ExampleScores:
        """Score the tools called `names`, in their order, by their examples."""
        best = np.full(len(names), -1.0, np.float32)
        found = ExampleScores(best, best.copy(), np.full(len(names), -1, np.int64))
        if not self._rows or not names:
            return found
        owners, rows = self._owners(names)
        if not len(rows):
            return found
        cosines = np.asarray(self._matrix.dots(query.row), np.float32)[rows] * np.float32(query.unit)
        order = np.lexsort((-cosines, owners))
        cosines, sorted_owners = cosines[order], owners[order]
        starts = np.flatnonzero(np.r_[True, np.diff(sorted_owners) > 0])
        # Place of each example among those of its tool; the first few make the mean.
        counts = np.diff(np.r_[starts, len(order)])
        near = np.arange(len(order)) - np.repeat(starts, counts) < _NEAREST
        tools = sorted_owners[starts]
        found.best[tools] = cosines[starts]
        found.mean[tools] = np.add.reduceat(cosines * near, starts) / np.minimum(counts, _NEAREST)
        found.nearest[tools] = rows[order[starts]]
        return found

    def _owners(self, names: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the place in `names` of each example's tool, and which examples those are."""
        if self._order is None or self._order[0] is not names:
            place = {name: number for number, name in enumerate(names)}
            owners = np.asarray([place.get(owner, -1) for owner, _ in self._rows], np.int64)
            rows = np.flatnonzero(owners >= 0)
            self._order = (names, owners[rows], rows)
        return self._order[1], self._order[2]
