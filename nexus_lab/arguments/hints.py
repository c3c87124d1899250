"""What a description says of its values: examples, and the form in which dates are written."""

from __future__ import annotations

import datetime as dt
import re
from itertools import islice

from nexus_lab.arguments.lexicon import stem

__all__ = ["date_form", "examples_in", "key_of", "written_date"]

_LEAD = re.compile(
    r"(?:\be\.g\b\.?|\bfor (?:example|instance)\b|\bsuch as\b|\bexamples?:|\blike (?=['\"`])"
    r"|\bsupports\b(?=\s['\"`])|\binclud(?:es?|ing):?(?=\s['\"`]))[\s,:]*",
    re.IGNORECASE,
)
_END = re.compile(r"[);\n]|\.(?:\s|$)")
_BETWEEN = re.compile(r"\s*,\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+")
_QUOTED = re.compile(r"['\"`]([^'\"`\n]{1,40})['\"`]")
_MOST_WORDS, _LONGEST, _PAIR = 3, 30, 2
# Of a description: so many lists of examples, and so many characters of each.
_MOST_LEADS, _READ = 8, 300
_FORM = re.compile(
    r"(?<![\w%])(yyyy|yy|mmmm|mmm|mm|m|dd|d)([-/. ])(yyyy|mmmm|mmm|mm|m|dd|d)\2(yyyy|yy|mmm|mm|m|dd|d)"
    r"(?![\w%]|\s*T?\s*hh)",
    re.IGNORECASE,
)
_PARTS = {"yyyy": "%Y", "yy": "%y", "mmmm": "%B", "mmm": "%b", "mm": "%m", "m": "%-m", "dd": "%d", "d": "%-d"}


def examples_in(description: str) -> tuple[str, ...]:
    """Return the values that a description shows as examples: ``painting`` of ``E.g., painting, sculpture``.

    Examples
    --------
    >>> examples_in("Mode of analysis, e.g. 'static' or 'dynamic'. Default is 'static'.")
    ('static', 'dynamic')
    """
    found: list[str] = []
    for lead in islice(_LEAD.finditer(description), _MOST_LEADS):
        rest = re.sub(r"[ \t]+", " ", description[lead.end() : lead.end() + _READ])
        end = _END.search(rest)
        part = rest[: end.start()] if end else rest
        told = _QUOTED.findall(part) or [
            word.strip(" .") for word in _BETWEEN.split(part) if word.strip(" .")
        ]
        # What runs on is a sentence, and no list of values; ``San Francisco, CA`` is one value.
        whole = not _QUOTED.search(part) and len(told) == _PAIR and told[1].isupper()
        if not whole and all(_is_short(one) for one in told):
            found += told
    return tuple(dict.fromkeys(found))


def _is_short(text: str) -> bool:
    return len(text) <= _LONGEST and len(text.split()) <= _MOST_WORDS


def key_of(text: str) -> str:
    """Return `text` as it is compared with an example: without case, marks and plurals."""
    return " ".join(stem(word) for word in re.findall(r"\w+", text.casefold()))


def date_form(description: str) -> str:
    """Return the form of dates that a description asks for, as of ``strftime``; empty where it names none.

    Examples
    --------
    >>> date_form("The day, formatted as MM/DD/YYYY.")
    '%m/%d/%Y'
    """
    found = _FORM.search(description)
    if found is None:
        return ""
    parts = [_PARTS[found[n].lower()] for n in (1, 3, 4)]
    return found[2].join(parts) if len({part[-1].lower() for part in parts}) == len(parts) else ""


def written_date(iso: str, form: str) -> str:
    """Return a date, ``YYYY-MM-DD``, in a form of `date_form`; one with a time of day stays as it is."""
    try:
        day = dt.date.fromisoformat(iso)
        # Without zeros in front ``strftime`` has no form on every system.
        return day.strftime(form.replace("%-m", str(day.month)).replace("%-d", str(day.day)))
    except ValueError:
        return iso
