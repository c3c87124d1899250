"""Decisions that were made before their turn, so that a part of a request is not routed twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.routing.context import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.routing import Router, RoutingDecision
    from nexus_lab.routing.context import Reference

    Message = Mapping[str, Any]

__all__ = ["DecisionsAhead"]

_DECIDES = ("tau", "top_k", "threshold", "examples")


@dataclass(frozen=True, slots=True)
class _Made:
    decision: RoutingDecision
    reference: Reference | None
    router: tuple[Any, ...]


class DecisionsAhead:
    """Keeps decisions until their turn comes, and gives out those that would still be the same.

    A decision depends on the conversation by what the request refers back to alone, and on the router by its
    tools, its thresholds and its examples; where one of these has changed, the request has to be routed
    again.
    """

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}

    def make(self, router: Router, request: str, history: Sequence[Message]) -> RoutingDecision:
        """Route a request, and keep the decision for its turn."""
        now = _state(router)
        decision = router.route(request, history)
        self._made[request] = _Made(decision, resolve(request, history), now)
        return decision

    def take(self, router: Router, request: str, history: Sequence[Message]) -> RoutingDecision | None:
        """Return what was decided of a request, once; ``None`` where that may not hold any more."""
        made = self._made.pop(request, None)
        if made is None or made.router != _state(router) or made.reference != resolve(request, history):
            return None
        return made.decision

    def clear(self) -> None:
        """Forget what was not taken."""
        self._made.clear()


def _state(router: Router) -> tuple[Any, ...]:
    """Return what a router decides by; its registry by identity, since none changes in place."""
    found = (getattr(router, name, None) for name in _DECIDES)
    return (id(router), id(getattr(router, "registry", None)), *found)
