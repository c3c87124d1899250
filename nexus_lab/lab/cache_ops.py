"""The operations of the live program as views show them: what the program says, and what was heard of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from nexus_lab.agent.base import EventKind, FidelityRow, OpRow, Status
from nexus_lab.cache import CacheProgram, Drop, OpKind, Repair, Repos, Splice
from nexus_lab.errors import Decline
from nexus_lab.lab.wire import Ready, to_json
from nexus_lab.trace.text import count, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexus_lab.agent import Event
    from nexus_lab.cache import CacheOp, CacheState

    Stop = Literal["gate", "declined", "dkl", "failed"]

__all__ = ["Breakpoints", "OpBook", "OpCell"]

_AGAIN = ("return", "rewind", "step")
_OPERATIONS = frozenset(kind.value for kind in OpKind)
_ESCALATED = ("escalated", "escalation_unavailable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoints:
    """Where `next_breakpoint` stops.

    Attributes
    ----------
    gate
        The margin was under tau, so that the request was escalated, or should have been.
    declined
        A splice was asked for and not done.
    dkl
        A splice lost more than `epsilon` nats.
    failed
        The tool reported an error.
    """

    gate: bool = True
    declined: bool = True
    dkl: bool = True
    failed: bool = True
    epsilon: float = 0.02

    def chosen(self) -> frozenset[str]:
        """Names of those that are on."""
        return frozenset(name for name in ("gate", "declined", "dkl", "failed") if getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCell:
    """One operation of the program; as ``OpCell`` of the wire.

    Attributes
    ----------
    index
        From 1.
    stops
        Breakpoints that are on and stop here.
    """

    index: int
    kind: str
    tokens: int
    note: str
    detail: str
    turn: int | None
    state_id: str
    parent_id: str | None
    active: int
    logical: int
    next_position: int
    seconds: float | None
    dkl: float | None
    noise_floor: float | None
    declined: Decline | None
    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True)
class _Fact:
    """What the program itself says of an operation; kept, so that its states need not be."""

    op: CacheOp
    state_id: str
    tokens: int
    active: int
    logical: int
    position: int
    next_position: int


@dataclass(slots=True)
class _Note:
    """What was heard of the operation that led to a state."""

    note: str = ""
    turn: int | None = None
    seconds: float | None = None
    tool: str | None = None
    anchored: bool | None = None
    span: int | None = None
    dkl: float | None = None
    noise_floor: float | None = None
    declined: Decline | None = None
    reasons: set[Stop] = field(default_factory=set)
    shown: _Shown | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """A cell as it was made last, with what it was made of; `ready` is the same for a message."""

    fact: _Fact
    breakpoints: Breakpoints
    cell: OpCell
    ready: Ready


class OpBook:
    """Hears events and keeps what they say of each operation, by the id of the state it leads to."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}
        self._facts: list[_Fact] = []
        self._known = CacheProgram()
        self._turn: int | None = None
        self._last: _Note | None = None
        self._spliced: _Note | None = None
        self._tools: dict[int, str] = {}
        self._pending: set[Stop] = set()
        self._hearing: dict[EventKind, Callable[[Event], None]] = {
            EventKind.TURN: self._hear_turn,
            EventKind.CACHE_OP: self._hear_ops,
            EventKind.SPLICE: self._hear_splice,
            EventKind.DECLINE: self._hear_decline,
            EventKind.FIDELITY: self._hear_fidelity,
            EventKind.GATE: self._hear_gate,
            EventKind.TOOL: self._hear_tool,
        }

    def hear(self, event: Event) -> None:
        """Take note of an event of the agent."""
        hearing = self._hearing.get(event.kind)
        if hearing is not None:
            hearing(event)

    def note_of(self, state_id: str) -> str:
        """Return the words that came with the operation that led to a state."""
        known = self._notes.get(state_id)
        return known.note if known is not None else ""

    def cells(self, timeline: CacheProgram, breakpoints: Breakpoints) -> tuple[OpCell, ...]:
        """Return the operations of `timeline`, with the breakpoints that stop there."""
        return tuple(shown.cell for shown in self._shown(timeline, breakpoints))

    def ready(self, timeline: CacheProgram, breakpoints: Breakpoints) -> tuple[Ready, ...]:
        """Return the same as `cells` for a message; what has not changed is the same object each time."""
        return tuple(shown.ready for shown in self._shown(timeline, breakpoints))

    def forget(self) -> None:
        """Forget everything, for another conversation of another engine."""
        self.__init__()  # type: ignore[misc]  # a book is nothing but what it has heard

    # -- hearing ------------------------------------------------------------------------------------------

    def _hear_turn(self, event: Event) -> None:
        number = event.attributes.get("turn")
        self._turn = number if event.duration_ns is None and isinstance(number, int) else None
        self._spliced = None
        self._pending.clear()

    def _hear_gate(self, event: Event) -> None:
        if event.name in _ESCALATED:
            self._pending.add("gate")

    def _hear_tool(self, event: Event) -> None:
        failed = event.status is Status.ERROR or bool(event.attributes.get("is_error"))
        if event.duration_ns is not None and failed:
            self._pending.add("failed")

    def _hear_decline(self, event: Event) -> None:
        of_operation = event.name in _OPERATIONS  # a policy is declined in the same span
        if of_operation and self._last is not None and event.parent == self._last.span:
            self._decline(self._last, event)

    def _hear_ops(self, event: Event) -> None:
        for row in event.rows:
            if isinstance(row, OpRow):
                self._hear_op(event, row)

    def _hear_op(self, event: Event, row: OpRow) -> None:
        known = self._notes.get(row.state_id)
        if known is not None and (row.note in _AGAIN or known.note):
            self._last = known  # brought about again, for a look back
            return
        note = _Note(
            note=row.note,
            turn=self._turn,
            seconds=(event.duration_ns or 0) / 1e9,
            anchored=row.anchored,
            span=event.parent,
            reasons=set(self._pending),
        )
        self._pending.clear()
        self._notes[row.state_id] = self._last = note
        if row.op.value in (OpKind.SPLICE.value, OpKind.REPAIR.value):
            self._spliced = note

    def _hear_splice(self, event: Event) -> None:
        tool = event.attributes.get("tool")
        if event.duration_ns is None:
            if isinstance(tool, str):
                self._tools[event.id] = tool
            return
        for note in self._notes.values():
            if note.span == event.id:
                note.shown = None
                note.tool = self._tools.get(event.id)
                if event.status is Status.DECLINED:
                    self._decline(note, event)

    def _hear_fidelity(self, event: Event) -> None:
        note = self._spliced if self._turn is not None else None
        for row in event.rows:
            if note is not None and isinstance(row, FidelityRow) and row.dkl is not None:
                note.dkl, note.noise_floor, note.shown = row.dkl, row.noise_floor, None

    @staticmethod
    def _decline(note: _Note, event: Event) -> None:
        said = event.attributes
        note.declined = Decline(
            str(said.get("code", "")), str(said.get("reason", "")), str(said.get("instead", ""))
        )
        note.reasons.add("declined")
        note.shown = None

    # -- showing ------------------------------------------------------------------------------------------

    def _facts_of(self, timeline: CacheProgram) -> list[_Fact]:
        """Return the facts of each operation, gathered anew only from where `timeline` is another one."""
        known, same = self._known.ops, 0
        while same < min(len(known), len(timeline.ops)) and known[same] is timeline.ops[same]:
            same += 1
        del self._facts[same:]
        program = self._known if same == len(known) else timeline.prefix(same)
        for op in timeline.ops[same:]:
            before, program = program, program.then(op)
            self._facts.append(_fact(op, before, program))
        self._known = program
        return self._facts

    def _shown(self, timeline: CacheProgram, breakpoints: Breakpoints) -> list[_Shown]:
        """Return what is shown of each operation; a program of thousands is not made anew for one of them."""
        made: list[_Shown] = []
        for index, fact in enumerate(self._facts_of(timeline), start=1):
            note = self._notes.get(fact.state_id) or _Note()
            shown = note.shown
            if shown is None or shown.fact is not fact or shown.breakpoints != breakpoints:
                parent = made[-1].cell.state_id if made else None
                cell = self._cell(index, fact, note, parent, breakpoints)
                shown = note.shown = _Shown(fact, breakpoints, cell, Ready(to_json(cell)))
            made.append(shown)
        return made

    def _cell(
        self, index: int, fact: _Fact, note: _Note, parent: str | None, breakpoints: Breakpoints
    ) -> OpCell:
        reasons = set(note.reasons)
        if note.dkl is not None and note.dkl > breakpoints.epsilon:
            reasons.add("dkl")
        on = breakpoints.chosen()
        order: tuple[Stop, ...] = ("gate", "declined", "dkl", "failed")
        return OpCell(
            index=index,
            kind=fact.op.kind.value,
            tokens=fact.tokens,
            note=f"{note.tool}, {note.note}" if note.tool else note.note,
            detail=_detail(fact, anchored=note.anchored),
            turn=note.turn,
            state_id=fact.state_id,
            parent_id=parent,
            active=fact.active,
            logical=fact.logical,
            next_position=fact.next_position,
            seconds=note.seconds,
            dkl=note.dkl,
            noise_floor=note.noise_floor,
            declined=note.declined,
            stops=tuple(reason for reason in order if reason in reasons and reason in on),
        )


def _fact(op: CacheOp, before: CacheProgram, after: CacheProgram) -> _Fact:
    state = after.layout
    return _Fact(
        op=op,
        state_id=after.id,
        tokens=_size(op, before.layout, state),
        active=state.n_active,
        logical=len(state),
        position=before.layout.next_position,
        next_position=state.next_position,
    )


def _size(op: CacheOp, before: CacheState, after: CacheState) -> int:
    match op:
        case Repair(selection):
            return len(selection)
        case Drop():
            return int(np.count_nonzero(before.active & ~after.active))
        case Repos():
            return int(np.count_nonzero(before.positions != after.positions))
        case _:
            return len(op.tokens)


def _detail(fact: _Fact, *, anchored: bool | None) -> str:
    at = f"positions {count(fact.position)} to {count(fact.next_position - 1)}"
    match fact.op:
        case Splice(_, _, anchor):
            shift = fact.position - anchor
            if anchored:
                return f"{at}; anchored: the tokens before it are those it was compiled behind"
            moved = (
                f"keys rotated by {count(shift)} from anchor {count(anchor)}" if shift else "at its anchor"
            )
            return f"{at}; {moved}"
        case Repair(selection, carry):
            shifted = "; the shift of its keys is added to the rest of the splice" if carry else ""
            ends = f"logical {count(selection[0])} to {count(selection[-1])}" if selection else "nothing"
            return f"{ends}{shifted}"
        case Drop(ranges):
            return f"{plural(len(ranges), 'range')}; positions of the others stay"
        case Repos():
            return f"next position {count(fact.position)} → {count(fact.next_position)}"
        case _:
            return at if fact.tokens else "nothing"
