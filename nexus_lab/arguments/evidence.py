"""Evidence that a part of the conversation fills an argument: features of the pair, for a linear score.

What a span looks like meets what an argument is called and how its schema describes it; the words around the
span meet the same. Nothing here knows a tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.codes import CODES
from nexus_lab.arguments.hints import written_date
from nexus_lab.arguments.lexicon import CALLED, ROLES, WAYS
from nexus_lab.arguments.likeness import likeness
from nexus_lab.arguments.options import option_features, several
from nexus_lab.arguments.spans import is_statement
from nexus_lab.arguments.zones import is_zone_name
from nexus_lab.registry import load_jsonschema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.arguments.spans import Span
    from nexus_lab.arguments.surroundings import Around, Said
    from nexus_lab.arguments.wants import Argument

__all__ = ["NOTHING", "Candidate", "candidates", "typed"]

_LONGEST, _MOST = 40, 3.0
_OF_CODES = CODES | {f"list_{kind}" for kind in CODES} | {"list"}


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"

    def __reduce__(self) -> str:
        return "NOTHING"  # it is told by identity, in every process


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value for an argument, and what speaks for it.

    Attributes
    ----------
    value
        What would be written; `NOTHING` leaves the argument out, or to the model.
    spans
        Where it was said; none for an option.
    features
        Names and values of the evidence.
    """

    value: Any
    spans: tuple[Span, ...]
    features: Mapping[str, float]


def candidates(argument: Argument, said: Said, *, places: Mapping[str, int]) -> list[Candidate]:
    """Return the values that `argument` could take, `NOTHING` first.

    Parameters
    ----------
    places
        How many arguments before it take a kind of span, by kind; and how many are of its type.
    """
    found = [Candidate(NOTHING, (), _nothing(argument, said))]
    if argument.kind in ("boolean", "option"):
        found += [Candidate(value, (), option_features(argument, value, said)) for value in argument.options]
    elif argument.kind == "options":
        found += [Candidate(value, (), features) for value, features in several(argument, said)]
    elif argument.kind != "other":
        for span in said.spans:
            value = _written(argument, typed(span, argument.kind), span, said.around(span).key)
            if value is not None and _admits(argument, value):
                found.append(Candidate(value, (span,), _features(argument, span, said, places)))
    return found


def _written(argument: Argument, value: Any, span: Span, key: str) -> Any:
    """Return a value as the argument's description wants it: a date in its form, an example as it is spelt.

    ``None`` for a code of what the argument does not take, such as a currency's.
    """
    if span.kinds <= _OF_CODES and not span.kinds & {argument.code_kind, f"list_{argument.code_kind}"}:
        return None
    if not isinstance(value, str):
        return value
    if argument.date_form and "iso_date" in span.kinds:
        return written_date(value, argument.date_form)
    return argument.examples.get(key, value)


def _admits(argument: Argument, value: Any) -> bool:
    """Whether a value satisfies the argument's own schema."""
    if argument.is_statement:
        return is_statement(value)
    if argument.is_zone:
        return is_zone_name(value)
    return argument.is_plain or _is_valid(argument.schema, value)


def _is_valid(schema: Mapping[str, Any], value: Any) -> bool:
    dialect = load_jsonschema().Draft202012Validator
    try:
        return bool(dialect(schema, format_checker=dialect.FORMAT_CHECKER).is_valid(value))
    except Exception:  # noqa: BLE001 - a schema that cannot be applied is told of when the call is checked
        return True


def typed(span: Span, kind: str) -> Any:
    """Return what a span would be as the value of an argument of this kind; ``None`` where it cannot be."""
    value = span.value
    if kind == "string":
        return value if isinstance(value, str) and "split" not in span.kinds else None
    if kind in ("integer", "number"):
        return _number(value, kind)
    values = value if isinstance(value, list) else [value]
    if kind == "strings":
        return values if all(isinstance(one, str) for one in values) else None
    numbers = [_number(one, kind.removesuffix("s")) for one in values]
    return numbers if None not in numbers else None


def _number(value: Any, kind: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "number":
        return value
    return int(value) if float(value).is_integer() else None


def _nothing(argument: Argument, said: Said) -> dict[str, float]:
    named = set(argument.words) <= said.now | said.before
    return {
        f"none|{argument.state}": 1.0,
        f"none|{argument.state}|{argument.kind}": 1.0,
        f"none|{argument.state}|named:{named}": 1.0,
        f"none|{argument.state}|own": min(float(len(argument.own & said.now)), _MOST),
        "none|default": float("default" in argument.schema),
    }


def _features(argument: Argument, span: Span, said: Said, places: Mapping[str, int]) -> dict[str, float]:
    around = said.around(span)
    features = dict(around.base)
    for kind in span.kinds:
        features |= _looks(argument, kind)
        if said.rank(span, kind) == places.get(argument.kind, 0):
            features[f"rank|{kind}"] = 1.0
        if said.rank(span, kind) == places.get(kind, 0) and argument.fit(kind) == "name":
            features["rank|fit"] = 1.0
    if f"list_{argument.code_kind}" in span.kinds:
        features["codes|listed"] = 1.0
    features |= _words_beside(argument, around)
    names, others = argument.all_words, argument.others - argument.described - argument.all_words
    for name, near, known in (
        ("nb", around.before, names),
        ("na", around.after, names),
        ("ob", around.before, argument.own),
        ("oa", around.after, argument.own),
        ("xb", around.before[:2], others),
        ("xa", around.after[:1], others),
    ):
        hits = [n for n, word in enumerate(near) if word in known]
        if hits:
            features |= {f"{name}{hits[0]}": 1.0, f"{name}|{argument.kind}": 1.0}
    features |= likeness(argument, span, around)
    way = _way(argument, _leads(span, around))
    if way:
        features[f"way|{way}"] = 1.0
    features[f"{argument.state}|{around.age}"] = 1.0
    return features


def _leads(span: Span, around: Around) -> str:
    """Return the preposition before a span; ``in dollars`` is into them, ``in French`` too."""
    return "into" if around.link == "in" and span.kinds & {"currency", "language"} else around.link


def _way(argument: Argument, link: str) -> str:
    """Return whether the preposition before a span goes the way of the argument, or the other way."""
    ways = [n for n, (words, _) in enumerate(WAYS) if words & argument.all_words]
    said = [n for n, (_, links) in enumerate(WAYS) if link in links]
    if len(ways) != 1 or not said:
        return ""
    return "agrees" if ways == said else "clashes"


def _looks(argument: Argument, kind: str) -> dict[str, float]:
    """Return what a kind of span says about an argument by its name, description and type."""
    features = {f"{argument.kind}|k:{kind}": 1.0, f"last:{argument.last}|k:{kind}": 1.0}
    features |= {f"n:{word}|k:{kind}": 1.0 for word in argument.words}
    features |= {f"d:{word}|k:{kind}": 0.5 for word in argument.described}
    if kind in CALLED:
        fits = argument.fit(kind)
        features |= {f"fit|{fits}": 1.0, f"fit|{kind}|{fits}": 1.0}
        if argument.last in CALLED[kind]:
            features["fit|last"] = 1.0
    return features


def _words_beside(argument: Argument, around: Around) -> dict[str, float]:
    """Return pairs of a word of the argument's name and one beside the span."""
    before = [word for word in around.before[:2] if len(word) < _LONGEST]
    after = [word for word in around.after[:1] if len(word) < _LONGEST]
    features: dict[str, float] = {}
    for word in argument.words:
        features |= {f"n:{word}|link:{around.link}": 1.0, f"n:{word}|len:{around.length}": 1.0}
        features |= {f"n:{word}|b:{near}": 1.0 for near in before}
        features |= {f"n:{word}|a:{near}": 1.0 for near in after}
    return features | {f"d:{word}|link:{around.link}": 1.0 for word in argument.described & ROLES}
