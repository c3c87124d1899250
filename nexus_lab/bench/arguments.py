"""How well calls are filled in: the agent's own way of writing them, on requests with known arguments."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.calling import Written
from nexus_lab.arguments import ArgumentsRejected, MissingValues, build_grammar, ground, validate
from nexus_lab.arguments.assign import Costs
from nexus_lab.arguments.demonstrations import Demonstration
from nexus_lab.arguments.grounding import plan_grounded
from nexus_lab.arguments.minimum import Minimum
from nexus_lab.arguments.scoring import Scoring
from nexus_lab.bench.argument_cases import read_cases
from nexus_lab.bench.argument_figures import Scored, figures, gains, score, share_over_cases
from nexus_lab.bench.argument_modes import ALL_MODES, MODES, compare_modes, context_for, written_in
from nexus_lab.bench.argument_scoring import CallScorer
from nexus_lab.bench.argument_unsaid import unsaid
from nexus_lab.bench.base import Result, ResultFile, ResultsError, adapter_facts
from nexus_lab.registry import Registry, load_registry
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.arguments import ArgumentsError, GrammarPlan, Grounding
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.engine import Engine
    from nexus_lab.routing import Router

__all__ = ["ALL_MODES", "MODES", "NEED_MODEL", "SYSTEMS", "Scored", "context_for", "run", "score"]

PARTS = ("all", "apart")
_NO_MODEL = "no_model"
# What each system grounds a call with; those without a model's part run without one as well.
_WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "no_assignment": {"jointly": False},
    "no_reuse": {"costs": Costs(overlap=0.0)},
    "no_minimum": {"minimum": Minimum()},
    "demonstrations": {},
    "no_descriptions": {},
    _NO_MODEL: {},
}
NEED_MODEL = ("no_grounding", "scoring")
SYSTEMS = (*_WAYS, *NEED_MODEL)


def run(
    engine: Engine | None,
    registry: Registry | Path | str | None,
    cases: Path | Sequence[Path],
    *,
    modes: Sequence[str] = MODES,
    systems: Sequence[str] = ("full",),
    limit: int | None = None,
    profile: Profile | None = None,
    router: Router | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ResultFile:
    """Let the model write the call of each case with the right tool, and compare its arguments.

    Each figure is given for all cases, and for those that are kept apart from tuning (``part``); intervals
    are over cases. Beside ``full`` each other system has ``args_right_gain``: how many more of the stated
    arguments come out right with all of ours, paired by case.

    Parameters
    ----------
    engine
        Runs the model; its context must hold a full schema and the request. ``None`` takes what the
        conversation settles, and a call that leaves something to the model counts as not filled in.
    registry
        Where the tools of the cases are; ``None`` when they bring their own.
    cases
        Files of cases, of `read_cases`.
    modes
        What the model sees: the schema modes of a profile (``signature``, ``full``, ``splice(...)``), and
        ``concatenated(N)``, the tool among the first N of the registry in full. Turn by turn the modes are
        run one after the other; see `nexus_lab.bench.argument_modes` for what is compared.
    systems
        Of `SYSTEMS`: ``full``, what is left out, or what is added (``demonstrations``: the right calls of
        the other cases with the same tool; ``scoring``: the model weighs whole calls where the evidence
        leaves them close). Others than ``full`` run in the first mode only; ``no_model`` takes what the
        conversation settles, and nothing else; those of `NEED_MODEL` do not run without an engine.
    limit
        So many cases of each file at most, chosen by a hash.
    profile
        Sampling settings; the defaults take the most likely tokens.
    router
        With one, ``end_to_end_right`` charges arguments of a case whose request it sends elsewhere, and the
        time that it takes counts beside ``concatenated(N)``, which needs none.
    on_progress
        Called with calls written and all.

    Raises
    ------
    ResultsError
        When no case has its tool, or a system is unknown or needs a model.
    """
    _check(systems, engine)
    modes = modes if engine is not None else ("none",)
    tools = registry if isinstance(registry, Registry | None) else load_registry(registry)
    files = [cases] if isinstance(cases, PurePath) else list(cases)
    chosen = [case for file in files for case in read_cases(file, tools, limit=limit)]
    settings = profile or Profile()
    routed = None if router is None else [_routed(router.warm_up(), case) for case in chosen]
    runs = [(system, tuple(modes) if system == "full" else (modes[0],)) for system in systems]
    tell = _counting(on_progress, len(chosen) * sum(len(used) for _, used in runs))
    planners = _Planners(chosen, engine)
    found: dict[tuple[str, str], Sequence[Scored | None]] = {}
    for system, used in runs:
        shown = [_undescribed(case) for case in chosen] if system == "no_descriptions" else chosen
        if engine is None or system == _NO_MODEL:
            settled = [score(_settled(one, planners.ground(one, system)), one) for one in shown]
            found[system, used[0]] = settled
            continue
        plan = partial(planners.plan, system=system)
        written = written_in(engine, shown, used, settings, plan, tools=tools or (), tell=tell)
        found.update({(system, mode): scored for mode, scored in written.items()})
    results = _results(chosen, found, routed)
    results += [
        figure
        for system in systems
        if system in ("full", "no_minimum")
        for part in PARTS
        for figure in _unsaid_asked(chosen, planners, {"system": system, "part": part})
    ]
    if engine is not None and "full" in systems:
        in_modes = {mode: found["full", mode] for mode in modes}
        route_s = None if routed is None else [seconds for _, seconds in routed]
        results += compare_modes(engine, in_modes, () if tools is None else tools.tools, route_s)
    return ResultFile.now(
        "eval arguments",
        results,
        settings={
            "model": engine.info.name if engine is not None else "",
            "adapter": adapter_facts(engine),
            "registry": tools.name if tools is not None else "",
            "cases": [file.name for file in files],
            "limit": limit,
            "profile": settings.to_dict(),
        },
        threads=engine.threads if engine is not None else 0,
    )


def _check(systems: Sequence[str], engine: Engine | None) -> None:
    unknown = set(systems) - set(SYSTEMS)
    if unknown:
        raise ResultsError(
            f"unknown systems {sorted(unknown)}", next_step=f"choose among {', '.join(SYSTEMS)}"
        )
    needy = set(systems) & set(NEED_MODEL)
    if engine is None and needy:
        raise ResultsError(f"{sorted(needy)} need a model", next_step="load one, or leave them out")


def _results(
    cases: Sequence[ArgumentCase],
    found: Mapping[tuple[str, str], Sequence[Scored | None]],
    routed: Sequence[tuple[bool, float]] | None,
) -> list[Result]:
    results: list[Result] = []
    for (system, mode), ran in found.items():
        kept = [place for place, one in enumerate(ran) if one is not None]
        if not kept:
            continue
        scored, part_of = _those(ran, kept), [cases[place] for place in kept]
        reached = None if routed is None else [routed[place][0] for place in kept]
        for part in PARTS:
            where = {"system": system, "schema_mode": mode, "part": part}
            results += figures(part_of, scored, reached, case=where)
            if system != "full" and ("full", mode) in found:
                beside = {**where, "system": "full", "peer": system}
                results += gains(part_of, _those(found["full", mode], kept), scored, case=beside)
            schema = _those(found.get(("full", "full"), ()), kept)
            if system == "full" and mode != "full" and len(schema) == len(kept):
                results += gains(part_of, scored, schema, case={**where, "peer": "full schema"})
    return results


def _those(ran: Sequence[Scored | None], places: Sequence[int]) -> list[Scored]:
    return [one for place in places if place < len(ran) and (one := ran[place]) is not None]


def _unsaid_asked(cases: Sequence[ArgumentCase], planners: _Planners, where: dict[str, str]) -> list[Result]:
    """Return in how many requests without a needed value it is asked for, or left to the model, marked."""
    asked: list[int] = []
    counts: list[int] = []
    for case in cases:
        lacking = list(unsaid(case)) if case.apart or where["part"] == "all" else []
        found = [(one.name, planners.ground(one.case, where["system"])) for one in lacking]
        asked.append(sum(name in (*said.missing, *said.open) for name, said in found))
        counts.append(len(lacking))
    if not sum(counts):
        return []
    return [share_over_cases(asked, counts, case=where, metric="unsaid_asked")]


class _Planners:
    """Grounds and plans calls in the way of each system.

    Parameters
    ----------
    cases
        All of them; each has the others with its tool as demonstrations.
    engine
        Weighs whole calls, for ``scoring``; as its adapter says, if it has one that does.
    """

    def __init__(self, cases: Sequence[ArgumentCase], engine: Engine | None) -> None:
        self._scorer = None if engine is None else CallScorer(engine)
        adapter = None if engine is None else engine.info.adapter
        self._scoring = None if adapter is None else Scoring.of(adapter.facts)
        self._of_tool: dict[str, list[tuple[str, Demonstration]]] = {}
        for case in cases:
            arguments = {name: values[0] for name, values in case.accepted.items() if name in case.stated}
            shown = Demonstration(case.request, arguments, case.context)
            self._of_tool.setdefault(case.tool.name, []).append((case.id, shown))

    def ground(self, case: ArgumentCase, system: str) -> Grounding:
        """Return what a case's conversation says, as `system` hears it."""
        demonstrations = [
            one
            for key, one in self._of_tool.get(case.tool.name, ())
            if system == "demonstrations" and key != case.id
        ]
        return ground(
            case.tool,
            case.request,
            case.context,
            demonstrations=demonstrations,
            scorer=self._scorer if system == "scoring" else None,
            scoring=self._scoring,
            **_WAYS.get(system, {}),
        )

    def plan(self, case: ArgumentCase, *, system: str) -> GrammarPlan:
        """Return the grammar for the call of a case."""
        if system == "no_grounding":
            return build_grammar(case.tool.input_schema, tool=case.tool.name)
        return plan_grounded(case.tool, self.ground(case, system))


def _settled(case: ArgumentCase, said: Grounding) -> Written:
    """Return what the conversation settles of a call, without a model."""
    missing = (*said.missing, *said.open)
    problem: ArgumentsError | None = MissingValues(missing, tool=case.tool.name) if missing else None
    arguments = None if missing else dict(said.values)
    violations = validate(said.values, case.tool.input_schema) if arguments is not None else ()
    if violations:
        problem = ArgumentsRejected(tuple(violations), tool=case.tool.name)
    return Written(arguments=arguments, violations=(), problem=problem, ttft_s=0.0, n_generated=0)


def _counting(on_progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """Return what tells of each call before it is written."""
    done = count()
    return (lambda: on_progress(next(done), total)) if on_progress is not None else (lambda: None)


def _routed(router: Router, case: ArgumentCase) -> tuple[bool, float]:
    """Return whether a request is sent to its tool, and the seconds that this takes."""
    began = time.perf_counter()
    decision = router.route(case.request, case.context)
    return decision.tool == case.tool.name, time.perf_counter() - began


def _undescribed(case: ArgumentCase) -> ArgumentCase:
    """Return a case whose tool does not describe its arguments."""
    schema = dict(case.tool.input_schema)
    schema["properties"] = {
        name: {key: value for key, value in part.items() if key != "description"}
        if isinstance(part, dict)
        else part
        for name, part in case.tool.properties.items()
    }
    return replace(case, tool=replace(case.tool, input_schema=schema))
