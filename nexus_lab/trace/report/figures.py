"""The geometry of the report's small figures; `figures.html.j2` draws them.

Lengths are percentages, so that a figure fits its cell without scaling its patterns, and so that no style
attribute is needed, which the page's content policy would refuse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.trace.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexus_lab.trace.report.programs import Segment

__all__ = [
    "Bar",
    "Cell",
    "Heatmap",
    "MarginBar",
    "Piece",
    "Strip",
    "bar",
    "heatmap",
    "margin_bar",
    "mark",
    "strip",
    "viridis",
]

_VIRIDIS = (
    "440154",
    "482878",
    "3e4989",
    "31688e",
    "26828e",
    "1f9e89",
    "35b779",
    "6ece58",
    "b5de2b",
    "fde725",
)
# The strip's drawing area for positions, in pixels from its top.
_POSITION_TOP, _POSITION_BOTTOM = 37, 92
_VISIBLE = 0.01  # of a time line


@dataclass(frozen=True, slots=True)
class Bar:
    """A filled part of a track; `kind` names the fill."""

    start: str
    width: str
    kind: str


@dataclass(frozen=True, slots=True)
class MarginBar:
    """A margin on a scale, with a tick at tau."""

    width: str
    tick: str
    under: bool
    beyond: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of tokens of one state; the heights are those of its first and last position."""

    state: str
    start: str
    width: str
    stop: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Strip:
    """Logical tokens by state, and the position of each."""

    pieces: tuple[Piece, ...]
    ticks: tuple[tuple[str, str], ...]
    total: str
    top: str
    words: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One layer and head; `colour` is empty where there is no value."""

    x: int
    y: int
    colour: str
    above: bool


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Layers x heads."""

    cells: tuple[Cell, ...]
    layers: int
    heads: int
    top: str
    words: str
    rows: tuple[tuple[str, ...], ...]


def _percent(value: float) -> str:
    return f"{min(100.0, max(0.0, 100 * value)):.3f}".rstrip("0").rstrip(".") + "%"


def bar(share: float | None, *, start: float = 0.0, kind: str = "data") -> Bar:
    """Return a bar over `share` of its track."""
    filled = share if share is not None and math.isfinite(share) else 0.0
    return Bar(_percent(start), _percent(filled), kind)


def mark(share: float, *, start: float, kind: str) -> Bar:
    """Return a bar that is never thinner than two pixels, so that a moment can be seen."""
    return Bar(_percent(min(start, 0.998)), _percent(share) if share > _VISIBLE else "2", kind)


def margin_bar(margin: float, tau: float, *, scale: float) -> MarginBar:
    """Return the margin as a bar that is full at `scale`."""
    return MarginBar(_percent(margin / scale), _percent(tau / scale), margin < tau, margin > scale)


def strip(segments: Sequence[Segment]) -> Strip | None:
    """Return the strip of `segments`; ``None`` when there is nothing to draw."""
    total = max((segment.stop for segment in segments), default=0)
    top = max((segment.position + segment.stop - segment.start for segment in segments), default=0)
    if not total or not top:
        return None

    def height(position: float) -> str:
        return f"{_POSITION_BOTTOM - (_POSITION_BOTTOM - _POSITION_TOP) * position / top:.1f}"

    pieces = tuple(
        Piece(
            state=segment.state,
            start=_percent(segment.start / total),
            width=_percent((segment.stop - segment.start) / total),
            stop=_percent(segment.stop / total),
            first=height(segment.position),
            last=height(segment.position + segment.stop - segment.start),
        )
        for segment in segments
    )
    step = _step(total)
    ticks = tuple((_percent(at / total), count(at)) for at in range(step, total - step // 2, step))
    return Strip(pieces, ticks, count(total), count(top), _strip_words(segments))


def _step(total: int) -> int:
    """Return a round distance of ticks, about five of them."""
    rough = max(1, total / 5)
    power: int = 10 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _strip_words(segments: Iterable[Segment]) -> str:
    sizes: dict[str, int] = {}
    for segment in segments:
        sizes[segment.state] = sizes.get(segment.state, 0) + segment.stop - segment.start
    return ", ".join(f"{state} {count(size)}" for state, size in sizes.items())


def heatmap(values: Mapping[tuple[int, int], float | None]) -> Heatmap:
    """Return layers x heads in viridis from 0 up; the range ends where 98 % of the cells do."""
    layers = max((layer for layer, _ in values), default=-1) + 1
    heads = max((head for _, head in values), default=-1) + 1
    real = sorted(value for value in values.values() if value is not None and not math.isnan(value))
    top = real[min(len(real) - 1, int(0.98 * len(real)))] if real else 0.0
    cells = tuple(_cell(layer, head, value, top) for (layer, head), value in sorted(values.items()))
    grid = tuple(
        (str(layer), *(_short(values.get((layer, head))) for head in range(heads))) for layer in range(layers)
    )
    return Heatmap(cells, layers, heads, f"{top:.3g}", _heat_words(values, real), grid)


def _cell(layer: int, head: int, value: float | None, top: float) -> Cell:
    if value is None or math.isnan(value):
        return Cell(layer, head, "", above=False)
    return Cell(layer, head, "#" + viridis(value / top if top > 0 else 0.0), above=value > top)


def _short(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _heat_words(values: Mapping[tuple[int, int], float | None], real: Sequence[float]) -> str:
    if not real:
        return "no values"
    layer, head = next(key for key, value in values.items() if value == real[-1])
    missing = len(values) - len(real)
    gap = f"; {missing} without a value" if missing else ""
    return f"median {real[len(real) // 2]:.3g}, largest {real[-1]:.3g} at layer {layer}, head {head}{gap}"


def viridis(share: float) -> str:
    """Return the hex colour at `share`, from 0 to 1, of the sequential map."""
    at = min(1.0, max(0.0, share)) * (len(_VIRIDIS) - 1)
    low = min(int(at), len(_VIRIDIS) - 2)
    left, right = (bytes.fromhex(_VIRIDIS[index]) for index in (low, low + 1))
    return bytes(round(a + (b - a) * (at - low)) for a, b in zip(left, right, strict=True)).hex()
