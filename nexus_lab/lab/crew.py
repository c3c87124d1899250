"""Engine, servers, router, agent and record of a desk: put together and taken apart on the engine's lane."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import Decline, NexusError
from nexus_lab.lab.wire import error_info
from nexus_lab.registry import Registry, Toolbox, load_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexus_lab.agent import Turn
    from nexus_lab.cache import SnapshotDisk
    from nexus_lab.engine import Engine
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.driver import Ticket
    from nexus_lab.registry import McpServer
    from nexus_lab.routing import Router
    from nexus_lab.trace import SessionRecorder

__all__ = ["Crew", "NotReady"]

logger = logging.getLogger(__name__)

_SIDE_S = 30.0


class NotReady(NexusError):
    """Nothing can be asked yet: a model, or a running server, is missing."""


class Crew:
    """What a desk works with. All methods but `begin` and `close` run on the engine's lane.

    Parameters
    ----------
    desk
        Whose attributes are set.
    n_ctx
        Context of models that are loaded here, in tokens.
    contents
        Also record what users, models and tools wrote.
    disk_bytes
        Most bytes of cache snapshots on disk; 0 keeps none there.

    Attributes
    ----------
    starting
        Servers whose start is being waited for.
    disk
        Where the agent's finished conversations go, or why they stay in memory; ``None`` without an agent.
    """

    def __init__(self, desk: Desk, *, n_ctx: int, contents: bool, disk_bytes: int) -> None:
        self._desk = desk
        self.n_ctx = n_ctx
        self.contents = contents
        self.disk_bytes = disk_bytes
        self.disk: SnapshotDisk | Decline | None = None
        self._composing = threading.Lock()
        self._own_engine = False
        self.starting: list[McpServer] = []

    def begin(
        self,
        *,
        engine: Engine | None,
        tools: Toolbox | None,
        registry: Any,
        model: str | Path | None,
        adapter: str | Path | None = None,
    ) -> None:
        """Take over what the desk was given, and post the work that it takes."""
        desk = self._desk
        if tools is not None:
            desk.sources.add_toolbox(tools)
            desk.sources.name = tools.registry.name
        if registry is not None:
            given = registry if isinstance(registry, Registry) else load_registry(registry)
            desk.sources.add_registry(given)
            if tools is None:
                desk.sources.name = given.name
        self.compose()
        if engine is not None:
            self._post("taking the engine over", lambda: self.use_engine(engine, own=False))
        elif model is not None:
            self._post("loading the model", lambda: self.load(model, adapter=adapter))
        if len(desk.registry):
            self.refit()

    def _post(self, label: str, work: Callable[[], object]) -> None:
        """Post a job that nobody waits for; what goes wrong is said in the bar."""

        def told(ticket: Ticket[object]) -> None:
            if ticket.error is not None:
                info = error_info(ticket.error)
                step = f" {info['next_step']}" if info["next_step"] else ""
                self._desk.bar.tell("bad", f"{label}: {info['message']}.{step}")

        self._desk.driver.submit(label, work, told)

    # -- engine -------------------------------------------------------------------------------------------

    def load(
        self,
        model: str | Path,
        *,
        adapter: str | Path | None = None,
        n_ctx: int | None = None,
        threads: int | None = None,
    ) -> Engine:
        """Load a model in the place of the one that is there, with an adapter if one is named.

        Raises
        ------
        EngineError
            When there is no such model or adapter, or it cannot be used; the old one is kept where the file
            is at fault.
        """
        from nexus_lab.engine import Engine, resolve_model
        from nexus_lab.engine.adapter import read_adapter
        from nexus_lab.engine.catalogue import check_generates
        from nexus_lab.engine.gguf_file import read_gguf

        desk = self._desk
        desk.bar.loading = True
        try:
            desk.driver.progress(f"loading {model}")
            gguf = read_gguf(resolve_model(model))
            check_generates(gguf)
            if adapter is not None:
                read_adapter(Path(adapter).expanduser(), gguf)
            self.unload()
            self.n_ctx = n_ctx or self.n_ctx
            engine = Engine.load(
                model, n_ctx=self.n_ctx, threads=threads or desk.profile.threads, adapter=adapter
            )
        finally:
            desk.bar.loading = False
        self.use_engine(engine, own=True)
        desk.bar.hush()
        return engine

    def use_engine(self, engine: Engine, *, own: bool) -> None:
        """Work with `engine` from now on."""
        desk = self._desk
        desk.engine, self._own_engine = engine, own
        desk.model_name = engine.info.name
        desk.quantisation = None
        desk.bar.used = engine.used_cells()
        desk.tell_panels("on_engine")
        self.fit()

    def unload(self) -> None:
        """Free the model, where it is ours, and the agent that ran on it."""
        desk = self._desk
        self._end_agent()
        engine, desk.engine = desk.engine, None
        desk.model_name = desk.quantisation = None
        # What the side lane has begun may still be reading the vocabulary.
        desk.side.submit("letting the model go", lambda: None).wait(_SIDE_S)
        if engine is not None and self._own_engine:
            engine.close()
        desk.tell_panels("on_engine")

    # -- tools --------------------------------------------------------------------------------------------

    def compose(self) -> None:
        """Make registry and toolbox of the sources as they are now; cheap, from any thread."""
        desk = self._desk
        with self._composing:
            desk.registry = desk.sources.registry()
            desk.toolbox = Toolbox(desk.sources.running(), desk.registry)
            if desk.router is None and len(desk.registry):
                desk.router = self._make_router()
        desk.tell_panels("on_tools")

    def refit(self) -> None:
        """Post what makes router and agent fit; from any thread."""
        self._post("building the router", self.fit)

    def fit(self) -> None:
        """Make router and agent fit engine and tools as they are now."""
        desk = self._desk
        if desk.router is not None:
            self._fit_router(desk.router)
        if desk.engine is None or not desk.sources.running():
            self._end_agent()
        else:
            self._fit_agent()
        desk.changed(*desk.part_names)

    def _make_router(self) -> Router:
        """Return a router that is cold yet; whoever uses it first waits until it is warm."""
        from nexus_lab.routing import Router

        desk, profile = self._desk, self._desk.profile
        return Router(
            desk.registry, desk.embedder, tau=profile.tau, top_k=profile.top_k, threads=profile.threads
        )

    def _fit_router(self, router: Router) -> None:
        desk = self._desk

        def tell(what: str, fraction: float) -> None:
            desk.driver.progress(what, round(100 * fraction), 100)

        if router.registry is not desk.registry:
            router.update(desk.registry)
        router.warm_up(tell)
        panel: Any = desk.panels["routing"]
        panel.on_router()

    def _fit_agent(self) -> None:
        from nexus_lab.agent import Agent
        from nexus_lab.cache import open_disk

        desk = self._desk
        if desk.engine is None or desk.toolbox is None or desk.router is None:
            return
        if desk.agent is None:
            self._leave_disk()
            self.disk = open_disk(desk.engine, max_bytes=self.disk_bytes)
            desk.agent = Agent(
                desk.engine,
                desk.toolbox,
                router=desk.router,
                profile=desk.profile,
                observers=desk.emitter.observers,
                approve=desk.panels["agent"].approval,  # type: ignore[attr-defined]  # the panel has it
                disk=None if isinstance(self.disk, Decline) else self.disk,
            )
            self.end_run()
        desk.agent.tools, desk.agent.router = desk.toolbox, desk.router

    def _end_agent(self) -> None:
        """Close the agent, which writes what it keeps to disk, and let others have the folder."""
        agent, self._desk.agent = self._desk.agent, None
        try:
            if agent is not None:
                agent.close()
        finally:
            self._leave_disk()

    def _leave_disk(self) -> None:
        disk, self.disk = self.disk, None
        if disk is not None and not isinstance(disk, Decline):
            disk.close()

    def leave(self) -> None:
        """Finish the record and write what the agent keeps, when the process ends; waits for no job."""
        self.end_run()
        agent = self._desk.agent
        if agent is not None and self._desk.driver.state.label is None:
            agent.persist()
        self._leave_disk()

    # -- turns and their record ---------------------------------------------------------------------------

    def turn(self, request: str, *, whole: bool = False) -> Turn:
        """Run one turn with the settings as they are now, or several where the request asks for several.

        Parameters
        ----------
        whole
            Make one turn of the request, whatever it asks for.

        Raises
        ------
        NotReady
            When a model or a running server is missing.
        """
        desk, agent = self._desk, self._desk.agent
        if agent is None:
            raise NotReady(desk.missing or "there is no agent", next_step="see Models and Registry")
        self._record()
        panel: Any = desk.panels["agent"]
        agent.profile, agent.ask_before = desk.profile, desk.ask_before
        agent.router.configure(tau=desk.profile.tau, top_k=desk.profile.top_k)
        turn = agent.ask(
            request,
            on_token=panel.on_token,
            on_call=panel.on_call,
            on_progress=panel.on_progress,
            on_turn=lambda earlier: desk.tell_panels("on_turn", earlier),
            whole=whole,
        )
        if turn.left:
            desk.bar.tell("warn", f"Not begun: {'; '.join(turn.left)}")
        desk.bar.used = agent.engine.used_cells()
        desk.tell_panels("on_turn", turn)
        return turn

    def _record(self) -> None:
        """Begin a run where none is being recorded; without a disk the turn goes on unrecorded."""
        if self._desk.recorder is not None:
            return
        try:
            self.begin_run()
        except NexusError as error:
            logger.warning("%s", error.problem)
            self._desk.bar.tell("warn", f"Not recorded: {error.problem}")

    def begin_run(self, *, parent: str | None = None, note: str = "") -> SessionRecorder:
        """End the run being recorded and begin another in the same bundle.

        Parameters
        ----------
        parent, note
            The run that this one was forked from, and a few words.

        Raises
        ------
        SessionError
            When the bundle cannot be written.
        """
        from nexus_lab.trace import SessionRecorder

        desk = self._desk
        self.end_run()
        path = desk.session_path
        engine = desk.engine
        desk.recorder = SessionRecorder(
            path,
            contents=self.contents,
            model=engine.info.to_dict() if engine is not None else None,
            settings=desk.profile.to_dict(),
            host=engine.machine if engine is not None else None,
            append=(path if path.name.endswith(".nexus") else path.with_name(f"{path.name}.nexus")).exists(),
            parent=parent,
            note=note,
        )
        desk.session_path = desk.recorder.path
        desk.tell_panels("on_run")
        return desk.recorder

    def end_run(self) -> None:
        """End the run being recorded; the next turn begins another."""
        recorder, self._desk.recorder = self._desk.recorder, None
        if recorder is None:
            return
        try:
            recorder.close()
        except NexusError as error:
            logger.warning("%s", error.problem)
            self._desk.bar.tell("bad", f"The record could not be finished: {error.problem}")

    def close(self) -> None:
        """End agent, record, and servers and engine of our own; after the lanes have ended."""
        self.end_run()
        try:
            self._end_agent()
        except NexusError as error:
            logger.warning("the agent could not be closed: %s", error.problem)
        for source in self._desk.sources.all:
            if source.owned and source.server is not None:
                source.server.close()
        engine, self._desk.engine = self._desk.engine, None
        if engine is not None and self._own_engine:
            engine.close()
