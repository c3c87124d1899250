"""The parts of a request that asks for several things, one after the other.

Only what says so itself is parted: by a word of order ("then", "after that", "finally") before a verb that
asks for something, or as a list that is the whole request. What stands in quotes, in backticks or in brackets
is left together, and so is a request with a condition, or with a text for somebody else, since taking one
thing for two would call a tool that nobody asked for.
"""

from __future__ import annotations

import re

__all__ = ["parts_of"]

_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*•])[ \t]+(?=\S)", re.MULTILINE)
_OPENING = re.compile(
    r"\s*(?:please\s+)?(?:do|run|carry\s+out)\s+(?:the\s+following|this|these)(?:\s+(?:steps|things|tasks))?"
    r"(?:,?\s+(?:in\s+(?:this\s+)?order|one\s+after\s+the\s+other))?\s*:\s*",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"""
    (?:
        (?:\s*[,;.!?]\s*|\s+) (?:and\s+)? (?:then|afterwards?)
        | \s*[,;.!?]\s* (?:and\s+)? (?:after\s+that|next|finally|lastly)
        | \s+ and\s+after\s+that
    )
    \s*,?\s+ (?:please\s+)? (?=[A-Za-z])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_VERBS = """
    add approve archive assign book calculate cancel change check checkout clone close comment commit compare
    compute convert copy count create delete describe diff display download drop edit enable disable execute
    export fetch find fork get give import insert install label list lock look make merge move open pause play
    print publish pull push query read rebase remove rename reopen reset resolve restart restore review run
    save say schedule search select set show sort stage star start stash stop subscribe summarise summarize
    switch sync tag tell translate turn undo unlock unstar update upload view
"""
_ASKS = re.compile(
    rf"(?:{'|'.join(_VERBS.split())})\b(?!\s*[,.:;]|\s+(?:is|are|was|were|has|have)\b)", re.IGNORECASE
)
_CONDITION = re.compile(
    r"\b(?:if|when|whenever|once(?!\s+(?:more|again|a)\b)|unless|until|as\s+soon\s+as|in\s+case|before|after|while)\b",
    re.IGNORECASE,
)
_FOR_OTHERS = re.compile(
    r"""
    :(?=\s|$)
    | \b(?:remind|tell|note|message|e-?mail|reply|respond|write|post|send|comment|say\s+that)\b
    | \b(?:called|named|titled)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_GUARDED = re.compile(
    r"""`[^`]*`|"[^"]*"|“[^”]*”|«[^»]*»|(?<!\w)'[^']*'(?!\w)|\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]"""
)
_LEAST_WORDS = 2


def parts_of(request: str, *, most: int) -> tuple[str, ...]:
    """Return what is asked for, one thing after the other; the request itself when it is one thing.

    Parameters
    ----------
    request
        What the user said.
    most
        Parts at most; a request of more is left whole.
    """
    if "```" in request or request.count('"') % 2 or request.count("`") % 2:
        return (request,)
    found = _listed(request) or _ordered(request)
    if not _LEAST_WORDS <= len(found) <= most or any(len(part.split()) < _LEAST_WORDS for part in found):
        return (request,)
    return tuple(found)


def _listed(request: str) -> list[str]:
    """Return the items of a list of one line each that the request is."""
    marks = list(_ITEM.finditer(request))
    if len(marks) < _LEAST_WORDS:
        return []
    opening = request[: marks[0].start()]
    ends = [*(mark.start() for mark in marks[1:]), len(request)]
    items = [request[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    alone = not opening.strip() or _OPENING.fullmatch(opening)
    return items if alone and all("\n" not in item and _ASKS.match(item) for item in items) else []


def _ordered(request: str) -> list[str]:
    guarded, parts, start = [match.span() for match in _GUARDED.finditer(request)], [], 0
    for mark in _ORDER.finditer(request):
        if any(first <= mark.start() < last for first, last in guarded) or not _ASKS.match(
            request, mark.end()
        ):
            continue
        parts.append(request[start : mark.start()].strip())
        start = mark.end()
    whole = any(_CONDITION.search(part) or _FOR_OTHERS.search(part) for part in parts)
    return [] if whole or not parts else [*parts, request[start:].strip()]
