"""What each tool costs in tokens, and what is wrong with its schema: found bit by bit, off the callbacks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.arguments import tool_text
from nexus_lab.registry import check_registry_schemas

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexus_lab.engine import Engine
    from nexus_lab.lab.desk import Desk
    from nexus_lab.registry import Problem, ToolSpec

__all__ = ["Cost", "ToolFacts"]

_PIECE = 48


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of a tool as the model would see it, by the tokenizer of the model that is loaded."""

    signature: int
    schema: int


class ToolFacts:
    """Token costs and schema checks of the desk's tools, remembered per tool.

    Parameters
    ----------
    desk
        Whose tools and tokenizer.
    on_change
        Called when more is known.
    """

    def __init__(self, desk: Desk, on_change: Callable[[], None]) -> None:
        self._desk = desk
        self._on_change = on_change
        self._lock = threading.Lock()
        self._costs: dict[tuple[str, ToolSpec], Cost] = {}
        self._checks: dict[ToolSpec, tuple[Problem, ...]] = {}
        self._posted = False

    def cost(self, tool: ToolSpec) -> Cost | None:
        """Return what `tool` costs, ``None`` while nobody has counted or no model is loaded."""
        engine = self._desk.engine
        return self._costs.get((engine.info.fingerprint, tool)) if engine is not None else None

    def checks(self, tool: ToolSpec) -> tuple[Problem, ...]:
        """Return what the metaschema says of `tool`; empty while it was not asked."""
        return self._checks.get(tool, ())

    def gather(self) -> None:
        """Have what is not known yet found on the side lane, in pieces, so that others get in between."""
        with self._lock:
            if self._posted or not self._missing(1):
                return
            self._posted = True
        self._desk.side.submit("counting tokens", self._piece)

    def _missing(self, most: int) -> list[ToolSpec]:
        engine, registry = self._desk.engine, self._desk.registry
        found: list[ToolSpec] = []
        for tool in (*registry.tools, *registry.shadowed):
            uncounted = engine is not None and (engine.info.fingerprint, tool) not in self._costs
            if uncounted or tool not in self._checks:
                found.append(tool)
                if len(found) == most:
                    break
        return found

    def _piece(self) -> None:
        try:
            for tool in self._missing(_PIECE):
                if tool not in self._checks:
                    self._checks[tool] = tuple(check_registry_schemas([tool]))
                engine = self._desk.engine
                if engine is not None:
                    self._costs[engine.info.fingerprint, tool] = _count(engine, tool)
        finally:
            self._posted = False
        self._on_change()
        self.gather()


def _count(engine: Engine, tool: ToolSpec) -> Cost:
    signature, schema = (
        len(engine.tokenize(tool_text(tool, mode=mode), special=False)) for mode in ("signature", "full")
    )
    return Cost(signature, schema)
