"""Calibrating ``splice(bounded(epsilon))`` for the agent: its own blocks, behind its own system prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.agent import SYSTEM_PROMPT
from nexus_lab.agent.calling import call_opening, tool_block
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.bench.splice_tools import SPLICE_CASES, SpliceCase
from nexus_lab.splice import BlockLibrary, Calibration, TrialCase, calibrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nexus_lab.engine import Engine

__all__ = ["DEPTHS", "agent_cases", "calibrate_agent"]

DEPTHS = (64, 256, 512, 1024, 2048)
"""Depths measured by default; between them the worse neighbour holds."""


def calibrate_agent(
    engine: Engine,
    *,
    system: str = SYSTEM_PROMPT,
    cases: Iterable[SpliceCase] = SPLICE_CASES,
    depths: Sequence[int] = DEPTHS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure D_KL by depth and repair budget for tool blocks as the agent writes them.

    Parameters
    ----------
    engine
        The model; its context must hold the deepest depth and a block.
    system
        The agent's system prompt; blocks are compiled behind it.
    cases
        Tools, requests and answers to measure with.
    depths
        Tokens before the block; those that do not fit the context are left out.
    on_progress
        Called with the measurements done and all of them.
    """
    context, measured = agent_cases(engine, system, cases)
    room = max(len(case.block) + 2 * (len(case.rest) + len(case.answer)) for case in measured)
    return calibrate(
        engine,
        BlockLibrary(engine),
        measured,
        context=context,
        depths=[depth for depth in depths if depth + 2 * room <= engine.n_ctx],
        on_progress=on_progress,
    )


def agent_cases(
    engine: Engine, system: str, cases: Iterable[SpliceCase]
) -> tuple[tuple[int, ...], list[TrialCase]]:
    """Return the tokens of the system prompt, and the cases in the agent's own words."""
    context = join_tokens(Transcript(engine, system=system).open())
    return context, [_trial_case(engine, system, case) for case in cases]


def _trial_case(engine: Engine, system: str, case: SpliceCase) -> TrialCase:
    transcript = Transcript(engine, system=system)
    transcript.open()
    block, *rest = transcript.user(tool_block(case.tool, "full"), case.request)
    opening = engine.tokenize(call_opening(case.tool.name), special=False)
    return TrialCase(
        name=case.tool.name,
        block=block.tokens,
        rest=(*join_tokens([*rest, *transcript.open_reply()]), *opening),
        answer=tuple(engine.tokenize(case.answer.removeprefix(call_opening(case.tool.name)), special=False)),
    )
