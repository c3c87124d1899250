"""Requests that name their tool outright: "use get_me", "call `fetch` on this page"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexus_lab.registry import Registry

__all__ = ["NameFinder"]

# Names are looked for in so much of a request; a pasted log of a megabyte is not read to its end.
_SEARCHED = 50_000
_TOKEN = re.compile(r"[^\s\"'`“”‘’()\[\]{}<>,;]+")
_TRAILING = ".:!?…"
_QUOTES = "`\"'“”‘’ "
# Possessive, since a long row of dots and dashes would be tried from each of them anew.
_WORD = r"(?<![\w.-])[\w.-]++"
# A name that is a plain word, such as "fetch", is meant as a name only in these places.
_POINTED_AT = re.compile(
    rf"\b(?:use|call|run|invoke|using)\s++(?:the\s++)?(?P<used>{_WORD})|(?P<before>{_WORD})\s++tool\b"
    rf"|\btool\s++(?P<after>{_WORD})|(?P<called>{_WORD})\(",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^“”\n]*”|‘[^‘’\n]*’|(?<!\w)'[^'\n]+'(?!\w)")
# What is quoted is a name where one is asked for, and else a title, a message, a search.
_ASKED_FOR = re.compile(
    r"\b(?:use|call|run|invoke|using|with|via|through)\s+(?:the\s+)?(?:tool\s+)?$|\btool\s+(?:called\s+)?$",
    re.IGNORECASE,
)
_TOOL_FOLLOWS = re.compile(r"\s+tool\b", re.IGNORECASE)
_REFUSED = re.compile(
    r"(?:\b(?:not|never|without|instead of|rather than)|n['’]t)\s+"
    r"(?:(?:use|call|run|invoke|using|calling|running)\s+)?(?:the\s+)?$",
    re.IGNORECASE,
)
_LOOK_BACK = 40
_IDENTIFIER = re.compile(r"[a-z][A-Z]|\w[_.:/-]\w|\w\d")


class _Names:
    """Names in any case, each with the place of its tool; the case that is written decides between two."""

    def __init__(self) -> None:
        self._forms: dict[str, dict[str, int]] = {}

    def add(self, name: str, place: int) -> None:
        self._forms.setdefault(name.casefold(), {}).setdefault(name, place)

    def find(self, written: str) -> int | None:
        forms = self._forms.get(written.casefold())
        return None if forms is None else forms.get(written, next(iter(forms.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)


class NameFinder:
    """Finds the tools that a request names, in any case.

    A name that looks like an identifier (``list_issues``, ``listIssues``, ``server.tool``) counts wherever
    it stands outside quotes; a plain word only where it is called, or is the whole request. Within quotes it
    counts where nothing else is quoted, and in backticks or where a tool is asked for (``use "fetch"``):
    ``mail "please use delete_repo"`` names no tool, nor does ``don't use delete_repo``.
    """

    def __init__(self, names: Sequence[str], registry: Registry) -> None:
        self._identifiers, self._words, self._phrases = _Names(), _Names(), _Names()
        self._exact: dict[str, int] = {}
        for place, name in enumerate(names):
            self._table(name).add(name, place)
            self._exact.setdefault(name, place)
        # After the names themselves: one tool may be called what another is with its server.
        for place, name in enumerate(names):
            tool = registry.get(name)
            if tool is not None:
                self._table(tool.qualified_name).add(tool.qualified_name, place)
                self._exact.setdefault(tool.qualified_name, place)
        self._spoken = [
            (phrase, re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)")) for phrase in self._phrases
        ]

    def places(self, request: str) -> tuple[int, ...]:
        """Return the places, in the sequence of names, of the tools that `request` names."""
        found = self._found(request[:_SEARCHED].strip())
        return tuple(dict.fromkeys(place for place in found if place is not None))

    def _table(self, name: str) -> _Names:
        if any(character.isspace() for character in name):
            return self._phrases
        return self._identifiers if _IDENTIFIER.search(name) else self._words

    def _by_name(self, written: str) -> int | None:
        """Return the place of the tool that is called `written`, with or without a mark after it."""
        for form in (written, written.rstrip(_TRAILING)):
            if form in self._exact:
                return self._exact[form]
            for table in (self._identifiers, self._words, self._phrases):
                if (place := table.find(form)) is not None:
                    return place
        return None

    def _standing(self, table: _Names, written: str, request: str, start: int) -> int | None:
        """Return the place of the tool of a table that is named at `start`, unless it is refused there."""
        word = written.rstrip(_TRAILING)
        place = table.find(word)
        # In the case that is written it may be the name of a tool of another table.
        other = place is None or self._exact.get(word, place) != place
        return None if other or _refused(request, start) else place

    def _found(self, request: str) -> Iterator[int | None]:
        yield self._by_name(request)
        yield self._by_name(request.strip(_QUOTES))
        for match in _QUOTED.finditer(request):
            pointed_at = match[0][0] == "`" or _asked_for(request, match.start(), match.end())
            if pointed_at and not _refused(request, match.start()):
                yield self._by_name(match[0][1:-1].partition("(")[0].strip())
        bare = _QUOTED.sub(" ", request)
        for match in _TOKEN.finditer(bare):
            yield self._standing(self._identifiers, match[0], bare, match.start())
        for match in _POINTED_AT.finditer(bare):
            group, word = next((name, part) for name, part in match.groupdict().items() if part is not None)
            yield self._standing(self._words, word, bare, match.start(group))
        folded = bare.casefold() if self._spoken else ""
        for phrase, pattern in self._spoken:
            if phrase in folded and pattern.search(folded):
                yield self._phrases.find(phrase)


def _refused(request: str, start: int) -> bool:
    """Whether what begins at `start` is not to be used: "don't call delete_repo"."""
    return _REFUSED.search(request[max(0, start - _LOOK_BACK) : start]) is not None


def _asked_for(request: str, start: int, stop: int) -> bool:
    """Whether what is quoted between `start` and `stop` stands where the name of a tool does."""
    before = request[max(0, start - _LOOK_BACK) : start]
    return _ASKED_FOR.search(before) is not None or _TOOL_FOLLOWS.match(request, stop) is not None
