"""What every panel of the workbench is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.agent import Event, Turn
    from nexus_lab.lab.desk import Desk

__all__ = ["Panel"]


class Panel:
    """One panel: a part of what views show, handlers for what they ask, and the same for plain Python.

    A subclass sets `name`, gives its part, and marks handlers with `nexus_lab.lab.wire.instant` or
    `nexus_lab.lab.wire.job`. Handlers, `part`, `to_frame` and `to_html` never touch the llama context unless
    they are jobs of the engine's lane; what they show is a snapshot that events and jobs have left behind.

    Parameters
    ----------
    desk
        The session that the panel is a part of.
    """

    name: ClassVar[str] = ""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def part(self) -> Any:
        """Return what views show, as ``protocol.ts`` has it: a frozen record or a dict; from any thread."""
        return {}

    def on_event(self, event: Event) -> None:
        """Hear an event of the agent, in order; be quick, and never touch the engine."""

    def on_turn(self, turn: Turn) -> None:
        """Take note of a turn that has ended; called on the engine's lane."""

    def on_tools(self) -> None:
        """Take note that `desk.registry` is another one; called on the thread that changed it."""

    def on_engine(self) -> None:
        """Take note that `desk.engine` was loaded or unloaded; called on the engine's lane."""

    def on_run(self) -> None:
        """Take note that another run of the record has begun; called on the engine's lane."""

    def to_frame(self) -> pl.DataFrame:
        """Return what the panel shows as a table."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return what the panel shows as a self-contained fragment that needs no JavaScript."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the panel holds; called once, when the desk closes."""

    def changed(self) -> None:
        """Say that the panel's part is another one now."""
        self.desk.changed(self.name)

    def _repr_html_(self) -> str:
        from nexus_lab.lab.static_html import embedded, page

        return embedded(page(self.name, [self.to_html()]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
