"""Drawings that are made here and shown everywhere: on a page without a script, in the live view, as text.

A drawing is a tree of elements. On a page it is HTML; to a view it goes as a tree of lists, which become
elements of the document there, so that no markup is ever parsed and text stays text. Colours come from
classes (``templates/drawn.css``), since they differ by theme; a mark's letter and pattern do not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree import ElementTree as ET

from nexus_lab.trace.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

__all__ = [
    "OP_LETTERS",
    "Drawing",
    "Element",
    "aligned",
    "called",
    "chosen",
    "el",
    "frame_height",
    "html_of",
    "note",
    "one_line",
    "op_mark",
    "pattern",
    "scroll",
    "table",
    "wire_of",
]

Element = ET.Element
Child = Element | str | None

OP_LETTERS = {"append": "A", "splice": "S", "repair": "R", "drop": "D", "repos": "P"}
_BREAKS = re.compile("[\t\n\u2028\u2029]")
_FLAGS = frozenset({"selected", "checked", "disabled", "open", "required"})
_TAGS = frozenset(
    [
        "b",
        "button",
        "code",
        "details",
        "div",
        "h3",
        "h4",
        "input",
        "label",
        "option",
        "p",
        "select",
        "span",
        "summary",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "circle",
        "g",
        "line",
        "path",
        "rect",
        "svg",
        "text",
        "title",
    ]
)


def el(tag: str, /, *children: Child, **attributes: Any) -> Element:
    """Return an element.

    Parameters
    ----------
    children
        Elements and texts, of whatever origin; ``None`` is nothing.
    attributes
        ``class_`` is ``class``; other underscores are hyphens. ``None`` and ``False`` leave one out.
    """
    if tag not in _TAGS:
        raise ValueError(f"no drawing has a {tag}")
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.rstrip("_").replace("_", "-")
            made.set("viewBox" if key == "viewbox" else key, "" if value is True else _written(value))
    for child in children:
        _add(made, child)
    return made


def _add(parent: Element, child: Child) -> None:
    if isinstance(child, str):
        text = visible(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif child is not None:
        parent.append(child)


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return visible(str(value))


def html_of(element: Element) -> str:
    """Return an element as HTML."""
    return ET.tostring(element, encoding="unicode", method="html")


def wire_of(element: Element) -> list[Any]:
    """Return an element as ``DrawnNode`` of the wire: tag, attributes, then texts and elements."""
    attributes = {name: True if name in _FLAGS else value for name, value in element.attrib.items()}
    made: list[Any] = [element.tag, attributes]
    if element.text:
        made.append(element.text)
    for child in element:
        made.append(wire_of(child))
        if child.tail:
            made.append(child.tail)
    return made


# -- what drawings have in common ---------------------------------------------------------------------------


def called(label: str, method: str, *, primary: bool = False, disabled: bool = False) -> Element:
    """Return a button that calls a handler of the view's panel, with the view's values."""
    return el(
        "button",
        label,
        type="button",
        class_="btn primary" if primary else "btn",
        data_call=None if disabled else method,
        aria_disabled="true" if disabled else None,
    )


def chosen(name: str, value: str, options: Iterable[tuple[str, str]], *, call: str | None = None) -> Element:
    """Return a select whose choice becomes the view's value `name`; `options` are values and labels."""
    made = (el("option", label, value=key, selected=key == value) for key, label in options)
    return el("select", *made, name=name, data_call=call)


def note(status: str, *children: Child) -> Element:
    """Return a framed line: ``info``, ``warn`` ("!") or ``bad`` ("×"); the sign goes with the colour."""
    sign = {"warn": "!", "bad": "×", "ok": "✓"}.get(status)
    mark = el("b", f"{sign} ", class_=f"dr-{status}") if sign else None
    return el("div", el("p", mark, *children), class_=f"dr-note dr-{status}-edge")


def table(
    head: Sequence[str], rows: Iterable[Sequence[Child]], *, label: str, right: Iterable[int] = ()
) -> Element:
    """Return a table whose first column names the rows; columns in `right` hold numbers."""
    numbers = frozenset(right)

    def kind(column: int) -> str | None:
        return "r num" if column in numbers else None

    names = (el("th", name, scope="col", class_=kind(column)) for column, name in enumerate(head))
    body = (
        el(
            "tr",
            *(
                el("th", cell, scope="row") if column == 0 else el("td", cell, class_=kind(column))
                for column, cell in enumerate(row)
            ),
        )
        for row in rows
    )
    whole = el("table", el("thead", el("tr", *names)), el("tbody", *body), aria_label=label)
    return scroll(whole, label=label)


def scroll(child: Child, *, label: str) -> Element:
    """Return a box that shows what does not fit by scrolling, with the keys as well."""
    return el("div", child, class_="scroll", role="group", aria_label=label, tabindex=0)


def one_line(text: str) -> str:
    """Return `text` with everything spelled out that could move or mislead a terminal, breaks included."""
    return visible(_BREAKS.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text))


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text, columns two blanks apart; no cell, of whatever origin, breaks its line."""
    lines = [tuple(map(one_line, line)) for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


# -- marks ---------------------------------------------------------------------------------------------------


def _diagonals(width: float, height: float, step: float, *, falling: bool = False) -> str:
    """Return lines at 45 degrees, cut at the edges of a box at 0, 0."""
    parts, start = [], -height
    while start < width:
        left, right = max(0.0, start), min(width, start + height)
        low, high = height - (left - start), height - (right - start)
        if falling:
            low, high = height - low, height - high
        parts.append(f"M{left:.1f} {low:.1f}L{right:.1f} {high:.1f}")
        start += step
    return "".join(parts)


def _lines(length: float, reach: float, step: float, *, upright: bool) -> str:
    count = int(length // step)
    places = [step / 2 + step * number for number in range(count)]
    if upright:
        return "".join(f"M{place:.1f} 0V{reach:.1f}" for place in places)
    return "".join(f"M0 {place:.1f}H{reach:.1f}" for place in places)


def _dots(width: float, height: float, step: float) -> str:
    rows, columns = max(1, int(height // step)), max(1, int(width // step))
    return "".join(
        f"M{step / 2 + step * column:.1f} {step / 2 + step * row:.1f}h.01"
        for row in range(rows)
        for column in range(columns)
    )


def pattern(kind: str, x: float, y: float, width: float, height: float) -> Element:
    """Return the pattern of an op kind, or of where rows are, in a box.

    Solid: append, live. Rising stripes: splice; falling ones: several at once. Dots: repair. Crossed, hollow:
    drop. Upright bars: repos. Level lines: host. Bricks: disk. Empty, dashed: gone. It is drawn, not referred
    to: a fill by reference would need an id that no other view of the page has.
    """
    paths = {
        "splice": _diagonals(width, height, 5),
        "repair": _dots(width, height, 4),
        "drop": _diagonals(width, height, 5) + _diagonals(width, height, 5, falling=True),
        "repos": _lines(width, height, 5, upright=True),
        "host": _lines(height, width, 3, upright=False),
        "disk": _lines(height, width, 4, upright=False) + _lines(width, height, 6, upright=True),
        "joined": _diagonals(width, height, 5, falling=True),
    }
    path = paths.get(kind)
    return el(
        "g",
        el("rect", width=width, height=height, class_=f"dr-wash-{kind}"),
        el("path", d=path, class_=f"dr-line-{kind}") if path else None,
        transform=f"translate({_written(float(x))} {_written(float(y))})",
        aria_hidden="true",
    )


def op_mark(
    kind: str, x: float, y: float, width: float, height: float, *, filled: bool = True
) -> list[Element]:
    """Return the head of an operation: letter on its colour, and pattern; what is dropped is not filled."""
    side = min(width, 14.0)
    return [
        pattern(kind if filled else "drop", x, y, width, height),
        el("rect", x=x, y=y, width=side, height=height, class_=f"dr-ink-{kind}"),
        el("text", OP_LETTERS[kind], x=x + side / 2, y=y + height / 2 + 4, class_="dr-letter"),
    ]


# -- how high a frame has to be ------------------------------------------------------------------------------

_LEAST_HIGH, _MOST_HIGH = 140, 960
_HEADINGS = 72
_LINE, _ROW, _FORM, _GAP = 19, 29, 44, 8
_CHARACTERS = 96  # of a line, in the narrowest cell of a notebook
_BLOCKS = frozenset(["div", "p", "h3", "h4", "svg", "details", "table"])


def frame_height(element: Element) -> int:
    """Return about how many pixels a drawing needs on a page of its own, which cannot say so by itself.

    What is folded counts as folded. A drawing that is very high is scrolled within its frame.
    """
    return min(_MOST_HIGH, max(_LEAST_HIGH, _HEADINGS + round(_high(element))))


def _high(element: Element) -> float:
    if element.tag == "svg":
        return float(element.get("height") or 0)
    if element.tag == "table":
        return sum(map(_row_high, element.iter("tr"))) + _LINE
    if element.tag == "details" and element.get("open") is None:
        return _ROW
    if "row" in (element.get("class") or "").split():
        return _FORM
    blocks = [child for child in element if child.tag in _BLOCKS]
    inline = (element.text or "", *(_inline(child) for child in element))
    lines = -(-sum(map(len, inline)) // _CHARACTERS)
    own = _LINE * lines + (_LINE // 2 if element.tag in {"p", "h3", "h4"} else 0)
    return own + sum(_high(child) + _GAP for child in blocks)


def _inline(element: Element) -> str:
    """Return the text of an element that stands within a line, with what follows it."""
    own = "" if element.tag in _BLOCKS else "".join(element.itertext())
    return own + (element.tail or "")


def _row_high(row: Element) -> float:
    drawn = max((float(item.get("height") or 0) for item in row.iter("svg")), default=0.0)
    return _ROW + drawn


# -- a drawing -----------------------------------------------------------------------------------------------


class Drawing:
    """Something that shows itself as a page, as text and as a table."""

    title: ClassVar[str] = ""

    def element(self) -> Element:
        """Return what is drawn."""
        raise NotImplementedError

    def to_text(self) -> str:
        """Return it as text, for where nothing can be drawn."""
        raise NotImplementedError

    def to_frame(self) -> pl.DataFrame:
        """Return its values as a table."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return it as a fragment for a page, with its title."""
        return html_of(el("div", el("h3", self.title), self.element(), class_="dr-part"))

    def _repr_html_(self) -> str:
        from nexus_lab.lab.static_html import embedded, page

        document = page(self.title, [f"<section>{self.to_html()}</section>"], small=True)
        return embedded(document, height=frame_height(self.element()))

    def __str__(self) -> str:
        return visible(self.to_text())

    def __repr__(self) -> str:
        return visible(self.to_text())
