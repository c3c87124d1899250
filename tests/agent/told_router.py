"""A router that is told what to choose."""

from __future__ import annotations

from told_decision import told_decision

from nexus_lab.routing.base import Outcome


class ToldRouter:
    """Chooses the tool it was told, or none."""

    def __init__(self) -> None:
        self.tool: str | None = "echo"
        self.asked: list[str] = []
        self.examples: tuple[tuple[str, str], ...] = ()

    def route(self, request, context=()):
        self.asked.append(request)
        return told_decision(
            request,
            self.tool,
            outcome=Outcome.AUTO,
            used_context=bool(context),
            times_ms={"scan": 2_000.0},
        )
