"""Colour maps, and the geometry of heatmaps of layers and heads for pages without a script."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["VIK", "VIRIDIS", "HeatFigure", "colour_at", "heat_figure", "heat_range"]

VIRIDIS = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
VIK = ("001261", "033e7d", "1e6f9d", "71a8c4", "c9dde7", "eacebd", "d39774", "be6533", "8b2706", "590008")
_CELL = 14
_LEFT = 56
_SHARE = 0.98  # of the cells that the range covers
_RAMP = 16
# A table of more values makes a page heavy and is not read; the panel's frame has them all.
_MOST_IN_TABLE = 400


@dataclass(frozen=True, slots=True)
class _Cell:
    """One layer and head; `colour` is empty where there is no value."""

    x: int
    y: int
    colour: str
    words: str
    mark: str = ""
    ink: str = ""


@dataclass(frozen=True, slots=True)
class _Label:
    x: float
    y: int
    label: str


@dataclass(frozen=True, slots=True)
class _Stop:
    x: float
    width: float
    colour: str


@dataclass(frozen=True, slots=True)
class HeatFigure:
    """Layers from left to right, heads from top to bottom; few enough values stand in a table too."""

    cells: tuple[_Cell, ...]
    heads: tuple[_Label, ...]
    ticks: tuple[_Label, ...]
    ramp: tuple[_Stop, ...]
    table: tuple[tuple[str, ...], ...]
    low: str
    high: str
    words: str
    left: int
    width: int
    height: int

    @property
    def has_marks(self) -> bool:
        """Whether a cell has no value, or one outside the range."""
        return any(cell.mark or not cell.colour for cell in self.cells)


def colour_at(share: float, stops: Sequence[str]) -> str:
    """Return the hex colour at `share`, from 0 to 1, of a map."""
    at = min(1.0, max(0.0, share)) * (len(stops) - 1)
    first = min(int(at), len(stops) - 2)
    left, right = (bytes.fromhex(stops[index]) for index in (first, first + 1))
    mixed = bytes(round(a + (b - a) * (at - first)) for a, b in zip(left, right, strict=True))
    return f"#{mixed.hex()}"


def heat_range(values: NDArray[Any], *, signed: bool) -> tuple[float, float]:
    """Return the range that covers most of `values`: from 0 up, or about 0 for signed ones."""
    real = np.abs(values[np.isfinite(values)])
    top = float(np.quantile(real, _SHARE, method="higher")) if real.size else 0.0
    return (-top, top) if signed else (0.0, top)


def heat_figure(
    values: NDArray[Any], *, signed: bool, limits: tuple[float, float] | None = None, head: str = "head"
) -> HeatFigure:
    """Lay out a heatmap.

    Parameters
    ----------
    values
        float [n_layer, n_head]; NaN is "no value".
    signed
        Use the diverging map, about 0.
    limits
        Range of the colours; by default that of the values.
    head
        What a row is called.
    """
    low, high = limits or heat_range(values, signed=signed)
    n_layer, n_head = values.shape
    cells = tuple(
        _cell(values, layer, row, (low, high), signed=signed)
        for layer in range(n_layer)
        for row in range(n_head)
    )
    heads = tuple(_Label(_LEFT - 6, row * _CELL, f"{head} {row}") for row in range(n_head))
    ticks = tuple(
        _Label(_LEFT + layer * _CELL + 6.5, 0, str(layer))
        for layer in range(0, n_layer, 5 if n_layer > 8 else 1)  # noqa: PLR2004 - room for every label up to here
    )
    width = 120 / _RAMP
    stops = VIK if signed else VIRIDIS
    ramp = tuple(
        _Stop(round(i * width, 2), width + 0.5, colour_at(i / (_RAMP - 1), stops)) for i in range(_RAMP)
    )
    return HeatFigure(
        cells=cells,
        heads=heads,
        ticks=ticks,
        ramp=ramp,
        table=tuple(tuple(_short(value) for value in row) for row in values)
        if values.size <= _MOST_IN_TABLE
        else (),
        low=_short(low),
        high=_short(high),
        words=_words(values),
        left=_LEFT,
        width=_LEFT + n_layer * _CELL + 4,
        height=n_head * _CELL + 18,
    )


def _cell(values: NDArray[Any], layer: int, row: int, limits: tuple[float, float], *, signed: bool) -> _Cell:
    value = float(values[layer, row])
    x, y = _LEFT + layer * _CELL, row * _CELL
    words = f"{layer}, {row}: "
    if not math.isfinite(value):
        return _Cell(x, y, "", words + "no value")
    low, high = limits
    share = (value - low) / (high - low) if high > low else 0.5 if signed else 0.0
    colour = colour_at(share, VIK if signed else VIRIDIS)
    mark = ""
    if value > high:
        mark = f"M{x + 8} {y}h5v5z"
    elif value < low:
        mark = f"M{x} {y + 8}v5h5z"
    ink = "#000000" if not signed and share >= 1 else "#ffffff"
    return _Cell(x, y, colour, words + _short(value), mark, ink)


def _short(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}".replace("-", "−")


def _words(values: NDArray[Any]) -> str:
    real = values[np.isfinite(values)]
    if not real.size:
        return "no values"
    layer, head = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
    missing = values.size - real.size
    gap = f"; {missing} without a value" if missing else ""
    largest = _short(float(values[layer, head]))
    return f"median {_short(float(np.median(real)))}, largest {largest} at layer {layer}, head {head}{gap}"
