"""Decisions that were made before their turn, so that a part of a request is not routed twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.routing.context import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.routing import Router, RoutingDecision

    Message = Mapping[str, Any]

__all__ = ["DecisionsAhead"]

_DECIDES = ("tau", "top_k", "threshold", "examples")


@dataclass(frozen=True, slots=True)
class _Made:
    decision: RoutingDecision
    history: tuple[Message, ...]
    router: tuple[Any, ...]

    def holds(self, router: Router, request: str, history: Sequence[Message]) -> bool:
        """Whether the router would read and decide the same now."""
        same = self.history == tuple(history)
        alone = resolve(request, self.history) is None and resolve(request, history) is None
        return (same or alone) and self.router == _state(router)


class DecisionsAhead:
    """Keeps decisions until their turn comes, and gives out those that would still be the same.

    A decision depends on the conversation only where the request refers back, and on the router by its tools,
    its thresholds and its examples; where one of these has changed, the request has to be routed again.
    """

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}

    def make(self, router: Router, request: str, history: Sequence[Message]) -> RoutingDecision:
        """Route a request, and keep the decision for its turn."""
        now = _state(router)
        decision = router.route(request, history)
        self._made[request] = _Made(decision, tuple(history), now)
        return decision

    def take(self, router: Router, request: str, history: Sequence[Message]) -> RoutingDecision | None:
        """Return what was decided of a request, once; ``None`` where that may not hold any more."""
        made = self._made.pop(request, None)
        return made.decision if made is not None and made.holds(router, request, history) else None

    def clear(self) -> None:
        """Forget what was not taken."""
        self._made.clear()


def _state(router: Router) -> tuple[Any, ...]:
    """Return what a router decides by; its registry by identity, since none changes in place."""
    found = (getattr(router, name, None) for name in _DECIDES)
    return (id(router), id(getattr(router, "registry", None)), *found)
