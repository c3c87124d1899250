"""Going back to an earlier operation and on from there under other settings, as a run of its own.

A fork takes the conversation's own sequence back to a prefix of its program, which shares every warm row, and
asks the later requests again. An operation in the middle of a turn is no point to go on from, since half a
turn cannot be asked for: that turn is asked again as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent import EventKind, TurnOutcome
from nexus_lab.agent.base import OpKind, OpRow, Status
from nexus_lab.agent.conversation import Mark, op_note
from nexus_lab.cache import Append, Repair, Splice
from nexus_lab.cache.ops import ranges_of
from nexus_lab.errors import NexusError
from nexus_lab.policy_text import PolicyTextError, parse_policy
from nexus_lab.settings import SettingsError
from nexus_lab.trace.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexus_lab.agent import Agent, Event, Turn
    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.cache import CacheProgram
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.driver import Ticket
    from nexus_lab.settings import Profile

__all__ = [
    "Fork",
    "ForkError",
    "ForkPoint",
    "TurnLog",
    "TurnPoint",
    "ask_in_turn",
    "fork",
    "fork_points",
    "profile_changes",
    "refuse_code",
]


class ForkError(NexusError):
    """There is nothing to fork, or it cannot be forked there."""


@dataclass(frozen=True, slots=True)
class TurnPoint:
    """Where a turn ended.

    Attributes
    ----------
    n_said
        Operations when its messages were in the cache; what follows is the cache policy's.
    mark
        The conversation at its end.
    n_history
        Messages that routing knew of then.
    """

    turn: int
    request: str
    n_said: int
    mark: Mark
    n_history: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork can go on from: once `said` operations are kept it shares `end` of them at most."""

    said: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """What a fork did at once, and what it has asked again.

    Attributes
    ----------
    run, parent
        The new run, and the one it was forked from.
    at
        Operations that both have in common.
    kinds
        What the old run did behind them.
    rerun_ops, rerun_tokens
        How much of the old run is computed again.
    note
        In words.
    """

    run: str | None
    parent: str | None
    at: int
    kinds: tuple[str, ...]
    rerun_ops: int
    rerun_tokens: int
    note: str


class TurnLog:
    """Where the turns of the live conversation ended; hears the agent in the thread that works."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._points: list[TurnPoint] = []
        self._said = 0
        self._open = False

    def hear(self, event: Event, agent: Agent | None) -> None:
        """Take note of an event; of a turn that ended well, keep the point."""
        conversation = agent.live if agent is not None else None
        if conversation is not self._conversation:
            self._conversation, self._points = conversation, []
        if event.kind is EventKind.TURN:
            self._open = event.duration_ns is None
        if agent is None or conversation is None:
            return
        if event.kind is EventKind.CACHE_OP and self._open:
            notes = [row.note for row in event.rows if isinstance(row, OpRow)]
            if any(not note.startswith(("policy", "return")) for note in notes):
                self._said = len(conversation.runner.program)
        elif event.kind is EventKind.TURN and not self._open and event.status is Status.OK:
            self._keep(event, agent, conversation)

    def points(self, conversation: Conversation) -> tuple[TurnPoint, ...]:
        """Return the ends of the turns of `conversation`, oldest first.

        Those before a policy last rewrote its text are no points of its program any more.
        """
        if conversation is not self._conversation:
            return ()
        ops = conversation.runner.timeline.ops
        return tuple(
            point for point in self._points if point.mark.program.ops == ops[: len(point.mark.program)]
        )

    def cut(self, n: int) -> None:
        """Forget all turns but the first `n`."""
        del self._points[n:]

    def _keep(self, event: Event, agent: Agent, conversation: Conversation) -> None:
        number, request = event.attributes.get("turn"), event.contents.get("request")
        if isinstance(number, int) and isinstance(request, str):
            said = min(self._said, len(conversation.runner.program))  # fewer once a text was rewritten
            self._points.append(TurnPoint(number, request, said, conversation.mark(), len(agent.history)))


def refuse_code(settings: Mapping[str, Any], profile: Profile) -> None:
    """Refuse a policy that imports code, unless it is what the profile names anyway.

    Settings of a view may come from a recorded run, and the next turn would run what they name.

    Raises
    ------
    SettingsError
        When it is another.
    """
    try:
        asked, own = parse_policy(str(settings.get("policy"))), parse_policy(profile.policy)
    except PolicyTextError:
        return  # whoever changes the profile says what is wrong with it
    if asked.code is not None and asked != own:
        raise SettingsError(
            f"a view cannot choose {asked.text}, which runs code",
            next_step="open the workbench with a profile that names it, or choose another policy",
        )


def profile_changes(settings: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Return settings of a view as those of a profile; ``rolling_drop_repos`` is a policy and a switch.

    Parameters
    ----------
    profile
        The profile that they are to change.

    Raises
    ------
    SettingsError
        When they name code that the profile does not; see `refuse_code`.
    """
    refuse_code(settings, profile)
    changes = {name: value for name, value in settings.items() if value is not None or name == "tau"}
    policy = changes.get("policy")
    if policy == "rolling_drop_repos":
        changes.update(policy="rolling_drop", repos=True)
    elif policy == "rolling_drop" and "repos" not in changes:
        changes["repos"] = False
    return changes


def fork_points(conversation: Conversation, log: TurnLog) -> tuple[ForkPoint, ...]:
    """Return where forks of `conversation` can go on: behind its system prompt, then behind each turn."""
    base = _n_system(conversation)
    ends = (ForkPoint(point.n_said, len(point.mark.program)) for point in log.points(conversation))
    return (*(() if base is None else (ForkPoint(0, base),)), *ends)


def fork(desk: Desk, log: TurnLog, at: int, settings: Mapping[str, Any]) -> Fork:
    """Fork the live conversation; runs on the engine's lane, and posts the turns that are asked again.

    Parameters
    ----------
    at
        Operations to keep; fewer are kept where that is in the middle of a turn.
    settings
        Settings to change, as views name them.

    Raises
    ------
    ForkError
        When there is no conversation, or no such operation.
    SettingsError
        When a setting means nothing; nothing has changed then.
    """
    agent = desk.agent
    conversation = agent.live if agent is not None else None
    if agent is None or conversation is None:
        raise ForkError("there is no conversation to fork", next_step="ask something first")
    timeline = conversation.runner.timeline
    if not 0 <= at <= len(timeline):
        raise ForkError(f"there is no operation {at}", next_step=f"choose 0 to {len(timeline)}")
    changes = profile_changes(settings, desk.profile)
    ask_before = changes.pop("ask_before", desk.ask_before)
    profile = desk.profile.changed(**changes)  # complains before anything is touched
    points = log.points(conversation)
    kept = tuple(point for point in points if point.n_said <= at)
    later = points[len(kept) :]
    n_kept, base = _place(conversation, kept, at)
    parent = desk.recorder.run if desk.recorder is not None else None
    mark = Mark(timeline.prefix(n_kept), base.transcript, base.messages)
    before, agent.profile = agent.profile, profile
    try:
        agent.return_to(mark, n_history=kept[-1].n_history if kept else 0, turn=kept[-1].turn if kept else 0)
    except BaseException:
        agent.profile = before
        raise
    desk.change_profile(**changes, ask_before=ask_before)
    log.cut(len(kept))
    rest = timeline.ops[n_kept:]
    note = f"fork of {parent or 'an unrecorded run'} at op {n_kept}"
    desk.crew.begin_run(parent=parent, note=note)
    _tell_shared(desk, mark.program)
    if kept:
        conversation.tidy()  # what the new policy would have done here
    ask_in_turn(desk, [point.request for point in later])
    return Fork(
        run=desk.recorder.run if desk.recorder is not None else None,
        parent=parent,
        at=n_kept,
        kinds=tuple(op.kind.value for op in rest),
        rerun_ops=len(rest),
        rerun_tokens=sum(map(_n_tokens, rest)),
        note=_words(at, n_kept, later),
    )


def _place(conversation: Conversation, kept: Sequence[TurnPoint], at: int) -> tuple[int, Mark]:
    """Return how many operations are kept, and the mark whose messages they hold."""
    if kept:
        mark = kept[-1].mark
        return min(at, len(mark.program)), mark
    n_messages = _n_system(conversation)
    if n_messages is None:
        raise ForkError(
            "a policy has rewritten the text, and its first messages are one operation now",
            next_step="fork behind a turn that came later, or start a new conversation",
        )
    rendered = conversation.transcript.rendering(n_messages)
    return n_messages, Mark(conversation.runner.timeline.prefix(n_messages), rendered, n_messages)


def _n_system(conversation: Conversation) -> int | None:
    """Return how many operations, and messages, are the system prompt's alone; None where none are."""
    first = conversation.messages[:1]
    if not first or first[0].role != "system":
        return 0
    timeline = conversation.runner.timeline
    alone = bool(timeline.ops) and len(timeline.prefix(1).layout) == first[0].stop
    return 1 if alone else None


def _words(at: int, kept: int, later: Sequence[TurnPoint]) -> str:
    again = f"asks {plural(len(later), 'request')} again" if later else "asks nothing again"
    if kept < at and later:
        return f"op {at} is inside turn {later[0].turn}, which is asked again as a whole; {again}"
    return f"{again}, and runs the model for it" if later else again


def _n_tokens(op: object) -> int:
    match op:
        case Append(tokens) | Splice(_, tokens, _):
            return len(tokens)
        case Repair(selection):
            return len(selection)
        case _:
            return 0


def _tell_shared(desk: Desk, program: CacheProgram) -> None:
    """Tell the new run of the operations that it shares, so that its record is whole."""
    before = None
    for prefix in program.prefixes():
        if before is not None:
            desk.emitter.point(
                EventKind.CACHE_OP, prefix.ops[-1].kind.value, _shared_row(before, prefix), shared=True
            )
        before = prefix


def _shared_row(before: CacheProgram, after: CacheProgram) -> OpRow:
    op, state, earlier = after.ops[-1], after.layout, before.layout
    if isinstance(op, Append | Splice):
        touched = list(range(len(earlier), len(state)))
    elif isinstance(op, Repair):
        touched = list(op.selection)
    else:
        touched = [
            index
            for index in range(len(state))
            if earlier.positions[index] != state.positions[index]
            or earlier.active[index] != state.active[index]
        ]
    places = [int(state.positions[index]) for index in touched if state.positions[index] >= 0]
    return OpRow(
        op=OpKind(op.kind.value),
        state_id=after.id,
        parent_state_id=before.id,
        tokens=len(touched),
        ranges=ranges_of(touched),
        positions=ranges_of(places),
        active_tokens=state.n_active,
        logical_tokens=len(state),
        next_position=state.next_position,
        block=op.block_id if isinstance(op, Splice) else None,
        note=op_note(op, "shared"),
        token_ids=op.tokens if isinstance(op, Append | Splice) else None,
    )


def ask_in_turn(
    desk: Desk, requests: Sequence[str], *, on_end: Callable[[int], None] = lambda _done: None
) -> None:
    """Ask requests one after another; a stop ends the row, a failure does not.

    Parameters
    ----------
    on_end
        Called on the engine's lane with how many were asked.
    """

    def ask(number: int) -> None:
        if number == len(requests):
            on_end(number)
            return
        desk.ask(requests[number], lambda ticket: after(number + 1, ticket), whole=True)

    def after(done: int, ticket: Ticket[Turn]) -> None:
        stopped = ticket.error is not None or ticket.result is None
        if stopped or (ticket.result is not None and ticket.result.outcome is TurnOutcome.CANCELLED):
            left = len(requests) - done
            if left:
                desk.bar.tell("warn", f"Stopped: {plural(left, 'request')} not asked again.")
            on_end(done)
            return
        ask(done)

    ask(0)
