"""The demonstration's main job: real servers, a real model, a few requests, and a record of it all."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nexus_lab.agent import Agent, Turn
from nexus_lab.demo.requests import DEMO_REQUESTS, DemoRequest
from nexus_lab.demo.scratch import make_scratch_database, make_scratch_repository
from nexus_lab.demo.servers import demo_server_commands
from nexus_lab.engine import Engine
from nexus_lab.errors import NexusError
from nexus_lab.registry import Toolbox, connect
from nexus_lab.routing import Router
from nexus_lab.settings import Profile
from nexus_lab.trace import SessionRecorder, export, read_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["DemoRun", "DemoStep", "run_demo"]

_PROFILE = Profile(name="demo", answer_tokens=48, shadow=True)


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One request and its turn."""

    request: DemoRequest
    turn: Turn


@dataclass(slots=True)
class DemoRun:
    """What the demonstration did, and where its files are."""

    folder: Path
    session: Path
    report: Path
    steps: list[DemoStep] = field(default_factory=list)
    seconds: float = 0.0


def run_demo(
    folder: Path,
    *,
    model: str = "bundled",
    shadow: bool = True,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda _line: None,
    on_step: Callable[[DemoStep], None] = lambda _step: None,
) -> DemoRun:
    """Run the demonstration into `folder`, which it empties of an earlier one.

    Parameters
    ----------
    folder
        Where work files, session bundle and report go.
    model
        What `Engine.load` takes.
    shadow
        Run the full prefill beside each splice, to measure it.
    threads
        Threads for llama.cpp and torch; ``None`` for the physical cores.
    progress
        Called with one line per stage.
    on_step
        Called after each request.

    Raises
    ------
    ServerInstallFailed
        When the servers' environments are not made yet.
    NexusError
        When `folder` holds something else, or model or servers do not start.
    """
    began = time.perf_counter()
    work = _fresh_folder(folder)
    run = DemoRun(folder, folder / "session.nexus", folder / "report.html")
    profile = replace(_PROFILE, shadow=shadow, threads=threads)
    with _servers(work, progress) as tools, Engine.load(model, n_ctx=4096, threads=threads) as engine:
        progress(f"model {engine.info.name}: {engine.info.n_layer} layers, {engine.threads} threads")
        router = Router(tools.registry, threads=threads)
        router.warm_up()
        progress(f"router: {len(tools.registry)} tools embedded with {router.embedder.name}")
        recorder = SessionRecorder(
            run.session,
            contents=True,
            model=engine.info.to_dict(),
            host=engine.machine,
            settings=profile.to_dict(),
        )
        with (
            recorder,
            Agent(
                engine, tools, router=router, profile=profile, observers=[recorder], approve=lambda *_: True
            ) as agent,
        ):
            for step in _steps(agent, progress):
                run.steps.append(step)
                on_step(step)
    export(read_session(run.session), "html", run.report, contents=True)
    run.seconds = time.perf_counter() - began
    return run


def _fresh_folder(folder: Path) -> Path:
    """Remove an earlier demonstration, and nothing else."""
    known = {"work", "session.nexus", "report.html"}
    if folder.exists():
        others = sorted(path.name for path in folder.iterdir() if path.name not in known)
        if others:
            raise NexusError(
                f"{folder} holds other files ({others[0]})", next_step="choose an empty folder with --out"
            )
        shutil.rmtree(folder)
    work = folder / "work"
    work.mkdir(parents=True)
    return work


def _servers(work: Path, progress: Callable[[str], None]) -> Toolbox:
    work = work.resolve()
    repository = make_scratch_repository(work / "inventory")
    database = make_scratch_database(work / "shop.db")
    # Started inside the work folder, so that requests can name the repository by a short relative path.
    configs = [replace(config, cwd=str(work)) for config in demo_server_commands(repository, database)]
    return connect(*configs, name="demo", progress=progress)


def _steps(agent: Agent, progress: Callable[[str], None]) -> Iterator[DemoStep]:
    base = agent.profile
    for request in DEMO_REQUESTS:
        if not request.continues:
            agent.new_conversation()
        agent.profile = base.changed(schema_mode=request.schema_mode)
        if request.schema_mode.startswith("splice"):
            _compile_ahead(agent, request, progress)
        yield DemoStep(request, agent.ask(request.text))


def _compile_ahead(agent: Agent, request: DemoRequest, progress: Callable[[str], None]) -> None:
    """Compile the block before the turn, as a user does for a whole registry, and say what it took."""
    tool = agent.router.route(request.text, agent.history).tool
    if tool is None or "splice" in agent.engine.declines:
        return
    began = time.perf_counter()
    n_tokens = agent.compile_block(tool, schema_mode=request.schema_mode)
    progress(f"block of {tool}: {n_tokens} tokens in the library, {time.perf_counter() - began:.2f} s")
