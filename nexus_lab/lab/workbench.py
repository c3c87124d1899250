"""The workbench as a widget: a thin shell over a desk, which speaks with its views in messages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anywidget
import traitlets

from nexus_lab.errors import NexusError
from nexus_lab.lab.desk import DISK_BYTES, PANELS, Desk
from nexus_lab.lab.driver import wait_for_all
from nexus_lab.lab.static_html import embedded, page
from nexus_lab.lab.status_comm import announce
from nexus_lab.lab.views import ViewLink, answer_where_asked
from nexus_lab.paths import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexus_lab.agent import Turn
    from nexus_lab.engine import Engine
    from nexus_lab.lab.agent_panel import AgentPanel
    from nexus_lab.lab.cache_panel import CachePanel
    from nexus_lab.lab.models_panel import ModelsPanel
    from nexus_lab.lab.registry_panel import RegistryPanel
    from nexus_lab.lab.routing_panel import RoutingPanel
    from nexus_lab.lab.session_panel import SessionPanel
    from nexus_lab.lab.splice_panel import SplicePanel
    from nexus_lab.registry import Registry, Toolbox, ToolSpec
    from nexus_lab.settings import Profile

    Approve = Callable[[ToolSpec, Mapping[str, Any]], bool | Mapping[str, Any]]

__all__ = ["PanelView", "WidgetNotBuilt", "Workbench"]

_STATIC = Path(__file__).with_name("static")
_SCRIPT, _STYLE = "widget.js", "widget.css"


class WidgetNotBuilt(NexusError):
    """The front end is not there; a checkout builds it, an installed package brings it."""


class UnknownPanel(NexusError):
    """There is no panel of that name."""


@cache
def _asset(name: str) -> str:
    try:
        return (_STATIC / name).read_text(encoding="utf-8")
    except OSError as error:
        raise WidgetNotBuilt(
            f"the front end's {name} is missing",
            next_step="in the checkout, run `npm ci && npm run build` in nexus_lab/lab/frontend",
        ) from error


class PanelView(anywidget.AnyWidget):
    """A live view of a desk: all panels, or one.

    Parameters
    ----------
    desk
        The session that is shown.
    panel
        The one panel to show; ``None`` shows all of them with their tabs.
    theme
        ``light`` or ``dark``; ``None`` follows the page.
    """

    panel = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    theme = traitlets.Enum(("light", "dark"), default_value=None, allow_none=True).tag(sync=True)

    # ipywidgets closes a widget also when its making failed.
    _link: ViewLink | None = None

    def __init__(self, desk: Desk, *, panel: str | None = None, theme: str | None = None) -> None:
        _check_panel(panel)
        self._esm, self._css = _asset(_SCRIPT), _asset(_STYLE)
        super().__init__(panel=panel, theme=theme)
        answer_where_asked(self.comm)
        self._desk = desk
        self._link = ViewLink(desk, self._post)
        self.on_msg(self._receive)

    @property
    def desk(self) -> Desk:
        """The session that is shown."""
        return self._desk

    def to_html(self, path: str | Path | None = None, *, theme: str | None = None) -> str | Path:
        """Write what is shown as one page that needs no kernel, no script and no network.

        Parameters
        ----------
        path
            Where to; ``None`` returns the page's text instead.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        names = [self.panel] if self.panel else list(self._desk.panels)
        title = f"{self._desk.session_name}: {self.panel or 'workbench'}"
        text = page(title, [self._desk.panels[name].to_html() for name in names], theme=theme or self.theme)
        if path is None:
            return text
        target = Path(path).expanduser()
        atomic_write(target, text.encode())
        return target

    def close(self) -> None:
        """Close this view; the session goes on."""
        if self._link is not None:
            self._link.close()
        super().close()

    @property
    def attended(self) -> bool:
        """Whether a browser has shown it."""
        return self._link is not None and self._link.greeted

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.panel or 'all panels'}, {self._desk!r})"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return the live view, and for readers without a kernel the same as a static page and as text."""
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        data["text/html"] = embedded(str(self.to_html()))
        return bundle

    def _receive(self, _widget: object, message: Any, _buffers: object) -> None:
        if self._link is not None:
            self._link.receive(message)

    def _post(self, message: dict[str, Any], buffers: list[Any]) -> None:
        if self.comm is not None:
            self.send(message, buffers)


class Workbench(PanelView):
    """The workbench of one session: models, tools, routing, cache, splices, turns and their record.

    It can be shown as often as one likes; every view shows the same session. Without a notebook it works from
    plain Python: ``wb.ask(...)``, ``wb.routing.to_frame()``, ``wb.to_html("report.html")``.

    Parameters
    ----------
    engine
        A loaded engine; closing it stays the caller's business.
    tools
        Running servers, as `nexus_lab.registry.connect` returns them; they stay the caller's too.
    registry
        Further tools: a `Registry`, or whatever `load_registry` reads. Servers in it are listed, not started.
    profile
        Settings of the next turn, or the name of a stored profile.
    session
        Bundle to record into; ``None`` makes one in the package's data folder at the first turn.
    model
        What `Engine.load` takes, loaded in the background.
    adapter
        GGUF file of a LoRA adapter that runs with `model`, as `Engine.load` takes it: a part of the model's
        fingerprint. Like a model that cannot be loaded, one that does not fit is told in the bar. An
        `engine` brings its own.
    panel
        Show one panel alone.
    n_ctx
        Context of models that are loaded here, in tokens.
    contents
        Also record what users, models and tools wrote.
    theme
        ``light`` or ``dark``; ``None`` follows the page.
    disk_bytes
        Most bytes of the cache's snapshots on disk; they hold the tokens of conversations, for this user's
        eyes only. 0 keeps none.

    Raises
    ------
    WidgetNotBuilt
        In a checkout whose front end was not built.
    NexusError
        When an adapter is named without the model to load it with.

    Examples
    --------
    >>> wb = Workbench(model="bundled", registry="servers.json")  # doctest: +SKIP
    >>> wb.ask("What time is it in Tokyo?").answer  # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine | None = None,
        tools: Toolbox | None = None,
        *,
        registry: Registry | str | Path | Mapping[str, Any] | list[Any] | None = None,
        profile: Profile | str | None = None,
        session: str | Path | None = None,
        model: str | Path | None = None,
        adapter: str | Path | None = None,
        panel: str | None = None,
        n_ctx: int = 4096,
        contents: bool = False,
        theme: str | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._closers: list[Callable[[], None]] = []
        _check_panel(panel)
        _check_tools(tools)
        _asset(_SCRIPT)  # says what is missing before anything is loaded
        desk = Desk(
            engine=engine,
            tools=tools,
            registry=registry,
            profile=profile,
            session=session,
            model=model,
            adapter=adapter,
            n_ctx=n_ctx,
            contents=contents,
            disk_bytes=disk_bytes,
        )
        try:
            super().__init__(desk, panel=panel, theme=theme)
        except BaseException:
            desk.close()
            raise
        self._views: list[PanelView] = []
        self._closers += [announce(desk), desk.close]

    models = cast("ModelsPanel", property(lambda self: self._desk.panels["models"]))
    registry = cast("RegistryPanel", property(lambda self: self._desk.panels["registry"]))
    routing = cast("RoutingPanel", property(lambda self: self._desk.panels["routing"]))
    cache = cast("CachePanel", property(lambda self: self._desk.panels["cache"]))
    splice = cast("SplicePanel", property(lambda self: self._desk.panels["splice"]))
    agent = cast("AgentPanel", property(lambda self: self._desk.panels["agent"]))
    session = cast("SessionPanel", property(lambda self: self._desk.panels["session"]))

    def panel_view(self, panel: str, *, theme: str | None = None) -> PanelView:
        """Return a view of one panel alone, over the same session."""
        view = PanelView(self._desk, panel=panel, theme=theme or self.theme)
        self._views.append(view)
        return view

    def ask(self, request: str, *, approve: Approve | bool | None = None) -> Turn:
        """Run one turn and wait for it; interrupting the cell stops the turn.

        Parameters
        ----------
        approve
            Who is asked before a tool that may change something runs: a function of tool and arguments that
            returns whether it may, or other arguments; ``True`` and ``False`` answer for it. ``None`` asks in
            the view, and refuses where no view is open.

        Returns
        -------
        Turn
            Failures are in its ``problem``.

        Raises
        ------
        NotReady
            When a model or a running server is missing.
        KeyboardInterrupt
            When interrupted; the turn has been stopped then.
        """
        ticket = self.agent.post(request, approve=self._approver(approve))
        try:
            return ticket.get()
        except KeyboardInterrupt:
            if not self._desk.driver.withdraw(ticket):
                self._desk.stop()
                ticket.wait(30)
            raise

    def stop(self) -> bool:
        """Stop the running turn now; what waits in the queue stays there."""
        return self._desk.stop()

    def wait(self) -> None:
        """Wait until everything that was posted is done: loading, starting, turns, and what these post.

        So after a fork or a replay it waits for the turns that are asked again, the last one included.
        """
        wait_for_all((self._desk.driver, self._desk.side))

    def close(self) -> None:
        """End the session: stop what runs, finish the record, end the servers and the model begun here."""
        closers, self._closers = self._closers, []
        if closers:
            for view in self._views:
                view.close()
        for close in closers:
            close()
        super().close()

    def _approver(self, approve: Approve | bool | None) -> Approve | None:  # noqa: FBT001 - as the user gave it
        if callable(approve):
            return approve
        if approve is None and any(view.attended for view in (self, *self._views)):
            return None
        return lambda _tool, _arguments: bool(approve)


def _check_tools(tools: object) -> None:
    if isinstance(tools, str | Path | dict | list):
        raise NexusError(
            "tools= takes running servers",
            next_step="give a file or a list of tools as registry=, or start servers with connect(...)",
        )


def _check_panel(panel: str | None) -> None:
    if panel is not None and panel not in PANELS:
        raise UnknownPanel(f"there is no panel {panel!r}", next_step=f"choose one of {', '.join(PANELS)}")
