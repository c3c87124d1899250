"""Two runs side by side: measures, and spans paired by kind, name and order within the turn."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from nexus_lab.agent.base import EventKind
from nexus_lab.errors import NexusError
from nexus_lab.trace import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexus_lab.trace import SpanNode

__all__ = ["Comparison", "Measure", "RunMissing", "SpanPair", "compare_runs", "session_of_run"]

# Points in time that pair nothing worth reading.
_MOMENTS = frozenset({EventKind.GATE, EventKind.MESSAGE, EventKind.DECLINE, EventKind.CORRECTION})


class RunMissing(NexusError):
    """The session has no such run."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of both runs; ``None`` where a run has none."""

    name: str
    unit: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class SpanPair:
    """A span of one run and its counterpart, in ms; ``None`` where only the other run has it."""

    turn: int
    depth: int
    name: str
    a_ms: float | None
    b_ms: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, as ``Comparison`` of the wire."""

    a: str
    b: str
    note: str
    measures: tuple[Measure, ...]
    pairs: tuple[SpanPair, ...]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per pair."""
        columns = ("turn", "depth", "name", "a_ms", "b_ms")
        return pl.DataFrame({name: [getattr(pair, name) for pair in self.pairs] for name in columns})


def session_of_run(session: Session, run: str) -> Session:
    """Return the part of `session` that is one run.

    Raises
    ------
    RunMissing
        When it has no such run.
    """
    runs = tuple(item for item in session.manifest.runs if item.id == run)
    if not runs:
        known = ", ".join(item.id for item in session.manifest.runs) or "none"
        raise RunMissing(f"{session.manifest.name} has no run {run!r}", next_step=f"its runs: {known}")
    tables = {name: table.filter(pl.col("run") == run) for name, table in session.tables.items()}
    return Session(session.path, replace(session.manifest, runs=runs), tables)


def compare_runs(a: Session, b: Session, *, names: tuple[str, str]) -> Comparison:
    """Compare two runs.

    Parameters
    ----------
    a, b
        Sessions of one run each, as `session_of_run` gives them.
    names
        What the runs are called.
    """
    turns = tuple(session.turns.sort("turn", "event").collect() for session in (a, b))
    return Comparison(
        a=names[0],
        b=names[1],
        note=_note(*turns),
        measures=tuple(_measures(a, b, *turns)),
        pairs=tuple(_pairs(_roots(a), _roots(b))),
    )


def _note(a: pl.DataFrame, b: pl.DataFrame) -> str:
    mine, theirs = ({row["turn"]: row for row in frame.iter_rows(named=True)} for frame in (a, b))
    common = sorted(set(mine) & set(theirs), key=lambda turn: (turn is None, turn))
    if not common:
        return "paired by kind, name and order; no turn is in both runs"
    said = all(row["arguments"] is not None or not row["tool"] for row in (*mine.values(), *theirs.values()))
    keys = ("tool", "arguments") if said else ("tool",)
    same = sum(all(mine[turn][key] == theirs[turn][key] for key in keys) for turn in common)
    what = "same tool and arguments" if said else "same tool"
    return f"paired by kind, name and order; {what} in {same} of {len(common)} turns"


def _measures(a: Session, b: Session, turns_a: pl.DataFrame, turns_b: pl.DataFrame) -> Iterable[Measure]:
    firsts = tuple(_by_turn(frame, "ttft_s") for frame in (turns_a, turns_b))
    for turn in _keys(*firsts):
        yield Measure(f"First token, turn {turn}", "ms", *(_scaled(first.get(turn), 1e3) for first in firsts))
    totals = tuple(_total_ms(session) for session in (a, b))
    counts = tuple(_n_turns(session) for session in (a, b))
    label = f"{counts[0]} turns" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]} turns"
    yield Measure(f"All spans, {label}", "ms", *totals)
    yield Measure("Active tokens at the end", "tokens", *(_active(session) for session in (a, b)))
    fidelity = tuple(session.fidelity.collect() for session in (a, b))
    if any(frame.height for frame in fidelity):
        yield Measure("Recomputed in splices", "tokens", *(_recomputed(frame) for frame in fidelity))
    worst = tuple(_by_turn(frame.sort("dkl", nulls_last=False), "dkl") for frame in fidelity)
    for turn in _keys(*worst):
        yield Measure(f"D_KL, turn {turn}", "nats", *(found.get(turn) for found in worst))


def _by_turn(frame: pl.DataFrame, column: str) -> dict[int, float]:
    """Return the last value of each turn that has one."""
    rows = frame.select("turn", column).drop_nulls().iter_rows()
    return {int(turn): float(value) for turn, value in rows}


def _keys(*found: Mapping[int, float]) -> list[int]:
    return sorted({turn for values in found for turn in values})


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _turn_spans(session: Session) -> pl.DataFrame:
    return session.events.filter(pl.col("kind") == EventKind.TURN.value).collect()


def _n_turns(session: Session) -> int:
    return _turn_spans(session).height


def _total_ms(session: Session) -> float | None:
    spans = _turn_spans(session)["duration"].drop_nulls()
    if not _timed(session):
        return None
    return float(spans.to_physical().sum()) / 1e6 if len(spans) else None


def _active(session: Session) -> float | None:
    ops = session.ops.sort("event").collect()
    return float(ops["active_tokens"][-1]) if ops.height else None


def _recomputed(fidelity: pl.DataFrame) -> float | None:
    """Count tokens that splices computed in place of copying; all of a block that was prefilled."""
    if not fidelity.height:
        return None
    in_turns = fidelity.filter(pl.col("turn").is_not_null())
    whole = (pl.col("path") == "prefill").fill_null(value=False)
    tokens = pl.when(whole).then(pl.col("n_tokens")).otherwise(pl.col("repaired"))
    return float(in_turns.select(tokens.sum()).item() or 0)


def _timed(session: Session) -> bool:
    """Whether the times of the record are its own; a transcript that was imported has none."""
    latest = session.manifest.latest
    return latest is None or bool(latest.settings.get("timed", True))


def _roots(session: Session) -> dict[int, SpanNode]:
    """Return the turn's span of each turn; of two with the same number, the later."""
    roots = {
        node.turn: node
        for _, node in session.tree().walk()
        if node.turn is not None and node.kind == EventKind.TURN.value
    }
    return roots if _timed(session) else {turn: _untimed(root) for turn, root in roots.items()}


def _untimed(node: SpanNode) -> SpanNode:
    return replace(node, duration_ns=None, children=[_untimed(child) for child in node.children])


def _pairs(a: Mapping[int, SpanNode], b: Mapping[int, SpanNode]) -> Iterable[SpanPair]:
    for turn in sorted(set(a) | set(b)):
        yield from _paired(turn, 0, a.get(turn), b.get(turn), f"turn {turn}")


def _paired(turn: int, depth: int, a: SpanNode | None, b: SpanNode | None, name: str) -> Iterable[SpanPair]:
    yield SpanPair(turn, depth, name, _ms(a), _ms(b))
    children = (_children(a), _children(b))
    for key, left, right in _aligned(*children):
        yield from _paired(turn, depth + 1, left, right, _label(*key))


def _ms(node: SpanNode | None) -> float | None:
    return None if node is None or node.duration_ns is None else node.duration_ns / 1e6


def _children(node: SpanNode | None) -> list[SpanNode]:
    return [] if node is None else [child for child in node.children if child.kind not in _MOMENTS]


def _aligned(
    a: Sequence[SpanNode], b: Sequence[SpanNode]
) -> list[tuple[tuple[str, str], SpanNode | None, SpanNode | None]]:
    """Pair the nth span of a kind and name with the nth of the other; what only `b` has keeps its place."""
    waiting: dict[tuple[str, str], list[SpanNode]] = defaultdict(list)
    for node in b:
        waiting[node.kind, node.name].append(node)
    rows: list[tuple[tuple[str, str], SpanNode | None, SpanNode | None]] = []
    for node in a:
        queue = waiting[node.kind, node.name]
        rows.append(((node.kind, node.name), node, queue.pop(0) if queue else None))
    paired = {id(other) for _, _, other in rows if other is not None}
    at = 0
    for node in b:
        if id(node) in paired:
            at = max(at, next(i for i, row in enumerate(rows) if row[2] is node) + 1)
        else:
            rows.insert(at, ((node.kind, node.name), None, node))
            at += 1
    return rows


def _label(kind: str, name: str) -> str:
    plain = kind.replace("_", " ")
    if not name or name == kind:
        return plain
    return name if name.startswith(plain) or kind == EventKind.CACHE_OP.value else f"{plain} {name}"
