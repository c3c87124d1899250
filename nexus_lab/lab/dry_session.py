"""What a conversation would have cost under another cache policy: counted exactly, without running the model.

A conversation is taken as it went through the cache: the operations that brought its tokens, its messages,
and the points at which a policy may act. Of a live one these are its own tokens; of a trajectory those that a
replay computes. A policy then acts on the same conversation from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.conversation import Conversation
from nexus_lab.bench.cache_replay import turns_of
from nexus_lab.cache import Append, Drop, MessageSpan, Origin, Repair, Repos, TextMessage, make_policy
from nexus_lab.cache.costs import CostMeter, Costs
from nexus_lab.cache.dry import DryRunner
from nexus_lab.cache.policies import FullPolicy
from nexus_lab.errors import Decline
from nexus_lab.policy_text import parse_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.cache import CacheOp, CacheProgram, CacheState, ProgramRunner
    from nexus_lab.engine import Engine

__all__ = [
    "ASKING",
    "DryCost",
    "Recorded",
    "dry_cost",
    "forgetting_tokens",
    "is_rewritten",
    "of_live",
    "of_trajectory",
    "without_policy",
]

ASKING = frozenset({"summarise", "agent"})
"""Policies that ask the model something."""


@dataclass(frozen=True)
class Recorded:
    """A conversation as it went through the cache, without what a policy did to it.

    Attributes
    ----------
    name
        What it is called.
    ops
        Operations that brought tokens about or computed some again, in order.
    messages
        Its messages, in its logical tokens.
    points
        Numbers of operations before which a policy acts; the last may be that of all.
    n_ctx_train
        Positions that the model was trained on; 0 where nobody knows.
    """

    name: str
    ops: tuple[CacheOp, ...] = field(repr=False)
    messages: tuple[MessageSpan, ...] = field(repr=False)
    points: tuple[int, ...] = ()
    n_ctx_train: int = 0

    @property
    def tokens(self) -> int:
        """Logical tokens."""
        return sum(map(_added, self.ops))


@dataclass(frozen=True)
class DryCost:
    """What a conversation costs under a policy.

    Attributes
    ----------
    policy
        The policy as text.
    costs
        What is spent.
    again
        Tokens that were prefilled although they had been before.
    active
        Tokens in the cache at the end.
    dropped
        Tokens that were dropped on the way.
    forgotten
        Whether what was dropped was forgotten for good, by prefilling what came after it anew.
    past_training
        Token from which on positions go past those that the model was trained on; ``None`` if never.
    declined
        Why nothing was counted.
    program
        What the cache would have gone through.
    """

    policy: str
    costs: Costs = field(default_factory=Costs)
    again: int = 0
    active: int = 0
    dropped: int = 0
    forgotten: bool = False
    past_training: int | None = None
    declined: Decline | None = None
    program: CacheProgram | None = field(default=None, repr=False)


def of_live(
    program: CacheProgram,
    messages: Sequence[MessageSpan],
    ends: Sequence[int],
    *,
    n_ctx_train: int | None = None,
    name: str = "this session",
) -> Recorded:
    """Return a live conversation.

    Parameters
    ----------
    program
        What it went through.
    messages
        Its messages, in the program's logical tokens.
    ends
        Numbers of operations behind which its policy acted: where its turns ended.
    """
    kept = [number for number, op in enumerate(program.ops) if not isinstance(op, Drop | Repos)]
    points = tuple(dict.fromkeys(sum(number < end for number in kept) for end in ends))
    ops = tuple(program.ops[number] for number in kept)
    return Recorded(name, ops, tuple(messages), points, n_ctx_train or 0)


def is_rewritten(program: CacheProgram, messages: Sequence[MessageSpan]) -> bool:
    """Whether a live conversation's text was rewritten: its first append then holds several messages.

    Otherwise each message has appends of its own, since they come one after the other.
    """
    first = program.ops[0] if program.ops else None
    return (
        isinstance(first, Append)
        and len(messages) > 1
        and messages[0].stop < messages[1].stop <= len(first.tokens)
    )


def of_trajectory(engine: Engine, trajectory: Trajectory) -> Recorded:
    """Return a trajectory as a replay takes it through the cache: a policy acts before each reply.

    Raises
    ------
    TrajectoryError
        When the assistant says nothing in it.
    """
    system, turns = turns_of(trajectory)
    runner = DryRunner(lambda _call: None)
    conversation = _conversation(engine, runner, FullPolicy(), system)
    conversation.open()
    points = []
    for turn in turns:
        for role, text in turn.inputs:
            conversation.append(role, conversation.transcript.message(role, text), reply=False)
        points.append(len(runner.program))
        conversation.open_reply()
        conversation.force(turn.reply.text, thought=turn.reply.thought, calls=turn.reply.calls)
    trained = engine.info.n_ctx_train or 0
    return Recorded(trajectory.name, runner.program.ops, tuple(conversation.messages), tuple(points), trained)


def without_policy(policy: str) -> Decline | None:
    """Return why the cost of a policy cannot be counted ahead; ``None`` when it can."""
    spec = parse_policy(policy)
    if spec.name not in ASKING:
        return None
    return Decline(
        code="asks_the_model",
        reason=f"what {spec.name} costs depends on what the model says",
        instead="nexus-lab eval cache measures it with the model",
    )


def dry_cost(
    engine: Engine,
    recorded: Recorded,
    policy: str,
    *,
    forget: bool = False,
) -> DryCost:
    """Count what a conversation costs under a policy.

    Parameters
    ----------
    engine
        Tokenises what a policy writes anew; nothing runs on it.
    forget
        After each drop, prefill what is left anew from the first dropped token on, so that later rows know
        nothing of what was dropped.

    Raises
    ------
    ProgramError, PolicyTextError
        When there is no such policy.
    """
    declined = without_policy(policy)
    if declined is not None:
        return DryCost(policy, declined=declined)
    return _Count(engine, recorded, policy, forget=forget).counted()


def _conversation(engine: Engine, runner: DryRunner, policy: object, system: str = "") -> Conversation:
    from nexus_lab.cache import Policy

    return Conversation(
        engine,
        system=system,
        emitter=Emitter(),
        policy=cast("Policy", policy),
        runner=cast("ProgramRunner", runner),
    )


class _Count:
    """One conversation under one policy, from its beginning."""

    def __init__(self, engine: Engine, recorded: Recorded, policy: str, *, forget: bool) -> None:
        self._recorded, self._text, self._forget = recorded, policy, forget
        self._meter = CostMeter()
        self._runner = DryRunner(self._meter)
        self._conversation = _conversation(engine, self._runner, make_policy(policy))
        self._shift = self._source = self._told = self._dropped = 0
        self._past: int | None = None
        self._said = [
            (message.start, message.stop) for message in recorded.messages if message.role == "assistant"
        ]

    def counted(self) -> DryCost:
        """Take every operation, and let the policy act where it may."""
        points = set(self._recorded.points)
        for number, op in enumerate(self._recorded.ops):
            if number in points:
                self._act()
            self._take(op)
        if len(self._recorded.ops) in points:
            self._act()
        costs, state = self._meter.costs, self._runner.program.layout
        new = sum(_added(op) for op in self._recorded.ops if isinstance(op, Append))
        return DryCost(
            policy=self._text,
            costs=costs,
            again=costs.tokens_prefilled + costs.tokens_decoded - new,
            active=state.n_active,
            dropped=self._dropped,
            forgotten=self._forget,
            past_training=self._past,
            program=self._runner.program,
        )

    def _take(self, op: CacheOp) -> None:
        added = _added(op)
        if isinstance(op, Repair):
            op = replace(op, selection=tuple(place + self._shift for place in op.selection))
        if self._is_said(added):
            with self._meter.replying():
                self._conversation.step(op, note="")
        else:
            self._conversation.step(op, note="")
        self._source += added
        trained, at = self._recorded.n_ctx_train, self._runner.program.layout.next_position
        if trained and at > trained and self._past is None:
            self._past = self._source

    def _is_said(self, added: int) -> bool:
        """Whether the model says the tokens that come; what opens its reply is put before it."""
        return added > 0 and any(start < self._source < stop for start, stop in self._said)

    def _act(self) -> None:
        """Let the policy act on what is there, and follow what it makes of the text."""
        self._tell_messages()
        conversation, before = self._conversation, self._runner.program.layout
        n_before = conversation.n_tokens
        conversation.apply_policy()
        after = self._runner.program.layout
        if len(after) >= len(before):
            self._dropped += before.n_active - after.n_active
        if self._forget and not after.active.all():
            texts = [
                TextMessage(message.role, message.text, source=place)
                for place, message in enumerate(conversation.messages)
            ]
            conversation.rewrite(texts)
        self._shift += conversation.n_tokens - n_before

    def _tell_messages(self) -> None:
        """Give the policy the messages that are in the cache by now, where they stand."""
        messages = self._recorded.messages
        while self._told < len(messages) and messages[self._told].stop <= self._source:
            message = messages[self._told]
            thought = message.thought
            moved = None if thought is None else (thought[0] + self._shift, thought[1] + self._shift)
            self._conversation.messages.append(
                replace(
                    message,
                    start=message.start + self._shift,
                    stop=message.stop + self._shift,
                    thought=moved,
                )
            )
            self._told += 1


def _added(op: CacheOp) -> int:
    return len(getattr(op, "tokens", ()))


def forgetting_tokens(state: CacheState) -> int:
    """Return how many tokens a prefill takes that forgets what was dropped; 0 when nothing was.

    The active tokens are prefilled from the first that is another one than at its place before: what was
    dropped may begin with the same tokens as what follows it, and these are there already.
    """
    if state.active.all():
        return 0
    kept = state.tokens[state.active]
    same = (kept == state.tokens[: len(kept)]) & (state.origin[: len(kept)] == Origin.COMPUTED)
    return len(kept) - (int(np.argmin(same)) if not same.all() else len(kept) - 1)
