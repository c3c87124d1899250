"""The bar: who holds the engine, how far it has come, how full the context is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.agent import EventKind
from nexus_lab.lab.adapter_words import adapter_name, weights_with

if TYPE_CHECKING:
    from nexus_lab.agent import Event
    from nexus_lab.lab.desk import Desk

__all__ = ["Bar"]

_STAGES = {
    EventKind.RETRIEVAL: "routing",
    EventKind.RERANK: "weighing",
    EventKind.EMBEDDINGS: "routing",
    EventKind.PREFILL: "prefill",
    EventKind.SPLICE: "splice",
    EventKind.REPAIR: "repair",
    EventKind.GENERATE: "generating",
    EventKind.ARGUMENTS: "arguments",
    EventKind.TOOL: "tool call",
    EventKind.FIDELITY: "shadow prefill",
}


class Bar:
    """What stands above all panels; kept from events, so that nobody asks the engine for it.

    Attributes
    ----------
    waiting
        A turn waits for the user.
    loading
        A model is being loaded.
    used
        Cells that some sequence holds, as last told.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._turn: tuple[int, str] | None = None
        self._stages: dict[int, str] = {}
        self._notice: tuple[str, str] | None = None
        self._unshown: dict[str, str] = {}
        self.waiting = False
        self.loading = False
        self.used = 0

    def on_event(self, event: Event) -> None:
        """Follow which stage of which turn is running."""
        if event.kind is EventKind.TURN:
            self._turn = (event.id, event.name) if event.duration_ns is None else None
            self._stages.clear()
            if event.duration_ns is None:
                self._notice = None  # what was said of an earlier job
        elif event.kind in _STAGES:
            if event.duration_ns is None:
                self._desk.driver.forget_progress()  # it was that of an earlier stage
                tool = f" {event.name}" if event.kind is EventKind.TOOL else ""
                self._stages[event.id] = _STAGES[event.kind] + tool
            else:
                self._stages.pop(event.id, None)
        note = event.attributes.get("note") if event.kind is EventKind.STEP else None
        if isinstance(note, str):
            self._notice = ("warn", note)
        used = event.attributes.get("cells_used")
        if isinstance(used, int):
            self.used = used

    def hush(self) -> None:
        """Take the line back."""
        self._notice = None
        self._desk.changed("bar")

    def tell(self, status: str, text: str) -> None:
        """Show a line to the user: ``ok``, ``warn`` or ``bad``."""
        self._notice = (status, text)
        self._desk.changed("bar")

    def unshown(self, part: str, error: str) -> bool:
        """Say that a part could not be made, until it can; returns whether that is new."""
        if self._unshown.get(part) == error:
            return False
        self._unshown = {**self._unshown, part: error}
        self._desk.changed("bar")
        return True

    def shown(self, part: str) -> None:
        """Take note that a part could be made."""
        if part in self._unshown:
            self._unshown = {name: error for name, error in self._unshown.items() if name != part}
            self._desk.changed("bar")

    def part(self) -> dict[str, Any]:
        """Return the bar as views show it."""
        desk = self._desk
        engine, recorder, state = desk.engine, desk.recorder, desk.driver.state
        progress = state.progress or desk.side.state.progress
        return {
            "session": desk.session_name,
            "run": recorder.run if recorder is not None else None,
            "model": _without(desk.model_name, desk.quantisation),
            "quantisation": weights_with(desk.quantisation, adapter_name(desk.adapter)),
            "context_used": self.used if engine is not None else 0,
            "context_total": engine.n_ctx if engine is not None else 0,
            "engine": self._engine_word(),
            "holder": self._holder(state.label),
            "progress": progress,
            "notice": self._told(),
        }

    def _told(self) -> dict[str, str] | None:
        """Return the line that was told, and behind it which panels show what they were before."""
        stale = [
            f"The {part} panel cannot be shown as it is now: {error}. It is tried again."
            for part, error in self._unshown.items()
            if part != "bar"
        ]
        if self._notice is None and not stale:
            return None
        status, text = self._notice or ("bad", "")
        return {"status": "bad" if stale else status, "text": " ".join((*filter(None, [text]), *stale))}

    def _engine_word(self) -> str:
        state = self._desk.driver.state
        if self.loading:
            return "loading"
        if state.stopping:
            return "stopping"
        if self.waiting:
            return "waiting"
        if self._desk.engine is None and (state.label is None):
            return "unloaded"
        return "idle" if state.label is None else "busy"

    def _holder(self, label: str | None) -> str | None:
        turn, stages = self._turn, list(self._stages.values())
        if turn is None:
            return label
        stage = "waiting for approval" if self.waiting else stages[-1] if stages else ""
        return f"{turn[1]}, {stage}" if stage else turn[1]


def _without(name: str | None, quantisation: str | None) -> str | None:
    """Return the model's name without its quantisation at the end, which stands beside it."""
    if name is None or not quantisation:
        return name
    return name.removesuffix(quantisation).rstrip(".-_") or name
