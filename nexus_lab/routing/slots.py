"""What a request brings along and what a tool must be given: a repository, a number, a file, an address.

What is masked before a request is matched says nothing about the job, but whether it is there does: ``which
labels are on acme/docs#7`` brings a number, which the tool that reads an issue needs, and the one that lists
the labels of a repository has no use for; ``show the log of ~/docs`` is for a tool that works on this disk.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.normalise import SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.normalise import NormalisedRequest

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float32]

__all__ = ["MISSING", "UNPLACED", "Slots", "brought"]

# Chosen on the half of the development requests that calibrates and on the package's own held ones: of 96
# the first the right tool comes first for .79 without and .82 with both; of 685 and 327 of the package's, for
# GitHub's tools and others, .67 and .64 without, .71 and .65 with.
MISSING = 0.1
"""What a tool loses for each kind that it must be given and the request does not bring."""
UNPLACED = 0.03
"""What a tool loses for each kind that the request brings and the tool has no argument for."""


class _Kind(IntEnum):
    """A kind of value that shows in a text; the values are columns."""

    REPOSITORY = 0
    LOCAL = 1
    FILE = 2
    NUMBER = 3
    ID = 4
    ADDRESS = 5


# A tool without an argument for one of these loses nothing: anything may be a title, a name, a count.
_PLACED = (_Kind.REPOSITORY, _Kind.LOCAL, _Kind.ADDRESS)
_OF_SPANS = {
    SpanKind.URL: (_Kind.ADDRESS,),
    SpanKind.QUOTE: (_Kind.FILE, _Kind.ID),
    SpanKind.HASH: (_Kind.ID,),
}
_FILE = re.compile(r"(?<![\w/])[\w-]*\.[A-Za-z]\w{0,4}\b")
_ENDS_AS_FILE = re.compile(r"\.\w{1,5}$")
_NUMBER = re.compile(
    r"(?<![\w.])#?\d+(?![\w.]*[A-Za-z])|#\d"
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty"
    r"|hundred|thousand|million|half|dozen|twice)\b",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
_ID_NAME = re.compile(r"(?:_id|Id|^id|sha|_number|hash)$")
_FILE_NAME = re.compile(r"(?:^|_)(?:path|file|filename|filepath|file_path)$", re.IGNORECASE)
_ADDRESS_NAME = re.compile(r"(?:^|_)(?:url|uri)$", re.IGNORECASE)
_ANY_PATH = re.compile(r"path|file|dir|folder", re.IGNORECASE)
_ANY_ADDRESS = re.compile(r"url|uri|link|domain|site", re.IGNORECASE)


class Slots:
    """What each tool of a registry takes and needs.

    Parameters
    ----------
    tools
        In the order of scores.
    """

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        listed = list(tools)
        self._takes = _flags(_taken(tool) for tool in listed)
        self._needs = _flags(_needed(tool) for tool in listed)

    def loss(self, request: NormalisedRequest, *, refers_back: bool) -> Floats:
        """Return float32 [n_tools], at least 0: what each tool loses.

        Parameters
        ----------
        refers_back
            Whether the request leans on what was said before, where the rest of what is needed may stand.
        """
        found = np.zeros(len(_Kind), np.bool_)
        found[list(brought(request))] = True
        placed = np.zeros(len(_Kind), np.bool_)
        placed[list(_PLACED)] = True
        unplaced = (~self._takes & (found & placed)).sum(axis=1)
        missing = 0 if refers_back else (self._needs & ~found).sum(axis=1)
        return np.asarray(MISSING * missing + UNPLACED * unplaced, np.float32)


def brought(request: NormalisedRequest) -> set[int]:
    """Return the kinds of values that a request holds, as columns."""
    found: set[int] = set()
    for span in request.spans:
        found |= _of_span(span.kind, request.request[span.start : span.stop])
    if _FILE.search(request.request):
        found.add(_Kind.FILE)
    if _NUMBER.search(request.request):
        found |= {_Kind.NUMBER, _Kind.ID}
    if _DIGIT.search(request.request):
        found.add(_Kind.ID)
    return found


def _of_span(kind: SpanKind, text: str) -> set[int]:
    return _of_path(text) if kind is SpanKind.PATH else set(_OF_SPANS.get(kind, ()))


def _of_path(text: str) -> set[int]:
    path = text.partition("#")[0].rstrip("/")
    if path[:1] in ("~", "/", ""):
        return {_Kind.LOCAL, _Kind.FILE}
    if path.count("/") == 1 and not _ENDS_AS_FILE.search(path):
        return {_Kind.REPOSITORY}
    return {_Kind.FILE}


def _taken(tool: ToolSpec) -> set[int]:
    """Return the kinds that a tool has an argument for; of those that any tool may take, all."""
    names = {name.lower() for name in tool.properties}
    taken: set[int] = {kind for kind in _Kind if kind not in _PLACED}
    if {"owner", "repo"} <= names or "repository" in names:
        taken.add(_Kind.REPOSITORY)
    elif any(_ANY_PATH.search(name) for name in names):
        taken.add(_Kind.LOCAL)
    if any(_ANY_ADDRESS.search(name) for name in names):
        taken.add(_Kind.ADDRESS)
    return taken


def _needed(tool: ToolSpec) -> set[int]:
    """Return the kinds of the arguments that a tool must be given, of those whose values show in a text."""
    needed: set[int] = {_Kind.REPOSITORY} if {"owner", "repo"} <= set(tool.required) else set()
    for name in tool.required:
        schema: Any = tool.properties.get(name)
        kind = _needed_for(name, schema) if isinstance(schema, dict) else None
        if kind is not None:
            needed.add(kind)
    return needed


def _needed_for(name: str, schema: dict[str, Any]) -> int | None:
    if schema.get("type") in ("integer", "number"):
        return _Kind.NUMBER
    if schema.get("type") != "string" or "enum" in schema:
        return None
    if name == "repo_path":
        return _Kind.LOCAL
    patterns = ((_ID_NAME, _Kind.ID), (_FILE_NAME, _Kind.FILE), (_ADDRESS_NAME, _Kind.ADDRESS))
    return next((kind for pattern, kind in patterns if pattern.search(name)), None)


def _flags(kinds: Iterable[set[int]]) -> Flags:
    rows = [[column in found for column in range(len(_Kind))] for found in kinds]
    return np.asarray(rows, np.bool_).reshape(-1, len(_Kind))
