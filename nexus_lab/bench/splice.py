"""What a splice costs and keeps: a sweep over tools, live prefixes, depths, repairs and compile contexts.

Every cell compares a splice with the full prefill of the same tokens behind the same live prefix, over a
forced answer, beside the noise floor of that very cell.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import ResultsError, adapter_facts, insist_positive
from nexus_lab.bench.splice_grid import (
    DEFAULT_CONTEXTS,
    DEFAULT_DEPTHS,
    DEFAULT_REPAIRS,
    NO_REANCHOR,
    OWN_CONTEXT,
    EngineSettings,
    Repair,
    SpliceTask,
    TaskKind,
    compile_contexts,
    known_context,
)
from nexus_lab.bench.splice_inputs import (
    Subject,
    choose_subjects,
    live_prefix,
    own_context,
    read_cases,
    trial_case,
)
from nexus_lab.bench.splice_report import SETTINGS, SpliceSweep
from nexus_lab.bench.splice_tasks import measure
from nexus_lab.bench.sweep import Journal, run_tasks, sweep_folder
from nexus_lab.bench.trajectories import read_trajectories
from nexus_lab.engine import Engine
from nexus_lab.paths import atomic_write
from nexus_lab.registry import Registry, load_registry
from nexus_lab.splice import RepairKind, message_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

__all__ = ["Repair", "splice_sweep", "trial_case"]

_PLAN_CTX = 512
_CTX_STEP = 1024
# Beside prefix and block: the reference's own continuation, or the call it decides on.
_ROOM = 128


def splice_sweep(
    model: str | Path = "bundled",
    *,
    adapter: str | Path | None = None,
    registry: Registry | Path | str | None = None,
    cases: Path | None = None,
    trajectories: Path | None = None,
    depths: Sequence[int] = DEFAULT_DEPTHS,
    strategies: Sequence[Repair | str] = DEFAULT_REPAIRS,
    contexts: Sequence[str] = DEFAULT_CONTEXTS,
    tools: int = 20,
    prefixes: int = 5,
    decisions: Sequence[Repair | str] | None = None,
    attention: bool = False,
    proxy: bool = False,
    flash_attention: bool = False,
    repeats: int = 5,
    executor: Executor | None = None,
    workers: int | None = None,
    work: Path | None = None,
    resume: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> SpliceSweep:
    """Measure splices on a model.

    Parameters
    ----------
    model
        ``bundled``, a GGUF file, or ``hf:owner/repository/file.gguf``.
    adapter
        GGUF file of a LoRA adapter that runs with it; its blocks are others.
    registry
        Tools to measure with; by default those that `cases` brings, or the few of this room.
    cases
        JSON Lines of requests with their right calls (``query``, ``gold_tool``, ``gold_args``); the call is
        the forced answer. A tool without one gets a call made of its schema.
    trajectories
        JSON Lines of real conversations, in the form of tau-bench, to put the blocks behind; by default
        sample conversations.
    depths
        Tokens before the block.
    strategies
        Repairs, such as ``leading:0.25``, ``trailing:R``, ``none``, ``full``; ``no_reanchor`` as an
        experiment.
    contexts
        What blocks are compiled behind; see `compile_contexts`.
    tools
        How many tools, of 64 to 512 tokens, in turn from every server.
    prefixes
        Live prefixes for each tool, no two alike.
    decisions
        Repairs for which the call that the model decides on is compared; by default all.
    attention
        Compare the attention of the last prompt token; needs flash attention off.
    proxy
        Measure the K-variance proxy beside the true drift as well.
    flash_attention
        Use flash attention.
    repeats
        How often each repair is timed beside its prefill, on one block, with nothing else running.
    executor
        Where the tasks run, any `concurrent.futures.Executor`; the workers must see `work`. By default
        processes of one thread each.
    workers
        How many of these; the cores by default.
    work
        Folder of the finished tasks, which a later call takes up again; by default one in the cache that
        goes away when all is done.
    resume
        Take up the finished tasks of the folder.
    on_progress
        Called with the tasks done and all of them.

    Raises
    ------
    ResultsError, TrajectoryError, RowsError
        When there is nothing to measure, or not in this way.
    SweepError
        When a task failed, or the folder is in use or cannot be written.
    AdapterMismatch, UnsupportedAdapter
        When the adapter does not fit the model.
    """
    insist_positive(prefixes=prefixes, repeats=repeats, tools=tools)
    repairs = _repairs(strategies)
    plan = _Plan(
        depths=_depths(depths),
        repairs=repairs,
        contexts=tuple(dict.fromkeys(map(known_context, contexts))),
        decisions=repairs if decisions is None else _repairs(decisions),
        attention=attention,
        proxy=proxy,
        prefixes=prefixes,
        repeats=repeats,
    )
    tasks, settings = _planned(
        plan,
        str(model),
        adapter=adapter,
        flash_attention=flash_attention,
        registry=load_registry(registry) if isinstance(registry, str | Path) else registry,
        cases=cases,
        trajectories=trajectories,
        n_tools=tools,
    )
    folder = work or sweep_folder(tasks)
    blocks = folder / "blocks"
    tasks = [replace(task, folder=str(blocks.absolute())) for task in tasks]
    with Journal(folder, resume=resume) as journal:
        facts = {"settings": settings, "keys": [task.key for task in tasks]}
        atomic_write(folder / SETTINGS, json.dumps(facts).encode())
        finished = run_tasks(
            tasks, measure, journal, executor=executor, workers=workers, on_progress=on_progress
        )
    shutil.rmtree(blocks, ignore_errors=True)
    if work is None:
        shutil.rmtree(folder, ignore_errors=True)
    settings["seconds"] = round(sum(task.seconds for task in finished), 1)
    return SpliceSweep(settings, [row for task in finished for row in task.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    depths: tuple[int, ...]
    repairs: tuple[Repair, ...]
    contexts: tuple[str, ...]
    decisions: tuple[Repair, ...]
    attention: bool
    proxy: bool
    prefixes: int
    repeats: int


def _planned(
    plan: _Plan,
    model: str,
    *,
    adapter: str | Path | None,
    flash_attention: bool,
    registry: Registry | None,
    cases: Path | None,
    trajectories: Path | None,
    n_tools: int,
) -> tuple[list[SpliceTask], dict[str, Any]]:
    """Lay out the grid: every task, and the settings that a result file names."""
    real_calls, own_tools = read_cases(cases, registry) if cases is not None else ({}, [])
    conversations = read_trajectories(trajectories) if trajectories is not None else []
    with Engine.load(
        model, n_ctx=_PLAN_CTX, threads=1, flash_attention=flash_attention, adapter=adapter
    ) as engine:
        _insist(engine, plan)
        subjects = choose_subjects(
            engine, registry=registry, cases=real_calls, tools=own_tools, n_tools=n_tools
        )
        own, unseen = None, conversations
        if OWN_CONTEXT in plan.contexts:
            own, unseen = own_context(engine, conversations)
        behind = [compile_contexts(engine, name, own=own) for name in plan.contexts]
        if not any(context.probes for context in behind):
            _refuse_profile(plan)
        longest = max(context.n_tokens for context in behind)
        n_ctx = _n_ctx(engine, max(*plan.depths, longest), subjects)
        loaded = EngineSettings.of(engine, model, n_ctx=n_ctx)
        # A second prefix for each tool comes after the first of all, so that a larger sweep goes on from a
        # smaller one.
        numbers = np.arange(len(subjects) * plan.prefixes).reshape(plan.prefixes, -1).T.tolist()
        live = [[live_prefix(engine, unseen, number, max(plan.depths)) for number in row] for row in numbers]
        ending = message_ending(engine)
        settings = {
            "model": engine.info.name,
            "model_sha256": engine.info.sha256,
            "adapter": adapter_facts(engine),
            "registry": registry.name if registry is not None else None,
            "cases": cases.name if cases is not None else None,
            "trajectories": trajectories.name if trajectories is not None else None,
            "tools": [subject.case.name for subject in subjects],
            "servers": [subject.server for subject in subjects],
            "real_calls": sum(subject.real for subject in subjects),
            "block_tokens": [len(subject.case.block) for subject in subjects],
            "forced_tokens": [len(subject.case.answer) for subject in subjects],
            "prefixes": plan.prefixes,
            "compiled_behind": len(conversations) - len(unseen),
            "decisions": [repair.text for repair in plan.decisions],
            "flash_attention": flash_attention,
            "n_ctx": n_ctx,
            "threads": loaded.threads,
        }
    return [replace(task, own=own, ending=ending) for task in _tasks(plan, loaded, subjects, live)], settings


def _tasks(
    plan: _Plan,
    loaded: EngineSettings,
    subjects: Sequence[Subject],
    live: Sequence[Sequence[tuple[str, tuple[int, ...]]]],
) -> list[SpliceTask]:
    def task(kind: TaskKind, place: int, prefix: int, **options: Any) -> SpliceTask:
        name, tokens = live[place][prefix]
        return SpliceTask(
            kind=kind,
            engine=loaded,
            folder="",
            server=subjects[place].server,
            case=subjects[place].case,
            prefix_name=name,
            prefix=tokens,
            depths=plan.depths,
            **options,
        )

    grid: dict[str, Any] = {"repairs": plan.repairs, "contexts": plan.contexts, "attention": plan.attention}
    tasks = [
        task(
            TaskKind.CELLS,
            place,
            prefix,
            decisions=plan.decisions,
            grammar=subject.grammar if plan.decisions else "",
            **grid,
        )
        for prefix in range(plan.prefixes)
        for place, subject in enumerate(subjects)
    ]
    tasks += [task(TaskKind.ANCHORED, place, 0) for place in range(len(subjects))]
    if plan.proxy:
        tasks += [
            task(TaskKind.PROXY, place, prefix, contexts=plan.contexts)
            for place in range(len(subjects))
            for prefix in range(plan.prefixes)
        ]
    timed = tuple(repair for repair in plan.repairs if repair.strategy != NO_REANCHOR)
    by_length = sorted(range(len(subjects)), key=lambda place: len(subjects[place].case.block))
    middle = by_length[len(subjects) // 2]
    tasks.append(
        task(TaskKind.SPEED, middle, 0, repairs=timed, contexts=plan.contexts[-1:], repeats=plan.repeats)
    )
    tasks.append(task(TaskKind.PASSES, middle, 0, repeats=plan.repeats))
    return list({task.key: task for task in tasks}.values())


def _refuse_profile(plan: _Plan) -> None:
    for repair in plan.repairs:
        if repair.strategy == RepairKind.PROFILE:
            raise ResultsError(
                f"no block has a profile for {repair.text}",
                next_step="add the compile context typical or consensus, or leave that repair out",
            )


def _insist(engine: Engine, plan: _Plan) -> None:
    declined = engine.declines.get("splice")
    if declined is not None:
        raise ResultsError(f"this model cannot be spliced: {declined.reason}", next_step=declined.instead)
    declined = engine.declines.get("attention_capture")
    if plan.attention and declined is not None:
        raise ResultsError(
            f"attention cannot be compared: {declined.reason}",
            next_step="leave --attention away, or flash attention off",
        )


def _n_ctx(engine: Engine, depth: int, subjects: Sequence[Subject]) -> int:
    """Cells that a task takes, rounded up so that a few tools more make no other context."""
    sizes = [subject.case for subject in subjects]
    # A block's tokens stand there twice while they are repaired in one pass.
    room = max(2 * len(case.block) + len(case.rest) + max(len(case.answer), _ROOM) for case in sizes)
    trained = engine.info.n_ctx_train
    if trained and depth + room > trained:
        raise ResultsError(
            f"depth {depth} and a block do not fit the {trained} tokens that the model was trained for",
            next_step="give smaller --depths",
        )
    return -(-(depth + room) // _CTX_STEP) * _CTX_STEP


def _repairs(given: Sequence[Repair | str]) -> tuple[Repair, ...]:
    found = (repair if isinstance(repair, Repair) else Repair.parse(repair) for repair in given)
    return tuple(dict.fromkeys(found))


def _depths(given: Sequence[int]) -> tuple[int, ...]:
    if not given or min(given) < 1:
        raise ResultsError(f"depths {list(given)}", next_step="give at least one, and each at least 1")
    return tuple(sorted(set(given)))
