"""What a part of the conversation says of an argument by itself: its words, its shape, its measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.arguments.lexicon import sense
from nexus_lab.arguments.wants import shape

if TYPE_CHECKING:
    from nexus_lab.arguments.spans import Span
    from nexus_lab.arguments.surroundings import Around
    from nexus_lab.arguments.wants import Argument

__all__ = ["likeness"]

_DATES = frozenset({"date", "iso_date"})
# What a number is measured in, by words of the argument.
_MEASURES = (
    ("percent", {"percent", "percentage"}),
    ("degrees", {"temperature", "kelvin"}),
    # A small m is short for both.
    ("metres", {"m", "meter", "metre", "height", "length", "distance", "width", "depth", "altitude"}),
    ("minutes", {"minute", "duration", "delay", "timeout"}),
)


def likeness(argument: Argument, span: Span, around: Around) -> dict[str, float]:
    """Return features of a span beside the name, the description and the examples of an argument."""
    features: dict[str, float] = {}
    # The zones that descriptions happen to name as examples say nothing of which one is meant.
    if not (argument.is_zone and "zone" in span.kinds):
        features |= _words(argument, span, around) | _examples(argument, span, around)
    if argument.kind in ("integer", "number"):
        features |= _measured(argument, span)
    if argument.date_form and span.kinds & _DATES:
        features[f"form|{'iso_date' in span.kinds}"] = 1.0
    return features


def _words(argument: Argument, span: Span, around: Around) -> dict[str, float]:
    """Return how much of the span is what the argument, or another one, is called."""
    words = around.words
    if not words:
        return {}
    names = argument.all_words
    features = {
        "self": len(words & names) / len(words),
        "self|all": float(words <= names | argument.described),
        "self_own": len(words & (argument.own - names)) / len(words),
        "self_others": len(words & (argument.others - argument.described)) / len(words),
    }
    said = around.key.split()
    if len(said) > 1:
        known = names | argument.described
        features["self|first"] = float(sense(said[0]) in known)
        features["self|last"] = float(sense(said[-1]) in known)
        if "capitals" in span.kinds:
            features["capitals|self"] = float(bool(words & names))
    return features


def _examples(argument: Argument, span: Span, around: Around) -> dict[str, float]:
    """Return whether the span looks like the examples of the description, and whether it is one of them."""
    features: dict[str, float] = {}
    if isinstance(span.value, str):
        if argument.shapes:
            features[f"shape:{shape(span.value) in argument.shapes}"] = 1.0
        if argument.examples:
            features["example"] = float(around.key in argument.examples)
    return features


def _measured(argument: Argument, span: Span) -> dict[str, float]:
    """Return whether a number is in the argument's measure: ``5%`` is 5 percent, ``2m`` no 2,000,000."""
    told = argument.all_words | argument.described
    return {
        f"{name}|{kind}": 1.0
        for name, words in _MEASURES
        if words & told
        for kind in ("share", "scaled", "number")
        if kind in span.kinds
    }
