"""What of a request is matched: its own words, without the names, numbers and texts it carries.

``Rename PR 18 in acme/docs to "Links"`` asks the same tool as the same request about another repository.
What is masked here takes no part in the choice of the tool; it stays in the request for the arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MaskedSpan", "NormalisedRequest", "SpanKind", "beginning", "normalise", "split_identifiers"]

_MATCHED_CHARACTERS = 4_000


class SpanKind(StrEnum):
    """What a masked part of a request is."""

    QUOTE = "quote"
    URL = "url"
    PATH = "path"
    DATE = "date"
    TIME = "time"
    HASH = "hash"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class MaskedSpan:
    """A part of the request that was left out of matching; `start` and `stop` are character offsets."""

    kind: SpanKind
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NormalisedRequest:
    """A request, the text of it that is matched, and what was masked, in order."""

    request: str
    text: str
    spans: tuple[MaskedSpan, ...]


# In order of precedence: what an earlier pattern took, a later one does not see.
_PATTERNS = (
    (SpanKind.QUOTE, re.compile(r'"[^"\n]*"|“[^”\n]*”|`[^`\n]*`|(?<!\w)\'[^\'\n]+\'(?!\w)')),
    (SpanKind.URL, re.compile(r"\bhttps?://\S+|\bwww\.\S+")),
    (SpanKind.PATH, re.compile(r"(?<![\w/])~?/?[\w.@-]+(?:/[\w.@-]+)+/?(?:#\d+)?|(?<![\w/])[~/][\w.@/-]+")),
    (SpanKind.DATE, re.compile(r"\b\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?\b")),
    (SpanKind.TIME, re.compile(r"\b\d{1,2}:[0-5]\d(?::[0-5]\d)?(?:\s?[AaPp][Mm]\b)?")),
    (SpanKind.HASH, re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")),
    (SpanKind.NUMBER, re.compile(r"#?\b\d+(?:[.,]\d+)*\b")),
)
# Two words with a slash between them that are no path.
_WORD_PAIRS = frozenset(
    {
        "and/or",
        "ci/cd",
        "client/server",
        "he/she",
        "his/her",
        "i/o",
        "input/output",
        "on/off",
        "read/write",
        "tcp/ip",
        "yes/no",
    }
)
_GAP = re.compile(r"\s+")
_GAP_BEFORE_MARK = re.compile(r"\s+([?.!,;:])")
_BRACKETS = re.compile(r"\(\s*\)|\[\s*\]")
_CASE_STEP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[^\w]+|_+")


def split_identifiers(text: str) -> str:
    """Return `text` in lower case with camelCase, snake_case and kebab-case taken apart.

    ``getPullRequest`` and ``get_pull-request`` both become ``get pull request``.
    """
    return _NOT_WORD.sub(" ", _CASE_STEP.sub(" ", text)).strip().lower()


def normalise(request: str) -> NormalisedRequest:
    """Mask the parts of `request` that say nothing about the tool.

    Only the first 4,000 characters are matched, up to the last whole word. A request of which nothing is left
    is matched as it is.
    """
    text = beginning(request)
    spans: list[MaskedSpan] = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            if kind is SpanKind.PATH and match[0].lower() in _WORD_PAIRS:
                continue
            spans.append(MaskedSpan(kind, match.start(), match.end()))
            text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    spans.sort(key=lambda span: span.start)
    matched = _BRACKETS.sub(" ", text)
    matched = _GAP_BEFORE_MARK.sub(r"\1", _GAP.sub(" ", matched)).strip()
    if not re.search(r"\w", matched):
        matched = _GAP.sub(" ", request[:_MATCHED_CHARACTERS]).strip()
    return NormalisedRequest(request, matched, tuple(spans))


def beginning(request: str) -> str:
    """Return the part of `request` that is matched, its first 4,000 characters.

    Half a path or number would be another one, so no word is cut.
    """
    text = request[:_MATCHED_CHARACTERS]
    if text == request or request[_MATCHED_CHARACTERS].isspace():
        return text
    return text[: len(text) - len(text.split()[-1])] if text[-1:].strip() else text
