"""The routing panel: decisions of turns and of the box, the gate, corrections that the router learns from."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.agent import Event, EventKind
from nexus_lab.agent.rows import RoutingRow
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.routing_book import Note, RoutingBook, key_of, owned
from nexus_lab.lab.routing_page import routing_page
from nexus_lab.lab.routing_records import DecisionRow, of_box, of_event, of_note, requests_in
from nexus_lab.lab.wire import BadRequest, Lane, instant, job, to_json
from nexus_lab.registry import neutralise
from nexus_lab.routing import CalibrationError, RoutingError, load_calibration
from nexus_lab.routing.calibration import shipped_calibration
from nexus_lab.routing.scoring import LEXICAL_WEIGHT

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.lab.desk import Desk
    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing import Router, RouterCalibration

__all__ = ["RoutingPanel"]

_KEPT = 5000
_SENT = 200
_MARGINS_SENT = 2000


class RoutingPanel(Panel):
    """Routes from the box, keeps what was decided, and takes corrections.

    The box uses the router on the side lane, which needs no llama context; router and turns take turns by
    the router's own lock.
    """

    name: ClassVar[str] = "routing"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._lock = threading.Lock()
        self._decisions: list[DecisionRow] = []
        self._books: dict[str, RoutingBook] = {}
        self._turn: int | None = None
        self._calibration: tuple[RouterCalibration, str] | None = None
        self._taught: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"RoutingPanel({len(self._decisions)} decisions, {len(self._taught)} examples)"

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the newest decisions, the margins of this registry, and the gate of the next turn."""
        with self._lock:
            decisions = self._decisions[: -_SENT - 1 : -1]
        notes = [note for note in self.book.notes if note.margin is not None]
        calibration, origin = self._calibrated()
        given = self.desk.profile.tau
        return {
            "decisions": decisions,
            "lexical_weight": LEXICAL_WEIGHT,
            "margins": [
                {"margin": note.margin, "mark": note.mark, "ms": note.ms} for note in notes[-_MARGINS_SENT:]
            ],
            "tau": calibration.gate.tau if given is None else given,
            "calibrated": calibration.gate.tau,
            "provenance": _provenance(calibration, origin),
            "top_k": self.desk.profile.top_k,
            "examples": len(self._taught),
            "turns": sum(row.source == "turn" for row in self._decisions),
        }

    @property
    def decisions(self) -> tuple[DecisionRow, ...]:
        """The decisions of this session, newest first."""
        with self._lock:
            return tuple(reversed(self._decisions))

    @property
    def book(self) -> RoutingBook:
        """What is kept of the registry as it is now."""
        registry = self.desk.registry
        with self._lock:
            book = self._books.get(registry.fingerprint)
            if book is None:
                book = self._books[registry.fingerprint] = RoutingBook.of(registry)
            return book

    def examples_of(self, tool: ToolSpec) -> list[str]:
        """Return the requests that the router was taught for a tool."""
        key = key_of(self.desk.registry, tool)
        return [request for name, request in self.book.examples_for(self.desk.registry) if name == key]

    def _calibrated(self) -> tuple[RouterCalibration, str]:
        """Return the calibration and whose it is; before the router is warm, that of the bundled embedder."""
        if self._calibration is None:
            from nexus_lab.routing.embedder import bundled_fingerprint
            from nexus_lab.routing.scoring import SCORING

            try:
                self._calibration = load_calibration(bundled_fingerprint(), SCORING)
            except CalibrationError as error:
                # The router says so whenever it is asked; the panel must stand, to show it.
                return shipped_calibration(), f"{error.problem}; {error.next_step}. Until then shipped"
        return self._calibration

    # -- what it hears ------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Keep the decision of a turn as soon as it is made."""
        if event.kind is EventKind.TURN:
            number = event.attributes.get("turn")
            self._turn = int(number) if isinstance(number, int) and event.duration_ns is None else None
        elif event.kind is EventKind.RETRIEVAL:
            for row in event.rows:
                if isinstance(row, RoutingRow):
                    self._keep(of_event(row, event, self._turn))

    def on_tools(self) -> None:
        """Show the margins of the other registry, and what was marked over it in earlier sessions."""
        marked = [of_note(note) for note in self.book.notes if note.mark is not None]
        with self._lock:
            known = {row.id for row in self._decisions}
            self._decisions = [*(row for row in marked if row.id not in known), *self._decisions]
        self.changed()

    def on_router(self) -> None:
        """Take over a router that is warm: its calibration, and the examples that earlier marks made."""
        router = self.desk.router
        if router is None:
            return
        from nexus_lab.routing.scoring import SCORING

        self._calibration = (router.calibration, load_calibration(router.embedder.fingerprint, SCORING)[1])
        self._taught = {pair for pair in self._taught if pair in router.examples}
        self._agree()
        self.changed()

    def _keep(self, row: DecisionRow) -> None:
        book = self.book
        tool = self.desk.registry.get(row.tool) if row.tool is not None else None
        with self._lock:
            self._decisions = [*self._decisions[-_KEPT + 1 :], row]
        book.add(
            Note(
                id=row.id,
                source=row.source,
                margin=row.margin,
                tau=row.tau,
                ms=sum(row.times_ms.values()),
                decision=row.decision,
                tool=row.tool,
                tool_of=owned(tool) if tool is not None else None,
            )
        )
        if self.desk.side.is_mine:
            book.save()
        else:  # an event of a turn, which must not wait for a disk
            self.desk.side.submit("keeping decisions", book.save)
        self.changed()

    # -- what it is asked ---------------------------------------------------------------------------------

    @job("routing", lane=Lane.SIDE)
    def route(self, request: str, *, with_conversation: bool = True, top_k: int | None = None) -> DecisionRow:
        """Route a request without asking the agent; also while a turn runs."""
        router = self._router()
        agent = self.desk.agent
        history = agent.history if with_conversation and agent is not None else ()
        profile = self.desk.profile
        decision = router.route(
            request,
            history,
            tau=router.calibration.gate.tau if profile.tau is None else profile.tau,
            top_k=profile.top_k if top_k is None else top_k,
        )
        row = of_box(decision)
        self._keep(row)
        return row

    @instant
    def read_requests(self, text: str) -> dict[str, list[str]]:
        """Read requests from a text: JSON Lines, a JSON list, or one request a line."""
        return {"requests": requests_in(text)}

    @instant
    def apply(self, tau: float | None, top_k: int) -> dict[str, Any]:
        """Set the gate of the next turn; ``None`` takes the calibrated tau."""
        self.desk.change_profile(tau=None if tau is None else float(tau), top_k=top_k)
        return {"tau": self.desk.profile.tau, "top_k": self.desk.profile.top_k}

    @job("learning", lane=Lane.SIDE)
    def mark(self, id: str, mark: str, right_tool: str | None = None) -> DecisionRow:  # noqa: A002 - the wire's
        """Say whether a decision was right; the request becomes an example of the tool that it belongs to.

        Raises
        ------
        BadRequest
            When there is no such decision, or the mark is none.
        ToolNotFound
            When the right tool is not in the registry.
        """
        row, book = self._found(id)
        if mark not in ("right", "wrong"):
            raise BadRequest(f"mark = {neutralise(mark, limit=40)!r}", next_step="choose right or wrong")
        key = None if right_tool is None else self._key(right_tool)
        checked: Any = mark
        note = book.mark(id, checked, request=row.request, right_tool=key, registry=self.desk.registry)
        return self._learn(row, note)

    @job("forgetting", lane=Lane.SIDE)
    def unmark(self, id: str) -> DecisionRow:  # noqa: A002 - the wire's
        """Take a mark back, and with it the example that it made."""
        row, book = self._found(id)
        return self._learn(row, book.mark(id, None, request=None, right_tool=None))

    def _router(self) -> Router:
        router = self.desk.router
        if router is None or not len(self.desk.registry):
            raise RoutingError("there are no tools", next_step="load some under Registry")
        return router

    def _found(self, number: str) -> tuple[DecisionRow, RoutingBook]:
        with self._lock:
            row = next((row for row in self._decisions if row.id == number), None)
            books = list(self._books.values())
        book = next((book for book in books if book.get(number) is not None), None)
        if row is None or book is None:
            raise BadRequest("there is no such decision", next_step="choose one of the list")
        return row, book

    def _key(self, tool: str) -> str:
        """Return the name under which the router knows a tool."""
        return key_of(self.desk.registry, self.desk.registry[tool])

    def _learn(self, row: DecisionRow, note: Note) -> DecisionRow:
        """Make the router's examples agree with the marks, and tell the record."""
        marked = replace(row, mark=note.mark, right_tool=note.right_tool)
        with self._lock:
            self._decisions = [marked if item.id == row.id else item for item in self._decisions]
        self._agree()
        self.desk.emitter.point(
            EventKind.CORRECTION,
            note.mark or "unmarked",
            decision=row.decision,
            tool=row.tool,
            right_tool=note.right_tool,
            contents={"request": row.request},
        )
        self.changed()
        return marked

    def _agree(self) -> None:
        router = self.desk.router
        if router is None:
            return
        wanted = {pair for pair in self.book.examples_for(router.registry) if pair[0] in router.index}
        for tool, request in self._taught - wanted:
            router.remove_example(request, tool)
        for tool, request in wanted - self._taught:
            router.add_example(request, tool)
        self._taught = wanted

    def close(self) -> None:
        """Write what is not on disk yet."""
        for book in self._books.values():
            book.save()

    # -- plain Python -------------------------------------------------------------------------------------

    def to_frame(self) -> pl.DataFrame:
        """Return one row per decision, newest first; candidates, times and settings as JSON."""
        import polars as pl

        schema = {
            "id": pl.String,
            "source": pl.String,
            "turn": pl.Int64,
            "request": pl.String,
            "decision": pl.String,
            "tool": pl.String,
            "margin": pl.Float64,
            "tau": pl.Float64,
            "fit": pl.Float64,
            "threshold": pl.Float64,
            "mark": pl.String,
            "right_tool": pl.String,
            "reason": pl.String,
            "candidates": pl.String,
            "times_ms": pl.String,
            "settings": pl.String,
        }
        nested = ("candidates", "times_ms", "settings")
        rows = [
            {name: json.dumps(value) if name in nested else value for name, value in to_json(row).items()}
            for row in self.decisions
        ]
        return pl.DataFrame(rows, schema=schema)

    def to_html(self) -> str:
        """Return the decisions, what stands behind the newest, and the calibration, as a static fragment."""
        return routing_page(to_json(self.part()), self._calibrated()[0])


def _provenance(calibration: RouterCalibration, origin: str) -> str:
    gate = calibration.gate
    return f"{origin}: the {gate.percentile:g}th percentile of {gate.n:,} margins, {gate.source}"
