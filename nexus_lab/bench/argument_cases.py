"""Requests with known arguments: read from files of two makes, compared, and half of them kept apart."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.arguments.grounding import choices_of
from nexus_lab.arguments.ranking import fit_weights, save_weights
from nexus_lab.bench.base import ResultsError, insist_positive
from nexus_lab.registry import ToolSpec
from nexus_lab.routing import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.arguments.wants import Argument
    from nexus_lab.registry import Registry

__all__ = ["ArgumentCase", "fit", "fit_evidence", "matches", "read_cases"]

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
    """

    id: str
    tool: ToolSpec
    request: str
    context: tuple[Mapping[str, Any], ...]
    accepted: Mapping[str, Sequence[Any]]
    stated: tuple[str, ...]
    apart: bool
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
        chosen = {case.id for case in sorted(cases, key=lambda case: _hash(case.id))[:limit]}
        cases = [case for case in cases if case.id in chosen]
    return cases


def _hash(text: str) -> str:
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
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    common = {
        "id": row["id"],
        "tool": tool,
        "request": row["query"],
        "context": (*system, *(row.get("context") or ())),
        "apart": int(_hash(row["id"] if own is None else name), 16) % 2 == 1,
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


def fit_evidence(files: Sequence[Path], tools: Registry | None, path: Path) -> None:
    """Fit the weights of the evidence to the cases of some files, and write them to `path`."""
    read = {file.name: read_cases(file, tools) for file in files}
    weights = fit(case for cases in read.values() for case in cases)
    counts = {name: sum(not case.apart for case in cases) for name, cases in read.items()}
    save_weights(weights, path, fitted_to=counts)


def fit(cases: Iterable[ArgumentCase]) -> dict[str, float]:
    """Return weights of the evidence, fitted to the cases that are not kept apart.

    A tool counts with the root of the number of its cases, so that many requests to one do not decide alone.
    """
    tuned = [case for case in cases if not case.apart]
    counts = Counter(case.tool.name for case in tuned)
    groups = []
    for case in tuned:
        choices, _ = choices_of(case.tool, case.request, case.context, weights={})
        for one in choices:
            right = [_leads_to(case, one.argument, each.value) for each in one.candidates]
            # What cannot be found among what was said is best left alone.
            right[0] |= not any(right)
            rows = [(each.features, is_right) for each, is_right in zip(one.candidates, right, strict=True)]
            rows = rows[one.argument.must_be_given :]
            if len(rows) > 1 and any(is_right for _, is_right in rows):
                groups.append((case.tool.name, counts[case.tool.name] ** -0.5, rows))
    if not groups:
        raise ResultsError("no case is left to fit to", next_step="give more cases")
    return fit_weights(groups)


def _leads_to(case: ArgumentCase, argument: Argument, value: Any) -> bool:
    """Whether a value is right, or the beginning of a right one that the model may complete."""
    if case.is_right(argument.name, value):
        return True
    begun = bool(argument.completion(value)) and _loose(f"{value},")
    golds = case.accepted.get(argument.name, ())
    return bool(begun) and any(
        isinstance(gold, str) and _loose(gold).startswith(str(begun)) for gold in golds
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
        return _loose(found) == _loose(gold) and bool(gold or not found)
    if isinstance(found, list) and isinstance(gold, list):
        return len(found) == len(gold) and all(map(_loosely, found, gold))
    if isinstance(found, dict) and isinstance(gold, dict):
        lacking = (name for name in gold if name not in found)
        return all(
            name in gold and any(_loosely(value, one) for one in gold[name]) for name, value in found.items()
        ) and all(_LEFT_OUT in gold[name] for name in lacking)
    return _same(found, gold)


def _loose(text: str) -> str:
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
