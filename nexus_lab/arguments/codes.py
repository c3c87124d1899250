"""Currencies, languages and countries by what people call them: ``British pounds`` is ``GBP``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.hints import examples_in
from nexus_lab.arguments.lexicon import stem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CODES", "code_kind", "codes_listed", "codes_said"]

CODES = frozenset({"currency", "language", "country"})
_MOST_WORDS = 4
# Of what several countries call theirs, whose is meant where nobody says so.
_BARE = {"dollar": "USD", "pound": "GBP", "rupee": "INR"}
_LEADING = frozenset({"in", "into", "to", "from"})
_SHORT = {"usa": "US", "us": "US", "america": "US", "uk": "GB", "britain": "GB", "england": "GB"}
_WHAT = {
    "currency": re.compile(r"\bcurrenc(?:y|ies)\b", re.IGNORECASE),
    "language": re.compile(r"\b(?:languages?|lang|locale)\b", re.IGNORECASE),
    "country": re.compile(r"\b(?:country|countries|nation)\b", re.IGNORECASE),
}
_CODED = {
    "currency": re.compile(r"\b(?i:codes?|ISO[ -]?4217|symbols?|abbreviations?)\b|\b[A-Z]{3}\b"),
    "language": re.compile(r"\b(?i:codes?|ISO[ -]?639\S*|BCP\S*)\b|['\"`(][a-z]{2}(?:-[A-Z]{2})?['\"`),]"),
    "country": re.compile(r"\b(?i:codes?|ISO[ -]?3166\S*|alpha-?[23])\b|['\"`(][A-Z]{2}['\"`),]"),
}
_AMOUNTS = frozenset({"amount", "price", "rate", "value", "cost", "total", "fee", "balance", "number"})


def code_kind(words: Sequence[str], description: str) -> str:
    """Return which of `CODES` an argument takes; empty where it takes none.

    Parameters
    ----------
    words
        Words of its name.
    """
    name = " ".join(words)
    for kind, what in _WHAT.items():
        named = what.search(name) is not None
        coded = _CODED[kind].search(description) or "code" in words
        # A currency is nearly always written as its code, also where nobody says so.
        if (named or what.search(description)) and (coded or kind == "currency"):
            called = any(_key(one) in _known()[kind] for one in examples_in(description))
            return "" if called or (words and words[-1] in _AMOUNTS) else kind
    return ""


def codes_said(text: str, words: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, str, str]]:
    """Yield where a currency, a language or a country is named in `text`: start, stop, its code, its kind.

    The longest names only: of ``Canadian dollars`` not ``dollars``.

    Parameters
    ----------
    words
        Where the words of `text` begin and end.
    """
    for kind, known in _known().items():
        taken = 0
        for first, (start, _) in enumerate(words):
            for _, stop in reversed(words[first : first + _MOST_WORDS]):
                before = text[slice(*words[first - 1])] if first else ""
                code = known.get(_key(text[start:stop])) or _literal(text[start:stop], kind, before)
                if code and start >= taken:
                    taken = stop
                    yield start, stop, code, kind
                    break


def codes_listed(values: Sequence[Any]) -> str:
    """Return of which of `CODES` all of some listed values are; empty where they are of none."""
    wanted = {str(value).casefold() for value in values}
    for kind, known in _known().items():
        if len(wanted) > 1 and wanted <= {code.casefold() for code in known.values()}:
            return kind
    return ""


def _literal(said: str, kind: str, before: str) -> str:
    """Return a currency's code that was said as such; those of languages and countries are words as well.

    In lower case many are words too (``try``, ``all``), but not behind a number or a preposition.
    """
    led = before[-1:].isdigit() or before.lower() in _LEADING
    if kind != "currency" or not (said.isupper() or (led and said.islower())):
        return ""
    return said.upper() if said.upper() in _known()[kind].values() else ""


def _key(name: str) -> str:
    return " ".join(stem(word) for word in re.findall(r"[\w&]+", name.casefold()))


@cache
def _known() -> dict[str, dict[str, str]]:
    """Return, by kind, the codes of names; those of the Unicode CLDR, in English."""
    from babel import Locale

    locale = Locale("en")
    currencies = {
        _key(name): code
        for code, name in locale.currencies.items()
        if "(" not in name and code[0] != "X"  # of another time, or of none
    }
    nouns: dict[str, set[str]] = {}
    for name, code in currencies.items():
        nouns.setdefault(name.rsplit(" ", 1)[-1], set()).add(code)
    alone = {noun: next(iter(codes)) for noun, codes in nouns.items() if len(codes) == 1}
    languages = {_key(name): code for code, name in locale.languages.items() if len(code) == 2}  # noqa: PLR2004
    countries = {
        _key(name): code for code, name in locale.territories.items() if re.fullmatch("[A-Z]{2}", code)
    }
    return {
        "currency": alone | _BARE | currencies,
        "language": languages,
        "country": _SHORT | countries,
    }
