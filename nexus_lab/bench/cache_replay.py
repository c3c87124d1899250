"""One real conversation under one cache policy: its replies are known, and so is how likely they were."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.conversation import Conversation
from nexus_lab.bench.trajectories import TrajectoryError
from nexus_lab.cache import make_policy
from nexus_lab.cache.costs import CostMeter
from nexus_lab.cache.dry import DryRunner
from nexus_lab.engine import ContextFull, Engine
from nexus_lab.errors import Decline
from nexus_lab.splice import SYSTEM_PROMPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.cache import Policy, ProgramRunner

__all__ = [
    "Reply",
    "TurnSteps",
    "cells_for",
    "conversation_tokens",
    "count",
    "load_for",
    "replay",
    "turns_of",
]

_CHUNK = 64
PAST_TRAINING = "positions_past_training"
"""Code of the decline of a conversation that the policy cannot keep within the trained positions."""
CONTEXT_FULL = "context_full"
"""Code of the decline of a conversation for which the cells are too few."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the assistant said.

    Attributes
    ----------
    text
        All of it, a call as JSON.
    thought
        The prose that stands before a call; empty without any.
    calls
        Whether there is a call.
    """

    text: str
    thought: str
    calls: bool


@dataclass(frozen=True, slots=True)
class TurnSteps:
    """What came in before a reply, as role and text, and the reply."""

    inputs: tuple[tuple[str, str], ...]
    reply: Reply


def turns_of(trajectory: Trajectory) -> tuple[str, list[TurnSteps]]:
    """Return the system prompt and the turns; what follows the last reply is left out.

    Raises
    ------
    TrajectoryError
        When the assistant says nothing in it.
    """
    system, waiting, turns = "", list[tuple[str, str]](), list[TurnSteps]()
    for message in trajectory.messages:
        role, text = message["role"], message.get("content") or ""
        if role == "assistant":
            turns.append(TurnSteps(tuple(waiting), _reply(message, text)))
            waiting = []
        elif role in {"system", "developer"} and not turns and not waiting:
            system = f"{system}\n\n{text}" if system else text
        else:
            waiting.append(("tool" if role in {"tool", "function"} else "user", text))
    if not turns:
        raise TrajectoryError(
            f"the assistant says nothing in {trajectory.name}", next_step="give conversations with replies"
        )
    return system or SYSTEM_PROMPT, turns


def _reply(message: Mapping[str, Any], text: str) -> Reply:
    calls = [
        {"name": call["name"], "arguments": call.get("arguments")} for call in message.get("tool_calls") or ()
    ]
    if not calls:
        return Reply(text, "", calls=False)
    thought = f"{text}\n" if text else ""
    return Reply(thought + json.dumps(calls if len(calls) > 1 else calls[0]), thought, calls=True)


def conversation_tokens(engine: Engine, trajectory: Trajectory) -> int:
    """Return about how many tokens a conversation has, its markup included."""
    system, turns = turns_of(trajectory)
    texts = [system, *(text for turn in turns for _, text in (*turn.inputs, ("", turn.reply.text)))]
    return sum(len(engine.tokenize(text, special=False)) + _MARKUP for text in texts)


def cells_for(engine: Engine, trajectories: Sequence[Trajectory]) -> int:
    """Return the size of a context for conversations, as far as the model was trained, and some room."""
    longest = max(conversation_tokens(engine, trajectory) for trajectory in trajectories)
    cells = min(longest, engine.info.n_ctx_train or longest)
    return -(-(cells + _ROOM) // _CTX_STEP) * _CTX_STEP


def load_for(model: str | Path, trajectories: Sequence[Trajectory], *, threads: int | None = None) -> Engine:
    """Load a model with a context for these conversations.

    Raises
    ------
    TrajectoryError
        When there are none.
    """
    if not trajectories:
        raise TrajectoryError("there is no conversation", next_step="give at least one")
    with Engine.load(model, n_ctx=_PLAN_CTX, threads=1) as engine:
        n_ctx = cells_for(engine, trajectories)
    return Engine.load(model, n_ctx=n_ctx, threads=threads)


_MARKUP = 6
_PLAN_CTX = 512
_CTX_STEP = 1024
# Beside the conversation: what a policy asks the model meanwhile, and its answer.
_ROOM = 1024


def replay(
    engine: Engine, trajectory: Trajectory, policy: Policy | str, *, n_turns: int | None = None
) -> dict[str, Any]:
    """Replay a conversation, its replies forced, under a policy.

    The policy decides before each reply, when what came in is in the cache already. A reply is computed in
    one prefill, and counted as decoded. Times leave out the reading of the logits.

    Parameters
    ----------
    policy
        The policy, or its text.
    n_turns
        Only the first so many replies.

    Returns
    -------
    dict
        JSON values: ``nll`` and ``scored`` (summed, over the replies' text and end), the counts of `Costs`,
        ``input_tokens`` (each once), ``wall_s``, by turn ``ttft_s`` (until the first token of the reply could
        be chosen), ``turn_s`` and ``active``; ``declined`` when the conversation could not go on.
    """
    engine.clear()
    meter = CostMeter()
    with engine.metered(meter):
        return _replayed(engine, trajectory, policy, meter, n_turns)


def _replayed(
    engine: Engine,
    trajectory: Trajectory,
    policy: Policy | str,
    meter: CostMeter,
    n_turns: int | None,
    *,
    runner: ProgramRunner | None = None,
) -> dict[str, Any]:
    system, turns = turns_of(trajectory)
    run, began = _Run(engine), perf_counter()
    conversation = Conversation(
        engine,
        system=system,
        emitter=Emitter(),
        policy=make_policy(policy) if isinstance(policy, str) else policy,
        runner=runner,
    )
    declined: Decline | None = None
    try:
        conversation.open()
        run.wall_s, run.input_tokens = perf_counter() - began, conversation.n_tokens
        for turn in turns[:n_turns]:
            declined = run.turn(conversation, meter, turn)
            if declined is not None:
                break
    except ContextFull as error:
        declined = run.no_room(error)
    finally:
        conversation.close()
    return {
        "trajectory": trajectory.name,
        "declined": None if declined is None else declined.reason,
        "declined_code": None if declined is None else declined.code,
        **run.facts(),
        **meter.costs.to_dict(),
    }


def count(
    engine: Engine, trajectory: Trajectory, policy: Policy | str, *, n_turns: int | None = None
) -> dict[str, Any]:
    """Count what a conversation costs under a policy, as `replay` does, without running the model.

    Returns
    -------
    dict
        As of `replay`, with ``nll`` and times 0. The engine only tokenises.

    Raises
    ------
    RunnerError
        When the policy asks the model something.
    """
    meter = CostMeter()
    return _replayed(
        engine, trajectory, policy, meter, n_turns, runner=cast("ProgramRunner", DryRunner(meter))
    )


class _Run:
    """What is known so far of one replay."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ends = frozenset(engine.vocabulary.eog)
        self.nll = self.wall_s = 0.0
        self.scored = self.input_tokens = 0
        self.ttft_s: list[float] = []
        self.turn_s: list[float] = []
        self.active: list[int] = []

    def turn(self, conversation: Conversation, meter: CostMeter, turn: TurnSteps) -> Decline | None:
        """Take one turn; returns why the conversation cannot go on."""
        began = perf_counter()
        for role, text in turn.inputs:
            before = conversation.n_tokens
            pieces = conversation.transcript.message(role, text)
            conversation.append(role, pieces, reply=False)
            self.input_tokens += conversation.n_tokens - before
        conversation.apply_policy()
        before = conversation.n_tokens
        conversation.open_reply()
        self.input_tokens += conversation.n_tokens - before
        declined = self._declined(conversation, turn.reply)
        if declined is not None:
            return declined
        ttft_s, start = perf_counter() - began, conversation.n_tokens
        with meter.replying():
            logits = conversation.force(turn.reply.text, thought=turn.reply.thought, calls=turn.reply.calls)
        self.turn_s.append(perf_counter() - began)
        self.ttft_s.append(ttft_s)
        self.wall_s += self.turn_s[-1]
        self.active.append(conversation.runner.snapshot.state.n_active)
        said = self._said(conversation.tokens[start:])
        if not logits.size:  # nothing was run
            return None
        self.nll += negative_log_likelihood(logits[: len(said)], said)
        self.scored += len(said)
        return None

    def _said(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens that a model would have chosen: up to the one that ends the turn."""
        ends = [place for place, token in enumerate(tokens) if token in self._ends]
        return tokens[: ends[-1] + 1] if ends else tokens

    def _declined(self, conversation: Conversation, reply: Reply) -> Decline | None:
        trained = self._engine.info.n_ctx_train
        wanted = conversation.runner.snapshot.state.next_position + len(
            self._engine.tokenize(reply.text, special=False)
        )
        if not trained or wanted <= trained:
            return None
        return Decline(
            PAST_TRAINING,
            f"turn {len(self.turn_s) + 1} reaches position {wanted}, and the model was trained on {trained}",
            "a policy that drops and re-packs positions can go on",
        )

    def no_room(self, error: ContextFull) -> Decline:
        """Return the decline of a conversation that has outgrown the cells."""
        return Decline(
            CONTEXT_FULL,
            f"turn {len(self.turn_s) + 1}: {error.problem}",
            "a policy that keeps less, or asks the model less, can go on",
        )

    def facts(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        names = ("nll", "scored", "wall_s", "input_tokens", "ttft_s", "turn_s", "active")
        return {name: getattr(self, name) for name in names}


def negative_log_likelihood(logits: NDArray[np.float32], tokens: Sequence[int]) -> float:
    """Return the negative log-likelihood of tokens, in nats, summed.

    Parameters
    ----------
    logits
        float32 [n, n_vocab], before each token.
    """
    total = 0.0
    for first in range(0, len(tokens), _CHUNK):
        rows = logits[first : first + _CHUNK]
        chosen = np.asarray(tokens[first : first + _CHUNK])
        largest = rows.max(axis=1)
        mass = np.exp(rows - largest[:, np.newaxis]).sum(axis=1, dtype=np.float64)
        total += float((largest + np.log(mass) - rows[np.arange(len(chosen)), chosen]).sum())
    return total
