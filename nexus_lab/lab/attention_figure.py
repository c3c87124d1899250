"""Where replies look: the share of attention by role and age of message, from a study's results."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.bench.attention import ROLES
from nexus_lab.bench.base import ResultFile, ResultsError
from nexus_lab.lab.drawing import Drawing, aligned, el, note, one_line, scroll, table
from nexus_lab.lab.heat import VIRIDIS, colour_at
from nexus_lab.lab.named_path import named_path
from nexus_lab.trace.text import count, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from nexus_lab.bench import AttentionStudy
    from nexus_lab.bench.base import Result
    from nexus_lab.lab.drawing import Element

__all__ = ["AGES", "AttentionFigure", "Looked", "looked_of", "read_looked"]

AGES = ("any", "0", "1", "2", "3-4", "5-8", "9+")
"""Ages in turns, from what came since the last reply; the sink and the system prompt have any."""
_NEXT_STEP = "give what `nexus-lab eval attention --json FILE` wrote"
_CELL, _HIGH, _LEFT, _TOP = 66, 36, 62, 20
_LIGHT = 0.179  # relative luminance above which black has more contrast than white
_RAMP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Messages of one role and age.

    Attributes
    ----------
    share
        Of the attention of a turn that has such messages.
    lift
        That share over their share of the tokens; 1 for what is looked at like anything else.
    low, high, lift_low, lift_high
        95 % intervals over conversations, where there are any.
    n
        Turns.
    """

    role: str
    age: str
    share: float
    lift: float
    low: float | None = None
    high: float | None = None
    lift_low: float | None = None
    lift_high: float | None = None
    n: int | None = None


def looked_of(results: Iterable[Result]) -> tuple[Looked, ...]:
    """Return a study's figures by role and age; others are left out."""
    found: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        role, age = str(result.case.get("role")), str(result.case.get("age"))
        if role in ROLES and age in AGES:
            found.setdefault((role, age), {})[result.metric] = result
    made = []
    for role, age in sorted(found, key=lambda key: (ROLES.index(key[0]), AGES.index(key[1]))):
        share, lift = (found[role, age].get(name) for name in ("attention_share", "attention_lift"))
        if share is not None and lift is not None and isfinite(share.value) and isfinite(lift.value):
            made.append(
                Looked(
                    role=role,
                    age=age,
                    share=share.value,
                    lift=lift.value,
                    low=share.low,
                    high=share.high,
                    lift_low=lift.low,
                    lift_high=lift.high,
                    n=share.n,
                )
            )
    return tuple(made)


def read_looked(path: Path) -> tuple[tuple[Looked, ...], dict[str, Any]]:
    """Return the figures of a result file of the study, and its settings.

    Raises
    ------
    ResultsError
        When it holds none.
    """
    if path.is_dir():
        raise ResultsError(f"{path} is a folder", next_step=_NEXT_STEP)
    file = ResultFile.read(path)
    found = looked_of(file.results)
    if not found:
        raise ResultsError(f"{path} holds no attention by role and age", next_step=_NEXT_STEP)
    return found, dict(file.settings)


@dataclass(frozen=True, repr=False)
class AttentionFigure(Drawing):
    """Share of attention by role and age: colour for the share, below it how much more than its tokens' part.

    Attributes
    ----------
    looked
        The figures.
    model, policy
        What they were measured with; empty where nobody knows.
    path
        Where they are from.
    problem
        Why there are none.
    """

    title: ClassVar[str] = "Attention by role and age"

    looked: tuple[Looked, ...] = ()
    model: str = ""
    policy: str = ""
    path: str = ""
    problem: str = ""
    live: bool = False

    @classmethod
    def of(cls, source: AttentionStudy | str | Path) -> AttentionFigure:
        """Return the figure of a study, or of its result file.

        Raises
        ------
        ResultsError, PathRefused
            When there is no attention in it, or no file can be called so.
        """
        path = isinstance(source, str | Path)
        if isinstance(source, str | Path):
            looked, settings = read_looked(named_path(source))
        else:
            looked, settings = looked_of(source.figures), dict(source.settings)
        return cls(
            looked,
            model=str(settings.get("model", "")),
            policy=str(settings.get("policy", "")),
            path=str(source) if path else "",
        )

    # -- drawn --------------------------------------------------------------------------------------------

    def element(self) -> Element:
        """Return the map, its key, and the values as a table."""
        return el(
            "div",
            self._form() if self.live else None,
            note("bad", self.problem) if self.problem else None,
            el("p", self.words(), class_="small" if self.looked else "small muted"),
            scroll(self._svg(), label="Attention, drawn") if self.looked else None,
            _key(self._most()) if self.looked else None,
            self._table() if self.looked else None,
            class_="dr",
        )

    def _form(self) -> Element:
        path = el("input", type="text", name="attention", value=self.path, placeholder="attention.json")
        field = el("label", el("span", "Result file of the study"), path, class_="f dr-wide")
        return el("div", field, class_="row dr-form")

    def words(self) -> str:
        """Return what is looked at most, in a sentence."""
        if not self.looked:
            return "No study yet: name a result of the attention study."
        outside = [item for item in self.looked if item.role not in {"sink", "self"}] or list(self.looked)
        most = max(outside, key=lambda item: item.lift)
        least = min(outside, key=lambda item: item.lift)
        told = (self.model, self.policy and f"policy {self.policy}")
        how = ", ".join(one_line(part) for part in told if part)
        return (
            f"Per token, {_name(most)} gets most attention, {number(most.lift, 2)} times the average, and "
            f"{_name(least)} least, {number(least.lift, 2)} times{f' ({how})' if how else ''}."
        )

    def _most(self) -> float:
        """Return the end of the colours: the sink alone would hide everything else."""
        return max((item.share for item in self.looked if item.role != "sink"), default=0.0) or 1.0

    def _svg(self) -> Element:
        roles = [role for role in ROLES if any(item.role == role for item in self.looked)]
        ages = [age for age in AGES if any(item.age == age for item in self.looked)]
        width, height = _LEFT + _CELL * len(ages) + 4, _TOP + _HIGH * len(roles) + 24
        found = {(item.role, item.age): item for item in self.looked}
        parts: list[Element] = []
        for row, role in enumerate(roles):
            y = _TOP + row * _HIGH
            parts.append(el("text", role, x=_LEFT - 8, y=y + _HIGH / 2 + 4, class_="dr-end"))
            for column, age in enumerate(ages):
                parts += self._cell(found.get((role, age)), _LEFT + column * _CELL, y)
        parts += [
            el("text", age, x=_LEFT + _CELL * (column + 0.5), y=_TOP - 7, class_="dr-middle dr-axis")
            for column, age in enumerate(ages)
        ]
        foot = "age of the message in turns"
        parts.append(el("text", foot, x=width - 4, y=height - 8, class_="dr-end dr-axis"))
        return el(
            "svg",
            *parts,
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
            role="img",
            aria_label=f"Share of attention by role and age. {self.words()}",
        )

    def _cell(self, item: Looked | None, x: float, y: float) -> list[Element]:
        if item is None:
            return [el("rect", x=x, y=y, width=_CELL - 2, height=_HIGH - 2, class_="dr-none")]
        share = min(1.0, item.share / self._most())
        colour = colour_at(share, VIRIDIS)
        ink = "dr-on-light" if _luminance(colour) > _LIGHT else "dr-on-dark"
        middle = x + _CELL / 2 - 1
        words = f"{_name(item)}: {_percent(item)} of the attention, {_lift(item)} per token"
        above = el("path", d=f"M{x + _CELL - 10} {y}h8v8z", class_=ink) if item.share > self._most() else None
        return [
            el(
                "rect",
                el("title", words),
                x=x,
                y=y,
                width=_CELL - 2,
                height=_HIGH - 2,
                fill=colour,
            ),
            el("text", f"{100 * item.share:.1f} %", x=middle, y=y + 15, class_=f"dr-middle {ink}"),
            el("text", f"{number(item.lift, 2)}×", x=middle, y=y + 28, class_=f"dr-middle {ink}"),
            *([above] if above is not None else []),
        ]

    def _table(self) -> Element:
        head = ("role", "age in turns", "share of attention", "lift over its tokens", "turns")
        rows = ((item.role, item.age, _percent(item), _lift(item), count(item.n)) for item in self.looked)
        made = table(head, rows, label="Attention by role and age", right=(2, 3, 4))
        return el("details", el("summary", "All values, with 95 % intervals"), made)

    # -- told ---------------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the values as text."""
        if not self.looked:
            return self.problem or self.words()
        rows = [(item.role, item.age, _percent(item), _lift(item), count(item.n)) for item in self.looked]
        return f"{self.words()}\n{aligned(('role', 'age', 'share', 'lift', 'turns'), rows)}"

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each role and age."""
        import polars as pl

        numbers = ("share", "low", "high", "lift", "lift_low", "lift_high")
        schema = {"role": pl.String, "age": pl.String, **dict.fromkeys(numbers, pl.Float64), "n": pl.Int64}
        rows = [{name: getattr(item, name) for name in schema} for item in self.looked]
        return pl.DataFrame(rows, schema=schema)


def _luminance(colour: str) -> float:
    """Return the relative luminance of a hex colour, 0 to 1, as the WCAG define it."""
    parts = (value / 255 for value in bytes.fromhex(colour.removeprefix("#")))
    red, green, blue = (_linear(part) for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    """Return a channel of sRGB as light; the constants are sRGB's."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - as above


def _name(item: Looked) -> str:
    return item.role if item.age == "any" else f"{item.role} of age {item.age}"


def _percent(item: Looked) -> str:
    told = f"{100 * item.share:.1f} %"
    if item.low is None or item.high is None:
        return told
    return f"{told} [{100 * item.low:.1f}, {100 * item.high:.1f}]"


def _lift(item: Looked) -> str:
    told = f"{number(item.lift, 2)}×"
    if item.lift_low is None or item.lift_high is None:
        return told
    return f"{told} [{number(item.lift_low, 2)}, {number(item.lift_high, 2)}]"


def _key(most: float) -> Element:
    """Return the colours with their range, and what the marks mean."""
    width = 120 / _RAMP
    ramp = (
        el(
            "rect",
            x=place * width,
            width=width + 0.5,
            height=10,
            fill=colour_at(place / (_RAMP - 1), VIRIDIS),
        )
        for place in range(_RAMP)
    )
    bar = el("svg", *ramp, width=120, height=10, viewBox="0 0 120 10", aria_hidden="true")
    words = (
        f" 0 to {100 * most:.1f} % of the attention; corner: above the range; lower number: attention per "
        "token over the average; empty: no such messages"
    )
    return el("div", el("span", bar, words, class_="dr-key"), class_="dr-legend small")
