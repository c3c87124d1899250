"""Requests with known arguments: read from files of two makes, compared, and half of them kept apart."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.bench.base import ResultsError, insist_positive
from nexus_lab.registry import ToolSpec
from nexus_lab.routing import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.registry import Registry

__all__ = ["ArgumentCase", "hashed", "loose", "matches", "read_cases"]

_LEFT_OUT = ""
_NOT_COMPARED = re.compile(r"[,./\-_*^\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentCase:
    """A request, its tool and the arguments that it states.

    Attributes
    ----------
    accepted
        For each argument the values that are right.
    kinds
        How each is compared, of `matches`.
    stated
        The arguments that count.
    may_lack
        Those that may be left out.
    apart
        Whether the case is kept apart from tuning: by a hash of its id, or of the tool's name where the rows
        bring their own tools, of which many rows have the same.
    group
        What decided that: the id or the tool's name.
    """

    id: str
    tool: ToolSpec
    request: str
    context: tuple[Mapping[str, Any], ...]
    accepted: Mapping[str, Sequence[Any]]
    stated: tuple[str, ...]
    apart: bool
    group: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    may_lack: frozenset[str] = frozenset()

    def is_right(self, name: str, value: Any) -> bool:
        """Whether `value` is right for an argument; `NOTHING` for one that is left out."""
        if value is NOTHING:
            return name in self.may_lack or name not in self.accepted
        kind = self.kinds.get(name, "exact")
        return any(matches(value, gold, kind) for gold in self.accepted.get(name, ()))


def read_cases(path: Path, tools: Registry | None = None, *, limit: int | None = None) -> list[ArgumentCase]:
    """Return the cases of a JSON Lines file whose tool is known.

    Rows have ``query``, ``gold_tool``, ``context`` or ``system``, and either ``gold_args`` with ``arg_match``
    and, where not all count, ``specified_args`` or ``optional_args``; or ``accepted_args``, lists of accepted
    values, and ``tools`` of their own.

    Parameters
    ----------
    limit
        So many of them, chosen by a hash.

    Raises
    ------
    ResultsError
        When no case has its tool in the registry or with itself, or `limit` is below 1.
    """
    insist_positive(limit=limit)
    cases = [
        case
        for number, row in enumerate(read_rows(path))
        if (case := _case({"id": f"{path.stem}-{number}", **row}, tools)) is not None
    ]
    if not cases:
        raise ResultsError("no case has its tool in the registry", next_step="give the matching registry")
    if limit is not None and limit < len(cases):
        chosen = {case.id for case in sorted(cases, key=lambda case: hashed(case.id))[:limit]}
        cases = [case for case in cases if case.id in chosen]
    return cases


def hashed(text: str) -> str:
    """Return a digest of `text`, by which cases are chosen and parted."""
    return hashlib.sha256(text.encode()).hexdigest()


def _case(row: dict[str, Any], tools: Registry | None) -> ArgumentCase | None:
    name, own = row.get("gold_tool", ""), row.get("tools")
    if own is not None:
        found = next((tool for tool in own if tool["name"] == name), None)
        tool = found and ToolSpec(name, found["description"], found["inputSchema"])
    else:
        tool = tools[name] if tools is not None and name in tools else None
    if tool is None:
        return None
    group = row["id"] if own is None else name
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    common = {
        "id": row["id"],
        "tool": tool,
        "request": row["query"],
        "context": (*system, *(row.get("context") or ())),
        "apart": int(hashed(group), 16) % 2 == 1,
        "group": group,
    }
    if "accepted_args" in row:
        accepted = row["accepted_args"]
        lacking = frozenset(name for name, values in accepted.items() if _LEFT_OUT in values)
        return ArgumentCase(
            **common,
            accepted=accepted,
            kinds=dict.fromkeys(accepted, "loose"),
            stated=tuple(name for name in accepted if name not in lacking),
            may_lack=lacking,
        )
    gold, optional = row["gold_args"], frozenset(row.get("optional_args") or ())
    stated = row.get("specified_args")
    return ArgumentCase(
        **common,
        accepted={name: (value,) for name, value in gold.items()},
        kinds=row.get("arg_match") or {},
        stated=tuple(
            name for name in (gold if stated is None else stated) if name in gold and name not in optional
        ),
        may_lack=optional,
    )


def matches(found: Any, gold: Any, kind: str) -> bool:
    """Whether a value counts as the right one.

    Parameters
    ----------
    kind
        ``exact``: the same JSON value; ``text``: the same but for case and marks around it; ``set``: the
        same members in any order; ``keywords``: every word of `gold` occurs, qualifiers such as ``repo:x``
        aside (where there is nothing else, their values); ``loose``: as the Berkeley Function Calling
        Leaderboard compares, texts but for case, blanks and some marks, and of objects each member with a
        list of accepted values.

    Raises
    ------
    ResultsError
        When `kind` is none of these.
    """
    compare = _COMPARISONS.get(kind)
    if compare is None:
        raise ResultsError(
            f"unknown comparison {kind!r}", next_step=f"choose one of {', '.join(_COMPARISONS)}"
        )
    return compare(found, gold)


def _same(found: Any, gold: Any) -> bool:
    return _canonical(found) == _canonical(gold)


def _same_text(found: Any, gold: Any) -> bool:
    return _bare(found) == _bare(gold)


def _same_set(found: Any, gold: Any) -> bool:
    lists = isinstance(found, list) and isinstance(gold, list)
    return lists and sorted(map(_canonical, found)) == sorted(map(_canonical, gold))


def _all_words(found: Any, gold: Any) -> bool:
    answer = str(found).casefold()
    return all(word in answer for word in _keywords(str(gold)))


def _loosely(found: Any, gold: Any) -> bool:
    if isinstance(found, str) and isinstance(gold, str):
        return loose(found) == loose(gold) and bool(gold or not found)
    if isinstance(found, list) and isinstance(gold, list):
        return len(found) == len(gold) and all(map(_loosely, found, gold))
    if isinstance(found, dict) and isinstance(gold, dict):
        lacking = (name for name in gold if name not in found)
        return all(
            name in gold and any(_loosely(value, one) for one in gold[name]) for name, value in found.items()
        ) and all(_LEFT_OUT in gold[name] for name in lacking)
    return _same(found, gold)


def loose(text: str) -> str:
    """Return what the Berkeley leaderboard compares of a text."""
    return _NOT_COMPARED.sub("", text).lower().replace("'", '"')


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "exact": _same,
    "text": _same_text,
    "set": _same_set,
    "keywords": _all_words,
    "loose": _loosely,
}


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
