"""The cache programs of a report: ops as cards, and the token states that they end in.

Ops are shown in the program's canonical form, where appends that follow one another are one append: how
tokens were batched is no part of a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.agent.base import OpKind
from nexus_lab.trace.report.figures import Strip, strip
from nexus_lab.trace.report.limits import Limits, Shown
from nexus_lab.trace.report.programs import Program, fold_tokens, programs
from nexus_lab.trace.text import clip, count, duration, plural, short_id

if TYPE_CHECKING:
    from nexus_lab.trace.selection import Selection

__all__ = ["OpView", "PlainView", "ProgramView", "program_views"]

_Row = Mapping[str, Any]
_Lengths = Mapping[tuple[str, int], int | None]
_LETTERS = {OpKind.APPEND: "A", OpKind.SPLICE: "S", OpKind.REPAIR: "R", OpKind.DROP: "D", OpKind.REPOS: "P"}
_SIGNS = {OpKind.APPEND: "+", OpKind.SPLICE: "+", OpKind.DROP: "−"}
_NOTE = 120  # characters


@dataclass(frozen=True, slots=True)
class OpView:
    """One op of a program."""

    number: int
    kind: str
    letter: str
    title: str
    amount: str
    positions: str
    note: str
    length: str
    shared: bool


@dataclass(frozen=True, slots=True)
class ProgramView:
    """One cache program with the token states that it ends in."""

    number: int
    run: str
    summary: str
    steps: int
    shared: int
    ops: Shown[OpView]
    strip: Strip | None


@dataclass(frozen=True, slots=True)
class PlainView:
    """A program that only appends: every token computed behind all before it."""

    number: int
    run: str
    tokens: str
    steps: int
    shared: str
    length: str
    notes: str


def program_views(selection: Selection, limits: Limits) -> tuple[Shown[ProgramView], Shown[PlainView]]:
    """Return the programs with something to look at, and those that only append."""
    lengths = _lengths(selection)
    worked: list[tuple[int, Program]] = []
    plain: list[tuple[int, Program]] = []
    for number, program in enumerate(programs(selection.tables["ops"].iter_rows(named=True)), start=1):
        only_appends = all(row["op"] == OpKind.APPEND for row in program.ops)
        (plain if only_appends else worked).append((number, program))
    return (
        Shown.first(
            [_program(number, program, limits, lengths) for number, program in worked[: limits.programs]],
            limits.programs,
            len(worked),
        ),
        Shown.first(
            [_plain(number, program, lengths) for number, program in plain[: limits.plain_programs]],
            limits.plain_programs,
            len(plain),
        ),
    )


def _lengths(selection: Selection) -> _Lengths:
    """Return the duration in ns of each event that carries an op."""
    ops = selection.tables["ops"].select("run", pl.col("event").alias("id")).unique()
    spans = selection.tables["events"].join(ops, on=["run", "id"], how="semi")
    rows = spans.select("run", "id", pl.col("duration").to_physical()).iter_rows()
    return {(run, event): length for run, event, length in rows}


def _program(number: int, program: Program, limits: Limits, lengths: _Lengths) -> ProgramView:
    groups = _canonical(program)
    last = program.ops[-1]
    dropped = (last["logical_tokens"] or 0) - (last["active_tokens"] or 0)
    views = [
        _op(at, rows, groups[at - 2] if at > 1 else None, shared=shared, lengths=lengths)
        for at, (rows, shared) in enumerate(groups[: limits.ops], start=1)
    ]
    summary = (
        f"{count(last['active_tokens'])} active of {count(last['logical_tokens'])} logical tokens"
        f"{f', {count(dropped)} dropped' if dropped else ''}; next position {count(last['next_position'])}"
    )
    return ProgramView(
        number=number,
        run=program.run,
        summary=summary,
        steps=len(program.ops),
        shared=sum(shared for _, shared in groups),
        ops=Shown.first(views, limits.ops, len(groups)),
        strip=strip(fold_tokens(program.ops)),
    )


def _canonical(program: Program) -> list[tuple[list[_Row], bool]]:
    """Group appends that follow one another; what is shared with an earlier program stays apart."""
    groups: list[tuple[list[_Row], bool]] = []
    for index, row in enumerate(program.ops):
        shared = index < program.shared
        last = groups[-1] if groups else None
        if last and row["op"] == last[0][-1]["op"] == OpKind.APPEND and last[1] == shared:
            last[0].append(row)
        else:
            groups.append(([row], shared))
    return groups


def _op(
    number: int,
    rows: Sequence[_Row],
    before: tuple[list[_Row], bool] | None,
    *,
    shared: bool,
    lengths: _Lengths,
) -> OpView:
    row = rows[-1]
    kind = OpKind(row["op"]) if row["op"] in set(OpKind) else OpKind.APPEND
    note = _notes(rows)
    if kind is OpKind.SPLICE and row["block"]:
        note = f"{short_id(row['block'])}{', anchored' if row['anchored'] else ''}"
    return OpView(
        number=number,
        kind=str(kind),
        letter=_LETTERS[kind],
        title=kind.capitalize(),
        amount=f"{_SIGNS.get(kind, '')}{plural(sum(item['tokens'] or 0 for item in rows), 'token')}",
        positions=_positions(kind, rows, before[0][-1] if before else None),
        note=note,
        length=_length(rows, lengths),
        shared=shared,
    )


def _notes(rows: Iterable[_Row]) -> str:
    return clip(", ".join(dict.fromkeys(row["note"] for row in rows if row["note"])), _NOTE)


def _length(rows: Iterable[_Row], lengths: _Lengths) -> str:
    return duration(sum(lengths.get((row["run"], row["event"])) or 0 for row in rows))


def _positions(kind: OpKind, rows: Sequence[_Row], before: _Row | None) -> str:
    row = rows[-1]
    if kind is OpKind.REPOS and before is not None:
        return f"next {count(before['next_position'])} → {count(row['next_position'])}"
    if kind is OpKind.DROP:
        return plural(len(row["ranges"] or ()), "range")
    placed = [item for row in rows for item in row["positions"] or ()]
    if not placed:
        return ""
    first, last = placed[0]["start"], placed[-1]["stop"] - 1
    joined = all(left["stop"] == right["start"] for left, right in pairwise(placed))
    return f"at {count(first)}–{count(last)}{'' if joined else f', {len(placed)} ranges'}"


def _plain(number: int, program: Program, lengths: _Lengths) -> PlainView:
    shared = sum(row["tokens"] or 0 for row in program.ops[: program.shared])
    return PlainView(
        number=number,
        run=program.run,
        tokens=count(program.ops[-1]["logical_tokens"]),
        steps=len(program.ops),
        shared=count(shared) if shared else "–",
        length=_length(program.ops[program.shared :], lengths),
        notes=_notes(program.ops),
    )
