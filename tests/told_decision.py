"""A routing decision as a test tells it."""

from __future__ import annotations

from typing import Any

from nexus_lab.routing.base import Candidate, Outcome, RoutingDecision


def told_decision(request: str, tool: str | None, *, outcome: Outcome, **facts: Any) -> RoutingDecision:
    """Return the decision for `tool`, or for none; `facts` are more of its fields."""
    return RoutingDecision(
        request=request,
        normalised=request,
        candidates=(Candidate(tool="echo", score=0.5, dense=0.5, lexical=0.0),),
        margin=0.5,
        dense_margin=0.5,
        tau=0.1,
        outcome=outcome if tool else Outcome.NO_TOOL,
        tool=tool,
        reason="as told",
        fit=0.5,
        threshold=0.1,
        **facts,
    )
