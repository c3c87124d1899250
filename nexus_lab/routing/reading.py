"""What a cross-encoder reads: a request as it stands, and a tool in few words."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from nexus_lab.routing.context import resolve
from nexus_lab.routing.normalise import SpanKind, beginning, normalise, split_identifiers
from nexus_lab.routing.views import choices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.base import Message

__all__ = ["MOST_TOKENS", "request_text", "tool_text"]

MOST_TOKENS = 96
_REQUEST_WORDS = 28
_CONTEXT_WORDS = 16
_DESCRIPTION_CHARACTERS = 220
_CHOICES = 8
_PARAMETERS = 5
_EXAMPLE_WORDS = 14
_FILE = re.compile(r"\.\w{1,5}$")
_WORDS = {
    SpanKind.QUOTE: '"text"',
    SpanKind.URL: "a link",
    SpanKind.DATE: "a date",
    SpanKind.TIME: "a time",
    SpanKind.HASH: "a hash",
    SpanKind.NUMBER: "7",
}


def request_text(request: str, context: Sequence[Message] = ()) -> str:
    """Return `request` with the kind of each name, number and quoted text in its place.

    Where it refers back, the user's turn before it comes first.
    """
    text = _cut(_told(request), _REQUEST_WORDS)
    reference = resolve(request, context)
    if reference is None or not reference.text:
        return text
    return f"{_cut(_told(reference.text), _CONTEXT_WORDS)} | {text}"


def tool_text(tool: ToolSpec, *, example: str | None = None) -> str:
    """Return `tool` in few words: name, values of its method, description, arguments, and an example."""
    parts = [split_identifiers(tool.name) or tool.name]
    values = ", ".join(islice(choices(tool), _CHOICES))
    if values:
        parts.append(f"({values})")
    if example is not None:
        parts.append(f"as in: {_cut(_told(example), _EXAMPLE_WORDS)}.")
    description = " ".join(tool.description.split())
    parts.append(description[:_DESCRIPTION_CHARACTERS])
    if tool.properties:
        names = ", ".join(split_identifiers(name) for name in islice(tool.properties, _PARAMETERS))
        parts.append(f"with {names}")
    return " ".join(part for part in parts if part)


def _told(text: str) -> str:
    """Return `text` with the kinds of its masked parts in their places."""
    found = normalise(beginning(text))
    parts, at = [], 0
    for span in found.spans:
        parts += [found.request[at : span.start], _word(span.kind, found.request[span.start : span.stop])]
        at = span.stop
    parts.append(found.request[at:])
    return " ".join("".join(parts).split())


def _word(kind: SpanKind, text: str) -> str:
    if kind is not SpanKind.PATH:
        return _WORDS[kind]
    if _FILE.search(text):
        return "a file"
    return "a repository" if text.count("/") == 1 and text[0] not in "~/" else "a folder"


def _cut(text: str, n_words: int) -> str:
    return " ".join(text.split()[:n_words])
