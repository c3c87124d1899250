"""Requests that name their tool outright: "use get_me", "call `fetch` on this page"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexus_lab.registry import Registry

__all__ = ["NameFinder"]

_TOKEN = re.compile(r"[^\s\"'`“”‘’()\[\]{}<>,;]+")
_TRAILING = ".:!?…"
# A name that is a plain word, such as "fetch", is meant as a name only in these places.
_POINTED_AT = re.compile(
    r"[`\"'“‘](?P<quoted>[^`\"'”’]+)[`\"'”’]|\b(?:use|call|run|invoke|using)\s+(?:the\s+)?(?P<used>[\w.-]+)"
    r"|\b(?P<before>[\w.-]+)\s+tool\b|\btool\s+(?P<after>[\w.-]+)|\b(?P<called>[\w.-]+)\(",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"[a-z][A-Z]|\w[_.:/-]\w|\w\d")


class NameFinder:
    """Finds the tools that a request names, in any case.

    A name that looks like an identifier (``list_issues``, ``listIssues``, ``server.tool``) counts wherever
    it stands; a plain word only where it is quoted, called, or is the whole request.
    """

    def __init__(self, names: Sequence[str], registry: Registry) -> None:
        self._identifiers: dict[str, int] = {}
        self._words: dict[str, int] = {}
        self._phrases: dict[str, int] = {}
        for place, name in enumerate(names):
            tool = registry.get(name)
            forms = {name, tool.qualified_name} if tool is not None else {name}
            for form in sorted(forms):
                self._table(form).setdefault(form.casefold(), place)

    def places(self, request: str) -> tuple[int, ...]:
        """Return the places, in the sequence of names, of the tools that `request` names."""
        found = dict.fromkeys(self._found(request))
        return tuple(found)

    def _table(self, name: str) -> dict[str, int]:
        if any(character.isspace() for character in name):
            return self._phrases
        return self._identifiers if _IDENTIFIER.search(name) else self._words

    def _found(self, request: str) -> Iterator[int]:
        whole = request.strip().rstrip(_TRAILING).casefold()
        for table in (self._identifiers, self._words, self._phrases):
            if whole in table:
                yield table[whole]
        for match in _TOKEN.finditer(request):
            token = match[0].rstrip(_TRAILING).casefold()
            if token in self._identifiers:
                yield self._identifiers[token]
        for match in _POINTED_AT.finditer(request):
            word = next(part for part in match.groups() if part is not None).casefold()
            if word in self._words:
                yield self._words[word]
        folded = request.casefold() if self._phrases else ""
        yield from (place for phrase, place in self._phrases.items() if phrase in folded)
