"""Currencies, languages and countries by what people call them: ``British pounds`` is ``GBP``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.hints import examples_in, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CODES", "code_kind", "codes_listed", "codes_said"]

CODES = frozenset({"currency", "language", "country"})
_MOST_WORDS = 4
# Of what several countries call theirs, whose is meant where nobody says so.
_BARE = {"dollar": "USD", "pound": "GBP", "rupee": "INR"}
_LEADING = frozenset({"in", "into", "to", "from"})
_SHORT = {"usa": "US", "america": "US", "britain": "GB", "england": "GB"}
_CAPITALS = {"US": "US", "UK": "GB"}
# Codes and nouns of currencies that are words of everyday English as well.
_WORDS = frozenset(
    {"all", "bam", "bob", "cup", "gel", "mad", "mop", "pen", "sos", "top", "try", "real", "won"}
)
# Last words of what takes a currency, where the name does not say so itself.
_ENDS = frozenset(
    {"from", "to", "into", "source", "target", "base", "quote", "code", "codes", "symbol", "symbols"}
)
_PROGRAMS = re.compile(r"\b(?:programming|source|snippet|script)\b", re.IGNORECASE)
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
    name, last = " ".join(words), words[-1] if words else ""
    for kind, what in sorted(_WHAT.items(), key=lambda item: item[1].search(name) is None):
        named, coded = what.search(name) is not None, _CODED[kind].search(description) or "code" in words
        # A currency is nearly always written as its code, also where nobody says so.
        wanted = named or last in _ENDS if kind == "currency" else coded and not _PROGRAMS.search(description)
        if wanted and (named or what.search(description)):
            called = any(key_of(one) in _known()[kind] for one in examples_in(description))
            return "" if called or last in _AMOUNTS else kind
    return ""


def codes_said(text: str, words: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, str, str]]:
    """Yield where a currency, a language or a country is named in `text`: start, stop, its code, its kind.

    The longest names only: of ``Canadian dollars`` not ``dollars``.

    Parameters
    ----------
    words
        Where the words of `text` begin and end.
    """
    # What the parts are compared by is the same for every kind.
    parts = [
        [(stop, key_of(text[start:stop])) for _, stop in reversed(words[first : first + _MOST_WORDS])]
        for first, (start, _) in enumerate(words)
    ]
    for kind, known in _known().items():
        taken = 0
        for first, (start, _) in enumerate(words):
            if start < taken:
                continue
            before = text[slice(*words[first - 1])] if first else ""
            for stop, key in parts[first]:
                if code := known.get(key) or _literal(text[start:stop], kind, before):
                    taken = stop
                    yield start, stop, code, kind
                    break


def codes_listed(values: Sequence[Any], words: Sequence[str], description: str) -> str:
    """Return of which of `CODES` all of some listed values are; empty where they are of none.

    Two letters are a country's or a language's only where the name or the description speaks of them.
    """
    wanted = {str(value).casefold() for value in values}
    for kind, codes in _codes().items():
        told = kind == "currency" or _WHAT[kind].search(f"{' '.join(words)} {description}")
        if told and len(wanted) > 1 and wanted <= codes:
            return kind
    return ""


def _literal(said: str, kind: str, before: str) -> str:
    """Return a currency's code that was said as such; those of languages and countries are words as well.

    In lower case only behind a number or a preposition, and where it is no word (``to try``, ``to all``).
    """
    if kind == "country":
        return _CAPITALS.get(said, "")
    led = (before[-1:].isdigit() or before.lower() in _LEADING) and said not in _WORDS
    if kind != "currency" or not (said.isupper() or (led and said.islower())):
        return ""
    return said.upper() if said.lower() in _codes()[kind] else ""


@cache
def _codes() -> dict[str, frozenset[str]]:
    """Return all codes of a kind, in lower case."""
    return {kind: frozenset(code.casefold() for code in known.values()) for kind, known in _known().items()}


@cache
def _known() -> dict[str, dict[str, str]]:
    """Return, by kind, the codes of names; those of the Unicode CLDR, in English."""
    from babel import Locale
    from babel.core import get_global

    locale = Locale("en")
    used = {
        code
        for uses in get_global("territory_currencies").values()
        for code, _, until, tender in uses
        if tender and until is None
    }
    currencies = {key_of(name): code for code, name in locale.currencies.items() if code in used}
    nouns: dict[str, set[str]] = {}
    for name, code in currencies.items():
        nouns.setdefault(name.rsplit(" ", 1)[-1], set()).add(code)
    alone = {
        noun: next(iter(codes)) for noun, codes in nouns.items() if len(codes) == 1 and noun not in _WORDS
    }
    languages = {key_of(name): code for code, name in locale.languages.items() if len(code) == 2}  # noqa: PLR2004
    countries = {
        key_of(name): code for code, name in locale.territories.items() if re.fullmatch("[A-Z]{2}", code)
    }
    return {
        "currency": alone | _BARE | currencies,
        "language": languages,
        "country": _SHORT | countries,
    }
