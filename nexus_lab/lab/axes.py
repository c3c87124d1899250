"""Axes of charts that are drawn here: round ticks, and places for values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.lab.drawing import el

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.lab.drawing import Element

__all__ = ["Axis", "axes", "axis_for"]

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_LARGEST, _LEAST = 1e100, 1e-100  # what lies beyond cannot be reckoned with; a smaller spread is none


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis.

    Attributes
    ----------
    low, high
        Values at its ends.
    start, stop
        Places of the ends, in pixels.
    ticks
        Values at ticks.
    digits
        Decimals of a tick's label.
    title
        What it shows, with its unit.
    """

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    digits: int
    title: str

    def at(self, value: float) -> float:
        """Return the place of a value."""
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """Return a tick's label."""
        return f"{value:,.{self.digits}f}".replace("-", "−")


def axis_for(values: Iterable[float], start: float, stop: float, title: str, *, ticks: int = 5) -> Axis:
    """Return an axis with round ticks that holds `values`, with some room at both ends.

    Values that are not finite, or beyond ±1e100, have no place on it and are left out.
    """
    found = [float(value) for value in values if abs(value) <= _LARGEST]
    low, high = min(found, default=0.0), max(found, default=1.0)
    spread = high - low
    # Relative to the values as well: ticks closer than a float's digits would be one and the same.
    least = max(_LEAST, 1e-12 * max(abs(low), abs(high)))
    room = 0.08 * spread if spread > least else max(0.05 * abs(high), least) if abs(high) > _LEAST else 1.0
    low, high = low - room, high + room
    raw = (high - low) / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in _NICE if nice * power >= raw * 0.999)
    first = math.ceil(low / step)
    marks = tuple(number * step for number in range(first, math.floor(high / step) + 1))
    decimals = max(0, -math.floor(math.log10(step)))
    digits = decimals if math.isclose(step * 10**decimals % 1, 0.0, abs_tol=1e-9) else decimals + 1
    return Axis(low, high, start, stop, marks, digits, title)


def axes(across: Axis, up: Axis) -> list[Element]:
    """Return both axes with grid, labels and titles."""
    left, right, low, high = across.start, across.stop, up.start, up.stop
    parts = [el("path", d=f"M{left:g} {up.at(value):.1f}H{right:g}", class_="dr-grid") for value in up.ticks]
    parts += [
        el("text", up.label(value), x=left - 6, y=up.at(value) + 4, class_="dr-end dr-axis")
        for value in up.ticks
    ]
    parts += [el("path", d=f"M{across.at(value):.1f} {low:g}v4", class_="dr-wire") for value in across.ticks]
    parts += [
        el("text", across.label(value), x=across.at(value), y=low + 16, class_="dr-middle dr-axis")
        for value in across.ticks
    ]
    return [
        *parts,
        el("path", d=f"M{left:g} {high:g}V{low:g}H{right:g}", fill="none", class_="dr-wire"),
        el("text", across.title, x=right, y=low + 32, class_="dr-end dr-axis"),
        el("text", up.title, x=left, y=high - 8, class_="dr-axis"),
    ]
