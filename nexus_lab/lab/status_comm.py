"""The status comm: what JupyterLab's side panel reads of the workbench in this kernel; it can change nothing.

The panel opens a comm to the target ``nexus_lab.status`` and speaks the views' own protocol: ``hello``, then
an ``ack`` for each message of parts. It gets the bar and the last routing decision of the newest open desk.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from nexus_lab.errors import NexusError
from nexus_lab.lab.views import ViewLink, answer_where_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nexus_lab.lab.desk import Desk

__all__ = ["TARGET", "announce"]

TARGET = "nexus_lab.status"
_PARTS = ("bar", "decision")
# Which of the desk's parts each of ours is made from.
_SOURCES = {"bar": "bar", "decision": "routing"}
_SHOWN = ("request", "decision", "tool", "margin", "tau", "turn")


class ReadOnly(NexusError):
    """The status panel asked for something to be done."""


class _Slice:
    """The part of a desk that the panel sees; it has what `ViewLink` asks of a desk."""

    part_names = _PARTS

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.pump = desk.pump

    def parts(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the bar, and the newest decision without its candidates; without what cannot be made."""
        wanted = set(names)
        made = self._desk.parts({_SOURCES[name] for name in wanted})
        parts: dict[str, Any] = {}
        if "bar" in made:
            parts["bar"] = made["bar"]
        if "decision" in wanted and "routing" in made:
            parts["decision"] = _last_decision(made["routing"])
        return parts

    def handle(self, _method: str, _params: Mapping[str, Any], reply: Callable[[object], None]) -> None:
        """Refuse."""
        reply(ReadOnly("the status panel only reads", next_step="use the workbench itself"))


def _last_decision(routing: Mapping[str, Any]) -> dict[str, Any] | None:
    decisions = routing.get("decisions") or ()
    return {name: decisions[0].get(name) for name in _SHOWN} if decisions else None


class _Link(ViewLink):
    """A view that is told of the parts it shows only."""

    def mark(self, names: Iterable[str]) -> None:
        changed = set(names)
        super().mark(name for name in _PARTS if _SOURCES[name] in changed)


class _Panel:
    """One open comm, whichever desk it follows at the time."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._link: ViewLink | None = None
        self._greeted = False

    def follow(self, desk: Desk | None) -> None:
        """Follow another desk; with none, say so."""
        if self._link is not None:
            self._link.close()
        self._link = _Link(cast("Desk", _Slice(desk)), self._send) if desk is not None else None
        if self._greeted:
            self._greet()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take a message of the panel."""
        data = message.get("content", {}).get("data")
        if isinstance(data, dict) and data.get("kind") == "hello":
            self._greeted = True
            self._greet()
        elif self._link is not None:
            self._link.receive(data)

    def close(self) -> None:
        """Send nothing more."""
        if self._link is not None:
            self._link.close()

    def _greet(self) -> None:
        if self._link is not None:
            self._link.receive({"kind": "hello"})
        else:
            nothing = dict.fromkeys(_PARTS)
            self._send({"kind": "parts", "revision": 0, "parts": nothing}, [])

    def _send(self, message: dict[str, Any], buffers: list[Any]) -> None:
        self._comm.send(message, buffers=buffers)


class _Office:
    """The open panels and desks of this kernel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: object = None
        self._desks: list[Desk] = []
        self._panels: list[_Panel] = []

    def announce(self, desk: Desk) -> Callable[[], None]:
        """Have panels follow `desk`, and register the target where there is a kernel."""
        self._register()
        with self._lock:
            self._desks.append(desk)
        self._lead()
        return lambda: self._withdraw(desk)

    def _withdraw(self, desk: Desk) -> None:
        with self._lock:
            self._desks = [other for other in self._desks if other is not desk]
        self._lead()

    def _lead(self) -> None:
        with self._lock:
            panels, desk = tuple(self._panels), self._newest
        for panel in panels:
            panel.follow(desk)

    @property
    def _newest(self) -> Desk | None:
        return self._desks[-1] if self._desks else None

    def _register(self) -> None:
        from comm import get_comm_manager

        manager = get_comm_manager()
        if manager is not self._registered:
            manager.register_target(TARGET, self.on_open)
            self._registered = manager

    def on_open(self, comm: Any, _message: Mapping[str, Any]) -> None:
        """Take a comm that a side panel opened."""
        answer_where_asked(comm)
        panel = _Panel(comm)
        comm.on_msg(panel.receive)
        comm.on_close(lambda _message: self._forget(panel))
        with self._lock:
            self._panels.append(panel)
            desk = self._newest
        panel.follow(desk)

    def _forget(self, panel: _Panel) -> None:
        panel.close()
        with self._lock:
            self._panels = [other for other in self._panels if other is not panel]


_OFFICE = _Office()


def announce(desk: Desk) -> Callable[[], None]:
    """Let JupyterLab's side panel follow `desk`; the newest one is followed.

    Returns
    -------
    What ends it; call it when the desk closes.
    """
    return _OFFICE.announce(desk)
