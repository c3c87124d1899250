"""A long session, told to a recorder: what the workbench's exports are measured on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import (
    Candidate,
    Event,
    EventKind,
    FidelityRow,
    OpKind,
    OpRow,
    RoutingRow,
    Status,
    TurnRow,
)
from nexus_lab.trace import SessionRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexus_lab.agent.base import Row

__all__ = ["record_long_session"]

_TOOLS = tuple(
    f"{verb}_{thing}" for verb in ("get", "list", "create", "close") for thing in ("issue", "branch")
)
_START_NS = 1_767_225_600_000_000_000
_GAP_NS = 1_000_000
# Kind, name and length in milliseconds of what happens in each turn, in order.
_STAGES = (
    (EventKind.EMBEDDINGS, "embed the request", 3.1),
    (EventKind.RETRIEVAL, "scan 8 tools", 0.02),
    (EventKind.GATE, "gate: auto", 0.0),
    (EventKind.CACHE_OP, "append user", 61.0),
    (EventKind.SPLICE, "block", 12.0),
    (EventKind.CACHE_OP, "splice block", 9.0),
    (EventKind.FIDELITY, "shadow prefill", 240.0),
    (EventKind.ARGUMENTS, "arguments", 431.0),
    (EventKind.GENERATE, "arguments", 431.0),
    (EventKind.TOOL, "tool call", 97.0),
    (EventKind.CACHE_OP, "append result", 155.0),
    (EventKind.GENERATE, "answer", 740.0),
)


@dataclass(slots=True)
class _Clock:
    now: int = _START_NS


def record_long_session(path: Path, *, events: int) -> Path:
    """Record a session of at least `events` spans, without contents; returns the bundle.

    Turns look like those of a real session, with routing, operations and fidelity rows, and differ in tool,
    margin and lengths.
    """
    ids, clock = itertools.count(1), _Clock()
    with SessionRecorder(
        path, model={"name": "long session"}, settings={"k": 4.0, "tau": 0.0136}
    ) as recorder:
        told, turn = 0, 0
        while told < events:
            turn += 1
            for event in _turn(turn, ids, clock):
                recorder.on_event(event)
                told += event.duration_ns is not None
    return recorder.path


def _turn(turn: int, ids: Iterator[int], clock: _Clock) -> Iterator[Event]:
    root = next(ids)
    start = clock.now
    opened: dict[str, Any] = {
        "id": root,
        "parent": None,
        "kind": EventKind.TURN,
        "name": f"turn {turn}",
        "start_ns": start,
    }
    yield Event(**opened, duration_ns=None, status=Status.RUNNING, attributes={"turn": turn})
    for kind, name, ms in _STAGES:
        length = round(ms * 1e6 * (1 + turn % 7 / 10))
        yield Event(
            id=next(ids),
            parent=root,
            kind=kind,
            name=name,
            start_ns=clock.now,
            duration_ns=length,
            status=Status.OK,
            attributes={"tokens": 20 + turn % 40},
            rows=tuple(_rows(turn, kind, name)),
        )
        clock.now += length
    yield Event(**opened, duration_ns=clock.now - start, status=Status.OK, rows=(_turn_row(turn),))
    clock.now += _GAP_NS


def _tool(turn: int) -> str:
    return _TOOLS[turn % len(_TOOLS)]


def _margin(turn: int) -> float:
    return round(0.002 + (turn * 37 % 101) / 1000, 4)


def _rows(turn: int, kind: EventKind, name: str) -> Iterator[Row]:
    if kind is EventKind.GATE:
        scores = (0.61, 0.61 - _margin(turn), 0.42)
        found = (
            Candidate(tool=_TOOLS[(turn + i) % len(_TOOLS)], score=score) for i, score in enumerate(scores)
        )
        yield RoutingRow(
            candidates=tuple(found),
            margin=_margin(turn),
            tau=0.0136,
            decision="auto",
            tool=_tool(turn),
            reason="the margin is above tau",
            times_ms={"embed": 3.1, "scan": 0.02},
        )
    elif kind is EventKind.CACHE_OP:
        yield _op(turn, OpKind(name.split(maxsplit=1)[0]), len(name))
    elif kind is EventKind.FIDELITY:
        yield FidelityRow(
            path="repaired",
            tool=_tool(turn),
            n_past=600,
            n_tokens=200,
            repaired=50,
            dkl=0.004 + turn % 9 / 1000,
            noise_floor=0.004,
            top1=1.0,
            n_positions=24,
        )


def _op(turn: int, kind: OpKind, step: int) -> OpRow:
    at = 20 * (turn % 100)
    facts: dict[str, Any] = {"active_tokens": at + 20, "logical_tokens": at + 20, "next_position": at + 20}
    state = f"s{turn}-{step}"
    return OpRow(
        op=kind,
        state_id=state,
        parent_state_id=None,
        tokens=20,
        ranges=((at, at + 20),),
        positions=((at, at + 20),),
        note=f"turn {turn}",
        **facts,
    )


def _turn_row(turn: int) -> TurnRow:
    return TurnRow(
        turn=turn,
        outcome="called",
        tool=_tool(turn),
        server="tickets",
        schema_mode="splice(bounded(0.02))",
        ttft_s=0.39,
        prompt_tokens=1100,
        reused_tokens=200,
        generated_tokens=60,
        times_ms={"route": 3.2, "arguments": 431.0, "tool": 97.0, "answer": 740.0},
        settings={"k": 4.0, "tau": 0.0136},
    )
