"""What a cache policy costs and keeps: real conversations replayed under each policy, side by side.

Every task is one conversation under one policy, run with nothing beside it, since its clock is read. Tasks go
conversation by conversation, so that whatever has finished compares the policies on the same ones.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import Result, ResultsError, insist_positive
from nexus_lab.bench.cache_replay import cells_for, count, replay
from nexus_lab.bench.cache_report import SETTINGS, CacheSweep
from nexus_lab.bench.splice_grid import EngineSettings
from nexus_lab.bench.sweep import Journal, run_tasks, sweep_folder
from nexus_lab.bench.trajectories import Trajectory, read_trajectories
from nexus_lab.bench.worker import worker_engine
from nexus_lab.cache import FunctionPolicy, make_policy
from nexus_lab.engine import Engine, cap_threads, library_versions
from nexus_lab.paths import atomic_write
from nexus_lab.policy_text import PolicySpec, parse_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from nexus_lab.cache.costs import Prices

__all__ = [
    "ASKING",
    "DEFAULT_POLICIES",
    "CacheTask",
    "cache_sweep",
    "engine_settings",
    "measure",
    "policy_tasks",
]

DEFAULT_POLICIES = "full,rolling_drop,rolling_drop_repos,drop_reasoning,drop_both,summarise,trim,agent"
"""Policies that are compared unless others are named."""

ASKING = frozenset({"summarise", "agent"})
"""Policies that ask the model something."""

_ROW_FORMAT = 2
_RESTORE_CTX = 2048
_PLAN_CTX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTask:
    """One conversation under one policy.

    Attributes
    ----------
    policy
        The policy as text.
    n_turns
        Only the first so many replies; None for all.
    source
        Digest of the files of a policy that is a function; empty for others.
    dry
        Count only, without running the model.
    """

    engine: EngineSettings
    trajectory: Trajectory
    policy: str
    n_turns: int | None = None
    source: str = ""
    dry: bool = False

    @property
    def key(self) -> str:
        """Digest of everything that determines the rows, in hex."""
        facts: dict[str, Any] = {**asdict(self), "engine": self.engine.facts}
        facts["row_format"], facts["versions"] = _ROW_FORMAT, library_versions()
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def alone(self) -> bool:
        """The clock is read."""
        return True


def measure(task: CacheTask) -> list[dict[str, Any]]:
    """Return the one row of a task, JSON values."""
    engine = worker_engine(task.engine)
    run = count if task.dry else replay
    row = run(engine, task.trajectory, task.policy, n_turns=task.n_turns)
    return [{"policy": task.policy, "dry": task.dry, **row}]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTask:
    """The restore of programs with drops, at once and segment by segment."""

    engine: EngineSettings

    @property
    def key(self) -> str:
        """Digest of everything that determines the rows, in hex."""
        facts = {"restore": _ROW_FORMAT, "versions": library_versions(), **self.engine.facts}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def alone(self) -> bool:
        """The clock is read."""
        return True


def measure_restores(task: RestoreTask) -> list[dict[str, Any]]:
    """Return a row for each figure of the restore, as results; one that says why where there is none."""
    from nexus_lab.bench.restore import RestoreDeclined, measure_restore

    engine = worker_engine(task.engine)
    engine.clear()
    try:
        found = measure_restore(engine)
    except RestoreDeclined as error:
        case = {"declined_code": error.declined.code, "declined": error.declined.reason}
        found = [Result(case=case, metric="restore_declined", value=1.0, n=1)]
    return [result.to_dict() for result in found]


def cache_sweep(
    trajectories: Path | Sequence[Trajectory],
    *,
    policies: str | Sequence[PolicySpec] = DEFAULT_POLICIES,
    model: str | Path = "bundled",
    limit: int | None = None,
    n_turns: int | None = None,
    prices: Prices | None = None,
    restore: bool = False,
    dry: bool = False,
    flash_attention: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    work: Path | None = None,
    resume: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> CacheSweep:
    """Replay conversations under policies.

    Parameters
    ----------
    trajectories
        Conversations, or a file of them in the form of tau-bench.
    policies
        Policies as text with commas between them, or read already.
    model
        ``bundled``, a GGUF file, or ``hf:owner/repository/file.gguf``.
    limit
        Only the first so many conversations.
    n_turns
        Only the first so many replies of each.
    prices
        What a unit costs; see `Prices`.
    restore
        Measure the restore of programs with drops, too; ``restore_declined`` says why an engine cannot.
    dry
        Count tokens, cells and cost only, in seconds; not for policies that ask the model something.
    threads
        Threads of llama.cpp; the physical cores by default.
    executor
        Where the tasks run, one after another; by default a process of its own.
    work
        Folder of the finished tasks, which a later call takes up again; by default one in the cache that goes
        away when all is done.
    resume
        Take up the finished tasks of the folder.
    on_progress
        Called with the tasks done and all of them.

    Raises
    ------
    ResultsError, TrajectoryError, PolicyTextError, ProgramError
        When there is nothing to measure, or not in this way.
    SweepError
        When a task failed, or the folder is in use or cannot be written.
    """
    insist_positive(limit=limit, n_turns=n_turns)
    specs = parse_policies(policies) if isinstance(policies, str) else tuple(policies)
    found = read_trajectories(trajectories) if isinstance(trajectories, Path) else list(trajectories)
    chosen = found[:limit]
    if not specs or not chosen:
        raise ResultsError(
            "there is nothing to replay", next_step="give at least one conversation and policy"
        )
    asking = [spec.text for spec in specs if dry and spec.name in ASKING]
    if asking:
        raise ResultsError(
            f"what {asking[0]} costs depends on what the model says",
            next_step="leave it out, or run the model",
        )
    loaded = engine_settings(model, chosen, flash_attention=flash_attention, threads=threads)
    tasks = policy_tasks(loaded, chosen, specs, n_turns, dry=dry)
    settings = {
        "dry": dry,
        "model_sha256": loaded.sha256,
        "n_ctx": loaded.n_ctx,
        "threads": loaded.threads,
        "flash_attention": flash_attention,
        "trajectories": trajectories.name if isinstance(trajectories, Path) else None,
        "conversations": [trajectory.name for trajectory in chosen],
        "policies": list(dict.fromkeys(task.policy for task in tasks)),
        "n_turns": n_turns,
    }
    folder = work or sweep_folder(tasks)
    restores = [RestoreTask(engine=replace(loaded, n_ctx=_RESTORE_CTX))] if restore else []
    with Journal(folder, resume=resume) as journal:
        keys = {"keys": [task.key for task in tasks], "restores": [task.key for task in restores]}
        facts = {"settings": settings, **keys}
        atomic_write(folder / SETTINGS, json.dumps(facts).encode())
        finished = run_tasks(tasks, measure, journal, executor=executor, workers=1, on_progress=on_progress)
        restored = run_tasks(restores, measure_restores, journal, executor=executor, workers=1)
    if work is None:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [row for task in finished for row in task.rows]
    extra = tuple(Result(**row) for task in restored for row in task.rows)
    sweep = CacheSweep(settings, rows, restores=extra)
    return sweep if prices is None else replace(sweep, prices=prices)


def engine_settings(
    model: str | Path, trajectories: Sequence[Trajectory], *, flash_attention: bool, threads: int | None
) -> EngineSettings:
    """Return how the engine of a replay is loaded, with cells for the longest of the conversations."""
    with Engine.load(model, n_ctx=_PLAN_CTX, threads=1, flash_attention=flash_attention) as engine:
        n_ctx, sha256 = cells_for(engine, trajectories), engine.info.sha256
    return EngineSettings(
        model=str(model),
        sha256=sha256,
        n_ctx=n_ctx,
        flash_attention=flash_attention,
        threads=cap_threads(threads),
    )


def policy_tasks(
    engine: EngineSettings,
    trajectories: Sequence[Trajectory],
    specs: Sequence[PolicySpec],
    n_turns: int | None,
    *,
    dry: bool = False,
) -> list[CacheTask]:
    """Return a task for each conversation and policy, conversation by conversation.

    Raises
    ------
    ProgramError
        When a policy cannot be made.
    """
    sources = {spec.text: _source(spec) for spec in specs}
    tasks = [
        CacheTask(
            engine=replace(engine, n_ctx=_PLAN_CTX) if dry else engine,
            trajectory=trajectory,
            policy=text,
            n_turns=n_turns,
            source=source,
            dry=dry,
        )
        for trajectory in trajectories
        for text, source in sources.items()
    ]
    return list({task.key: task for task in tasks}.values())


def _source(spec: PolicySpec) -> str:
    """Try the policy out, and return the digest of its files where it is a function of the user's."""
    made = make_policy(spec)
    if not isinstance(made, FunctionPolicy):
        return ""
    place = str(spec.options["function"]).rpartition(":")[0]
    named = place if place.endswith(".py") else _file_of(place)
    own = _file_of(getattr(made.function, "__module__", None))  # often the same
    files = dict.fromkeys(Path(file).resolve() for file in (named, own))
    texts = [file.read_bytes() for file in files if file.is_file()]
    return hashlib.sha256(b"".join(texts)).hexdigest() if texts else ""


def _file_of(module: str | None) -> str:
    """Return the file of a module that has been imported; empty for one that is built in."""
    return str(getattr(sys.modules.get(module or ""), "__file__", None) or "")
