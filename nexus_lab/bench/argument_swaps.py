"""Exercises told of other things: names and numbers swapped in the conversation and the answer alike.

A small model that sees the same repository a hundred times learns the repository. What it is to learn is
where in a request a value stands, so the values change from round to round.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments import validate
from nexus_lab.arguments.wants import shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from nexus_lab.bench.argument_exercises import Exercise

__all__ = ["known_names", "swapped"]

_NAME = re.compile(r"[A-Za-z][\w.@/ -]{1,38}\w")
_WORD = re.compile(r"[a-z][a-z-]*[a-z]")
_DIGITS = re.compile(r"[1-9]\d{0,8}")
_YEARS = (1900, 2100)
_SHARE = 0.7
_FEW = 8
_ONSETS = ("b", "br", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "l", "n", "r", "s", "x")


def known_names(exercises: Iterable[Exercise]) -> dict[tuple[str, str], list[str]]:
    """Return the texts that arguments have, by the argument's name and what the text looks like."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for exercise in exercises:
        for name, value in _leaves(exercise.answer):
            if isinstance(value, str) and _NAME.fullmatch(value):
                found[name, shape(value)].add(value)
    return {key: sorted(values) for key, values in found.items()}


def swapped(
    exercise: Exercise, names: Mapping[tuple[str, str], Sequence[str]], chooser: np.random.Generator
) -> Exercise:
    """Return the exercise with most of the names and numbers that its conversation gives replaced.

    What the tool's own text holds, such as a listed value, stays. Where the new values would break the
    schema, the exercise is returned as it is.

    Parameters
    ----------
    names
        Of `known_names`.
    """
    told = " \n ".join([exercise.request, *(str(turn.get("content") or "") for turn in exercise.context)])
    shown = json.dumps([exercise.tool.description, exercise.tool.input_schema], ensure_ascii=False)
    swaps: dict[str, str] = {}
    for name, value in _leaves(exercise.answer):
        text = str(value)
        if text in swaps or not _stands(text, told) or _stands(text, shown) or chooser.random() > _SHARE:
            continue
        new = _other(name, value, names, chooser)
        if new and new not in swaps.values() and not _stands(new, told):
            swaps[text] = new
    if not swaps:
        return exercise
    found = replace(
        exercise,
        request=_replaced(exercise.request, swaps),
        context=tuple(
            {**turn, "content": _replaced(str(turn.get("content") or ""), swaps)} for turn in exercise.context
        ),
        answer={name: _answered(value, swaps) for name, value in exercise.answer.items()},
    )
    return exercise if validate(found.answer, exercise.tool.input_schema) else found


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts and whole numbers of an answer, each with the name it is given under."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, name)
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _other(
    name: str, value: Any, names: Mapping[tuple[str, str], Sequence[str]], chooser: np.random.Generator
) -> str | None:
    text = str(value)
    if _DIGITS.fullmatch(text):
        return _number(int(text), chooser)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        return None
    pool = [one for one in names.get((name, shape(value)), ()) if one != value]
    if _WORD.fullmatch(value) and len(pool) < _FEW:
        pool.append(_made_up(value, chooser))
    return str(chooser.choice(pool)) if pool else None


def _number(value: int, chooser: np.random.Generator) -> str:
    """Return another number of as many digits; a year for a year."""
    if _YEARS[0] <= value <= _YEARS[1]:
        return str(chooser.integers(1990, 2036))
    digits = len(str(value))
    return str(chooser.integers(10 ** (digits - 1), 10**digits))


def _made_up(like: str, chooser: np.random.Generator) -> str:
    """Return a word that is none, with the hyphens of `like`."""
    return "-".join(
        "".join(
            str(chooser.choice(_ONSETS)) + str(chooser.choice(_VOWELS)) + str(chooser.choice(_CODAS))
            for _ in range(max(1, min(4, len(part) // 3)))
        )
        for part in like.split("-")
    )


def _stands(text: str, where: str) -> bool:
    return re.search(_bounded(text), where) is not None


def _bounded(text: str) -> str:
    """Return a pattern of `text` as a whole: no part of a word, of a number or of a date."""
    return rf"(?<!\w)(?<!\d[-:.,]){re.escape(text)}(?!\w)(?![-:.,]\d)"


def _replaced(text: str, swaps: Mapping[str, str]) -> str:
    pattern = "|".join(map(_bounded, sorted(swaps, key=len, reverse=True)))
    return re.sub(pattern, lambda match: swaps[match[0]], text)


def _answered(value: Any, swaps: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _answered(part, swaps) for key, part in value.items()}
    if isinstance(value, list):
        return [_answered(part, swaps) for part in value]
    if isinstance(value, str):
        return _replaced(value, swaps)
    if isinstance(value, int) and not isinstance(value, bool) and str(value) in swaps:
        return int(swaps[str(value)])
    return value
