"""The op tree as a drawing: what programs share, and where each node's rows are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.lab.drawing import OP_LETTERS, Drawing, aligned, el, op_mark, pattern, scroll, table
from nexus_lab.lab.tree_shot import shoot, steps_of
from nexus_lab.trace.text import count, plural

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.cache import ProgramRunner
    from nexus_lab.lab.drawing import Element
    from nexus_lab.lab.tree_shot import Branch, TreeShot

__all__ = ["PLACE_LETTERS", "PLACE_WORDS", "TreeDrawing", "place_legend", "thinned"]

PLACE_LETTERS = {"live": "L", "host": "H", "disk": "F", "gone": "G"}
"""Letters of where rows are; on disk they are files."""
PLACE_WORDS = {
    "live": "on a live sequence",
    "host": "host snapshot in the arena",
    "disk": "file on disk",
    "gone": "gone",
}
_WIDTH, _HEIGHT, _STEP, _ROW = 40, 48, 52, 66
_HEAD, _BAND = 16, 14
_LABEL = 190
_MOST = 120
_LARGE = 10_000


@dataclass(frozen=True, slots=True)
class _Gap:
    """Nodes that are not drawn, in a chain."""

    nodes: int
    tokens: int


def thinned(shot: TreeShot, most: int = _MOST) -> tuple[list[Branch], dict[int, _Gap], int]:
    """Return the nodes to draw where there are more than `most`.

    Kept are the ends, where programs part, the cursor, and what was used last. What is left out between two
    of them is a gap.

    Returns
    -------
    branches
        Nodes to draw, their parents the next drawn ones above.
    gaps
        What is left out right above a node, by its number.
    hidden
        Nodes that are left out with all that is below them.
    """
    if len(shot.branches) <= most:
        return list(shot.branches), {}, 0
    by_node = {branch.node: branch for branch in shot.branches}
    below: dict[int, list[Branch]] = {}
    for branch in shot.branches:
        below.setdefault(branch.parent, []).append(branch)

    def rank(branch: Branch) -> tuple[bool, bool, bool, int]:
        parts = len(below.get(branch.node, ())) != 1 or branch.parent == 0
        return (branch.here, branch.own and parts, parts, branch.used_at)

    wanted = {branch.node for branch in sorted(shot.branches, key=rank, reverse=True)[:most]}
    kept, gaps, reached = [], dict[int, _Gap](), set[int]()
    for branch in shot.branches:
        if branch.node not in wanted:
            continue
        at = by_node.get(branch.parent)
        skipped: list[Branch] = []
        while at is not None and at.node not in wanted:
            skipped.append(at)
            reached.add(at.node)
            at = by_node.get(at.parent)
        if skipped:
            gaps[branch.node] = _Gap(len(skipped), sum(item.tokens for item in skipped))
        kept.append(replace(branch, parent=0 if at is None else at.node))
    return kept, gaps, len(shot.branches) - len(kept) - len(reached)


@dataclass(frozen=True, repr=False)
class TreeDrawing(Drawing):
    """The op tree: shared beginnings from the left, a row for each program.

    Attributes
    ----------
    shot
        What is drawn.
    selected
        A node that is marked.
    most
        Most nodes that are drawn.
    live
        States of the live program can be chosen.
    """

    title: ClassVar[str] = "Op tree"

    shot: TreeShot
    selected: int | None = None
    most: int = _MOST
    live: bool = False

    @classmethod
    def of(cls, runner: ProgramRunner) -> TreeDrawing:
        """Return the tree of a runner and of all that share its store; takes the engine's turn."""
        nodes = runner.residency().nodes
        steps = steps_of(runner.timeline)
        return cls(shoot(runner.store.tree, nodes, steps, runner.cursor, name="this program"))

    # -- drawn --------------------------------------------------------------------------------------------

    def element(self) -> Element:
        """Return the tree, its legend, and its nodes as a table."""
        if not self.shot.branches:
            return el("p", "Nothing is in the tree yet.", class_="muted")
        drawn, gaps, hidden = thinned(self.shot, self.most)
        return el(
            "div",
            el("p", self.words(), class_="small"),
            scroll(self._svg(drawn, gaps), label="Op tree, drawn"),
            el("p", f"{plural(hidden, 'node')} not drawn; the table has all of them.", class_="small muted")
            if hidden
            else None,
            place_legend(),
            self._table(),
            class_="dr",
        )

    def words(self) -> str:
        """Return the tree in a sentence."""
        branches = self.shot.branches
        shared = sum(branch.tokens for branch in branches if branch.shared > 1 and not _changes(branch))
        lost = sum("gone" in branch.places for branch in branches)
        gone = f"; the rows of {plural(lost, 'node')} are gone" if lost else ""
        held = sum(bool(branch.entry) for branch in branches)
        return (
            f"{plural(self.shot.programs, 'program')} in {plural(len(branches), 'node')}, "
            f"{plural(held, 'state')} held; {plural(shared, 'token')} shared{gone}."
        )

    def _svg(self, drawn: list[Branch], gaps: dict[int, _Gap]) -> Element:
        places = _placed(drawn)
        columns = 1 + max(column for column, _ in places.values())
        rows = 1 + max(row for _, row in places.values())
        width, height = columns * _STEP + _LABEL, rows * _ROW
        below = {branch.parent for branch in drawn}
        parts: list[Element] = []
        for branch in drawn:
            parts += _edge(places, branch)
        for branch in drawn:
            parts.append(self._node(branch, *_corner(places[branch.node])))
            if branch.node in gaps:
                parts.append(_gap(gaps[branch.node], *_corner(places[branch.node])))
            if branch.name:
                parts.append(_name(branch, *_corner(places[branch.node]), last=branch.node not in below))
        return el(
            "svg",
            *parts,
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
            role="group",
            aria_label=f"Op tree: {self.words()}",
        )

    def _node(self, branch: Branch, x: float, y: float) -> Element:
        faded = branch.tokens > 0 and branch.dropped == branch.tokens and not _changes(branch)
        hollow = branch.kind.value == "drop" or faded or "gone" in branch.places
        picked = branch.node == self.selected
        selectable = self.live and branch.op is not None
        return el(
            "g",
            el("title", _told(branch)),
            el("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, class_="dr-ground"),
            *op_mark(branch.kind.value, x, y, _WIDTH, _HEAD, filled=not faded),
            el("text", _short(branch), x=x + _WIDTH / 2, y=y + 28, class_="dr-middle"),
            *_band(branch.places, x, y + _HEIGHT - _BAND),
            el(
                "rect",
                x=x,
                y=y,
                width=_WIDTH,
                height=_HEIGHT,
                class_=f"dr-edge dr-edge-{branch.kind.value}{' dr-hollow' if hollow else ''}",
            ),
            el(
                "rect",
                x=x - 3,
                y=y - 3,
                width=_WIDTH + 6,
                height=_HEIGHT + 6,
                class_="dr-here" if branch.here else "dr-chosen",
            )
            if branch.here or picked
            else None,
            role="button" if selectable else "img" if self.live else None,
            tabindex=0 if selectable else None,
            aria_pressed=("true" if picked else "false") if selectable else None,
            data_set=f'{{"op": "{branch.op}"}}' if selectable else None,
            data_call="cache.plan" if selectable else None,
            class_="dr-pick" if selectable else None,
        )

    def _table(self) -> Element:
        head = ("node", "above", "op", "from", "tokens", "dropped", "rows", "state held", "programs", "ends")
        rows = (
            (
                str(branch.node),
                str(branch.parent) if branch.parent else "root",
                _kind(branch),
                count(branch.start),
                count(branch.tokens),
                count(branch.dropped),
                ", ".join(branch.places),
                ", ".join(branch.entry) or "–",
                count(branch.shared),
                _ends(branch),
            )
            for branch in self.shot.branches
        )
        made = table(head, rows, label="Nodes of the op tree", right=(3, 4, 5, 8))
        return el("details", el("summary", f"All {plural(len(self.shot.branches), 'node')}"), made)

    # -- told ---------------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the tree with a line for each node, what is below it moved in where programs part."""
        below: dict[int, list[Branch]] = {}
        for branch in self.shot.branches:
            below.setdefault(branch.parent, []).append(branch)
        lines: list[tuple[str, ...]] = []
        stack = [(branch, 0) for branch in reversed(below.get(0, []))]
        while stack:
            branch, depth = stack.pop()
            mark = "> " if branch.here else "  "
            lines.append(
                (
                    f"{mark}{'. ' * depth}{OP_LETTERS[branch.kind.value]} {branch.kind.value}",
                    count(branch.tokens),
                    "".join(PLACE_LETTERS[place] for place in branch.places),
                    count(branch.shared),
                    _ends(branch),
                )
            )
            under = below.get(branch.node, [])
            stack += [(item, depth + (len(under) > 1)) for item in reversed(under)]
        legend = ", ".join(f"{letter} {PLACE_WORDS[place]}" for place, letter in PLACE_LETTERS.items())
        return f"{self.words()}\n{aligned(('  op', 'tokens', 'rows', 'programs', 'ends'), lines)}\n{legend}"

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each node of the tree."""
        import polars as pl

        rows = [
            {
                "node": branch.node,
                "parent": branch.parent,
                "op": branch.kind.value,
                "start": branch.start,
                "tokens": branch.tokens,
                "dropped": branch.dropped,
                "places": list(branch.places),
                "entry": list(branch.entry),
                "programs": branch.shared,
                "locks": branch.locks,
                "used_at": branch.used_at,
                "index": branch.op,
                "here": branch.here,
                "own": branch.own,
                "name": branch.name,
            }
            for branch in self.shot.branches
        ]
        words, whole = pl.List(pl.String), pl.Int64
        schema: dict[str, Any] = {
            **dict.fromkeys(("node", "parent"), whole),
            "op": pl.String,
            **dict.fromkeys(("start", "tokens", "dropped"), whole),
            **dict.fromkeys(("places", "entry"), words),
            **dict.fromkeys(("programs", "locks", "used_at", "index"), whole),
            **dict.fromkeys(("here", "own"), pl.Boolean),
            "name": pl.String,
        }
        return pl.DataFrame(rows, schema=schema)


def place_legend() -> Element:
    """Return the marks of where rows are, with their words."""
    items = (
        el(
            "span",
            el("svg", *_band((place,), 0, 0), width=_WIDTH, height=_BAND, aria_hidden="true"),
            f" {PLACE_LETTERS[place]} {words}",
            class_="dr-key",
        )
        for place, words in PLACE_WORDS.items()
    )
    return el("div", *items, class_="dr-legend small")


def _band(places: tuple[str, ...], x: float, y: float) -> list[Element]:
    """Return where rows are, side by side, each with its pattern and its letter."""
    width = _WIDTH / len(places)
    parts: list[Element] = []
    for number, place in enumerate(places):
        left = x + number * width
        parts.append(pattern(place, left, y, width, _BAND))
        parts.append(el("rect", x=left, y=y, width=width, height=_BAND, class_=f"dr-edge dr-edge-{place}"))
        middle = left + width / 2
        parts.append(el("text", PLACE_LETTERS[place], x=middle, y=y + 11, class_=f"dr-tag dr-tag-{place}"))
    return parts


def _placed(drawn: list[Branch]) -> dict[int, tuple[int, int]]:
    """Return column and row of each node: a node stands in the row of its first child, own ones first."""
    below: dict[int, list[Branch]] = {}
    for branch in drawn:
        below.setdefault(branch.parent, []).append(branch)
    for under in below.values():
        under.sort(key=lambda branch: (not branch.own, -branch.used_at))
    places: dict[int, tuple[int, int]] = {}
    stack, row = [(branch, 0, False) for branch in reversed(below.get(0, []))], -1
    while stack:
        branch, column, first = stack.pop()
        row += not first
        places[branch.node] = column, row
        under = below.get(branch.node, [])
        stack += [(item, column + 1, number == 0) for number, item in reversed(list(enumerate(under)))]
    return places


def _corner(place: tuple[int, int]) -> tuple[float, float]:
    return 4.0 + place[0] * _STEP, 5.0 + place[1] * _ROW


def _edge(places: dict[int, tuple[int, int]], branch: Branch) -> list[Element]:
    """Return the line from the node above."""
    if branch.parent not in places:
        return []
    (left, top), (right, low) = _corner(places[branch.parent]), _corner(places[branch.node])
    start, end = top + _HEIGHT / 2, low + _HEIGHT / 2
    bend = right - (_STEP - _WIDTH) / 2
    return [el("path", d=f"M{left + _WIDTH:g} {start:g}H{bend:g}V{end:g}H{right:g}", class_="dr-wire")]


def _name(branch: Branch, x: float, y: float, *, last: bool) -> Element:
    """Return what ends at a node: beside it, or below where others go on."""
    if last:
        return el("text", branch.name, x=x + _WIDTH + 8, y=y + _HEIGHT / 2 + 4)
    return el("text", branch.name, x=x + _WIDTH, y=y + _HEIGHT + 13, class_="dr-end dr-axis")


def _gap(gap: _Gap, x: float, y: float) -> Element:
    words = f"{plural(gap.nodes, 'node')} with {plural(gap.tokens, 'token')} not drawn"
    shown = f"+{gap.nodes}"
    return el("text", el("title", words), shown, x=x - 6, y=y + _HEIGHT / 2 - 6, class_="dr-middle dr-small")


def _changes(branch: Branch) -> bool:
    """Whether it changes tokens that are there, and adds none."""
    return branch.kind.value in {"drop", "repair", "repos"}


def _kind(branch: Branch) -> str:
    return f"{OP_LETTERS[branch.kind.value]} {branch.kind.value}"


def _short(branch: Branch) -> str:
    size = branch.tokens
    if not size:
        return "–"
    return count(size) if size < _LARGE else f"{size / 1000:.0f}k"


def _ends(branch: Branch) -> str:
    words = [f"op {count(branch.op)}"] if branch.op is not None else []
    return "; ".join([*words, *([branch.name] if branch.name else [])])


def _told(branch: Branch) -> str:
    size = f", {plural(branch.tokens, 'token')} from {count(branch.start)}" if branch.tokens else ""
    lost = f", {count(branch.dropped)} of them dropped" if branch.dropped else ""
    rows = " and ".join(PLACE_WORDS[place] for place in branch.places)
    state = f"; its state is kept: {', '.join(branch.entry)}" if branch.entry else ""
    op = f"op {count(branch.op)}: " if branch.op is not None else ""
    shared = f"; {plural(branch.shared, 'program')} through it" if branch.shared > 1 else ""
    here = "; the cursor stands here" if branch.here else ""
    ends = f"; ends {branch.name}" if branch.name else ""
    return f"{op}{branch.kind.value}{size}{lost}; rows {rows}{state}{shared}{ends}{here}"
