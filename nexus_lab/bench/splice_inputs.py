"""What a splice sweep is measured on: tools spread over servers, their real calls, and live prefixes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.calling import call_opening
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.splice_decisions import call_grammar
from nexus_lab.bench.splice_tools import SPLICE_CASES, SpliceCase, case_of
from nexus_lab.bench.trajectories import TrajectoryError, stretch, trajectory_messages
from nexus_lab.registry import Registry, RegistryError, ToolSpec
from nexus_lab.routing import read_rows
from nexus_lab.splice import SYSTEM_PROMPT, TrialCase, for_compiling, prompt_tokens, typical_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.engine import Engine
    from nexus_lab.splice import BlockContext

__all__ = [
    "BLOCK_RANGE",
    "FORCED",
    "Subject",
    "choose_subjects",
    "forced_tokens",
    "live_prefix",
    "own_context",
    "read_cases",
    "trial_case",
]

BLOCK_RANGE = (64, 512)
"""Tokens that a block to measure has, from and to."""

FORCED = 32
"""Tokens that a forced answer has at least."""

_MOST_FORCED = 128
_DISTRACTORS = 4
_PREFIX_SEED = 11


@dataclass(frozen=True, slots=True)
class Subject:
    """A tool to measure.

    Attributes
    ----------
    case
        Its tokens, the forced answer at least 32 of them.
    server
        Its server; empty when there is none.
    real
        Whether request and call come from a file of cases.
    grammar
        Grammar of a call of this tool or of one of a few others, each under its own schema; empty when
        this tool's schema makes none.
    told
        Tool, request and answer that the tokens are of.
    """

    case: TrialCase
    server: str
    real: bool
    grammar: str
    told: SpliceCase


def read_cases(path: Path, registry: Registry | None) -> tuple[dict[str, SpliceCase], list[ToolSpec]]:
    """Read requests with their right calls, and the tools that the rows themselves bring.

    Parameters
    ----------
    path
        JSON Lines of ``query``, ``gold_tool``, ``gold_args``, and where the registry lacks the tools
        ``tools``.
    registry
        Where the tools are looked up first.

    Returns
    -------
    cases
        By the tool's name; of several rows the one with the longest call.
    tools
        Tools of rows, where there is no registry.

    Raises
    ------
    RowsError, ResultsError
        When a row is of another form, or no row has a tool.
    """
    known = {tool.name: tool for tool in registry.tools} if registry is not None else {}
    own: dict[str, ToolSpec] = {}
    cases: dict[str, SpliceCase] = {}
    for number, row in enumerate(read_rows(path), start=1):
        name, arguments = row.get("gold_tool"), row.get("gold_args")
        if name is None:
            continue
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ResultsError(
                f"row {number} of {path} has no text under 'gold_tool' or no object under 'gold_args'",
                next_step="give rows such as those of github_args30 or bfcl_routing",
            )
        if registry is None:
            own.update((tool.name, tool) for tool in _row_tools(row, f"row {number} of {path}"))
        tool = known.get(name) or own.get(name)
        if tool is None:
            continue
        answer = f"{call_opening(name)}{json.dumps(arguments, ensure_ascii=False)}}}"
        if name not in cases or len(answer) > len(cases[name].answer):
            cases[name] = SpliceCase(tool, row["query"], answer)
    if not cases:
        raise ResultsError(
            f"no row of {path} has its tool in the registry", next_step="give the matching --registry"
        )
    return cases, list(own.values())


def _row_tools(row: dict[str, Any], where: str) -> Iterator[ToolSpec]:
    tools = row.get("tools") or ()
    try:
        for tool in tools:
            yield ToolSpec(str(tool["name"]), str(tool.get("description", "")), tool.get("inputSchema") or {})
    except (TypeError, KeyError, AttributeError, RegistryError) as error:
        raise ResultsError(
            f"the tools of {where} cannot be read: {error}",
            next_step="write them as objects of name, description and inputSchema",
        ) from error


def choose_subjects(
    engine: Engine,
    *,
    registry: Registry | None = None,
    cases: dict[str, SpliceCase] | None = None,
    tools: Sequence[ToolSpec] = (),
    n_tools: int = 20,
) -> list[Subject]:
    """Choose tools whose blocks have 64 to 512 tokens, in turn from every server.

    Where there are real calls, every other tool is one that has one, so that a large server with calls and
    many small ones without both have their share.

    Parameters
    ----------
    engine
        For its tokenizer and chat template.
    registry, tools
        Tools to choose among; without any the few of this room.
    cases
        Requests and calls by tool, from `read_cases`.
    n_tools
        How many; fewer when there are no more.

    Raises
    ------
    ResultsError
        When there is none.
    """
    given = cases or {}
    pool = [*(registry.tools if registry is not None else ()), *tools]
    if not pool:
        given = {case.tool.name: case for case in SPLICE_CASES}
        pool = [case.tool for case in SPLICE_CASES]

    def fitting(tools: Iterable[ToolSpec], *, real: bool) -> Iterator[Subject]:
        for tool in _in_turn(tools):
            told = given[tool.name] if real else case_of(tool)
            case = trial_case(engine, told, at_least=FORCED)
            if BLOCK_RANGE[0] <= len(case.block) <= BLOCK_RANGE[1]:
                grammar = call_grammar(tool, _distractors(tool, pool), told.request)
                yield Subject(case, tool.server or "", real, grammar, told)

    called = fitting((tool for tool in pool if tool.name in given), real=True)
    others = fitting((tool for tool in pool if tool.name not in given), real=False)
    found = list(islice(filter(None, chain.from_iterable(zip_longest(called, others))), n_tools))
    if not found:
        raise ResultsError(
            f"no tool has a schema of {BLOCK_RANGE[0]} to {BLOCK_RANGE[1]} tokens", next_step="name others"
        )
    return found


def _in_turn(tools: Iterable[ToolSpec]) -> Iterator[ToolSpec]:
    """Yield one tool of each server, then a second one of each, and so on."""
    servers: dict[str | None, list[ToolSpec]] = {}
    for tool in tools:
        servers.setdefault(tool.server, []).append(tool)
    # A server's first tools are often of one kind, so they are taken from all over its list.
    for listed in servers.values():
        random.Random(listed[0].qualified_name).shuffle(listed)  # noqa: S311 - a reproducible order
    yield from filter(None, chain.from_iterable(zip_longest(*servers.values())))


def _distractors(tool: ToolSpec, pool: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return a few other tools, half of them of the same server where it has as many."""
    rng = random.Random(tool.qualified_name)  # noqa: S311 - a reproducible choice
    others = [other for other in pool if other.name != tool.name]
    rng.shuffle(others)
    near = [other for other in others if other.server == tool.server][: _DISTRACTORS // 2]
    return [*near, *(other for other in others if other not in near)][:_DISTRACTORS]


def trial_case(engine: Engine, case: SpliceCase, *, at_least: int = 0) -> TrialCase:
    """Return the tokens of a case under the model's chat template.

    Parameters
    ----------
    at_least
        Tokens that the forced answer has. A shorter call goes on with what an assistant says after it: the
        values it passed, then what the tool does in the words of its schema, again where that is not enough.
    """
    shown = [{"role": "system", "content": f"You can call this tool:\n{case.schema_text}"}]
    block = engine.render_chat(shown, add_generation_prompt=False)
    asked = [*shown, {"role": "user", "content": case.request}]
    whole = engine.render_chat(asked, add_generation_prompt=True)
    # A template that folds the system turn into the user's has no rest of its own.
    rest = whole.removeprefix(block) if whole.startswith(block) else f"\n{case.request}\n"
    forced = forced_tokens(engine, case, case.answer, at_least=at_least)
    return TrialCase(case.tool.name, *map(tuple, (engine.tokenize(block), engine.tokenize(rest), forced)))


def forced_tokens(engine: Engine, case: SpliceCase, answer: str, *, at_least: int) -> list[int]:
    """Return the tokens of a case's answer, or of what is left of it to force, as `trial_case` says."""
    tokens = engine.tokenize(answer, special=False)
    if len(tokens) < at_least:
        spoken = _spoken(case)
        repeats = 1 + at_least // max(1, len(engine.tokenize(spoken)))
        tokens = engine.tokenize(answer + spoken * repeats, special=False)[:at_least]
    return tokens[:_MOST_FORCED] if at_least else tokens


def _spoken(case: SpliceCase) -> str:
    arguments = json.loads(case.answer).get("arguments") or {}
    passed = ", ".join(f"{name} is {json.dumps(value)}" for name, value in arguments.items())
    said = f"\nI call {case.tool.name}" + (f", where {passed}" if passed else "") + "."
    about = [case.tool.description] if case.tool.description else []
    for name, schema in case.tool.properties.items():
        described = schema.get("description") if isinstance(schema, dict) else None
        about.append(f"The argument {name}: {described or 'a value'}.")
    return " ".join([said, *about])


def own_context(
    engine: Engine, trajectories: Sequence[Trajectory], *, system: str = SYSTEM_PROMPT
) -> tuple[BlockContext, list[Trajectory]]:
    """Return the contexts to compile behind, and the conversations that have no part in them.

    Raises
    ------
    TrajectoryError
        When there are too few conversations for both.
    """
    compiled = for_compiling(trajectories)
    behind = [trajectory.messages for trajectory in compiled]
    unseen = [trajectory for trajectory in trajectories if trajectory.messages not in behind]
    if not compiled or not unseen:
        raise TrajectoryError(
            f"{len(trajectories)} conversations, and some are to compile behind and others to splice behind",
            next_step="give at least two different ones",
        )
    messages = [list(trajectory_messages(trajectory)) for trajectory in compiled]
    return typical_context(engine, system=system, conversations=messages), unseen


def live_prefix(
    engine: Engine,
    trajectories: Sequence[Trajectory],
    number: int,
    n_tokens: int,
    *,
    system: str = SYSTEM_PROMPT,
) -> tuple[str, tuple[int, ...]]:
    """Return name and tokens of a live prefix, another one for each number: real where there is any.

    Raises
    ------
    TrajectoryError
        When the conversations are too short.
    """
    if trajectories:
        return stretch(engine, trajectories, number, n_tokens, system=system)
    seed = _PREFIX_SEED + number
    return f"sample {seed}", tuple(prompt_tokens(engine, n_tokens, seed=seed, system=system))
