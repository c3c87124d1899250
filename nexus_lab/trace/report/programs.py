"""The cache programs of a session: chains of ops, and the token states that they fold to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from nexus_lab.agent.base import OpKind

__all__ = ["Program", "Segment", "TokenState", "fold_tokens", "programs"]

_Row = Mapping[str, Any]


class TokenState(StrEnum):
    """Where the cache entry of a logical token comes from, or that it is gone."""

    COMPUTED = "computed"
    SPLICED = "spliced"
    REPAIRED = "repaired"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Program:
    """A chain of ops, each going on from the state the one before it left.

    Attributes
    ----------
    shared
        How many of the first ops an earlier program has in common with it.
    """

    run: str
    ops: tuple[_Row, ...]
    shared: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Logical tokens ``start`` to ``stop`` of one state, whose positions ascend by one from `position`."""

    start: int
    stop: int
    state: TokenState
    position: int


def programs(rows: Iterable[_Row]) -> list[Program]:
    """Return the programs that end in a state nobody went on from, in the order they were begun."""
    nodes: dict[tuple[str, str], _Row] = {}
    for row in rows:
        nodes[row["run"], row["state_id"]] = row
    continued = {(row["run"], row["parent_state_id"]) for row in nodes.values()}
    found: list[Program] = []
    seen: set[tuple[str, str]] = set()
    for key, row in nodes.items():
        if key in continued:
            continue
        chain = _chain(row, nodes)
        keys = [(item["run"], item["state_id"]) for item in chain]
        found.append(Program(row["run"], tuple(chain), sum(item in seen for item in keys)))
        seen.update(keys)
    return found


def _chain(row: _Row, nodes: Mapping[tuple[str, str], _Row]) -> list[_Row]:
    """Return the ops that lead to `row`, oldest first; where a damaged record goes in a circle, it ends."""
    chain = [row]
    visited = {row["state_id"]}
    while (parent := nodes.get((row["run"], chain[-1]["parent_state_id"]))) is not None:
        if parent["state_id"] in visited:
            break
        visited.add(parent["state_id"])
        chain.append(parent)
    return chain[::-1]


def fold_tokens(ops: Iterable[_Row]) -> list[Segment]:
    """Return the token states after `ops`, as few segments as they can be said in."""
    segments: list[Segment] = []
    for row in ops:
        ranges = [(item["start"], item["stop"]) for item in row["ranges"] or ()]
        positions = [(item["start"], item["stop"]) for item in row["positions"] or ()]
        if row["op"] in (OpKind.APPEND, OpKind.SPLICE):
            state = TokenState.COMPUTED if row["op"] == OpKind.APPEND else TokenState.SPLICED
            segments += [
                Segment(start, stop, state, position) for start, stop, position in _placed(ranges, positions)
            ]
        else:
            segments = _changed(segments, row["op"], ranges, positions)
    return _merged(segments)


def _placed(
    ranges: Sequence[tuple[int, int]], positions: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Pair logical ranges with position ranges, cut where either ends."""
    placed: list[tuple[int, int, int]] = []
    spare = list(positions)
    for start, stop in ranges:
        at = start
        while at < stop:
            first, last = spare[0] if spare else (at, stop)
            length = min(stop - at, last - first)
            if length <= 0:
                spare = spare[1:]
                continue
            placed.append((at, at + length, first))
            at += length
            spare = [(first + length, last), *spare[1:]] if spare else []
    return placed


def _changed(
    segments: list[Segment], op: str, ranges: list[tuple[int, int]], positions: list[tuple[int, int]]
) -> list[Segment]:
    """Return `segments` with the tokens in `ranges` dropped, repaired, or moved to `positions`."""
    moved = _placed(ranges, positions) if op == OpKind.REPOS else [(start, stop, 0) for start, stop in ranges]
    for start, stop, position in moved:
        segments = [piece for segment in segments for piece in _cut(segment, start, stop)]
        segments = [
            _touched(segment, op, position - start + segment.start)
            if start <= segment.start < stop
            else segment
            for segment in segments
        ]
    return segments


def _cut(segment: Segment, start: int, stop: int) -> Iterable[Segment]:
    """Cut `segment` at `start` and at `stop`."""
    edges = [
        segment.start,
        *(edge for edge in (start, stop) if segment.start < edge < segment.stop),
        segment.stop,
    ]
    for left, right in pairwise(edges):
        yield Segment(left, right, segment.state, segment.position + left - segment.start)


def _touched(segment: Segment, op: str, position: int) -> Segment:
    if op == OpKind.DROP:
        return Segment(segment.start, segment.stop, TokenState.DROPPED, segment.position)
    if op == OpKind.REPAIR:
        return Segment(segment.start, segment.stop, TokenState.REPAIRED, segment.position)
    return Segment(segment.start, segment.stop, segment.state, position)


def _merged(segments: list[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in sorted(segments, key=lambda item: item.start):
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.stop == segment.start
            and last.state == segment.state
            and last.position + last.stop - last.start == segment.position
        ):
            merged[-1] = Segment(last.start, segment.stop, last.state, last.position)
        else:
            merged.append(segment)
    return merged
