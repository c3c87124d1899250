"""The semantic lookaside buffer: INT8 vectors of tools, several for each, max-pooled in native code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab import _core
from nexus_lab.routing.base import RoutingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing.base import View

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.int8]

__all__ = ["LEVELS", "DenseScores", "QuantisedQuery", "ToolIndex", "clip_of", "quantise"]

# Scores of tools past this rank are not told apart: their bound is good enough for a fusion.
_POOL = 4096
_CLIP_DEVIATIONS = 5.5
_FEW = 16
LEVELS = 127


class QuantisedQuery(NamedTuple):
    """A request as int8 [dim] and the cosine that one unit of an integer dot product stands for."""

    row: Bytes
    unit: float


class DenseScores(NamedTuple):
    """Cosines of a request with all tools.

    Attributes
    ----------
    scores
        float32 [n_tools], in the order of `ToolIndex.names`.
    margin
        The best one minus the second; the best one itself where it has no rival.
    """

    scores: Floats
    margin: float


def clip_of(dim: int) -> float:
    """Magnitude that becomes 127: 5.5 standard deviations of a component of a unit vector.

    One scale for all rows, so that integer dot products order the tools as cosines do; with a scale per
    row they would not be comparable. Components beyond it are clipped; the largest of 14,000 MiniLM
    vectors stands at 5.7.
    """
    return _CLIP_DEVIATIONS / math.sqrt(dim)


def quantise(rows: Floats, clip: float) -> Bytes:
    """Return `rows` as int8 in [-127, 127], where `clip` becomes 127."""
    scaled = np.rint(rows * (LEVELS / clip))
    return np.ascontiguousarray(np.clip(scaled, -LEVELS, LEVELS), np.int8)


@dataclass(slots=True)
class _Entry:
    views: list[View] = field(default_factory=list)
    rows: list[Bytes] = field(default_factory=list)


class ToolIndex:
    """Vectors of tools, which come and go without a rebuild.

    Parameters
    ----------
    dim
        Length of a vector.
    kernel
        Scan kernel of the native core; ``auto`` takes the best this machine has.
    """

    def __init__(self, dim: int, *, kernel: str = "auto") -> None:
        self.dim = dim
        self._clip = clip_of(dim)
        self._kernel = kernel
        self._matrix = _core.Int8Matrix(dim, kernel=kernel)
        self._entries: dict[str, _Entry] = {}
        self._slots: dict[str, int] = {}
        self._buffer: NDArray[np.int32] = np.zeros(1024, np.int32)
        self._n_rows = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    @property
    def names(self) -> tuple[str, ...]:
        """The tools in the order of their adding, which is the order of scores."""
        return tuple(self._entries)

    @property
    def n_vectors(self) -> int:
        """Vectors of all tools."""
        return self._n_rows

    @property
    def _groups(self) -> NDArray[np.int32]:
        """The tool (by its place) of each row."""
        return self._buffer[: self._n_rows]

    @property
    def kernel(self) -> str:
        """The scan kernel in use."""
        return str(self._matrix.kernel)

    def views(self, name: str) -> tuple[View, ...]:
        """Return what the vectors of the tool `name` were made from."""
        return tuple(self._entry(name).views)

    def put(self, name: str, views: Sequence[View], vectors: Floats) -> None:
        """Add the tool `name`, or replace it; it goes last.

        Parameters
        ----------
        views
            At least one.
        vectors
            float32 [len(views), dim] of unit norm.
        """
        if not views:
            raise RoutingError(f"the tool {name!r} has no view", next_step="give it at least its name")
        if name in self._entries:
            self.remove(name)
        self._slots[name] = len(self._entries)
        self._entries[name] = _Entry()
        self.extend(name, views, vectors)

    def extend(self, name: str, views: Sequence[View], vectors: Floats) -> None:
        """Add views to a tool that is there, for example a request that was corrected to it."""
        entry = self._entry(name)
        if vectors.shape != (len(views), self.dim):
            raise RoutingError(
                f"vectors of shape {vectors.shape} do not fit {len(views)} views of {self.dim} components",
                next_step="embed the views with the embedder that the index was made for",
            )
        rows = quantise(vectors, self._clip)
        self._matrix.append(rows)
        self._append_groups(self._slots[name], len(rows))
        entry.views.extend(views)
        entry.rows.extend(rows)

    def drop_view(self, name: str, view: View) -> None:
        """Take one view of the tool `name` out of the index again."""
        entry = self._entry(name)
        if view not in entry.views or len(entry.views) == 1:
            raise RoutingError(
                f"the tool {name!r} has no view {str(view)!r} to spare", next_step="list its views"
            )
        place = entry.views.index(view)
        row = int(np.flatnonzero(self._groups == self._slots[name])[place])
        self._matrix.remove_row(row)
        self._set_groups(np.delete(self._groups, row))
        del entry.views[place], entry.rows[place]

    def remove(self, name: str) -> None:
        """Take the tool `name` and all its views out of the index."""
        self._entry(name)
        group = self._slots.pop(name)
        for row in reversed(np.flatnonzero(self._groups == group)):
            self._matrix.remove_row(int(row))
        kept = self._groups[self._groups != group]
        self._set_groups(kept - (kept > group))
        del self._entries[name]
        for place, other in enumerate(self._entries):
            self._slots[other] = place

    def discard(self, names: Iterable[str]) -> None:
        """Take those of the tools called `names` that are there out of the index.

        Every removal moves the rows behind it, so that where many go, what stays is set up anew.
        """
        gone = [name for name in dict.fromkeys(names) if name in self._entries]
        if len(gone) <= _FEW:
            for name in gone:
                self.remove(name)
            return
        for name in gone:
            del self._entries[name]
        self._slots = {name: place for place, name in enumerate(self._entries)}
        entries = self._entries.values()
        self._matrix = _core.Int8Matrix(self.dim, kernel=self._kernel)
        self._set_groups(np.repeat(np.arange(len(entries)), [len(entry.rows) for entry in entries]))
        if self._n_rows:
            self._matrix.append(np.stack([row for entry in entries for row in entry.rows]))

    def quantise_query(self, vector: Floats) -> QuantisedQuery:
        """Return a request's vector (float32 [dim]) as int8, on its own scale."""
        largest = float(np.abs(vector).max()) or 1.0
        return QuantisedQuery(quantise(vector, largest), (largest / LEVELS) * (self._clip / LEVELS))

    def scan(self, query: QuantisedQuery) -> DenseScores:
        """Score all tools: for each, the largest cosine among its views.

        Past 4,096 tools the rest share the score of the 4,096th, an upper bound.
        """
        n_tools = len(self._entries)
        if n_tools == 0:
            return DenseScores(np.zeros(0, np.float32), 0.0)
        ids, dots, margin = self._matrix.top_k_pooled(query.row, self._groups, n_tools, min(n_tools, _POOL))
        cosines = np.asarray(dots, np.float32) * np.float32(query.unit)
        scores = np.full(n_tools, cosines[-1], np.float32)
        scores[ids] = cosines
        return DenseScores(scores, float(cosines[0]) if n_tools == 1 else float(margin) * query.unit)

    def best_view(self, name: str, query: QuantisedQuery) -> tuple[View, float]:
        """Return the view of the tool `name` that is nearest to the request, and its cosine."""
        entry = self._entry(name)
        dots = np.stack(entry.rows).astype(np.int32) @ query.row.astype(np.int32)
        best = int(dots.argmax())
        return entry.views[best], float(dots[best]) * query.unit

    def check_integrity(self) -> None:
        """Raise `RoutingError` when vectors, groups and views do not tally."""
        counts = np.bincount(self._groups, minlength=len(self._entries))
        views = [len(entry.views) for entry in self._entries.values()]
        rows = self._matrix.rows()
        wrong = len(self._matrix) != len(self._groups) or counts.tolist() != views
        if not wrong:
            order = np.argsort(self._groups, kind="stable")
            kept = [row for entry in self._entries.values() for row in entry.rows]
            wrong = len(kept) > 0 and not np.array_equal(rows[order], np.stack(kept))
        if wrong:
            raise RoutingError("the index does not tally", next_step="build the router anew, and report this")

    def _append_groups(self, group: int, count: int) -> None:
        needed = self._n_rows + count
        if needed > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros(max(needed, len(self._buffer)), np.int32)])
        self._buffer[self._n_rows : needed] = group
        self._n_rows = needed

    def _set_groups(self, groups: NDArray[np.integer]) -> None:
        self._n_rows = len(groups)
        self._buffer[: self._n_rows] = groups

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise RoutingError(f"no tool {name!r} in the index", next_step="add it first") from None
