"""The Pareto front of cache policies: how likely the real replies stayed, against what it cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nexus_lab.bench.base import ResultsError
from nexus_lab.lab.axes import axes, axis_for
from nexus_lab.lab.drawing import Drawing, aligned, el, note, one_line, scroll, table
from nexus_lab.lab.named_path import named_path
from nexus_lab.lab.pareto_points import points_of, read_priced
from nexus_lab.lab.policy_form import OFFERED
from nexus_lab.policy_text import PolicyTextError, parse_policy
from nexus_lab.trace.text import count, number, sentence

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.bench import CacheSweep, PolicySearch
    from nexus_lab.cache.costs import Prices
    from nexus_lab.lab.axes import Axis
    from nexus_lab.lab.drawing import Child, Element
    from nexus_lab.lab.pareto_points import PolicyPoint

__all__ = ["ParetoFront"]

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _LOW = 62.0, 540.0, 28.0, 276.0


@dataclass(frozen=True, repr=False)
class ParetoFront(Drawing):
    """Policies by quality and cost, the front as a line; what stands on it is numbered, cheapest first.

    Attributes
    ----------
    points
        As `nexus_lab.lab.pareto_points.marked_front` returns them.
    path
        Where they are from.
    problem
        Why there are none.
    prices
        What a unit costs; ``None`` where the file does not say.
    defaulted
        Whether these are the default ones, because the source is a folder and holds none.
    """

    title: ClassVar[str] = "Pareto front"

    points: tuple[PolicyPoint, ...] = ()
    path: str = ""
    problem: str = ""
    live: bool = False
    prices: Prices | None = None
    defaulted: bool = False

    @classmethod
    def of(
        cls, source: CacheSweep | PolicySearch | str | Path, *, prices: Prices | None = None
    ) -> ParetoFront:
        """Return the front of a replay, of a search, or of what is kept of one.

        Parameters
        ----------
        source
            A result, a result file, or the folder of a replay or a search; a folder has intervals.
        prices
            What a unit costs in a folder, which holds counts alone; ``None`` takes the default prices. Other
            sources have costs, at prices of their own.

        Raises
        ------
        ResultsError, SweepError, PathRefused
            When there are no policies in it, no file can be called so, or its costs are at other prices than
            those asked for.
        """
        if isinstance(source, str | Path):
            path = named_path(source)
            points, priced = read_priced(path, prices)
            return cls(points, str(source), prices=priced, defaulted=prices is None and path.is_dir())
        if prices is not None and prices != source.prices:
            raise ResultsError(
                "this result has costs at other prices", next_step="replace its prices, or give none"
            )
        return cls(points_of(source), prices=source.prices)

    @property
    def front(self) -> tuple[PolicyPoint, ...]:
        """The policies that no other beats in both, cheapest first."""
        return tuple(point for point in self.points if point.on_front)

    # -- drawn --------------------------------------------------------------------------------------------

    def element(self) -> Element:
        """Return the chart and its points as a table."""
        return el(
            "div",
            self._form() if self.live else None,
            note("bad", self.problem) if self.problem else None,
            el("p", self.words(), class_="small" if self.points else "small muted"),
            scroll(self._svg(), label="Front, drawn") if self.points else None,
            self._table() if self.points else None,
            class_="dr",
        )

    def _form(self) -> Element:
        path = el("input", type="text", name="front", value=self.path, placeholder="results.json or folder")
        field = el("label", el("span", "Result file or folder"), path, class_="f dr-wide")
        return el("div", field, class_="row dr-form")

    def words(self) -> str:
        """Return the front in a sentence."""
        if not self.points:
            return "No policies yet: name a result of an evaluation or a search of cache policies."
        names = ", ".join(one_line(point.policy) for point in self.front)
        sure = (
            "" if any(point.cost_low is not None for point in self.points) else "; no intervals in this file"
        )
        n = len(self.points)
        whole = f"{n} {'policy' if n == 1 else 'policies'}"
        return f"{len(self.front)} of {whole} on the front: {names}{sure}. {sentence(self.price_words())}"

    def price_words(self) -> str:
        """Return what the costs are at."""
        if self.prices is None:
            return "cost at prices that the file does not say"
        told = ", ".join(f"{name} {price:g}" for name, price in self.prices.to_dict().items() if price)
        return f"cost at default prices: {told}" if self.defaulted else f"cost at {told or 'no price at all'}"

    def _svg(self) -> Element:
        costs = [value for point in self.points for value in (point.cost, point.cost_low, point.cost_high)]
        nlls = [value for point in self.points for value in (point.nll, point.nll_low, point.nll_high)]
        across = axis_for(
            (value for value in costs if value is not None), _LEFT, _RIGHT, f"{self.price_words()} →"
        )
        up = axis_for((value for value in nlls if value is not None), _LOW, _TOP, "NLL, nats per token")
        numbers = {id(point): place for place, point in enumerate(self.front, start=1)}
        bars = [bar for point in self.points for bar in _bars(point, across, up)]
        # Those of the front last, so that none of equal figures hides their numbers.
        points = sorted(self.points, key=lambda point: point.on_front)
        marks = [mark for point in points for mark in _mark(point, across, up, numbers.get(id(point)))]
        return el(
            "svg",
            *axes(across, up),
            el("path", d=_stairs(self.front, across, up), class_="dr-front"),
            *bars,
            *marks,
            width=_WIDTH,
            height=_HEIGHT,
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            role="img",
            aria_label=f"NLL against cost. {self.words()}",
        )

    def _table(self) -> Element:
        places = {point.policy: place for place, point in enumerate(self.front, start=1)}
        numbered = any(point.proposer for point in self.points)
        head = ["policy", "front", "NLL, nats per token", "cost", "n", *(["proposer"] if numbered else [])]
        head += ["knobs"] if self.live else []
        rows: list[list[Child]] = []
        for point in sorted(self.points, key=lambda item: (not item.on_front, item.cost)):
            row: list[Child] = [
                el("code", point.policy),
                str(places[point.policy]) if point.on_front else "–",
                *_figures(point),
                count(point.n),
            ]
            row += [point.proposer or "–"] if numbered else []
            row += [_loader(point.policy)] if self.live else []
            rows.append(row)
        return table(head, rows, label="Policies, the front first", right=(1, 2, 3, 4))

    # -- told ---------------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the points as text, the front first."""
        if not self.points:
            return self.problem or self.words()
        rows = [
            (point.policy, "front" if point.on_front else "", *_figures(point), count(point.n))
            for point in sorted(self.points, key=lambda item: (not item.on_front, item.cost))
        ]
        return f"{self.words()}\n{aligned(('policy', '', 'NLL/token', 'cost', 'n'), rows)}"

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each policy, cheapest first."""
        import polars as pl

        numbers = ("nll", "nll_low", "nll_high", "cost", "cost_low", "cost_high")
        schema = {
            "policy": pl.String,
            **dict.fromkeys(numbers, pl.Float64),
            "n": pl.Int64,
            "proposer": pl.String,
            "on_front": pl.Boolean,
        }
        rows = [{name: getattr(point, name) for name in schema} for point in self.points]
        return pl.DataFrame(rows, schema=schema)


def _loader(policy: str) -> Child:
    """Return a button that puts a policy into the knobs; none for what runs code or means nothing here."""
    try:
        spec = parse_policy(policy)
    except PolicyTextError:
        return "–"
    if spec.name not in OFFERED:
        return "–"
    values = {"policy": spec.name}
    values |= {f"knob.{spec.name}.{name}": _field(value) for name, value in spec.options.items()}
    return el(
        "button",
        "Load",
        type="button",
        class_="btn",
        aria_label=f"Load {policy}",
        data_set=json.dumps(values),
    )


def _field(value: int | bool | str) -> str:  # noqa: FBT001 - a knob's value
    return ("yes" if value else "") if isinstance(value, bool) else str(value)


def _figures(point: PolicyPoint) -> tuple[str, str]:
    return (
        _with_interval(point.nll, point.nll_low, point.nll_high, 4),
        _with_interval(point.cost, point.cost_low, point.cost_high, 0),
    )


def _with_interval(value: float, low: float | None, high: float | None, digits: int) -> str:
    told = number(value, digits)
    return told if low is None or high is None else f"{told} [{number(low, digits)}, {number(high, digits)}]"


def _bars(point: PolicyPoint, across: Axis, up: Axis) -> list[Element]:
    x, y = across.at(point.cost), up.at(point.nll)
    parts = []
    if point.cost_low is not None and point.cost_high is not None:
        left, right = across.at(point.cost_low), across.at(point.cost_high)
        parts.append(el("path", d=f"M{left:.1f} {y:.1f}H{right:.1f}", class_="dr-interval"))
    if point.nll_low is not None and point.nll_high is not None:
        low, high = up.at(point.nll_low), up.at(point.nll_high)
        parts.append(el("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}", class_="dr-interval"))
    return parts


def _mark(point: PolicyPoint, across: Axis, up: Axis, place: int | None) -> list[Element]:
    x, y = across.at(point.cost), up.at(point.nll)
    words = el("title", f"{point.policy}: NLL {number(point.nll)}, cost {count(point.cost)}")
    kind = "dr-point" if place is None else "dr-point dr-best"
    parts = [el("circle", words, cx=x, cy=y, r=4 if place is None else 8, class_=kind)]
    if place is not None:
        parts.append(el("text", str(place), x=x, y=y + 4, class_="dr-letter"))
    return parts


def _stairs(front: tuple[PolicyPoint, ...], across: Axis, up: Axis) -> str:
    """Return the front as steps: what can be had at a cost, or for more."""
    if not front:
        return "M0 0"
    first, *rest = front
    steps = "".join(f"H{across.at(point.cost):.1f}V{up.at(point.nll):.1f}" for point in rest)
    start = f"M{across.at(first.cost):.1f} {up.stop:g}V{up.at(first.nll):.1f}"
    return f"{start}{steps}H{across.stop:g}"
