"""What a request brings along and what a tool must be given: a repository, a number, a file, an address.

What is masked before a request is matched says nothing about the job, but whether it is there does: ``which
labels are on acme/docs#7`` brings a number, which the tool that reads an issue needs, and the one that lists
the labels of a repository has no use for; ``show the log of ~/docs`` is for a tool that works on this disk.
A request that leans on what was said before brings along what stands there: ``what is on the second branch``
after talk of acme/docs is not for a repository on this disk.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nexus_lab.routing.context import said
from nexus_lab.routing.normalise import SpanKind, beginning, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.base import Message
    from nexus_lab.routing.normalise import NormalisedRequest

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float32]

__all__ = ["FOREIGN", "MISSING", "UNPLACED", "Slots", "brought", "brought_before"]

# Chosen on the half of the development requests that calibrates and on the package's own held ones. Of 96 of
# the first the right tool comes first, by the scores alone, for .79 without all of these, .82 with the first
# two and .84 with all; of 483 of the package's for .62, .65 and .67, to which reading adds .08. From .05 to
# .15 the last is worth the same.
MISSING = 0.1
"""What a tool loses for each kind that it must be given and neither request nor the talk before brings."""
UNPLACED = 0.03
"""What a tool loses for each kind that the request brings and the tool has no argument for."""
FOREIGN = 0.1
"""What it loses for each kind that no tool of its server has an argument for; of a hash, that it has not."""


class _Kind(IntEnum):
    """A kind of value that shows in a text; the values are columns."""

    REPOSITORY = 0
    LOCAL = 1
    FILE = 2
    NUMBER = 3
    ID = 4
    ADDRESS = 5
    HASH = 6


_WORDS = {
    _Kind.REPOSITORY: "a repository",
    _Kind.LOCAL: "a path on this disk",
    _Kind.FILE: "a file",
    _Kind.NUMBER: "a number",
    _Kind.ID: "an id",
    _Kind.ADDRESS: "an address",
    _Kind.HASH: "a hash",
}


class _Held(NamedTuple):
    """A request held against the tools, each bool [n_tools, n_kinds]."""

    missing: Flags
    unplaced: Flags
    foreign: Flags


# A tool without an argument for one of these loses nothing: anything may be a title, a name, a count.
_PLACED = (_Kind.REPOSITORY, _Kind.LOCAL, _Kind.ADDRESS)
# Turns before the request that are looked at, and words of each: the time must not grow with a conversation.
_TURNS, _TURN_WORDS = 8, 60
_OF_SPANS = {
    SpanKind.URL: (_Kind.ADDRESS,),
    SpanKind.QUOTE: (_Kind.FILE, _Kind.ID),
    SpanKind.HASH: (_Kind.ID, _Kind.HASH),
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
_HASH_NAME = re.compile(r"(?i:sha|hash|commit|revision|(?:^|_)(?:ref|rev|oid|id)$)|Id$")
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
        self._at_home = _of_servers(self._takes, [tool.server for tool in listed])

    def loss(self, request: NormalisedRequest, *, before: Sequence[Message] | None = None) -> Floats:
        """Return float32 [n_tools], at least 0: what each tool loses.

        Parameters
        ----------
        before
            The turns before a request that leans on them, where the rest of what is needed may stand.
        """
        held = self._held(request, before)
        losses = MISSING * held.missing + UNPLACED * held.unplaced + FOREIGN * held.foreign
        return np.asarray(losses.sum(axis=1), np.float32)

    def reasons(
        self, request: NormalisedRequest, places: Iterable[int], *, before: Sequence[Message] | None = None
    ) -> list[tuple[str, ...]]:
        """Return for the tools at `places` why they lose, each in a few words; see `loss`."""
        held = self._held(request, before)
        told = ("needs {}", "has no use for {}", "nothing of its server takes {}")
        return [
            tuple(
                words.format(_WORDS[_Kind(int(column))])
                for words, flags in zip(told, held, strict=True)
                for column in np.flatnonzero(flags[place])
            )
            for place in places
        ]

    def _held(self, request: NormalisedRequest, before: Sequence[Message] | None) -> _Held:
        found = _columns(brought(request))
        told = found if before is None else found | _columns(brought_before(before))
        placed = _columns(_PLACED)
        taken: Flags = np.asarray(self._takes.any(axis=0))  # what no tool at all takes says nothing of any
        foreign: Flags = np.asarray(~self._at_home & told & placed & taken)
        if _Kind.HASH in np.flatnonzero(found & taken):
            foreign[:, _Kind.HASH] = ~self._takes[:, _Kind.HASH]
        return _Held(self._needs & ~told, ~self._takes & found & placed, foreign)


def brought(request: NormalisedRequest) -> set[int]:
    """Return the kinds of values that a request holds, as columns."""
    found: set[int] = set()
    for span in request.spans:
        found |= _of_span(span.kind, request.request[span.start : span.stop])
    text = beginning(request.request)
    if _FILE.search(text):
        found.add(_Kind.FILE)
    if _NUMBER.search(text):
        found |= {_Kind.NUMBER, _Kind.ID}
    if _DIGIT.search(text):
        found.add(_Kind.ID)
    return found


def brought_before(turns: Sequence[Message]) -> set[int]:
    """Return the kinds of values that the last turns hold, as columns."""
    texts = (" ".join(said(turn).split()[:_TURN_WORDS]) for turn in turns[-_TURNS:])
    return {kind for text in texts for kind in brought(normalise(text))}


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
    if (
        {"owner", "repo"} <= names
        or "repository" in names
        or _is_project_path(tool.properties.get("project_id"))
    ):
        taken.add(_Kind.REPOSITORY)
    elif any(_ANY_PATH.search(name) for name in names):
        taken.add(_Kind.LOCAL)
    if any(_ANY_ADDRESS.search(name) for name in names):
        taken.add(_Kind.ADDRESS)
    if not any(_HASH_NAME.search(name) and _may_be_text(tool.properties[name]) for name in tool.properties):
        taken.discard(_Kind.HASH)
    return taken


def _is_project_path(schema: Any) -> bool:
    """Whether an argument takes ``group/project`` as well as a number, which only its description says."""
    return isinstance(schema, dict) and "path" in str(schema.get("description")).lower()


def _may_be_text(schema: Any) -> bool:
    return not (isinstance(schema, dict) and schema.get("type") in ("integer", "number", "boolean"))


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


def _columns(kinds: Iterable[int]) -> Flags:
    found = np.zeros(len(_Kind), np.bool_)
    found[list(kinds)] = True
    return found


def _of_servers(takes: Flags, servers: Sequence[str | None]) -> Flags:
    """Return what any tool of the same server takes, bool [n_tools, n_kinds]; all where none is known."""
    shared = np.ones_like(takes)
    for server in set(servers) - {None}:
        same = np.asarray([one == server for one in servers], np.bool_)
        shared[same] = takes[same].any(axis=0)
    return shared


def _flags(kinds: Iterable[set[int]]) -> Flags:
    rows = [[column in found for column in range(len(_Kind))] for found in kinds]
    return np.asarray(rows, np.bool_).reshape(-1, len(_Kind))
