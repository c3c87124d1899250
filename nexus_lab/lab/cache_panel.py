"""The Cache panel: the live program, the state at the cursor, and the way back and forth."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nexus_lab.agent import EventKind
from nexus_lab.cache import OpKind
from nexus_lab.errors import NexusError
from nexus_lab.lab.cache_ops import Breakpoints, OpBook, OpCell
from nexus_lab.lab.cache_view import (
    TOKEN_STATES,
    Memory,
    arena_of,
    counts_of,
    segments_of,
    slots_of,
    token_states,
)
from nexus_lab.lab.cache_work import CacheWork, NoProgram
from nexus_lab.lab.fork import fork, fork_points
from nexus_lab.lab.tree_shot import Step
from nexus_lab.lab.wire import Reply, instant, job
from nexus_lab.policy_text import POLICIES as NAMED_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from nexus_lab.agent import Event, Turn
    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.cache import CacheProgram, CacheState, Residency
    from nexus_lab.lab.desk import Desk

__all__ = ["TOKEN_STATES", "CachePanel", "CachePosition", "NoProgram"]

# A policy with knobs of its own joins them while it is the profile's.
POLICIES = tuple(name for name in NAMED_POLICIES if name != "python")
_MOST_PIECES = 400
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachePosition:
    """Where the cursor stands, of how many operations; `stops` says why a breakpoint stopped there."""

    cursor: int
    of: int
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Branch:
    """A run that shares `at` operations, up to `state_id`, with the live one and went on with `kinds`."""

    run: str
    at: int
    kinds: tuple[str, ...]
    note: str
    state_id: str = ""


class CachePanel(CacheWork):
    """Shows the live cache program and steps through it.

    While the cursor looks back, nothing is lost: the next turn returns to the end first.
    """

    name = "cache"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._lock = threading.Lock()
        self._book = OpBook()
        self._breakpoints = Breakpoints()
        self._branches: tuple[_Branch, ...] = ()
        self._memory = Memory()
        self._seen: str | None = None
        self._revision = 0

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the program with the state at the cursor, as ``CachePart`` of the wire."""
        conversation, desk = self._followed(), self.desk
        state = conversation.runner.snapshot.state if conversation is not None else None
        memory = self._memory
        return {
            "run": desk.recorder.run if desk.recorder is not None else None,
            "policy": conversation.policy.name if conversation is not None else self._policy_ahead(),
            "ops": self._cells(self._book.ready),
            "cursor": conversation.runner.cursor if conversation is not None else 0,
            "revision": self._revision_of(state),
            "counts": counts_of(state),
            "slots": slots_of(memory, state),
            "n_slots": memory.n_slots,
            "cells_used": desk.bar.used if desk.engine is not None else 0,
            "n_ctx": desk.engine.n_ctx if desk.engine is not None else 0,
            "arena": arena_of(memory),
            "breakpoints": self._breakpoints,
            "forks": self._shared_branches(conversation),
            "policies": tuple(dict.fromkeys((*POLICIES, self._policy_ahead()))),
            "fork_points": fork_points(conversation, self._log) if conversation is not None else (),
            "next_run": self._next_run(),
            "drawn": self._drawn,
        }

    @property
    def ops(self) -> tuple[OpCell, ...]:
        """The operations of the live program, those ahead of the cursor included."""
        return self._cells(self._book.cells)

    def _cells(self, made: Callable[[CacheProgram, Breakpoints], tuple[T, ...]]) -> tuple[T, ...]:
        conversation = self._conversation
        if conversation is None:
            return ()
        with self._lock:
            return made(conversation.runner.timeline, self._breakpoints)

    @property
    def cursor(self) -> CachePosition:
        """Where the cursor stands."""
        conversation = self._conversation
        if conversation is None:
            return CachePosition(0, 0)
        return CachePosition(conversation.runner.cursor, len(conversation.runner.timeline))

    @property
    def program_state(self) -> CacheState:
        """The state at the cursor: tokens, which are active, positions, origins; immutable.

        Raises
        ------
        NoProgram
            When nothing was asked yet.
        """
        return self._needed().runner.snapshot.state

    @property
    def residency(self) -> Residency:
        """Where the cache's rows were when the last operation or step had ended; immutable.

        Raises
        ------
        NoProgram
            When nothing was asked yet.
        """
        self._needed()
        if self._residency is None:
            raise NoProgram("no operation has ended yet", next_step="ask something first")
        return self._residency

    @instant
    def state(self) -> Reply:
        """Return the tokens' states and positions at the cursor, as two buffers, with the segments."""
        conversation = self._conversation
        state = conversation.runner.snapshot.state if conversation is not None else None
        if conversation is None or state is None:
            return Reply({"n": 0, "segments": []}, (np.zeros(0, np.uint8), np.zeros(0, np.int32)))
        segments = segments_of(tuple(conversation.messages), self.ops, len(state))
        buffers = (token_states(state), np.ascontiguousarray(state.positions, np.int32))
        return Reply({"n": len(state), "segments": segments}, buffers)

    @instant
    def pieces(self, start: int, stop: int) -> dict[str, list[str]]:
        """Return the text of each token of a window of at most 400, control tokens by their name."""
        conversation, engine = self._conversation, self.desk.engine
        if conversation is None or engine is None:
            return {"pieces": []}
        tokens = conversation.runner.snapshot.state.tokens
        first = max(0, min(start, len(tokens)))
        last = max(first, min(stop, first + _MOST_PIECES, len(tokens)))
        return {"pieces": [engine.vocabulary.token_text(int(token)) for token in tokens[first:last]]}

    @instant
    def set_breakpoints(
        self,
        *,
        gate: bool | None = None,
        declined: bool | None = None,
        dkl: bool | None = None,
        failed: bool | None = None,
        epsilon: float | None = None,
    ) -> Breakpoints:
        """Switch breakpoints on or off, or change epsilon (nats); what is not named stays."""
        given = {"gate": gate, "declined": declined, "dkl": dkl, "failed": failed, "epsilon": epsilon}
        changes = {name: value for name, value in given.items() if value is not None}
        if epsilon is not None and not epsilon >= 0:
            raise NexusError(f"epsilon = {epsilon} is no divergence", next_step="choose 0 or more nats")
        self._breakpoints = replace(self._breakpoints, **changes)  # type: ignore[arg-type]  # checked above
        self.changed()
        return self._breakpoints

    # -- steps --------------------------------------------------------------------------------------------

    @job("cache step")
    def goto(self, n: int) -> CachePosition:
        """Move the cursor behind `n` operations; what was kept comes back, the rest is computed again."""
        return self._on_lane("cache step", lambda: self._go(n))

    @job("cache step")
    def back(self) -> CachePosition:
        """Step one operation back."""
        return self._on_lane("cache step", lambda: self._go(max(0, self.cursor.cursor - 1)))

    @job("cache step")
    def forward(self) -> CachePosition:
        """Step one operation forward."""
        return self._on_lane("cache step", lambda: self._go(min(self.cursor.of, self.cursor.cursor + 1)))

    @job("cache step")
    def next_breakpoint(self) -> CachePosition:
        """Go forward to the next operation at which a breakpoint stops, or to the end."""

        def go() -> CachePosition:
            here, on = self.cursor, self._breakpoints.chosen()
            ahead = [cell for cell in self.ops[here.cursor :] if on.intersection(cell.stops)]
            target = ahead[0].index if ahead else here.of
            reasons = tuple(reason for reason in ahead[0].stops if reason in on) if ahead else ()
            return replace(self._go(target), stops=reasons)

        return self._on_lane("cache step", go)

    @job("forking")
    def fork(self, at: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go on from behind `at` operations under other settings, as a new run that asks again what followed.

        Returns
        -------
        dict
            ``run``, ``rerun_ops``, ``rerun_tokens``, where it began (``at``) and a ``note`` in words. The
            turns that are asked again come after this reply.
        """

        def go() -> dict[str, Any]:
            conversation = self._followed()
            before = () if conversation is None else self._steps(conversation.runner.timeline)
            shared = self._shared_branches(conversation)
            done = fork(self.desk, self._log, at, settings or {})
            live = self._needed()
            self._ran = bool(self._log.points(live))
            state_id = live.runner.timeline.prefix(done.at).id
            if done.kinds:
                self._left = (*self._left, (done.parent or "before the fork", before))
            kept = shared
            moved = tuple(
                replace(
                    item,
                    at=done.at,
                    kinds=(*self._kinds(done, item), *item.kinds),
                    state_id=state_id,
                )
                if item.at > done.at
                else item
                for item in kept
            )
            if done.kinds:
                left = f"{done.run or 'a fork'} left it here"
                own = _Branch(done.parent or "before", done.at, done.kinds, left, state_id)
                moved = (*moved, own)
            self._branches = moved
            self._look()
            return {
                "run": done.run or "",
                "rerun_ops": done.rerun_ops,
                "rerun_tokens": done.rerun_tokens,
                "at": done.at,
                "note": done.note,
            }

        return self._on_lane("forking", go)

    def _shared_branches(self, conversation: Conversation | None) -> tuple[_Branch, ...]:
        """Return the branches that begin on the live program; behind a rewritten text none do."""
        if conversation is None or not self._branches:
            return ()
        ids = (*(cell.state_id for cell in self.ops),)
        return tuple(
            item
            for item in self._branches
            if item.at == 0 or (item.at <= len(ids) and ids[item.at - 1] == item.state_id)
        )

    @staticmethod
    def _kinds(done: Any, branch: _Branch) -> tuple[str, ...]:
        """Return what a branch that began later has in common with the run that was left."""
        return tuple(done.kinds[: branch.at - done.at])

    # -- hearing ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Keep what an event says of an operation."""
        with self._lock:
            self._book.hear(event)
        self._log.hear(event, self.desk.agent)
        if event.kind is EventKind.TURN and event.duration_ns is not None:
            live = self._followed()
            self._ran = self._ran or (live is not None and bool(self._log.points(live)))
        if event.kind is EventKind.CACHE_OP:
            self._look()
        if event.kind in (EventKind.CACHE_OP, EventKind.FIDELITY, EventKind.TURN):
            self.changed()

    def on_turn(self, turn: Turn) -> None:  # noqa: ARG002 - the contract
        """Look at the memory again."""
        self._look()
        self.changed()

    def on_engine(self) -> None:
        """Forget the program of the engine that is gone."""
        with self._lock:
            self._book.forget()
        self._memory = Memory()
        self._forget_drawings()
        self.changed()

    # -- as a table and a page ----------------------------------------------------------------------------

    def to_frame(self) -> pl.DataFrame:
        """Return one row per operation."""
        import polars as pl

        rows = [
            {
                "index": cell.index,
                "op": cell.kind,
                "turn": cell.turn,
                "tokens": cell.tokens,
                "note": cell.note,
                "detail": cell.detail,
                "state_id": cell.state_id,
                "active": cell.active,
                "logical": cell.logical,
                "next_position": cell.next_position,
                "seconds": cell.seconds,
                "dkl": cell.dkl,
                "noise_floor": cell.noise_floor,
                "declined": cell.declined.reason if cell.declined else None,
                "stops": list(cell.stops),
            }
            for cell in self.ops
        ]
        schema: dict[str, Any] = {
            "index": pl.Int64,
            "op": pl.String,
            "turn": pl.Int64,
            "tokens": pl.Int64,
            "note": pl.String,
            "detail": pl.String,
            "state_id": pl.String,
            "active": pl.Int64,
            "logical": pl.Int64,
            "next_position": pl.Int64,
            "seconds": pl.Float64,
            "dkl": pl.Float64,
            "noise_floor": pl.Float64,
            "declined": pl.String,
            "stops": pl.List(pl.String),
        }
        return pl.DataFrame(rows, schema=schema)

    def to_html(self) -> str:
        """Return the program and the tokens at the cursor as a fragment."""
        from nexus_lab.lab.static_html import cache_fragment

        conversation = self._conversation
        state = conversation.runner.snapshot.state if conversation is not None else None
        return cache_fragment({**self.part(), "ops": self.ops}, state, self.drawings)

    def __repr__(self) -> str:
        here = self.cursor
        if not here.of:
            return "CachePanel(no program yet)"
        back = f", looking back from {here.of}" if here.cursor < here.of else ""
        return f"CachePanel(op {here.cursor} of {here.of}{back})"

    # -- within -------------------------------------------------------------------------------------------

    def _forget_trials(self) -> None:
        """Forget the branches as well."""
        super()._forget_trials()
        self._branches = ()

    def _go(self, n: int) -> CachePosition:
        runner = self._needed().runner
        self._gone_to(n, at_once=False)
        self._look()
        self.changed()
        return CachePosition(runner.cursor, len(runner.timeline))

    def _steps(self, timeline: CacheProgram) -> tuple[Step, ...]:
        """Return the operations of the live program, which the book has folded already."""
        with self._lock:
            cells = self._book.cells(timeline, self._breakpoints)
        adding = (OpKind.APPEND.value, OpKind.SPLICE.value)
        return tuple(
            Step(
                cell.state_id,
                OpKind(cell.kind),
                cell.logical - cell.tokens * (cell.kind in adding),
                cell.tokens,
            )
            for cell in cells
        )

    def _look(self) -> None:
        """Take note of slots and arena as well."""
        super()._look()
        conversation, found = self._conversation, self._residency
        if conversation is None or found is None:
            return
        runner = conversation.runner
        self._memory = Memory(
            runner.pool.listing(), found.counters["l0_n_slots"], runner.seq, tuple(found.counters.items())
        )

    def _policy_ahead(self) -> str:
        profile = self.desk.profile
        repos = profile.policy == "rolling_drop" and profile.repos
        return "rolling_drop_repos" if repos else profile.policy

    def _next_run(self) -> str | None:
        recorder = self.desk.recorder
        number = recorder.run.removeprefix("r-") if recorder is not None else ""
        return f"r-{int(number) + 1:03d}" if number.isdigit() else None

    def _revision_of(self, state: CacheState | None) -> int:
        now = None if state is None else f"{state.history_id} {len(state)}"
        with self._lock:
            if now != self._seen:
                self._seen = now
                self._revision += 1
            return self._revision
