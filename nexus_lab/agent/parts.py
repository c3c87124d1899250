"""The parts of a request that asks for several things, one after the other.

Only what says so itself is parted: by a word of order ("then", "after that", "finally"), or as a numbered or
bulleted list. Sentences side by side mostly say one thing more closely, and are left together; so is what
stands in quotes, in backticks or in brackets.
"""

from __future__ import annotations

import re

__all__ = ["parts_of"]

_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*•])[ \t]+(?=\S)", re.MULTILINE)
_ORDER = re.compile(
    r"""
    (?:
        (?:\s*[,;.!?]\s*|\s+) (?:and\s+)? (?:then|after\s+(?:that|this)|afterwards?)
        | \s*[,;.!?]\s* (?:and\s+)? (?:next|finally|lastly)
    )
    \s*,?\s+ (?:please\s+)? (?=[A-Za-z`"'])
    """,
    re.VERBOSE | re.IGNORECASE,
)
# "the next page", "since then it fails", "what happens then": no order of things to do.
_NO_BREAK_BEFORE = re.compile(
    r"\b(?:the|if|when|since|until|till|by|from|than|what|happens?|was|were|is|right|just|even|only|now)$",
    re.IGNORECASE,
)
_NO_STEP = re.compile(
    r"(?:the|an?|it|he|she|they|we|you|i|this|that|there|is|was|are|were|will|would|has|have|had|of|in|on|at|to)\b",
    re.IGNORECASE,
)
_GUARDED = re.compile(
    r"""```.*?```|`[^`\n]*`|"[^"\n]*"|“[^”]*”|(?<!\w)'[^'\n]*'(?!\w)|\([^()\n]*\)|\{[^{}]*\}""", re.DOTALL
)
_LEAST_WORDS = 2


def parts_of(request: str, *, most: int) -> tuple[str, ...]:
    """Return what is asked for, one thing after the other; the request itself when it is one thing.

    Parameters
    ----------
    request
        What the user said.
    most
        Parts to return at most; what would be more stays with the last.
    """
    found = _listed(request) or _ordered(request)
    if len(found) < _LEAST_WORDS or any(len(part.split()) < _LEAST_WORDS for part in found):
        return (request,)
    if len(found) > most:
        return (request,) if most < _LEAST_WORDS else (*found[: most - 1], " then ".join(found[most - 1 :]))
    return tuple(found)


def _listed(request: str) -> list[str]:
    """Return the items of a list that the request consists of, or ends with."""
    marks = [mark for mark in _ITEM.finditer(request) if not _inside(mark.start(), _guarded(request))]
    if len(marks) < _LEAST_WORDS:
        return []
    ends = [*(mark.start() for mark in marks[1:]), len(request)]
    items = [request[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    opening = request[: marks[0].start()].strip()
    # Before the list may stand what announces it, but nothing that is asked for.
    return items if not opening or opening.endswith(":") else []


def _ordered(request: str) -> list[str]:
    guarded, parts, start = _guarded(request), [], 0
    for mark in _ORDER.finditer(request):
        before, after = request[start : mark.start()], request[mark.end() :]
        if _inside(mark.start(), guarded) or _NO_BREAK_BEFORE.search(before) or _NO_STEP.match(after):
            continue
        parts.append(before.strip())
        start = mark.end()
    return [*parts, request[start:].strip()] if parts else []


def _guarded(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _GUARDED.finditer(text)]


def _inside(place: int, spans: list[tuple[int, int]]) -> bool:
    return any(first <= place < last for first, last in spans)
