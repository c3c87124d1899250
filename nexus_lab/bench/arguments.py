"""How well calls are filled in: the agent's own way of writing them, on requests with known arguments."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.calling import CallWriter, Written, tool_block
from nexus_lab.agent.conversation import Conversation
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.arguments import ArgumentsRejected, MissingValues, build_grammar, ground, validate
from nexus_lab.arguments.grounding import plan_grounded
from nexus_lab.arguments.spans import hear
from nexus_lab.bench.argument_cases import read_cases
from nexus_lab.bench.base import Result, ResultFile, ResultsError, bootstrap, proportion
from nexus_lab.cache import Append, SequencePool, SnapshotStore, make_policy
from nexus_lab.registry import Registry, load_registry, schema_text
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.arguments import ArgumentsError, GrammarPlan
    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing import Router

__all__ = ["MODES", "SYSTEMS", "Scored", "run", "score"]

MODES = ("signature", "full")
PARTS = ("all", "apart")
_SHORT = 3
_CONCATENATED = 50


def _ungrounded(tool: ToolSpec, _request: str, _context: Sequence[Mapping[str, Any]]) -> GrammarPlan:
    return build_grammar(tool.input_schema, tool=tool.name)


def _one_by_one(tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]]) -> GrammarPlan:
    return plan_grounded(tool, ground(tool, request, context, jointly=False))


# What each system plans a call with; ``None`` stands for the agent's own way.
SYSTEMS: dict[str, Callable[..., GrammarPlan] | None] = {
    "full": None,
    "no_grounding": _ungrounded,
    "no_assignment": _one_by_one,
    "no_descriptions": None,
    "no_model": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """How one call was filled in.

    Attributes
    ----------
    right, stated
        Arguments that the request states and that came out right, and all that it states.
    valid
        Whether the call was readable and satisfied the full schema.
    told
        Whether it was given up for want of a value, and said so, instead of being written.
    copied, texts
        Texts among its values that occur in the prompt and nowhere in the conversation, and all texts.
    ttft_s
        Seconds from the request to the first token of the arguments.
    tokens
        Tokens by which the tool is shown.
    """

    right: tuple[str, ...]
    stated: tuple[str, ...]
    valid: bool
    told: bool = False
    copied: int = 0
    texts: int = 0
    ttft_s: float = 0.0
    tokens: int = 0

    @property
    def all_right(self) -> bool:
        """Whether every stated argument came out right in a valid call."""
        return self.valid and len(self.right) == len(self.stated)


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

    Each figure is given for all cases, and for those that are kept apart from tuning (``part``).

    Parameters
    ----------
    engine
        Runs the model; its context must hold a full schema and the request; ``None`` where only ``no_model``
        is measured.
    registry
        Where the tools of the cases are; ``None`` when they bring their own.
    cases
        Files of cases, of `read_cases`.
    modes
        What the model sees of the tool: ``signature``, ``full``.
    systems
        Of `SYSTEMS`: ``full``, or what is left out. Others than ``full`` run in the first mode only;
        ``no_model`` takes what the conversation settles, and nothing else.
    limit
        So many cases of each file at most, chosen by a hash.
    profile
        Sampling settings; the defaults take the most likely tokens.
    router
        With one, ``end_to_end_right`` charges arguments of a case whose request it sends elsewhere.
    on_progress
        Called with calls written and all.

    Raises
    ------
    ResultsError
        When no case has its tool, or a system is unknown.
    """
    unknown = set(systems) - SYSTEMS.keys()
    if unknown:
        raise ResultsError(
            f"unknown systems {sorted(unknown)}", next_step=f"choose among {', '.join(SYSTEMS)}"
        )
    if engine is None and set(systems) != {"no_model"}:
        raise ResultsError("these systems need a model", next_step="load an engine, or run no_model alone")
    tools = registry if isinstance(registry, Registry | None) else load_registry(registry)
    files = [cases] if isinstance(cases, PurePath) else list(cases)
    chosen = [case for file in files for case in read_cases(file, tools, limit=limit)]
    settings = profile or Profile()
    routed = None if router is None else [_routed(router, case) for case in chosen]
    runs = [(system, mode) for system in systems for mode in (modes if system == "full" else modes[:1])]
    found: dict[tuple[str, str], list[Scored]] = {}
    for number, (system, mode) in enumerate(runs):
        tell = None if on_progress is None else partial(_tell, on_progress, number, len(runs))
        if system == "no_model":
            found[system, mode] = [score(_settled(case), case) for case in chosen]
        elif engine is not None:
            found[system, mode] = _written(engine, chosen, settings.changed(schema_mode=mode), system, tell)
    results = [
        figure
        for (system, mode), scored in found.items()
        for part in PARTS
        for figure in _figures(chosen, scored, routed, {"system": system, "schema_mode": mode, "part": part})
    ]
    if {("full", "signature"), ("full", "full")} <= found.keys():
        results += _savings(found["full", "signature"], found["full", "full"])
    if tools is not None and engine is not None and ("full", "signature") in found:
        results.append(_saved_beside(engine, tools, found["full", "signature"]))
    return ResultFile.now(
        "eval arguments",
        results,
        settings={
            "model": engine.info.name if engine is not None else "",
            "registry": tools.name if tools is not None else "",
            "cases": [file.name for file in files],
            "limit": limit,
            "profile": settings.to_dict(),
        },
        threads=engine.threads if engine is not None else 0,
    )


def _settled(case: ArgumentCase) -> Written:
    """Return what the conversation settles of a call, without a model."""
    said = ground(case.tool, case.request, case.context)
    missing = (*said.missing, *said.open)
    problem: ArgumentsError | None = MissingValues(missing, tool=case.tool.name) if missing else None
    arguments = None if missing else dict(said.values)
    violations = validate(said.values, case.tool.input_schema) if arguments is not None else ()
    if violations:
        problem = ArgumentsRejected(tuple(violations), tool=case.tool.name)
    return Written(arguments=arguments, violations=(), problem=problem, ttft_s=0.0, n_generated=0)


def _tell(on_progress: Callable[[int, int], None], number: int, runs: int, done: int, every: int) -> None:
    on_progress(number * every + done, runs * every)


def _routed(router: Router, case: ArgumentCase) -> bool:
    return bool(router.route(case.request, case.context).tool == case.tool.name)


def _written(
    engine: Engine,
    cases: Sequence[ArgumentCase],
    profile: Profile,
    system: str,
    tell: Callable[[int, int], None] | None,
) -> list[Scored]:
    scored = []
    with closing(_Writer(engine, profile, SYSTEMS[system])) as writer:
        for place, case in enumerate(cases):
            if tell is not None:
                tell(place, len(cases))
            shown = _undescribed(case) if system == "no_descriptions" else case
            written, seconds, tokens = writer.write(shown)
            scored.append(replace(score(written, case), ttft_s=seconds, tokens=tokens))
    return scored


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


def _figures(
    cases: Sequence[ArgumentCase],
    scored: Sequence[Scored],
    routed: Sequence[bool] | None,
    case: dict[str, str],
) -> list[Result]:
    kept = [n for n, one in enumerate(cases) if one.apart or case["part"] == "all"]
    if not kept:
        return []
    part = [scored[n] for n in kept]
    stated, texts = sum(len(one.stated) for one in part), sum(one.texts for one in part)
    counted = [
        ("args_right", sum(len(one.right) for one in part), stated),
        ("cases_right", sum(one.all_right for one in part), len(part)),
        ("json_valid", sum(one.valid for one in part), len(part) - sum(one.told for one in part)),
        ("asked_back", sum(one.told for one in part), len(part)),
        ("copied_from_prompt", sum(one.copied for one in part), texts),
    ]
    if routed is not None:
        reached = sum(len(scored[n].right) for n in kept if routed[n])
        counted.append(("end_to_end_right", reached, stated))
    return [proportion(count, n, case=case, metric=metric) for metric, count, n in counted if n]


def _savings(ours: Sequence[Scored], peer: Sequence[Scored]) -> list[Result]:
    """Return how much sooner and shorter a signature is than the full schema in every turn."""
    case = {"system": "full", "schema_mode": "signature", "peer": "full schema"}
    ratios = [theirs.ttft_s / one.ttft_s for one, theirs in zip(ours, peer, strict=True)]
    saved = [1 - one.tokens / theirs.tokens for one, theirs in zip(ours, peer, strict=True)]
    return [
        bootstrap(ratios, np.median, case=case, metric="ttft_ratio"),
        bootstrap(saved, np.mean, case=case, metric="token_saving"),
    ]


def _saved_beside(engine: Engine, tools: Registry, ours: Sequence[Scored]) -> Result:
    """Return how much shorter a signature is than the first tools of the registry in full."""
    shown = list(tools)[:_CONCATENATED]
    tokens = sum(len(engine.tokenize(schema_text(tool), special=False)) for tool in shown)
    case = {"system": "full", "schema_mode": "signature", "peer": f"{len(shown)} tools in full"}
    return bootstrap([1 - one.tokens / tokens for one in ours], np.mean, case=case, metric="token_saving")


class _Writer:
    """Writes calls as the agent does, each in a conversation of its own."""

    def __init__(self, engine: Engine, profile: Profile, planner: Callable[..., GrammarPlan] | None) -> None:
        self._engine = engine
        self._profile = profile
        self._emitter = Emitter()
        self._calls = CallWriter(engine, self._emitter, planner=planner)
        self._pool, self._store = SequencePool(engine), SnapshotStore.for_engine(engine)

    def write(self, case: ArgumentCase) -> tuple[Written, float, int]:
        """Return the call, the seconds from the request to its first token, and the tool's tokens."""
        conversation = Conversation(
            self._engine,
            system=SYSTEM_PROMPT,
            emitter=self._emitter,
            policy=make_policy("full"),
            pool=self._pool,
            store=self._store,
        )
        try:
            conversation.open()
            self._replay(conversation, case.context)
            text = tool_block(case.tool, self._profile.schema_mode)
            began = time.perf_counter()
            conversation.append("user", conversation.transcript.user(text, case.request))
            prefilled = time.perf_counter() - began
            written = self._calls.write(
                conversation, case.tool, self._profile, request=case.request, history=case.context
            )
        finally:
            conversation.close()
        return written, prefilled + written.ttft_s, len(self._engine.tokenize(text, special=False))

    def close(self) -> None:
        with self._engine.turn():
            self._pool.close()

    def _replay(self, conversation: Conversation, context: Sequence[Mapping[str, Any]]) -> None:
        """Bring about the turns before the request; one without an answer gets an empty one."""
        waiting = False
        for turn in context:
            said = str(turn.get("content") or "")
            if turn.get("role") == "user":
                if waiting:
                    conversation.close_reply("")
                conversation.append("user", conversation.transcript.user(said))
                waiting = True
            elif turn.get("role") == "assistant" and waiting:
                tokens = tuple(self._engine.tokenize(said, special=False))
                if tokens:
                    conversation.step(Append(tokens), note="assistant")
                conversation.close_reply(said)
                waiting = False
        if waiting:
            conversation.close_reply("")


def score(written: Written, case: ArgumentCase) -> Scored:
    """Compare a call with the arguments that a case states."""
    found = written.arguments or {}
    right = tuple(name for name in case.stated if name in found and case.is_right(name, found[name]))
    texts = list(_texts(found, case.tool.input_schema))
    turns = [*case.context, {"role": "user", "content": case.request}]
    said = " ".join(str(turn.get("content")) for turn in turns).casefold()
    # A date that was said in another form is no copy.
    meant = {str(span.value) for span in hear(turns)[1]}
    prompt = f"{SYSTEM_PROMPT} {schema_text(case.tool)}".casefold()
    return Scored(
        right=right,
        stated=case.stated,
        valid=written.arguments is not None and written.problem is None,
        told=written.arguments is None and isinstance(written.problem, MissingValues),
        copied=sum(
            text.casefold() in prompt and text.casefold() not in said and text not in meant for text in texts
        ),
        texts=len(texts),
    )


def _texts(found: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts among values, but for those that the schema lists or gives as default."""
    properties = schema.get("properties", {})
    for name, value in found.items():
        part = properties.get(name, {})
        listed = _listed(part) if isinstance(part, dict) else []
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) >= _SHORT and text not in listed:
                yield text


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    items = schema.get("items")
    inner = _listed(items) if isinstance(items, dict) else []
    return [*schema.get("enum", ()), schema.get("const"), schema.get("default"), *inner]
