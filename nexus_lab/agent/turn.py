"""What a turn returns, and the clock that times its stages."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.rows import FidelityRow, TurnRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nexus_lab.agent.sidecar import SidecarResult
    from nexus_lab.arguments.scoring import Weighed
    from nexus_lab.errors import NexusError
    from nexus_lab.registry import ToolResult
    from nexus_lab.routing import RoutingDecision

__all__ = ["StageClock", "Turn", "TurnOutcome"]


class TurnOutcome(StrEnum):
    """How a turn ended.

    ``called``: the tool ran; ``abstained``: no tool fits, the model answered alone; ``refused``: the tool
    was not allowed to run; ``failed``: see the turn's problem; ``cancelled``: the user stopped it. Where the
    tool had run before a turn failed or was stopped, the turn has its result.
    """

    CALLED = "called"
    ABSTAINED = "abstained"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Turn:
    """One request and all that came of it; filled while the turn runs, returned when it has ended.

    Attributes
    ----------
    number
        From 1, within the agent.
    decision
        The routing decision; ``None`` when routing itself failed.
    tried
        What the model made of the candidates, where the decision was too close and the sidecar was on.
    arguments
        What the tool was called with, or would have been.
    violations
        What is wrong with the arguments; empty when they fit the schema.
    weighed
        The calls that the evidence left close and what the model held of them, where it has an adapter that
        was trained for that.
    result
        The tool's result.
    answer, answer_cut
        What the model said in the end, and whether that was cut at the profile's ``answer_tokens``.
    splice
        Path, repair, fidelity and times of the splice, in the modes that splice.
    ttft_s
        Seconds from the request to the first generated token. Shadow runs come later and are not in it.
    prompt_tokens, reused_tokens, generated_tokens
        Active tokens at the end, those of this turn that were copied or spliced, and those generated. Of a
        turn on an endpoint: all that it read for the turn, what of it came from its own cache, and what it
        generated, as it counts them; ``None`` for the first where it does not.
    times_ms
        Milliseconds by stage, in the order they ran; ``weighing`` is a part of ``arguments``.
    problem
        The typed error of a turn that failed.
    earlier, left
        Of a request that was several turns: those before this one, and the parts that none was begun for.
    """

    number: int
    request: str
    schema_mode: str
    settings: Mapping[str, Any]
    outcome: TurnOutcome = TurnOutcome.FAILED
    decision: RoutingDecision | None = None
    tried: SidecarResult | None = None
    tool: str | None = None
    server: str | None = None
    arguments: dict[str, Any] | None = None
    violations: tuple[str, ...] = ()
    weighed: Weighed | None = None
    result: ToolResult | None = None
    answer: str = ""
    answer_cut: bool = False
    splice: FidelityRow | None = None
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    reused_tokens: int = 0
    generated_tokens: int = 0
    times_ms: dict[str, float] = field(default_factory=dict)
    problem: NexusError | None = None
    earlier: tuple[Turn, ...] = ()
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        call = f"{self.tool}({self.arguments})" if self.tool else "no tool"
        return f"turn {self.number}: {self.outcome}, {call}"

    def to_row(self) -> TurnRow:
        """Return the turn as its row of a session's record."""
        return TurnRow(
            turn=self.number,
            outcome=self.outcome.value,
            tool=self.tool,
            server=self.server,
            request=self.request,
            answer=self.answer or None,
            arguments=self.arguments,
            result=self.result.text if self.result else None,
            result_is_error=bool(self.result and self.result.is_error),
            problem=type(self.problem).__name__ if self.problem else None,
            schema_mode=self.schema_mode,
            ttft_s=self.ttft_s,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            generated_tokens=self.generated_tokens,
            times_ms=dict(self.times_ms),
            settings=self.settings,
        )


class StageClock:
    """Times the stages of a turn into its `times_ms`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._started = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the block's time to the stage `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            elapsed = (time.perf_counter() - began) * 1e3
            self._turn.times_ms[name] = self._turn.times_ms.get(name, 0.0) + elapsed

    def spent(self, name: str, ms: float) -> None:
        """Add milliseconds that a stage of this turn took before the turn began."""
        self._turn.times_ms[name] = self._turn.times_ms.get(name, 0.0) + ms
        self._started -= ms / 1e3

    def elapsed(self) -> float:
        """Seconds since the turn began."""
        return time.perf_counter() - self._started
