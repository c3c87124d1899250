"""Requests that name a server: "on GitLab", "in Notion", and the tools that are therefore meant."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.routing.context import said
from nexus_lab.routing.lexical import words
from nexus_lab.routing.normalise import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.base import Message

    Floats = NDArray[np.float32]

__all__ = ["NAMED", "ServerFinder"]

# Of 483 requests of the package that were held, 38 name their server; .03 to .1 are worth the same, and a
# message about Slack may well belong into GitHub.
NAMED = 0.05
"""What a tool gains when the request names its server."""
# A word that other servers' tools have as well, such as time, fetch or search, names no server.
_OWN_SHARE = 0.9
# Nor does a word that is said of anything: "what did I break this time?".
_ORDINARY = frozenset(
    [
        "everything",
        "fetch",
        "file",
        "files",
        "filesystem",
        "mail",
        "maps",
        "memory",
        "mobile",
        "search",
        "server",
        "sequential",
        "thinking",
        "time",
        "tools",
        "web",
        "word",
    ]
)
_TURNS, _TURN_WORDS = 8, 60
# Of the lexical index GitHub is two words.
_WORD = re.compile(r"[^\W_]+")


class ServerFinder:
    """Finds the servers that a text names.

    Parameters
    ----------
    tools
        In the order of scores.
    """

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        listed = list(tools)
        self._count = len(listed)
        self._places = _places(listed)
        self._server_of = _names(listed, self._places)

    def gain(self, matched: str, *, before: Sequence[Message] | None = None) -> Floats:
        """Return float32 [n_tools]: what each tool gains.

        Parameters
        ----------
        matched
            The request without what is masked: a name within quotes is no server's.
        before
            The turns before a request that leans on them; they count where the request itself names none.
        """
        found = self._named(matched)
        if not found and before is not None and self._server_of:
            found = {server for text in _said(before) for server in self._named(normalise(text).text)}
        gained = np.zeros(self._count, np.float32)
        for server in found:
            gained[self._places[server]] = NAMED
        return gained

    def _named(self, text: str) -> set[str]:
        return {self._server_of[word] for word in _words(text) if word in self._server_of}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _places(tools: Sequence[ToolSpec]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, tool in enumerate(tools):
        if tool.server:
            found.setdefault(tool.server, []).append(place)
    return found


def _names(tools: Sequence[ToolSpec], places: dict[str, list[int]]) -> dict[str, str]:
    """Return the words that name a server, with its name: of one server only, and of no other one's tools."""
    if len(places) < 2:  # noqa: PLR2004 - one to tell from another
        return {}
    having: dict[str, list[str]] = {}
    for server in places:
        for word in dict.fromkeys(word for word in _words(server) if word not in _ORDINARY):
            having.setdefault(word, []).append(server)
    speakers: dict[str, list[str | None]] = {word: [] for word in having}
    for tool in tools:
        for word in having.keys() & {*_words(tool.name), *_words(tool.description), *words(tool.name)}:
            speakers[word].append(tool.server)
    return {
        word: owners[0]
        for word, owners in having.items()
        if len(owners) == 1 and speakers[word].count(owners[0]) >= _OWN_SHARE * len(speakers[word])
    }


def _said(turns: Sequence[Message]) -> Iterable[str]:
    """Return the beginnings of the last turns, the newest first."""
    return (" ".join(said(turn).split()[:_TURN_WORDS]) for turn in islice(reversed(turns), _TURNS))
