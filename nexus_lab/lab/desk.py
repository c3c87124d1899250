"""The desk: one session of the workbench, shared by its panels, its views and plain Python."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nexus_lab.agent import Emitter, EventKind
from nexus_lab.errors import NexusError
from nexus_lab.lab.adapter_words import named_with
from nexus_lab.lab.bar import Bar
from nexus_lab.lab.crew import Crew
from nexus_lab.lab.driver import Driver
from nexus_lab.lab.sources import Sources
from nexus_lab.lab.views import Pump
from nexus_lab.lab.wire import Lane, UnknownMethod, call, handling_of, methods_of, to_json
from nexus_lab.paths import home
from nexus_lab.policy_text import parse_policy
from nexus_lab.registry import neutralise
from nexus_lab.settings import Profile, load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nexus_lab.agent import Agent, Event, Turn
    from nexus_lab.agent.loop import AskBefore
    from nexus_lab.engine import AdapterInfo, Engine
    from nexus_lab.lab.driver import Ticket
    from nexus_lab.lab.panel import Panel
    from nexus_lab.registry import Registry, Toolbox
    from nexus_lab.routing import Embedder, Router
    from nexus_lab.trace import SessionRecorder

__all__ = ["ASK_BEFORE", "DISK_BYTES", "PANELS", "Desk"]

logger = logging.getLogger(__name__)

PANELS = {
    "models": ("models_panel", "ModelsPanel"),
    "registry": ("registry_panel", "RegistryPanel"),
    "routing": ("routing_panel", "RoutingPanel"),
    "cache": ("cache_panel", "CachePanel"),
    "splice": ("splice_panel", "SplicePanel"),
    "agent": ("agent_panel", "AgentPanel"),
    "session": ("session_panel", "SessionPanel"),
}
ASK_BEFORE = ("writes", "every", "never")
DISK_BYTES = 2**30
"""Most bytes of a desk's snapshots on disk, unless it is told otherwise."""


class Desk:
    """Engine, tools, router, agent, record and settings of one session, and the threads that work on them.

    Everything here can be read from any thread. What changes engine, tools or agent runs as a job of
    `driver`; what needs no llama context can run on `side`.

    Parameters
    ----------
    engine
        A loaded engine; stays its owner's to close.
    tools
        Running servers; they stay their owner's to close.
    registry
        Further tools: a `Registry`, or whatever `load_registry` reads. Servers in it are listed, not started.
    profile
        Settings of the next turn, or the name of a stored profile.
    session
        Bundle to record into; ``None`` makes one in the package's data folder at the first turn. An
        existing one gets another run.
    model
        What `Engine.load` takes; loaded on the engine's lane.
    adapter
        GGUF file of a LoRA adapter that runs with `model`, as `Engine.load` takes it.
    n_ctx
        Context of models that are loaded here, in tokens.
    contents
        Also record what users, models and tools wrote.
    embedder
        Embedder of the router; ``None`` takes the bundled one.
    disk_bytes
        Most bytes of the cache's snapshots on disk, in the package's cache folder: states that are no longer
        in memory, and those of earlier sessions, come back from there. They hold the tokens of conversations,
        for this user's eyes only; 0 keeps none.

    Raises
    ------
    NexusError
        When an adapter is named without the model to load it with, or a profile is not there.

    Attributes
    ----------
    profile, ask_before
        What the next turn runs with.
    engine, toolbox, registry, router, agent, recorder
        What there is now; ``None`` where there is nothing (the registry is empty then).
    driver, side
        The threads: everything that touches the engine, and what does not.
    emitter
        For events outside of turns; the agent's own events reach the same ears.
    panels
        The panels by name.
    """

    def __init__(
        self,
        *,
        engine: Engine | None = None,
        tools: Toolbox | None = None,
        registry: Registry | str | Path | Mapping[str, Any] | list[Any] | None = None,
        profile: Profile | str | None = None,
        session: str | Path | None = None,
        model: str | Path | None = None,
        adapter: str | Path | None = None,
        n_ctx: int = 4096,
        contents: bool = False,
        embedder: Embedder | str | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        _check_adapter(adapter, model, engine)
        self.profile = load_profile(profile) if isinstance(profile, str) else profile or Profile()
        self.ask_before: AskBefore = "writes"
        self.session_path = Path(session or _new_session()).expanduser().absolute()
        self.engine: Engine | None = None
        self.toolbox: Toolbox | None = None
        self.router: Router | None = None
        self.agent: Agent | None = None
        self.recorder: SessionRecorder | None = None
        self.embedder = embedder
        self.model_name: str | None = None
        self.quantisation: str | None = None
        self._ear_lock = threading.Lock()
        self._subscribers: tuple[Callable[[frozenset[str]], None], ...] = ()
        self._closed = False
        self.pump = Pump()
        self.driver = Driver("nexus-engine", on_change=self._bar_changed, on_stop=self._interrupt)
        self.side = Driver("nexus-side", on_change=self._bar_changed)
        self.emitter = Emitter(_Ear(self))
        self.bar = Bar(self)
        self.sources = Sources()
        self.registry: Registry = self.sources.registry()
        self.panels: dict[str, Panel] = {}
        self.crew = Crew(self, n_ctx=n_ctx, contents=contents, disk_bytes=disk_bytes)
        self._make_panels()
        _open.add(self)
        self.crew.begin(engine=engine, tools=tools, registry=registry, model=model, adapter=adapter)
        if isinstance(profile, str) and (code := parse_policy(self.profile.policy).code) is not None:
            self.bar.tell("warn", f"The cache policy of profile {profile} imports and runs {code}.")

    def __repr__(self) -> str:
        notice = self.bar.part()["notice"]
        problem = f", ! {notice['text']}" if notice and notice["status"] == "bad" else ""
        tools = f"{len(self.registry)} tools"
        model = named_with(self.model_name, self.adapter) or "no model"
        return f"Desk({model}, {tools}, {self.driver.state.label}{problem})"

    # -- what views get -----------------------------------------------------------------------------------

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts: the bar and every panel."""
        return ("bar", *self.panels)

    def parts(self, names: Iterable[str]) -> dict[str, Any]:
        """Return parts as JSON values; one that cannot be made is left out, and said in the bar meanwhile."""
        made: dict[str, Any] = {}
        for name in names:
            try:
                made[name] = to_json(self.bar.part() if name == "bar" else self.panels[name].part())
            except Exception as error:
                if self.bar.unshown(name, type(error).__name__):
                    logger.exception("the part %r could not be made", name)
            else:
                self.bar.shown(name)
        return made

    def changed(self, *names: str) -> None:
        """Say that parts are other ones now; from any thread, cheap, and as often as it happens."""
        self.pump.mark(names)
        for callback in self._subscribers:
            callback(frozenset(names))

    def subscribe(self, callback: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Have `callback` called with the names of parts that changed, in any thread.

        Returns
        -------
        What ends the subscription.
        """
        self._subscribers = (*self._subscribers, callback)

        def end() -> None:
            self._subscribers = tuple(item for item in self._subscribers if item is not callback)

        return end

    def handle(self, method: str, params: Mapping[str, Any], reply: Callable[[object], None]) -> None:
        """Do what a view asks for.

        Parameters
        ----------
        method
            ``stop``, or ``<panel>.<handler>``.
        reply
            Called once, with the result, a `Reply`, or the exception; at once, or from the job's thread.
        """
        try:
            if method == "stop":
                reply({"stopped": self.stop()})
                return
            function = self._handler(method)
            handling = handling_of(function)
            if handling is None or handling.lane is None:
                reply(call(function, params))
                return
            lane = self.driver if handling.lane is Lane.ENGINE else self.side
            lane.submit(handling.label, lambda: call(function, params), lambda done: reply(_outcome(done)))
        except NexusError as error:
            reply(error)
        except Exception as error:
            logger.exception("the request %s failed", neutralise(method, limit=80))
            reply(error)

    def _handler(self, method: str) -> Callable[..., Any]:
        name, _, rest = method.partition(".")
        panel = self.panels.get(name)
        function = methods_of(panel).get(rest) if panel is not None else None
        if function is None:
            raise UnknownMethod(
                f"nothing is called {neutralise(method, limit=80)!r}",
                next_step="reload the page, so that view and kernel are of one version",
            )
        return function

    # -- the session --------------------------------------------------------------------------------------

    @property
    def session_name(self) -> str:
        """Name of the session."""
        return self.session_path.name.removesuffix(".nexus")

    def ask(
        self, request: str, on_done: Callable[[Ticket[Turn]], None] | None = None, *, whole: bool = False
    ) -> Ticket[Turn]:
        """Post a turn behind what runs and waits; its failures are in the turn that the ticket brings.

        Parameters
        ----------
        whole
            Make one turn of the request, whatever it asks for.
        """
        panel: Any = self.panels["agent"]
        ticket: Ticket[Turn] = panel.post(request, on_done, whole=whole)
        return ticket

    def stop(self) -> bool:
        """End the running job now, from any thread: prefill, tool call, or a wait for approval.

        Returns
        -------
        Whether there was one. What waits in the queue stays there.
        """
        return self.driver.stop()

    def change_profile(self, **values: Any) -> Profile:
        """Change settings of the next turn.

        Raises
        ------
        SettingsError
            When a value means nothing; nothing has changed then.
        """
        ask_before = values.pop("ask_before", self.ask_before)
        if ask_before not in ASK_BEFORE:
            from nexus_lab.settings import SettingsError

            raise SettingsError(
                f"ask_before = {ask_before!r}", next_step=f"choose {', '.join(ASK_BEFORE[:-1])} or never"
            )
        self.profile = self.profile.changed(**values)
        self.ask_before = ask_before
        self.changed("agent", "routing", "cache", "splice")
        return self.profile

    @property
    def adapter(self) -> AdapterInfo | None:
        """The LoRA adapter that runs with the model, if one does."""
        engine = self.engine
        return None if engine is None else engine.info.adapter

    @property
    def missing(self) -> str | None:
        """What is missing before something can be asked, ``None`` when nothing is."""
        if self.engine is None:
            return "No model is loaded. Load one under Models."
        if not self.sources.running():
            listed = any(source.state == "listed" for source in self.sources.all)
            where = "Start one that is listed under Registry." if listed else "Connect one under Registry."
            return f"No server runs, so that no tool can be called. {where}"
        if self.agent is None:
            return "The agent is being put together."
        return None

    def close(self) -> None:
        """End what the desk began: jobs, record, servers and engine of its own. Harmless when done twice."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        self.driver.close()
        self.side.close()
        for panel in self.panels.values():
            panel.close()
        self.crew.close()
        self.pump.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- within -------------------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Tell recorder, bar and panels of an event, one event at a time."""
        if event.kind is EventKind.TURN and event.duration_ns is None and self.driver.state.stopping:
            self._interrupt()  # the stop came before there was a turn to stop
        with self._ear_lock:
            ears = [self.recorder, self.bar, *self.panels.values()]
            for ear in ears:
                if ear is None:
                    continue
                try:
                    ear.on_event(event)
                except Exception:
                    logger.exception("%r failed on event %d (%s)", ear, event.id, event.name)
        self.changed("bar")

    def tell_panels(self, hook: str, *values: Any) -> None:
        """Call a hook of every panel, such as ``on_turn``; one that fails keeps no other from it."""
        for panel in self.panels.values():
            try:
                getattr(panel, hook)(*values)
            except Exception:
                logger.exception("%s of panel %r failed", hook, panel.name)
        # Neither models nor tools change by a turn, and the tools can be thousands.
        still = {"models", "registry"} if hook == "on_turn" else set()
        self.changed(*(name for name in self.part_names if name not in still))

    def _make_panels(self) -> None:
        for name, (module, kind) in PANELS.items():
            found = import_module(f"nexus_lab.lab.{module}")
            self.panels[name] = getattr(found, kind)(self)

    def _interrupt(self) -> None:
        """End what the driver is doing now; the approval first, since it may be what the turn waits for."""
        panel = self.panels.get("agent")
        if panel is not None:
            panel.withdraw_approval()  # type: ignore[attr-defined]  # the agent's panel has it
        for server in tuple(self.crew.starting):
            server.abort()
        if self.agent is not None:
            self.agent.stop()
        if self.engine is not None:  # what runs here need be no turn, such as a trial or a step back
            self.engine.cancel()

    def _bar_changed(self) -> None:
        self.changed("bar")


class _Ear:
    """The desk as an observer of an agent."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def on_event(self, event: Event) -> None:
        self._desk.hear(event)


def _check_adapter(adapter: str | Path | None, model: str | Path | None, engine: Engine | None) -> None:
    if adapter is None:
        return
    if engine is not None:
        raise NexusError(
            f"the adapter {adapter} would have to be loaded with the engine, which is there already",
            next_step="give it to Engine.load, or name the model in place of the engine",
        )
    if model is None:
        raise NexusError(
            f"the adapter {adapter} has no model to run with", next_step='name it, as in model="bundled"'
        )


def _outcome(ticket: Ticket[Any]) -> object:
    return ticket.result if ticket.error is None else ticket.error


def _new_session() -> Path:
    return home() / "sessions" / f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}.nexus"


_open: weakref.WeakSet[Desk] = weakref.WeakSet()


@atexit.register
def _finish_records() -> None:
    """Finish the records of desks that nobody closed, and write their snapshots; the rest ends with them."""
    for desk in list(_open):
        with suppress(Exception):
            desk.crew.leave()
