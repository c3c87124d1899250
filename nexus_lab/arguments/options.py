"""Evidence for values that a schema lists, and for yes or no: the words of the request beside their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.lexicon import NEGATIONS, content_words
from nexus_lab.routing import split_identifiers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.arguments.surroundings import Said
    from nexus_lab.arguments.wants import Argument

__all__ = ["option_features", "several"]

_LONGEST, _STEM, _ENDING, _MOST = 40, 4, 3, 3.0
_TRUTHS = ("true", "false")
_SAYING_LITTLE = frozenset({"is", "include", "show", "get", "enable"})


def option_features(argument: Argument, value: Any, said: Said) -> dict[str, float]:
    """Return what speaks for one of the listed values, or for `True` or `False`."""
    features: dict[str, float] = {f"o|{argument.state}": 1.0}
    if "default" in argument.schema:
        features[f"o|{argument.state}|default:{argument.schema['default'] == value}"] = 1.0
    truth = str(value).lower()
    if argument.kind == "boolean" or (
        truth in _TRUTHS and set(_TRUTHS) <= {str(other).lower() for other in argument.options}
    ):
        return features | _truth(argument, truth, said)
    words = content_words(str(value))
    own = words - frozenset[str]().union(
        *(content_words(str(other)) for other in argument.options if other != value)
    )
    fragment = argument.fragments.get(str(value), frozenset())
    features |= {
        "o|fragment": min(float(len(fragment & said.now)), _MOST),
        "o|fragment|share": len(fragment & said.now) / max(len(fragment), 1),
        "o|first": float(argument.options[0] == value),
        "o|chance": 1.0 / len(argument.options),
        "o|extra": float(len(own - said.now)),
    }
    if argument.code_kind:
        features["o|code"] = float(str(value).casefold() in said.codes(argument.code_kind))
    features |= _named(argument, value, said) | _shared(words, own, said)
    features |= {f"o:{word}|r:{heard}": 1.0 for word in own for heard in said.now if len(heard) < _LONGEST}
    return features | {f"o:{word}": 1.0 for word in own}


def _named(argument: Argument, value: Any, said: Said) -> dict[str, float]:
    """Return whether the value was said word for word, and not as a part of another one."""
    text = split_identifiers(str(value))
    if not text:
        return {}
    features = {"o|exact|earlier": float(_stands(text, said.earlier))}
    if _stands(text, said.text):
        others = [split_identifiers(str(other)) for other in argument.options]
        longer = any(text in other and other != text and _stands(other, said.text) for other in others)
        features |= {"o|exact": 1.0, f"o|exact|{argument.state}": 1.0, "o|inside": float(longer)}
    return features


def _stands(words: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(words)}s?\b", text) is not None


def _shared(words: frozenset[str], own: frozenset[str], said: Said) -> dict[str, float]:
    features = {}
    if words:
        features["o|share"] = len(words & said.now) / len(words)
        features["o|prefix"] = sum(_alike(word, said.now) for word in words) / len(words)
    if own:
        features["o|own"] = len(own & said.now) / len(own)
        features["o|own|any"] = float(bool(own & said.now))
        features["o|own|prefix"] = float(any(_alike(word, said.now) for word in own))
    return features


def _alike(word: str, words: Iterable[str]) -> bool:
    """Whether `word` or one that begins like it is among `words`."""
    for other in words:
        shorter = min(len(word), len(other))
        kept = max(_STEM, shorter - _ENDING)
        if word == other or (shorter >= _STEM and word[:kept] == other[:kept]):
            return True
    return False


def _truth(argument: Argument, truth: str, said: Said) -> dict[str, float]:
    names = frozenset(argument.words) - _SAYING_LITTLE
    hits, negated = names & said.now, bool(said.lower & NEGATIONS)
    features = {
        f"b|{truth}": 1.0,
        f"b|{truth}|{argument.state}": 1.0,
        f"b|{truth}|default:{argument.schema.get('default')}": 1.0,
        f"b|{truth}|named": len(hits) / max(len(names), 1),
        f"b|{truth}|alike": float(any(_alike(word, said.now) for word in names)),
        f"b|{truth}|own": min(float(len(argument.own & said.now)), _MOST),
        f"b|{truth}|negated": float(negated),
        f"b|{truth}|negated|named": float(negated and bool(hits)),
    }
    return features | {f"b|{truth}|n:{word}": 1.0 for word in argument.words}


def several(argument: Argument, said: Said) -> list[tuple[list[Any], dict[str, float]]]:
    """Return lists of the listed values with what speaks for each: those that were named, each, and all."""
    options = argument.options[:_LONGEST]
    if not options:
        return []
    codes = said.codes(argument.code_kind) if argument.code_kind else frozenset[str]()
    named = [
        value
        for value in options
        if _all_alike(content_words(str(value)), said.now) or str(value).casefold() in codes
    ]
    choices = [[value] for value in options] + ([named] if len(named) > 1 else [])
    if len(argument.options) <= _LONGEST:
        choices.append(list(argument.options))
    return [
        (
            choice,
            {
                "m|named": float(choice == named),
                "m|called": float(set(argument.words) <= said.now),
                "m|called|named": float(set(argument.words) <= said.now and choice == named),
                "m|size": float(len(choice)),
                "m|share": sum(value in named for value in choice) / len(choice),
                f"m|{argument.state}": 1.0,
            },
        )
        for choice in choices
    ]


def _all_alike(words: frozenset[str], heard: frozenset[str]) -> bool:
    return bool(words) and all(_alike(word, heard) for word in words)
