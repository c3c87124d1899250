"""What the schema modes give and cost on the same turns, beside each other and beside all tools in a row.

"Saving tokens of the main context" can be read in three ways, and each has a metric of its own, as a share of
what the peer takes, in the mean over turns:

====================  ==================================================================================
``token_saving``      tokens by which the tool stands in the context, or the tools
``prefill_saving``    those of them that the model computes there; a splice computes what it repairs
``context_saving``    all tokens of the context once the call is written: system prompt, earlier turns,
                      tools, request and call
====================  ==================================================================================

The peers are one full schema, ``N tools in full`` that were run (``concatenated(N)``), and the first 50 of
the registry, which are counted in the place of what the mode shows, and not run.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.bench.argument_figures import score
from nexus_lab.bench.argument_writing import Writer, n_concatenated
from nexus_lab.bench.base import Result, bootstrap, median_interval, proportion
from nexus_lab.registry import schema_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nexus_lab.arguments import GrammarPlan
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.bench.argument_figures import Scored
    from nexus_lab.bench.argument_writing import Cost
    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec
    from nexus_lab.settings import Profile

    Ran = Sequence[Scored | None]

__all__ = ["ALL_MODES", "MODES", "compare_modes", "context_for", "written_in"]

MODES = ("signature", "full")
ALL_MODES = (*MODES, "splice(exact)", "splice(bounded(0.02))", "concatenated(10)")
COUNTED = 50
"""Tools that are counted beside one."""
_FULL = "full"
_N_CTX, _WIDE = 4096, 8192


def context_for(modes: Sequence[str]) -> int:
    """Return the tokens of a context for `modes`: twice as many where tools stand in a row."""
    return _N_CTX if all(n_concatenated(mode) is None for mode in modes) else _WIDE


def written_in(
    engine: Engine,
    cases: Sequence[ArgumentCase],
    modes: Sequence[str],
    profile: Profile,
    planner: Callable[[ArgumentCase], GrammarPlan],
    *,
    tools: Iterable[ToolSpec] = (),
    tell: Callable[[], None] = lambda: None,
) -> dict[str, list[Scored | None]]:
    """Let the model write the call of each case in each mode, one mode after the other and in turning order.

    Parameters
    ----------
    modes
        Schema modes of a profile, and ``concatenated(N)``.
    tools
        What ``concatenated(N)`` shows the first of.
    tell
        Called before each call.

    Returns
    -------
    dict
        By mode, one for each case; ``None`` where what the mode shows does not fit the context.

    Raises
    ------
    SettingsError, ResultsError
        When there is no such mode, or it shows more tools than there are.
    """
    found: dict[str, list[Scored | None]] = {mode: [] for mode in modes}
    with closing(Writer(engine, profile, tools=tuple(tools))) as writer:
        for mode in modes:
            writer.check(mode)
        for place, case in enumerate(cases):
            first = place % len(modes)  # so that no mode always comes first
            for mode in (*modes[first:], *modes[:first]):
                tell()
                done = writer.write(case, planner, mode)
                found[mode].append(None if done is None else replace(score(done[0], case), cost=done[1]))
    return found


def compare_modes(
    engine: Engine,
    found: Mapping[str, Ran],
    tools: Sequence[ToolSpec],
    route_s: Sequence[float] | None,
) -> list[Result]:
    """Return what each mode costs, and how much less than each peer, turn by turn.

    Parameters
    ----------
    found
        By mode, one for each case, as `written_in` returns them.
    tools
        The registry's.
    route_s
        Seconds that routing each request took: a part of the time to the first token where the tool is
        chosen, and none where all stand in the context. ``None`` leaves them out.
    """
    results: list[Result] = []
    for mode, ran in found.items():
        where = {"system": "full", "schema_mode": mode}
        results += _own(ran, where)
        if n_concatenated(mode) is not None:
            continue
        for peer, theirs in found.items():
            n_tools = n_concatenated(peer)
            if peer not in (mode, _FULL) and n_tools is None:
                continue
            if peer != mode:
                results += _beside(ran, theirs, where, n_tools, route_s)
        if len(tools) > 1 and f"concatenated({len(tools[:COUNTED])})" not in found:
            results += _counted(engine, ran, tools[:COUNTED], where)
    return results


def _own(ran: Ran, where: Mapping[str, str]) -> list[Result]:
    costs = [one.cost for one in ran if one is not None]
    results = []
    if n_concatenated(where["schema_mode"]) is not None:
        results.append(proportion(len(costs), len(ran), case=where, metric="fits"))
    if not costs:
        return results
    if where["schema_mode"].startswith("splice"):
        spliced = sum(cost.path != "prefill" for cost in costs)
        results.append(proportion(spliced, len(costs), case=where, metric="spliced"))
    ms = [1e3 * cost.ttft_s for cost in costs]
    return [
        *results,
        median_interval(ms, case=where, metric="ttft_ms", unit="ms"),
        bootstrap([one.tool_tokens for one in costs], np.mean, case=where, metric="tool_tokens"),
        bootstrap([one.prefilled for one in costs], np.mean, case=where, metric="prefilled_tokens"),
        bootstrap([one.context for one in costs], np.mean, case=where, metric="context_tokens"),
    ]


def _beside(
    ours: Ran, theirs: Ran, where: Mapping[str, str], n_tools: int | None, route_s: Sequence[float] | None
) -> list[Result]:
    """Return the paired figures beside a peer that was run, over the turns that both have."""
    both = [
        (place, one.cost, peer.cost)
        for place, (one, peer) in enumerate(zip(ours, theirs, strict=True))
        if one is not None and peer is not None
    ]
    if not both:
        return []
    alone = n_tools is None
    case = {**where, "peer": "full schema" if alone else f"{n_tools} tools in full"}
    if not alone:
        case["routing"] = "counted" if route_s is not None else "left out"
    spent = [one.ttft_s + (0.0 if alone or route_s is None else route_s[place]) for place, one, _ in both]
    pairs = [(one, peer) for _, one, peer in both]
    cold = [peer.ttft_s / seconds for (_, peer), seconds in zip(pairs, spent, strict=True)]
    results = [bootstrap(cold, np.median, case=case, metric="ttft_ratio")]
    if not alone:
        warm = [peer.warm_ttft_s / seconds for (_, peer), seconds in zip(pairs, spent, strict=True)]
        results.append(bootstrap(warm, np.median, case=case, metric="ttft_ratio_warm"))
    totals = [(peer.tool_tokens, peer.prefilled, peer.context) for _, peer in pairs]
    return results + _savings([one for one, _ in pairs], totals, case)


def _counted(engine: Engine, ran: Ran, shown: Sequence[ToolSpec], where: Mapping[str, str]) -> list[Result]:
    """Return the savings beside tools that are counted in the place of what was shown."""
    tokens = sum(len(engine.tokenize(schema_text(tool), special=False)) for tool in shown)
    costs = [one.cost for one in ran if one is not None]
    totals = [(tokens, tokens, one.context - one.tool_tokens + tokens) for one in costs]
    return _savings(costs, totals, {**where, "peer": f"{len(shown)} tools in full"})


def _savings(
    ours: Sequence[Cost], totals: Sequence[tuple[int, int, int]], case: Mapping[str, str]
) -> list[Result]:
    own = [(one.tool_tokens, one.prefilled, one.context) for one in ours]
    saved = 1 - np.asarray(own, float) / np.asarray(totals, float)
    metrics = ("token_saving", "prefill_saving", "context_saving")
    return [
        bootstrap(column, np.mean, case=case, metric=metric)
        for metric, column in zip(metrics, saved.T, strict=True)
    ]
