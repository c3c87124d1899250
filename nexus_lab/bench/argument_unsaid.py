"""Requests from which a needed value is cut out, so that nothing is right but to ask for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.lexicon import PREPOSITIONS
from nexus_lab.arguments.spans import hear
from nexus_lab.registry import repair_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.arguments.spans import Span
    from nexus_lab.bench.argument_cases import ArgumentCase

__all__ = ["Unsaid", "unsaid"]

# A part of these is told with the whole: without its repository, an owner is no more than a torn word.
_WHOLES = frozenset({"slug", "quote", "url", "email", "path", "statement", "date", "time", "file"})
_LEADING = re.compile(rf"\b(?:{'|'.join(sorted(PREPOSITIONS))})\s+(?:the\s+)?[\"'`#@]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unsaid:
    """A case whose conversation does not give one of the needed values any more.

    Attributes
    ----------
    name
        The argument that has to be asked for.
    """

    case: ArgumentCase
    name: str


def unsaid(case: ArgumentCase) -> Iterator[Unsaid]:
    """Yield the case without the value of each required argument that the conversation gives in words.

    Listed values and yes or no are not said in their own words, and stay.
    """
    turns = [*case.context, {"role": "user", "content": case.request}]
    turns = [{**turn, "content": repair_text(str(turn.get("content") or ""))} for turn in turns]
    for name in case.stated:
        schema = case.tool.properties.get(name)
        if name not in case.tool.required or not isinstance(schema, dict) or "default" in schema:
            continue
        if "enum" in schema or "const" in schema or schema.get("type") == "boolean":
            continue
        cut = _cut(turns, case, name)
        if cut != turns and cut[-1]["content"].strip() and not _said(cut, case, name):
            yield Unsaid(replace(case, request=cut[-1]["content"], context=tuple(cut[:-1])), name)


def _cut(turns: Sequence[Mapping[str, Any]], case: ArgumentCase, name: str) -> list[dict[str, Any]]:
    """Return the turns without what gives the argument's value, and what that is a part of."""
    heard, spans = hear(turns)
    spoken = [n for n, turn in enumerate(turns) if turn.get("role") in ("user", "assistant")][::-1]
    found = [dict(turn) for turn in turns]
    for turn in heard:
        own = [span for span in spans if span.turn == turn.age]
        cuts = [_whole(span, own) for span in own if case.is_right(name, span.value)]
        text = turn.text
        for start, stop in sorted(_merged(cuts), reverse=True):
            # With what leads to it: "the issues of acme/docs" becomes "the issues".
            text = f"{_LEADING.sub('', text[:start])}{text[stop:]}"
        found[spoken[turn.age]]["content"] = re.sub(r"[ \t]+", " ", text).strip() if cuts else text
    return found


def _whole(span: Span, spans: Sequence[Span]) -> tuple[int, int]:
    around = [
        (other.start, other.stop)
        for other in spans
        if other.kinds & _WHOLES and other.start <= span.start and span.stop <= other.stop
    ]
    return max(around, key=lambda place: place[1] - place[0], default=(span.start, span.stop))


def _merged(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(places):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _said(turns: Sequence[Mapping[str, Any]], case: ArgumentCase, name: str) -> bool:
    return any(case.is_right(name, span.value) for span in hear(turns)[1])
