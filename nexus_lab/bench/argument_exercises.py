"""What an adapter for arguments learns from: requests with the calls that are right for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.turn import TurnOutcome
from nexus_lab.arguments import validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nexus_lab.bench.argument_cases import ArgumentCase
    from nexus_lab.registry import Registry, ToolSpec
    from nexus_lab.trace import Session

__all__ = ["Exercise", "answer_of", "answer_text", "exercises_of", "recorded"]

_LEFT_OUT = ""
_REDACTED = "[redacted"
_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A request, its tool, and the arguments that are right.

    Attributes
    ----------
    context
        The turns before the request, oldest first.
    group
        What belongs together when some are held back.
    """

    tool: ToolSpec
    request: str
    context: tuple[Mapping[str, Any], ...]
    answer: Mapping[str, Any]
    group: str


def exercises_of(cases: Iterable[ArgumentCase], *, apart: bool) -> list[Exercise]:
    """Return the cases that are kept apart, or the others; those whose answer breaks the schema are left out.

    A request that occurs twice with one tool counts once.
    """
    found: dict[tuple[str, str], Exercise] = {}
    for case in cases:
        answer = answer_of(case)
        if case.apart is apart and answer is not None:
            exercise = Exercise(
                tool=case.tool,
                request=case.request,
                context=case.context,
                answer=answer,
                group=case.group or case.id,
            )
            found.setdefault((case.tool.qualified_name, case.request), exercise)
    return list(found.values())


def answer_of(case: ArgumentCase) -> dict[str, Any] | None:
    """Return the arguments to write for a case, in the schema's order; ``None`` when they break the schema.

    Those that may be left out are.
    """
    given = {
        name: _first(values[0], listed=case.kinds.get(name) == "loose")
        for name, values in case.accepted.items()
        if values and name not in case.may_lack
    }
    order = {name: place for place, name in enumerate(case.tool.properties)}
    answer = dict(sorted(given.items(), key=lambda pair: order.get(pair[0], len(order))))
    return None if validate(answer, case.tool.input_schema) else answer


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return arguments as the grammar has them written: JSON without spaces."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def recorded(session: Session, tools: Registry) -> Iterator[Exercise]:
    """Yield the calls of a session that ran and gave a result, as they were approved or corrected.

    What was redacted teaches nothing, and is left out, as is a turn whose tool is not in the registry. A
    session without recorded contents has none.
    """
    rows = session.turns.sort("run", "turn").collect().iter_rows(named=True)
    before: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        history = before.setdefault(row["run"], [])
        exercise = _recorded(row, history[-2 * _TURNS :], tools)
        if exercise is not None:
            yield exercise
        if row["request"]:
            history += [
                {"role": "user", "content": row["request"]},
                {"role": "assistant", "content": row["answer"] or ""},
            ]


def _recorded(
    row: Mapping[str, Any], context: Sequence[Mapping[str, str]], tools: Registry
) -> Exercise | None:
    request, text, tool = row["request"], row["arguments"], _tool_of(row, tools)
    ran = row["outcome"] == TurnOutcome.CALLED.value and not row["result_is_error"]
    if not ran or not request or not text or tool is None or _REDACTED in f"{request}{text}":
        return None
    answer = json.loads(text)
    if not isinstance(answer, dict) or validate(answer, tool.input_schema):
        return None
    return Exercise(tool=tool, request=request, context=tuple(context), answer=answer, group=request)


def _tool_of(row: Mapping[str, Any], tools: Registry) -> ToolSpec | None:
    """Return the tool that a turn called: that of its server, or the only one of that name."""
    named = [tool for tool in (*tools.tools, *tools.shadowed) if tool.name == row["tool"]]
    own = [tool for tool in named if tool.server == row["server"]]
    found = own or named
    return found[0] if len(found) == 1 else None


def _first(value: Any, *, listed: bool) -> Any:
    """Return a value as it is best written: whole numbers without a fraction.

    Parameters
    ----------
    listed
        Whether objects have lists of accepted values for members, of which the first counts.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if listed and isinstance(value, dict):
        return {
            name: _first(values[0], listed=True) if isinstance(values, list) and values else values
            for name, values in value.items()
            if not (isinstance(values, list) and _LEFT_OUT in values)
        }
    if isinstance(value, list):
        return [_first(one, listed=listed) for one in value]
    return value
