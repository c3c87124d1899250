"""The costs that the Cache panel shows, each counted once: by conversation and policy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nexus_lab.bench.trajectories import TrajectoryError, read_trajectories
from nexus_lab.errors import NexusError
from nexus_lab.lab.dry_session import dry_cost, forgetting_tokens, is_rewritten, of_live, of_trajectory
from nexus_lab.lab.named_path import named_path
from nexus_lab.lab.policy_form import chosen_policy
from nexus_lab.lab.policy_knobs import Forgetting, PolicyCost, PolicyKnobs
from nexus_lab.policy_text import parse_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.engine import Engine
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.dry_session import DryCost, Recorded
    from nexus_lab.lab.fork import TurnLog

__all__ = ["CostBook", "TextRewritten"]

_MOST_TALKS = 200
_DROPPING = frozenset({"rolling_drop", "rolling_drop_repos", "drop_reasoning", "drop_both"})


class TextRewritten(NexusError):
    """What a conversation said at first is no longer in it, so that full cannot be counted."""


class CostBook:
    """Counts on demand, and keeps what it has counted; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], tuple[Trajectory, ...]] = {}
        self._recorded: dict[tuple[str, str], Recorded] = {}
        self._live: tuple[object, Recorded] | None = None
        self._counted: dict[tuple[int, str, bool], tuple[Recorded, DryCost]] = {}

    def talks(self, path: Path) -> tuple[Trajectory, ...]:
        """Return the conversations of a file; it is read again when it has changed.

        Raises
        ------
        TrajectoryError, PathRefused
            When it holds none, or no file can be called so.
        """
        where = named_path(path).absolute()
        try:
            key = str(where), where.stat().st_mtime_ns
        except OSError as error:
            raise TrajectoryError(f"{path} cannot be read: {error}", next_step="name a file") from error
        if key not in self._files:
            self._files = {key: tuple(read_trajectories(where)[:_MOST_TALKS])}
        return self._files[key]

    def recorded(self, engine: Engine, trajectory: Trajectory) -> Recorded:
        """Return a trajectory as it goes through the cache."""
        key = trajectory.name, str(hash(repr(trajectory.messages)))
        if key not in self._recorded:
            self._recorded[key] = of_trajectory(engine, trajectory)
        return self._recorded[key]

    def live(
        self, conversation: Conversation, log: TurnLog, engine: Engine, *, ran: bool = False
    ) -> Recorded:
        """Return the live conversation up to the end of its last turn; without any, as it is.

        Parameters
        ----------
        ran
            Whether a turn has ended in it.

        Raises
        ------
        TextRewritten
            When a policy, or forgetting for good, has rewritten its text.
        """
        points = log.points(conversation)
        program = points[-1].mark.program if points else conversation.runner.timeline
        if (ran and not points) or is_rewritten(program, tuple(conversation.messages)):
            raise TextRewritten(
                "the text of this conversation was rewritten, by a policy such as trim or by forgetting for "
                "good, so that what full would cost is not known",
                next_step="count on a trajectory file, or start a new conversation",
            )
        with self._lock:
            if self._live is None or self._live[0] != program.id:
                n_messages = points[-1].mark.messages if points else len(conversation.messages)
                made = of_live(
                    program,
                    tuple(conversation.messages)[:n_messages],
                    [point.n_said for point in points],
                    n_ctx_train=engine.info.n_ctx_train,
                )
                self._live = program.id, made
                self._counted = {
                    kept: item for kept, item in self._counted.items() if item[0].name != made.name
                }
            return self._live[1]

    def cost(self, engine: Engine, recorded: Recorded, policy: str) -> PolicyCost:
        """Return the cost of full, of a policy, and of that policy with true forgetting where it drops.

        Raises
        ------
        ProgramError
            When the policy cannot be made.
        """
        wanted = [("full", False)]
        if policy != "full":
            wanted.append((policy, False))
        if parse_policy(policy).name in _DROPPING:
            wanted.append((policy, True))
        costs = tuple(self._one(engine, recorded, text, forget=forget) for text, forget in wanted)
        return PolicyCost(recorded.name, recorded.tokens, costs)

    def _one(self, engine: Engine, recorded: Recorded, policy: str, *, forget: bool) -> DryCost:
        key = id(recorded), policy, forget
        found = self._counted.get(key)
        if found is None or found[0] is not recorded:
            found = recorded, dry_cost(engine, recorded, policy, forget=forget)
            self._counted[key] = found
        return found[1]

    @staticmethod
    def forgetting(conversation: Conversation | None) -> Forgetting:
        """Return what true forgetting would take in the live conversation now."""
        if conversation is None:
            return Forgetting()
        state = conversation.runner.timeline.layout
        return Forgetting(len(state) - state.n_active, forgetting_tokens(state))

    def knobs(
        self,
        desk: Desk,
        conversation: Conversation | None,
        log: TurnLog,
        values: Mapping[str, str],
        *,
        ran: bool = False,
    ) -> PolicyKnobs:
        """Return the knobs that a view's fields say, with their cost; what is wrong stands in it."""
        choice = chosen_policy(values, desk.profile)
        source, path = values.get("source", "session"), values.get("path", "").strip()
        cost, problem, names, talk = None, "", tuple[str, ...](), values.get("talk", "")
        try:
            recorded: Recorded | None = None
            if desk.engine is None:
                problem = "No model is loaded, so that nothing can be tokenised."
            elif source == "file" and path:
                talks = {item.name: item for item in self.talks(Path(path))}
                names = tuple(talks)
                talk = talk if talk in talks else names[0]
                recorded = self.recorded(desk.engine, talks[talk])
            elif source != "file" and conversation is not None:
                recorded = self.live(conversation, log, desk.engine, ran=ran)
            if desk.engine is not None and recorded is not None:
                cost = self.cost(desk.engine, recorded, choice.text)
        except NexusError as error:
            problem = str(error)
        return PolicyKnobs(
            choice=choice,
            profile=desk.profile,
            cost=cost,
            problem=problem,
            source="file" if source == "file" else "session",
            path=path,
            talks=names,
            talk=talk,
            forgetting=self.forgetting(conversation),
        )
