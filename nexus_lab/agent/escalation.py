"""A decision whose candidates were too close: what a trial by the model makes of it, and its row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nexus_lab.agent.rows import Candidate, RoutingRow
from nexus_lab.registry import neutralise
from nexus_lab.routing import Outcome

if TYPE_CHECKING:
    from nexus_lab.agent.sidecar import SidecarResult
    from nexus_lab.routing import RoutingDecision

__all__ = ["escalates", "routing_row", "settled"]

_SHOWN = 80


def escalates(decision: RoutingDecision) -> bool:
    """Whether the gate found the best candidates too close, and there is more than one."""
    return (
        decision.outcome in (Outcome.ESCALATED, Outcome.ESCALATION_UNAVAILABLE)
        and decision.tool is not None
        and len(decision.candidates) > 1
    )


def settled(decision: RoutingDecision, result: SidecarResult, *, model: str) -> RoutingDecision:
    """Return the decision with the candidate first that the model prefers; as it was where that is none.

    Parameters
    ----------
    model
        Name of the model, for the sentence that says why.
    """
    timed = replace(decision, times_ms={**decision.times_ms, "sidecar": result.ms})
    best = result.best()
    if best is None:
        return timed
    shown, n = neutralise(best, limit=_SHOWN), len(result.scores)
    by = neutralise(model, limit=_SHOWN)
    if best == decision.tool:
        return replace(timed, reason=f"{decision.reason} {by} tried {n} and agrees.")
    chosen = [item for item in decision.candidates if item.tool == best]
    others = [item for item in decision.candidates if item.tool != best]
    return replace(
        timed,
        candidates=(*chosen, *others),
        tool=best,
        outcome=Outcome.ESCALATED,
        reason=f"{decision.reason} {by} tried {n} and prefers {shown}.",
    )


def routing_row(decision: RoutingDecision, tried: SidecarResult | None = None) -> RoutingRow:
    """Return a decision as its row of a session's record, with what the model's trial scored."""
    scores = {one.tool: one.score for one in tried.scores} if tried is not None else {}
    return RoutingRow(
        candidates=tuple(
            Candidate(
                tool=item.tool,
                score=item.score,
                dense=item.dense,
                lexical=item.lexical,
                cross_encoder=item.cross_encoder,
                sidecar=scores.get(item.tool),
                view=item.view.kind.value if item.view else None,
            )
            for item in decision.candidates
        ),
        margin=decision.margin,
        tau=decision.tau,
        decision=decision.outcome.value,
        tool=decision.tool,
        reason=decision.reason,
        query=decision.request,
        times_ms=decision.times_ms,
        settings=decision.settings,
    )
