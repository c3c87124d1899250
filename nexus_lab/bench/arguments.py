"""How well calls are filled in: the agent's own way of writing them, on requests with known arguments."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.calling import CallWriter, Written, tool_block
from nexus_lab.agent.conversation import Conversation
from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.bench.base import Result, ResultFile, ResultsError, proportion
from nexus_lab.cache import Append, SequencePool, SnapshotStore, make_policy
from nexus_lab.registry import Registry, load_registry
from nexus_lab.routing import read_rows
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing import Router

__all__ = ["Scored", "matches", "run", "score"]

MODES = ("signature", "full")


@dataclass(frozen=True, slots=True)
class Scored:
    """How one call was filled in.

    Attributes
    ----------
    right, specified
        Arguments that the request states and that came out right, and all that it states.
    valid
        Whether the call was readable and satisfied the full schema.
    """

    right: tuple[str, ...]
    specified: tuple[str, ...]
    valid: bool

    @property
    def all_right(self) -> bool:
        """Whether every stated argument came out right in a valid call."""
        return self.valid and len(self.right) == len(self.specified)


def run(
    engine: Engine,
    registry: Registry | Path | str,
    cases: Path,
    *,
    modes: Sequence[str] = MODES,
    profile: Profile | None = None,
    router: Router | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ResultFile:
    """Let the model write the call of each case with the right tool, and compare its arguments.

    Parameters
    ----------
    engine
        Runs the model; its context must hold a full schema and the request.
    registry
        Where the tools of the cases are.
    cases
        JSON Lines of ``query``, ``context``, ``gold_tool``, ``gold_args``, ``arg_match`` and, where not all
        of `gold_args` count, ``specified_args``.
    modes
        What the model sees of the tool: ``signature``, ``full``.
    profile
        Sampling settings; the defaults take the most likely tokens.
    router
        With one, ``end_to_end_right`` charges arguments of a case whose request it sends elsewhere.
    on_progress
        Called with calls written and all.

    Raises
    ------
    ResultsError
        When no case has its tool in the registry.
    """
    tools = registry if isinstance(registry, Registry) else load_registry(registry)
    rows = [row for row in read_rows(cases) if row.get("gold_tool") in tools]
    if not rows:
        raise ResultsError("no case has its tool in the registry", next_step="give the matching registry")
    settings = profile or Profile()
    routed = [_routed(router, row) for row in rows]
    results: list[Result] = []
    for number, mode in enumerate(modes):
        scored = []
        with closing(_Writer(engine, settings.changed(schema_mode=mode))) as writer:
            for place, row in enumerate(rows):
                if on_progress is not None:
                    on_progress(number * len(rows) + place, len(modes) * len(rows))
                scored.append(score(writer.write(tools[row["gold_tool"]], row), row))
        results += _figures(scored, routed if router is not None else None, mode)
    return ResultFile.now(
        "eval arguments",
        results,
        settings={
            "model": engine.info.name,
            "registry": tools.name,
            "cases": cases.name,
            "profile": settings.to_dict(),
        },
        threads=engine.threads,
    )


def _routed(router: Router | None, row: dict[str, Any]) -> bool:
    if router is None:
        return True
    return bool(router.route(row["query"], row.get("context") or ()).tool == row["gold_tool"])


def _figures(scored: Sequence[Scored], routed: Sequence[bool] | None, mode: str) -> list[Result]:
    case = {"system": "full", "schema_mode": mode}
    stated = sum(len(one.specified) for one in scored)
    right = sum(len(one.right) for one in scored)
    n = len(scored)
    results = [
        proportion(right, stated, case=case, metric="args_right"),
        proportion(sum(one.all_right for one in scored), n, case=case, metric="cases_right"),
        proportion(sum(one.valid for one in scored), n, case=case, metric="json_valid"),
    ]
    if routed is not None:
        reached = sum(len(one.right) for one, there in zip(scored, routed, strict=True) if there)
        results.append(proportion(reached, stated, case=case, metric="end_to_end_right"))
    return results


class _Writer:
    """Writes calls as the agent does, each in a conversation of its own."""

    def __init__(self, engine: Engine, profile: Profile) -> None:
        self._engine = engine
        self._profile = profile
        self._emitter = Emitter()
        self._calls = CallWriter(engine, self._emitter)
        self._pool, self._store = SequencePool(engine), SnapshotStore.for_engine(engine)

    def write(self, spec: ToolSpec, row: dict[str, Any]) -> Written:
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
            self._replay(conversation, row.get("context") or ())
            text = tool_block(spec, self._profile.schema_mode)
            conversation.append("user", conversation.transcript.user(text, row["query"]))
            return self._calls.write(
                conversation, spec, self._profile, request=row["query"], history=row.get("context") or ()
            )
        finally:
            conversation.close()

    def close(self) -> None:
        with self._engine.turn():
            self._pool.close()

    def _replay(self, conversation: Conversation, context: Sequence[dict[str, Any]]) -> None:
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


def score(written: Written, row: dict[str, Any]) -> Scored:
    """Compare a call with the arguments that a case states."""
    gold, kinds = row["gold_args"], row.get("arg_match") or {}
    stated = row.get("specified_args")
    names = tuple(name for name in (gold if stated is None else stated) if name in gold)
    found = written.arguments or {}
    right = tuple(
        name for name in names if name in found and matches(found[name], gold[name], kinds.get(name, "exact"))
    )
    return Scored(right, names, written.arguments is not None and written.problem is None)


def matches(found: Any, gold: Any, kind: str) -> bool:
    """Whether a value counts as the right one.

    Parameters
    ----------
    kind
        ``exact``: the same JSON value; ``text``: the same but for case and marks around it; ``set``: the
        same members in any order; ``keywords``: every word of `gold` occurs, qualifiers such as ``repo:x``
        aside (where there is nothing else, their values).

    Raises
    ------
    ResultsError
        When `kind` is none of these.
    """
    if kind == "exact":
        return _canonical(found) == _canonical(gold)
    if kind == "text":
        return _bare(found) == _bare(gold)
    if kind == "set":
        lists = isinstance(found, list) and isinstance(gold, list)
        return lists and sorted(map(_canonical, found)) == sorted(map(_canonical, gold))
    if kind == "keywords":
        answer = str(found).casefold()
        return all(word in answer for word in _keywords(str(gold)))
    raise ResultsError(f"unknown comparison {kind!r}", next_step="choose exact, text, set or keywords")


def _canonical(value: Any) -> str:
    """Return a value as text in which 3 and 3.0 are the same, and true and 1 are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, dict):
        members = sorted(f"{json.dumps(key)}:{_canonical(part)}" for key, part in value.items())
        return "{" + ",".join(members) + "}"
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return re.sub(r"^[\W_]+|[\W_]+$", "", str(value)).casefold()


def _keywords(text: str) -> list[str]:
    parts = text.casefold().split()
    plain = [part for part in parts if not re.match(r"[\w-]+:\S", part)]
    chosen = plain or [part.partition(":")[2] for part in parts]
    return [word for part in chosen for word in re.findall(r"[\w/.-]+", part)]
