"""What the Cache panel draws beside the program: op tree, residency, restore, policy, front, attention.

A view asks for a drawing by name, with the values of its fields; the drawing is made from snapshots. What has
to run the model, or touches its context, is a job that leaves its outcome behind.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nexus_lab.cache import TextMessage
from nexus_lab.errors import NexusError
from nexus_lab.lab.attention_figure import AttentionFigure
from nexus_lab.lab.cache_costs import CostBook, TextRewritten
from nexus_lab.lab.drawing import wire_of
from nexus_lab.lab.fork import TurnLog, profile_changes
from nexus_lab.lab.named_path import named_path
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.pareto import ParetoFront
from nexus_lab.lab.policy_form import PolicyChoice, chosen_policy, explicit
from nexus_lab.lab.policy_knobs import PolicyKnobs
from nexus_lab.lab.residency_view import ResidencyView, disk_words, evictions
from nexus_lab.lab.restore_plan import did, plan_restore, try_cold
from nexus_lab.lab.restore_view import RestoreView
from nexus_lab.lab.tree_drawing import TreeDrawing
from nexus_lab.lab.tree_shot import Step, TreeShot, shoot, steps_of
from nexus_lab.lab.wire import BadRequest, Lane, instant, job
from nexus_lab.policy_text import PolicySpec, parse_policy
from nexus_lab.splice import LibraryBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.bench import AttentionStudy, CacheSweep, PolicySearch
    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.cache import CacheProgram, ProgramRunner, Residency, RunResult
    from nexus_lab.cache.costs import Prices
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.drawing import Drawing
    from nexus_lab.lab.restore_plan import ColdTrial, RestoreDone, RestorePlan

__all__ = ["CacheWork", "NoProgram"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class NoProgram(NexusError):
    """There is no conversation yet, so there is no cache program either."""


class CacheWork(Panel):
    """The drawings of the Cache panel, and what their buttons do.

    In plain Python they are methods: ``print(wb.cache.tree())``, ``wb.cache.cost("trim").to_frame()``.
    """

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._log = TurnLog()
        self._costs = CostBook()
        self._residency: Residency | None = None
        self._left: tuple[tuple[str, tuple[Step, ...]], ...] = ()
        self._shot: tuple[Residency, Any, TreeShot] | None = None
        self._plans: tuple[RestorePlan, ...] = ()
        self._done: RestoreDone | None = None
        self._trial: ColdTrial | None = None
        self._known: Conversation | None = None
        self._ran = False
        self._front: ParetoFront | None = None
        self._attention: AttentionFigure | None = None
        self._files: dict[str, tuple[tuple[str, int], Any]] = {}
        self._drawn = 0

    # -- drawings -----------------------------------------------------------------------------------------

    def tree(self) -> TreeDrawing:
        """Return the op tree: which programs share what, and where each node's rows are."""
        conversation, found = self._followed(), self._residency
        if conversation is None or found is None:
            return TreeDrawing(TreeShot())
        runner, left, last = conversation.runner, self._left, self._shot
        key = runner.timeline.id, runner.cursor, left
        if last is None or last[0] is not found or last[1] != key:
            steps = self._steps(runner.timeline)
            shot = shoot(runner.store.tree, found.nodes, steps, runner.cursor, left=left)
            last = self._shot = found, key, shot
        return TreeDrawing(last[2])

    def memories(self) -> ResidencyView:
        """Return limits and counters of sequences, arena and disk; `residency` is the record behind it."""
        return ResidencyView(self._residency, disk=disk_words(self.desk.crew.disk))

    def restores(self) -> RestoreView:
        """Return the last plans of a restore, and what the last one did, while their state is still there."""
        conversation = self._followed()
        if conversation is None:
            return RestoreView()
        timeline, done, trial = conversation.runner.timeline, self._done, self._trial
        plans = {plan.cold: plan for plan in self._plans if _holds(timeline, plan.op, plan.state_id)}
        once = trial.at_once if trial is not None else None
        return RestoreView(
            ops=tuple(op.kind.value for op in timeline.ops),
            plan=plans.get(False),
            cold=plans.get(True),
            done=done if done is not None and _holds(timeline, done.op, done.state_id) else None,
            trial=trial if once is not None and _holds(timeline, once.op, once.state_id) else None,
            chosen_op=next((plan.op for plan in plans.values()), None),
            live=False,
            evicted=0 if self._residency is None else evictions(self._residency),
        )

    def cost(
        self, policy: str | None = None, *, trajectory: Trajectory | str | Path | None = None
    ) -> PolicyKnobs:
        """Return what a conversation costs under a policy against full, counted exactly; runs no model.

        Of a live conversation whose text was rewritten nobody knows what full would cost: its `problem` says
        so then, and there is no cost.

        Parameters
        ----------
        policy
            As text, such as ``rolling_drop_repos(keep_last=1)``; the profile's by default.
        trajectory
            A conversation, or a file of them, of which the first is taken; the live one by default.

        Raises
        ------
        NoProgram
            When there is no live conversation either.
        PolicyTextError, TrajectoryError
            When there is no such policy or conversation.
        """
        own = chosen_policy({}, self.desk.profile).spec
        return self._knobs_of(own if policy is None else parse_policy(policy), trajectory)

    def _knobs_of(self, spec: PolicySpec, trajectory: Trajectory | str | Path | None) -> PolicyKnobs:
        engine = self.desk.engine
        if engine is None:
            raise NoProgram("no model is loaded, so nothing can be tokenised", next_step="load a model")
        if isinstance(trajectory, str | Path):
            trajectory = self._costs.talks(Path(trajectory))[0]
        cost, problem = None, ""
        try:
            recorded = (
                self._costs.live(self._needed(), self._log, engine, ran=self._ran)
                if trajectory is None
                else self._costs.recorded(engine, trajectory)
            )
            cost = self._costs.cost(engine, recorded, explicit(spec))
        except TextRewritten as error:
            problem = str(error)
        return PolicyKnobs(
            choice=PolicyChoice(spec),
            profile=self.desk.profile,
            cost=cost,
            problem=problem,
            forgetting=self._costs.forgetting(self._conversation),
            live=False,
        )

    def front(
        self, source: CacheSweep | PolicySearch | str | Path, *, prices: Prices | None = None
    ) -> ParetoFront:
        """Return the Pareto front of a replay or a search, a folder's at `prices`; see `ParetoFront.of`."""
        self._front = ParetoFront.of(source, prices=prices)
        return self._front

    def attention(self, source: AttentionStudy | str | Path) -> AttentionFigure:
        """Return the figure of an attention study; see `AttentionFigure.of`."""
        self._attention = AttentionFigure.of(source)
        return self._attention

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """What there is to draw now, as a page has it."""
        found: list[Drawing] = []
        if self._residency is not None and self._conversation is not None:
            found += [self.tree(), self.memories(), self.restores()]
            with suppress(NexusError):  # a policy that cannot be made, or counted ahead
                found.append(self.cost())
        return (*found, *(item for item in (self._front, self._attention) if item is not None))

    # -- what views ask for -------------------------------------------------------------------------------

    @instant
    def view(self, name: str, values: dict[str, Any]) -> list[Any]:
        """Return a drawing that is made from snapshots: ``tree``, ``residency`` or ``restore``."""
        makers: Mapping[str, Callable[[], Drawing]] = {
            "tree": lambda: replace(
                self.tree(), selected=self._selected(_number(values.get("op"))), live=True
            ),
            "residency": self.memories,
            "restore": lambda: replace(self.restores(), chosen_op=_number(values.get("op")), live=True),
        }
        return _drawn(makers, name)

    @job("counting", lane=Lane.SIDE)
    def study(self, name: str, values: dict[str, Any]) -> list[Any]:
        """Return a drawing that reads files, or counts: ``policy``, ``front`` or ``attention``."""
        told = {str(key): str(value) for key, value in values.items()}
        makers: Mapping[str, Callable[[], Drawing]] = {
            "policy": lambda: self._costs.knobs(self.desk, self._followed(), self._log, told, ran=self._ran),
            "front": lambda: self._front_of(told.get("front", "").strip()),
            "attention": lambda: self._attention_of(told.get("attention", "").strip()),
        }
        return _drawn(makers, name)

    def _front_of(self, path: str) -> ParetoFront:
        if not path:
            return ParetoFront(live=True)
        try:
            return replace(self._read(path, self.front), live=True)
        except NexusError as error:
            return ParetoFront(path=path, problem=str(error), live=True)

    def _attention_of(self, path: str) -> AttentionFigure:
        if not path:
            return AttentionFigure(live=True)
        try:
            return replace(self._read(path, self.attention), live=True)
        except NexusError as error:
            return AttentionFigure(path=path, problem=str(error), live=True)

    def _read(self, path: str, reader: Callable[[str], T]) -> T:
        """Return what `reader` makes of a file or folder, again only when that has changed."""
        where = named_path(path)
        newest = max(
            (file.stat().st_mtime_ns for file in (where, *where.glob("*.json*")) if file.exists()), default=0
        )
        kept = self._files.get(reader.__name__)
        if kept is None or kept[0] != (path, newest):
            kept = self._files[reader.__name__] = (path, newest), reader(path)
        found: T = kept[1]
        return found

    def _selected(self, op: int | None) -> int | None:
        return None if op is None or self._shot is None else self._shot[2].nodes.get(op)

    # -- jobs ---------------------------------------------------------------------------------------------

    @job("planning a restore")
    def plan(self, values: dict[str, Any]) -> dict[str, Any]:
        """Plan the restore of the state behind ``op``, from what is kept and from nothing."""
        plan = self.plan_restore(_number(values.get("op")))
        return {"op": plan.op, "tokens": plan.tokens}

    @job("restoring")
    def restore(self, values: dict[str, Any]) -> dict[str, Any]:
        """Bring the state behind ``op`` back."""
        done = self.bring_back(_number(values.get("op")))
        return {"op": done.op, "computed": done.computed}

    @job("restoring from nothing")
    def try_restore(self, values: dict[str, Any]) -> dict[str, Any]:
        """Compute the state behind ``op`` from nothing, at once and step by step, beside the conversation."""
        trial = self.try_from_nothing(_number(values.get("op")))
        return {"op": trial.at_once.op, "computed": trial.at_once.computed}

    @job("forgetting for good")
    def forget(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - the contract of buttons
        """Prefill what is active anew, so that no row knows of what was dropped."""
        return {"computed": self.forget_for_good()}

    @instant
    def use_policy(self, values: dict[str, Any]) -> dict[str, Any]:
        """Take the policy of the fields from the next turn on."""
        told = {str(key): str(value) for key, value in values.items()}
        choice = chosen_policy(told, self.desk.profile)
        changes = profile_changes({"policy": choice.text}, self.desk.profile)
        if choice.spec.name == "rolling_drop":
            changes["repos"] = False  # a profile's switch would make it another policy
        self.desk.change_profile(**changes)
        self._redraw()
        return {"policy": choice.text}

    def plan_restore(self, op: int | None = None) -> RestorePlan:
        """Return what bringing the state behind `op` back would do now; the last state by default.

        Raises
        ------
        NoProgram, ProgramError
            When there is no conversation, or it has fewer operations.
        """

        def work() -> RestorePlan:
            runner, engine = self._needed().runner, self.desk.engine
            assert engine is not None  # noqa: S101 - there is a conversation
            at = len(runner.timeline) if op is None else op
            self._look()
            evicted, blocks = (evictions(self._residency) if self._residency else 0), self._blocks()
            with engine.turn():
                found = [
                    plan_restore(runner, at, engine=engine, cold=cold, blocks=blocks, evicted=evicted)
                    for cold in (False, True)
                ]
            self._plans = tuple(found)
            self._redraw()
            return found[0]

        return self._on_lane("planning a restore", work)

    def bring_back(self, op: int | None = None) -> RestoreDone:
        """Go to the state behind `op`, what has to be computed at once; returns what that took."""

        def work() -> RestoreDone:
            runner = self._needed().runner
            at = len(runner.timeline) if op is None else op
            self._gone_to(at, at_once=True)
            self._look()
            self.changed()
            assert self._done is not None  # noqa: S101 - set above
            return self._done

        return self._on_lane("restoring", work)

    def try_from_nothing(self, op: int | None = None) -> ColdTrial:
        """Compute the state behind `op` from nothing, at once and step by step, on a sequence beside.

        Raises
        ------
        ContextFull
            When the cells beside the conversation are too few.
        """

        def work() -> ColdTrial:
            runner, engine = self._needed().runner, self.desk.engine
            assert engine is not None  # noqa: S101 - there is a conversation
            at = len(runner.timeline) if op is None else op
            self._trial = try_cold(engine, runner.timeline.prefix(at), self._blocks())
            self._look()
            self._redraw()
            return self._trial

        return self._on_lane("restoring from nothing", work)

    def forget_for_good(self) -> int:
        """Prefill what is active anew, from the first dropped token on; returns the tokens that took.

        Dropped tokens are no part of the conversation afterwards. Nothing happens when none are dropped, and
        when it fails or is stopped the conversation stays as it was.
        """

        def work() -> int:
            conversation = self._needed()
            conversation.rejoin()
            if conversation.runner.snapshot.state.active.all():
                return 0
            texts = [
                TextMessage(message.role, message.text, source=place)
                for place, message in enumerate(conversation.messages)
            ]
            with self._whole_or_not(conversation):
                result = conversation.rewrite(texts)
            self._went(len(result.program), result, at_once=False)
            self._look()
            self.changed()
            return 0 if self._done is None else self._done.computed

        return self._on_lane("forgetting for good", work)

    @contextmanager
    def _whole_or_not(self, conversation: Conversation) -> Iterator[None]:
        """Take back what the block did to the conversation, when it fails or is stopped.

        Stands outside the engine's turn, since a stopped turn refuses to decode until it is left.
        """
        mark = conversation.mark()
        try:
            yield
        except BaseException:
            try:
                conversation.rewind(mark)
            except (NexusError, KeyboardInterrupt):
                _LOG.warning("the conversation could not be rewound, and starts anew")
                if self.desk.agent is not None:
                    self.desk.agent.new_conversation()
            self._look()
            self._redraw()
            raise

    # -- within -------------------------------------------------------------------------------------------

    def _followed(self) -> Conversation | None:
        """Return the live conversation; what was planned, tried and left in another one is forgotten."""
        conversation = self._conversation
        if conversation is not self._known:
            self._known = conversation
            self._forget_trials()
        return conversation

    def _forget_trials(self) -> None:
        """Forget what holds for one conversation alone."""
        self._plans, self._done, self._trial, self._left = (), None, None, ()
        self._ran = False

    def _blocks(self) -> LibraryBlocks | None:
        """Return where the agent's splices find their blocks."""
        return None if self.desk.agent is None else LibraryBlocks(self.desk.agent.library)

    @property
    def _conversation(self) -> Conversation | None:
        agent = self.desk.agent
        return agent.live if agent is not None else None

    def _needed(self) -> Conversation:
        conversation = self._followed()
        if conversation is None:
            raise NoProgram("there is no cache program yet", next_step="ask something under Agent")
        return conversation

    def _on_lane(self, label: str, work: Callable[[], T]) -> T:
        """Run on the engine's lane, and wait for it when called from elsewhere."""
        driver = self.desk.driver
        return work() if driver.is_mine else driver.submit(label, work).get()

    def _steps(self, timeline: CacheProgram) -> tuple[Step, ...]:
        """Return the operations of the live program."""
        return steps_of(timeline)

    def _look(self) -> None:
        """Take note of where rows are; in the thread that works with them."""
        conversation = self._followed()
        if conversation is not None:
            self._residency = conversation.runner.residency()
            self._drawn += 1

    def _went(self, op: int, result: RunResult, *, at_once: bool, from_disk: bool = False) -> None:
        """Keep what bringing a state back did; what was planned before is no longer so."""
        self._plans = ()
        self._done = did(op, result, at_once=at_once, from_disk=from_disk)

    def _gone_to(self, op: int, *, at_once: bool) -> None:
        """Go to the state behind `op`, and keep what that did."""
        runner = self._needed().runner
        before = _disk_reads(runner)
        result = runner.goto(op, at_once=at_once)
        self._went(op, result, at_once=at_once, from_disk=_disk_reads(runner) > before)

    def _redraw(self) -> None:
        """Say that drawings are other ones now."""
        self._drawn += 1
        self.changed()

    def _forget_drawings(self) -> None:
        """Forget what was drawn of an engine that is gone."""
        self._costs = CostBook()
        self._residency, self._shot, self._known = None, None, None
        self._forget_trials()
        self._drawn += 1


def _drawn(makers: Mapping[str, Callable[[], Drawing]], name: str) -> list[Any]:
    maker = makers.get(name)
    if maker is None:
        raise BadRequest(f"there is no drawing {name!r}", next_step=f"ask for {', '.join(makers)}")
    return wire_of(maker().element())


def _holds(timeline: CacheProgram, op: int, state_id: str) -> bool:
    """Whether the live program still goes through a state."""
    return op <= len(timeline) and timeline.prefix(op).id == state_id


def _disk_reads(runner: ProgramRunner) -> int:
    disk = runner.store.disk
    return 0 if disk is None else disk.counters()["read"]


def _number(value: object) -> int | None:
    """Return a field's whole number; ``None`` where it is empty or none."""
    return int(value) if isinstance(value, str) and value.isdecimal() else None
