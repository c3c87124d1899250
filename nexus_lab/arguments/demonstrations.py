"""Calls of the same tool that were right before: what they show of where its values are found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.evidence import NOTHING, typed
from nexus_lab.arguments.lexicon import content_words
from nexus_lab.arguments.spans import hear
from nexus_lab.arguments.surroundings import Said
from nexus_lab.arguments.wants import shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.arguments.evidence import Candidate
    from nexus_lab.arguments.surroundings import Around
    from nexus_lab.arguments.wants import Argument
    from nexus_lab.registry import ToolSpec

__all__ = ["Demonstration", "Shown"]

_MOST = 8


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A request and the arguments that were right for it, as one approved or corrected them.

    Attributes
    ----------
    context
        The turns before the request, oldest first.
    """

    request: str
    arguments: Mapping[str, Any]
    context: Sequence[Mapping[str, Any]] = field(default=())


@dataclass(frozen=True, slots=True)
class _Seen:
    """One argument in one demonstration.

    Attributes
    ----------
    near
        How alike its request is to the one at hand: shared words by all words.
    kinds, around
        What the value looks like there, and what stands beside it; empty where it was not said in words.
    """

    near: float
    value: Any
    kinds: frozenset[str] = frozenset()
    around: tuple[Around, ...] = ()


class Shown:
    """What demonstrations of a tool show, for one request.

    Parameters
    ----------
    demonstrations
        Of the same tool; the eight whose requests are most like this one count.
    """

    def __init__(self, tool: ToolSpec, request: str, demonstrations: Sequence[Demonstration]) -> None:
        words = content_words(request)
        ranked = sorted(((_alike(words, one), n) for n, one in enumerate(demonstrations)), reverse=True)
        self._known = [(near, *_heard(tool, demonstrations[n])) for near, n in ranked[:_MOST]]

    def beside(self, argument: Argument, found: Sequence[Candidate], said: Said) -> list[Candidate]:
        """Return the candidates of an argument with what the demonstrations say of each."""
        if not self._known:
            return list(found)
        seen = [_seen(near, one, there, argument) for near, one, there in self._known]
        given = [one for one in seen if one.value is not NOTHING]
        return [
            replace(one, features={**one.features, **_features(argument, one, said, seen, given)})
            for one in found
        ]


def _alike(words: frozenset[str], one: Demonstration) -> float:
    theirs = content_words(one.request)
    return len(words & theirs) / max(len(words | theirs), 1)


def _heard(tool: ToolSpec, one: Demonstration) -> tuple[Demonstration, Said]:
    turns, spans = hear([*one.context, {"role": "user", "content": one.request}])
    return one, Said(turns, spans, tool)


def _seen(near: float, one: Demonstration, there: Said, argument: Argument) -> _Seen:
    if argument.name not in one.arguments:
        return _Seen(near, NOTHING)
    value = one.arguments[argument.name]
    spans = [span for span in there.spans if typed(span, argument.kind) == value]
    kinds = frozenset[str]().union(*(span.kinds for span in spans))
    return _Seen(near, value, kinds, tuple(there.around(span) for span in spans))


def _features(
    argument: Argument, one: Candidate, said: Said, seen: Sequence[_Seen], given: Sequence[_Seen]
) -> dict[str, float]:
    weight = sum(each.near for each in seen) or 1.0
    if one.value is NOTHING:
        lacking = [each.near for each in seen if each.value is NOTHING]
        return {
            f"demo|absent|{argument.state}": len(lacking) / len(seen),
            f"demo|absent|near|{argument.state}": sum(lacking) / weight,
        }
    same = [each.near for each in given if each.value == one.value]
    which = "span" if one.spans else argument.kind
    features = {
        f"demo|same|{which}": len(same) / len(seen),
        f"demo|same|near|{which}": sum(same) / weight,
        f"demo|nearest|{which}": float(max(seen, key=lambda each: each.near).value == one.value),
    }
    said_so = [each for each in given if each.kinds]
    if one.spans and said_so:
        features |= _likeness(one, said, said_so)
    return features


def _likeness(one: Candidate, said: Said, seen: Sequence[_Seen]) -> dict[str, float]:
    """Return how much a part of the conversation is like the values that were right."""
    span = one.spans[0]
    around = said.around(span)
    shares = [len(span.kinds & each.kinds) / len(span.kinds | each.kinds) for each in seen]
    return {
        "demo|kinds": max(shares),
        "demo|kinds|mean": sum(shares) / len(shares),
        "demo|link": _share(seen, lambda other: other.link == around.link),
        "demo|before": _share(seen, lambda other: other.before[:1] == around.before[:1]),
        "demo|length": _share(seen, lambda other: other.length == around.length),
        "demo|shape": sum(_shape(each.value) == _shape(one.value) for each in seen) / len(seen),
    }


def _share(seen: Sequence[_Seen], holds: Any) -> float:
    return sum(any(map(holds, each.around)) for each in seen) / len(seen)


def _shape(value: Any) -> str:
    return shape(value) if isinstance(value, str) else type(value).__name__
