"""Calibrating ``splice(bounded(epsilon))`` for the agent: its own blocks, behind its own system prompt.

One half of the conversations gives the bounds, and the other half tells how they hold.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent import SYSTEM_PROMPT
from nexus_lab.agent.blocks import block_recipes
from nexus_lab.agent.calling import call_opening, tool_block
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.bench.base import ResultFile, adapter_facts
from nexus_lab.bench.clusters import cluster_mean, cluster_share
from nexus_lab.bench.splice_grid import (
    OWN_CONTEXT,
    EngineSettings,
    Repair,
    SpliceTask,
    TaskKind,
    compile_contexts,
)
from nexus_lab.bench.splice_inputs import FORCED, choose_subjects, forced_tokens, live_prefix, read_cases
from nexus_lab.bench.splice_report import SpliceSweep
from nexus_lab.bench.splice_tasks import measure
from nexus_lab.bench.splice_tools import SPLICE_CASES, SpliceCase
from nexus_lab.bench.sweep import Journal, run_tasks
from nexus_lab.bench.trajectories import read_trajectories, trajectory_messages
from nexus_lab.engine import Engine
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.engine.rope import rope_from_gguf
from nexus_lab.paths import cache_dir
from nexus_lab.splice import (
    BUDGETED,
    PREFILL,
    Calibration,
    CalibrationError,
    CalibrationSample,
    RepairKind,
    TrialCase,
    kept_conversations,
    least_samples,
    message_ending,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from nexus_lab.agent.blocks import CompileContext
    from nexus_lab.bench.base import Result
    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.registry import Registry, ToolSpec
    from nexus_lab.splice import BlockContext

__all__ = ["BUDGETS", "DEPTHS", "AgentCalibration", "agent_cases", "calibrate_agent"]

DEPTHS = (64, 256, 512, 1024, 2048)
"""Depths measured by default; between them the worse neighbour holds."""

BUDGETS = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Shares of a block that are tried, the smallest first."""

_QUANTILE = 0.95
_FLOORS = (3.0, 5.0, 10.0, 30.0)
_PLAN_CTX = 512
_CTX_STEP = 1024
_ROOM = 128
# What a sweep calls the contexts that the agent compiles behind.
_SWEPT = {"none": "none", "system": "system", "typical": OWN_CONTEXT}


@dataclass(frozen=True, slots=True)
class AgentCalibration:
    """A calibration, and the conversations that were kept apart from it.

    Attributes
    ----------
    calibration
        The bounds, with the coverage of a few of them.
    apart
        Samples of the conversations kept apart.
    settings
        What was measured.
    """

    calibration: Calibration
    apart: tuple[CalibrationSample, ...]
    settings: dict[str, Any]

    def results(self) -> ResultFile:
        """Return coverage, recomputed share and noise floor in the form of every measurement."""
        found: list[Result] = []
        for factor, row in zip(_FLOORS, self.calibration.coverage, strict=True):
            case = {"epsilon": row.epsilon, "noise_floors": factor}
            outcomes = [self.calibration.outcome(sample, row.epsilon) for sample in self.apart]
            held, shares = zip(*outcomes, strict=True)
            tools = [sample.tool for sample in self.apart]
            prefilled = [share == PREFILL for share in shares]
            found += [
                cluster_share(held, tools, case=case, metric="coverage"),
                cluster_share(prefilled, tools, case=case, metric="prefilled"),
                cluster_mean(shares, tools, case=case, metric="recomputed"),
            ]
            spliced = [
                (well, tool) for well, tool, whole in zip(held, tools, prefilled, strict=True) if not whole
            ]
            if spliced:
                found.append(cluster_share(*zip(*spliced, strict=True), case=case, metric="coverage_spliced"))
        return ResultFile.now("eval calibrate", found, settings=self.settings, threads=1)


def calibrate_agent(
    model: str | Path = "bundled",
    *,
    adapter: str | Path | None = None,
    system: str = SYSTEM_PROMPT,
    cases: Sequence[SpliceCase] = (),
    registry: Registry | None = None,
    calls: Path | None = None,
    tools: int = 6,
    context: CompileContext = "system",
    strategy: str = "leading",
    depths: Sequence[int] = DEPTHS,
    budgets: Sequence[float] = BUDGETS,
    prefixes: int = 10,
    trajectories: Path | None = None,
    quantile: float = _QUANTILE,
    n_ctx: int | None = None,
    flash_attention: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    work: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> AgentCalibration:
    """Measure D_KL by depth and repair budget for tool blocks as the agent writes them.

    Parameters
    ----------
    model
        The model.
    adapter
        GGUF file of a LoRA adapter that runs with it. The bounds are then those of both: the fingerprint
        names the two together, so that no other pair finds them.
    system
        The agent's system prompt; blocks are compiled behind it.
    cases
        Tools, requests and answers to measure with, in place of those of `registry` and `calls`; block
        lengths outside theirs are not covered afterwards.
    registry, calls, tools
        Tools of a registry, in turn from every server and this many; JSON Lines of ``query``, ``gold_tool``
        and ``gold_args`` have their requests and answers. By default a few tools of this room.
    context
        What blocks are compiled behind; see `nexus_lab.agent.blocks.block_recipes`.
    strategy
        Repair to calibrate; ``profile`` needs the context ``typical``.
    depths, budgets
        Grid of the measurement; depths that the model was not trained for are left out.
    prefixes
        Conversations for each tool, an even number; every other one is kept apart.
    trajectories
        JSON Lines of real conversations, at least two; by default sample conversations. Those that the blocks
        are compiled behind are left out, and every other one of the rest is kept apart.
    quantile
        Share of further conversations that is to stay under a bound.
    n_ctx
        Cells of the context measured in, by default what the deepest conversation takes. A model with
        LongRoPE has another rotation in a larger one, and the bounds hold for the one that was measured.
    executor, workers, work, on_progress
        As for `nexus_lab.bench.splice.splice_sweep`.

    Returns
    -------
    AgentCalibration
        To be stored with `nexus_lab.splice.save_calibration`. A sample is the mean D_KL of one block at one
        depth of one conversation, over the forced answer.

    Raises
    ------
    CalibrationError
        When there are too few samples for the quantile, or no depth fits.
    AdapterMismatch, UnsupportedAdapter
        When the adapter does not fit the model.
    """
    _insist(strategy, context, depths, budgets, prefixes)
    halves = _halves(trajectories, context) if trajectories is not None else ([], [])
    with Engine.load(
        model, n_ctx=_PLAN_CTX, threads=1, flash_attention=flash_attention, adapter=adapter
    ) as engine:
        cases = cases or _chosen(engine, registry, calls, tools)
        behind = _context(engine, [case.tool for case in cases], system, context)
        plan = _plan(engine, model, agent_cases(engine, system, cases)[1], depths, behind, n_ctx=n_ctx)
        live = _live(
            engine,
            halves,
            n_cases=len(plan.cases),
            prefixes=prefixes,
            n_tokens=plan.depths[-1],
            system=system,
        )
        ending = message_ending(engine)
        facts: dict[str, Any] = {
            "fingerprint": engine.info.fingerprint,
            "context_hash": behind.hash.hex(),
            "flash_attention": flash_attention,
            "strategy": strategy,
            "quantile": quantile,
            "rotation": _rotation(engine, plan.engine.n_ctx),
        }
        beside = adapter_facts(engine)
    _insist_enough(live, quantile)
    folder = work or cache_dir() / "sweeps" / f"calibrate-{facts['context_hash'][:16]}-{strategy}"
    tasks = [
        SpliceTask(
            kind=TaskKind.CELLS,
            engine=plan.engine,
            folder=str((folder / "blocks").absolute()),
            server="",
            case=plan.cases[part.case],
            prefix_name=part.name,
            prefix=part.tokens,
            depths=plan.depths,
            repairs=tuple(Repair.parse(f"{strategy}:{budget}") for budget in budgets),
            contexts=(_SWEPT[context],),
            continuation=False,
            own=behind,
            ending=ending,
            system=system,
        )
        for part in live
    ]
    with Journal(folder) as journal:
        done = run_tasks(tasks, measure, journal, executor=executor, workers=workers, on_progress=on_progress)
    given, apart = (
        [
            sample
            for part, task in zip(live, done, strict=True)
            if part.half == half
            for sample in _samples(task.rows)
        ]
        for half in range(2)
    )
    sweep = SpliceSweep({}, [row for task in done for row in task.rows])
    floor = float(np.mean([row["dkl_mean"] for row in sweep.floors if row["budget"] == sweep.floor_schedule]))
    calibration = Calibration.measured(given, noise_floor=floor, **facts)
    if work is None:
        shutil.rmtree(folder, ignore_errors=True)
    coverage = tuple(calibration.covered(apart, factor * floor) for factor in _FLOORS)
    settings = {
        **facts,
        "adapter": beside,
        "system": system,
        "registry": registry.name if registry is not None else None,
        "calls": calls.name if calls is not None else None,
        "compiled_behind": context,
        "tools": [case.name for case in plan.cases],
        "prefixes": prefixes,
        "trajectories": trajectories.name if trajectories is not None else None,
        "depths": plan.depths,
        "budgets": list(budgets),
        "noise_floor": floor,
    }
    return AgentCalibration(replace(calibration, coverage=coverage), tuple(apart), settings)


def _chosen(
    engine: Engine, registry: Registry | None, calls: Path | None, n_tools: int
) -> Sequence[SpliceCase]:
    if registry is None and calls is None:
        return SPLICE_CASES
    real, own = read_cases(calls, registry) if calls is not None else ({}, [])
    found = choose_subjects(engine, registry=registry, cases=real, tools=own, n_tools=n_tools)
    return [subject.told for subject in found]


def _insist(
    strategy: str, context: CompileContext, depths: Sequence[int], budgets: Sequence[float], prefixes: int
) -> None:
    """Refuse what would be measured for nothing."""
    if prefixes % 2 or prefixes < 1:
        raise CalibrationError(f"{prefixes} prefixes", next_step="give an even number")
    if not depths or min(depths) < 1:
        raise CalibrationError(f"depths {list(depths)}", next_step="give at least one, and each at least 1")
    if not budgets or not all(0 <= budget < PREFILL for budget in budgets):
        raise CalibrationError(
            f"budgets {list(budgets)}", next_step="give at least one, and each from 0 to below 1"
        )
    if strategy not in BUDGETED:
        raise CalibrationError(
            f"the repair {strategy!r} has no budget to calibrate",
            next_step=f"choose one of {', '.join(BUDGETED)}",
        )
    if strategy == RepairKind.PROFILE and context != "typical":
        raise CalibrationError(
            f"a block compiled behind the context {context!r} has no profile",
            next_step="calibrate behind typical conversations, or choose another repair",
        )


@dataclass(frozen=True, slots=True)
class _Live:
    """A live prefix of one case; half 0 gives the bounds, and half 1 tells how they hold."""

    case: int
    half: int
    name: str
    tokens: tuple[int, ...]


def _live(
    engine: Engine,
    halves: tuple[Sequence[Trajectory], Sequence[Trajectory]],
    *,
    n_cases: int,
    prefixes: int,
    n_tokens: int,
    system: str,
) -> list[_Live]:
    """Return the prefixes of every case; where conversations are few, none of a case comes twice."""
    found: dict[tuple[int, tuple[int, ...]], _Live] = {}
    # Sample conversations have numbers of their own; of real ones, both halves begin with their first.
    step = 2 if halves[0] else 1
    for number in range(n_cases * prefixes):
        case, half = number // prefixes, number % 2
        name, tokens = live_prefix(engine, halves[half], number // step, n_tokens, system=system)
        found.setdefault((case, tokens), _Live(case, half, name, tokens))
    return list(found.values())


def _insist_enough(live: Sequence[_Live], quantile: float) -> None:
    least = least_samples(quantile)
    found = min(sum(part.half == half for part in live) for half in range(2))
    if found < least:
        raise CalibrationError(
            f"{found} conversations tell nothing of a quantile of {quantile:g}",
            next_step=f"give more tools, prefixes or conversations, so that each half has {least}",
        )


def _halves(path: Path, context: CompileContext) -> tuple[list[Trajectory], list[Trajectory]]:
    """Return a file's conversations that the blocks were not compiled behind, in two halves.

    A stretch of a short conversation goes on with the next one, which is of the same half.
    """
    found = read_trajectories(path)
    if context == "typical":
        compiled = set(map(repr, kept_conversations()))
        found = [each for each in found if repr(tuple(trajectory_messages(each))) not in compiled]
    if len(found) < 2:  # noqa: PLR2004 - one for each half
        raise CalibrationError(
            f"conversations of {path} that the blocks are not compiled behind: {len(found)}",
            next_step="give at least two: one half gives the bounds, and the other tells how they hold",
        )
    return found[::2], found[1::2]


@dataclass(frozen=True, slots=True)
class _Plan:
    cases: tuple[TrialCase, ...]
    depths: tuple[int, ...]
    engine: EngineSettings


def _plan(
    engine: Engine,
    model: str | Path,
    cases: Sequence[TrialCase],
    depths: Sequence[int],
    behind: BlockContext,
    *,
    n_ctx: int | None,
) -> _Plan:
    """Leave out the depths that the model was not trained for, and size the context for the others."""
    room = max(2 * len(case.block) + len(case.rest) + max(len(case.answer), _ROOM) for case in cases)
    most = engine.info.n_ctx_train or max(depths) + room
    fitting = tuple(sorted(depth for depth in depths if depth + room <= most))
    if not fitting:
        raise CalibrationError(
            f"none of the depths {list(depths)} fits the {most} tokens that the model was trained for",
            next_step="give smaller ones",
        )
    needed = max(fitting[-1], behind.n_tokens) + room
    if n_ctx is not None and n_ctx < needed:
        raise CalibrationError(
            f"a context of {n_ctx} tokens, and the deepest conversation with a block takes {needed}",
            next_step="give a larger one, or smaller depths",
        )
    loaded = EngineSettings.of(engine, model, n_ctx=n_ctx or -(-needed // _CTX_STEP) * _CTX_STEP)
    return _Plan(tuple(cases), fitting, loaded)


def _rotation(engine: Engine, n_ctx: int) -> str:
    """Return which of two rotations the model has in a context of `n_ctx` tokens; empty where it has one."""
    rope = engine.info.rope
    if rope is None or not rope.context_factors:
        return ""
    there = rope_from_gguf(read_gguf(engine.info.path), pairing=rope.pairing, n_ctx=n_ctx)
    return there.context_factors


def _context(engine: Engine, tools: Sequence[ToolSpec], system: str, context: CompileContext) -> BlockContext:
    """Return what the agent compiles its blocks behind, where a sweep can compile them there, too."""
    found = block_recipes(engine, tools[:1], system=system, context=context)[0].context
    if found.hash != compile_contexts(engine, _SWEPT[context], system, found).hash:
        raise CalibrationError(
            "the model's chat template puts the system prompt into the first message",
            next_step="calibrate behind typical conversations",
        )
    return found


def agent_cases(
    engine: Engine, system: str, cases: Iterable[SpliceCase]
) -> tuple[tuple[int, ...], list[TrialCase]]:
    """Return the tokens of the system prompt, and the cases in the agent's own words."""
    context = join_tokens(Transcript(engine, system=system).open())
    return context, [_trial_case(engine, system, case) for case in cases]


def _samples(rows: Sequence[dict[str, Any]]) -> list[CalibrationSample]:
    found: dict[int, dict[float, float]] = defaultdict(dict)
    n_tokens, tool = 0, ""
    for row in rows:
        if row["kind"] == TaskKind.CELLS:
            n_tokens, tool = row["n_tokens"], row["tool"]
            found[row["depth"]][float(row["budget"])] = row["dkl_mean"]
    return [CalibrationSample(depth, n_tokens, dkl, tool) for depth, dkl in sorted(found.items())]


def _trial_case(engine: Engine, system: str, case: SpliceCase) -> TrialCase:
    transcript = Transcript(engine, system=system)
    transcript.open()
    block, *rest = transcript.user(tool_block(case.tool, "full"), case.request)
    opening = call_opening(case.tool.name)
    return TrialCase(
        name=case.tool.name,
        block=block.tokens,
        rest=(
            *join_tokens([*rest, *transcript.open_reply()]),
            *engine.tokenize(opening, special=False),
        ),
        answer=tuple(forced_tokens(engine, case, case.answer.removeprefix(opening), at_least=FORCED)),
    )
