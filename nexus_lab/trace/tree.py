"""The spans of a session as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.trace.text import duration, mapping_of, sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import polars as pl

__all__ = ["SpanNode", "SpanTree", "build_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanNode:
    """One span with the spans inside it, in the order they opened.

    Attributes
    ----------
    start_ns, duration_ns
        Nanoseconds since the epoch; the length is ``None`` for a span that never ended.
    contents
        Empty unless contents were recorded, and asked for.
    """

    run: str
    turn: int | None
    id: int
    parent: int | None
    kind: str
    name: str
    start_ns: int
    duration_ns: int | None
    status: str
    attributes: Mapping[str, Any]
    contents: Mapping[str, Any]
    children: list[SpanNode] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        """When it ended; for a span that never did, when the last span inside it did."""
        if self.duration_ns is not None:
            return self.start_ns + self.duration_ns
        return max((child.end_ns for child in self.children), default=self.start_ns)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, SpanNode]]:
        """Yield the span and all inside it, each with its depth."""
        stack = [(depth, self)]
        while stack:
            level, node = stack.pop()
            yield level, node
            stack.extend((level + 1, child) for child in reversed(node.children))


@dataclass(frozen=True, slots=True)
class SpanTree:
    """All spans of a session, by root."""

    roots: tuple[SpanNode, ...]

    def __iter__(self) -> Iterator[SpanNode]:
        return iter(self.roots)

    def __len__(self) -> int:
        return len(self.roots)

    def walk(self) -> Iterator[tuple[int, SpanNode]]:
        """Yield every span with its depth."""
        for root in self.roots:
            yield from root.walk()

    def to_text(self, *, rows: int = 40) -> str:
        """Return the first `rows` spans, indented, with status and duration."""
        lines: list[str] = []
        total = 0
        for depth, node in self.walk():
            total += 1
            if total <= rows:
                length = duration(node.duration_ns)
                lines.append(f"{sign(node.status)} {'  ' * depth}{node.kind}: {node.name}  {length}")
        if total > rows:
            lines.append(f"… showing first {rows:,} of {total:,} spans")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.to_text()


def build_tree(events: pl.DataFrame) -> SpanTree:
    """Link the rows of an events table; a span whose parent is not in the table is a root."""
    nodes: dict[tuple[str, int], SpanNode] = {}
    for row in _rows(events):
        nodes[row["run"], row["id"]] = _node(row)
    roots = []
    for node in nodes.values():
        parent = nodes.get((node.run, node.parent)) if node.parent is not None else None
        # Ids ascend as spans open; a parent that is not older could only close a circle.
        if parent is None or parent.id >= node.id:
            roots.append(node)
        else:
            parent.children.append(node)
    return SpanTree(tuple(roots))


def _rows(events: pl.DataFrame) -> Iterable[dict[str, Any]]:
    import polars as pl

    plain = events.sort("run", "id").with_columns(
        pl.col("start").to_physical(), pl.col("duration").to_physical()
    )
    return plain.iter_rows(named=True)


def _node(row: Mapping[str, Any]) -> SpanNode:
    return SpanNode(
        run=row["run"],
        turn=row["turn"],
        id=row["id"],
        parent=row["parent"],
        kind=row["kind"] or "",
        name=row["name"] or "",
        start_ns=row["start"] or 0,
        duration_ns=row["duration"],
        status=row["status"] or "",
        attributes=mapping_of(row["attributes"]),
        contents=mapping_of(row["contents"]),
    )
