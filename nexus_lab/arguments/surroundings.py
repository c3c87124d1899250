"""What is around each part of a conversation: the words beside it, the ends of its sentence."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.arguments.codes import CODES
from nexus_lab.arguments.hints import key_of
from nexus_lab.arguments.lexicon import FILLERS, PREPOSITIONS, content_words, sense, stem
from nexus_lab.routing import split_identifiers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexus_lab.arguments.spans import Span, Turn
    from nexus_lab.registry import ToolSpec

__all__ = ["Around", "Said", "span_text"]

# Kinds of which a part is seldom meant.
_WHOLES = frozenset(
    {"quote", "url", "email", "path", "slug", "code", "sha", "date", "time", "capitals", "statement", "file"}
    | {"list_quote", "list_number", "list_capitals", "bracketed"}
)
_RANKED = frozenset(
    {
        "number",
        "bracketed",
        "capitals",
        "quote",
        "code",
        "date",
        "iso_date",
        "path",
        "time",
        "clock",
        "name",
        "owner",
        "ticket",
        "zone",
    }
)
_NEAR, _BEHIND = 4, 2
_BUCKETS = ((7, "7+"), (4, "4-6"))


@dataclass(frozen=True, slots=True)
class Around:
    """What is around a span.

    Attributes
    ----------
    base
        Features of the span that do not depend on the argument.
    link
        The preposition that leads to it.
    before, after
        Words before it, nearest first, and behind it; without plurals, one word for each sense.
    words
        Its own words that carry meaning.
    key
        What it is compared with examples by; empty for what is no text.
    length
        How many words it has, roughly.
    age
        ``now`` in the request, else ``user`` or ``model``.
    """

    base: Mapping[str, float]
    link: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    words: frozenset[str]
    key: str
    length: str
    age: str


class Said:
    """A conversation beside a tool: its turns, its spans, and what is around each of them.

    Attributes
    ----------
    now, before
        Words that carry meaning in the request, and in what the user said before.
    text, earlier
        The same turns as lower-case words.
    """

    def __init__(self, turns: Sequence[Turn], spans: Sequence[Span], tool: ToolSpec) -> None:
        self.turns, self.spans = turns, spans
        self.now = _words_of(turn for turn in turns if turn.age == 0)
        self.before = _words_of(turn for turn in turns if turn.age and turn.user)
        self.text = " ".join(split_identifiers(turn.text) for turn in turns if turn.age == 0)
        self.earlier = " ".join(split_identifiers(turn.text) for turn in turns if turn.age and turn.user)
        self.lower = frozenset(word for turn in turns if turn.age == 0 for word in turn.lower)
        self._topic = content_words(f"{tool.name} {tool.description.split('. ')[0]}")
        self._wholes = [span for span in spans if span.kinds & _WHOLES]
        self._around = {id(span): self._look(span) for span in spans}
        self._ranks = _ranks(spans)
        self._codes = {
            kind: frozenset(str(one.value).casefold() for one in spans if one.turn == 0 and kind in one.kinds)
            for kind in CODES
        }

    def around(self, span: Span) -> Around:
        """Return what is around `span`."""
        return self._around[id(span)]

    def codes(self, kind: str) -> frozenset[str]:
        """Return the codes of a kind, such as ``currency``, that the request names; in lower case."""
        return self._codes.get(kind, frozenset())

    def rank(self, span: Span, kind: str) -> int:
        """Return how many of its kind were said before it."""
        return self._ranks.get((id(span), kind), -1)

    def _look(self, span: Span) -> Around:
        turn = self.turns[span.turn]
        first, stop = turn.between(span.start, span.stop)
        before = turn.lower[max(0, first - _NEAR) : first][::-1]
        after = turn.lower[stop : stop + _BEHIND]
        inner = turn.lower[first:stop]
        length = next((name for bound, name in _BUCKETS if len(inner) >= bound), str(len(inner)))
        age = "now" if span.turn == 0 else "user" if turn.user else "model"
        words, link = content_words(span_text(span)), _link(before)
        key = key_of(span.value) if isinstance(span.value, str) else ""
        base = {f"k:{kind}": 1.0 for kind in span.kinds} | {
            f"inside:{kind}": 1.0 for kind in self._inside(span)
        }
        base |= {
            f"age:{age}": 1.0,
            f"len:{length}": 1.0,
            f"link:{link}": 1.0,
            "age": float(span.turn),
            "fillers": sum(word in FILLERS for word in inner) / max(len(inner), 1),
            "topic": len(words & self._topic) / max(len(words), 1),
            "edge_left": float(not before or before[0] in FILLERS | PREPOSITIONS),
            "edge_right": float(not after or after[0] in FILLERS | PREPOSITIONS),
        }
        base |= {f"then:{word}": 1.0 for word in after[:1] if word in PREPOSITIONS}
        base |= dict.fromkeys(_marks(span, turn.text, opens=first == 0), 1.0)
        return Around(base, link, _senses(before), _senses(after), words, key, length, age)

    def _inside(self, span: Span) -> set[str]:
        """Return the kinds of longer spans that hold this one."""
        return {
            kind
            for other in self._wholes
            if other.turn == span.turn and other.start <= span.start and span.stop <= other.stop
            if other.stop - other.start > span.stop - span.start
            for kind in other.kinds & _WHOLES
        }


def span_text(span: Span) -> str:
    """Return the value of `span` as text."""
    return span.value if isinstance(span.value, str) else json.dumps(span.value)


def _words_of(turns: Iterable[Turn]) -> frozenset[str]:
    return frozenset[str]().union(*(content_words(turn.text) for turn in turns))


def _senses(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(sense(stem(word)) for word in words)


def _link(before: Sequence[str]) -> str:
    """Return the preposition before a span, also with a filler between them."""
    for word in before[:2]:
        if word in PREPOSITIONS:
            return word
        if word not in FILLERS:
            break
    return ""


def _marks(span: Span, text: str, *, opens: bool) -> set[str]:
    """Return what the characters at the ends of a span show."""
    head, tail = text[: span.start], text[span.stop :]
    value = span.value if isinstance(span.value, str) else "1"
    upper = value[:1].isupper()
    shown = {
        "colon": ":" in head[-2:],
        "opens": opens or re.search(r"[.!?]\s+$", head[-3:]) is not None,
        "closes": re.match(r"[\"'”’)]*\s*(?:[.!?]\s|[.!?]?\s*$)", tail) is not None,
        "upper": upper,
        "upper_run": upper and not re.match(r",? [A-Z]", tail) and not re.search(r"[A-Z]\S* $", head[-40:]),
        "no_letter": not re.search(r"[A-Za-z]", value) and isinstance(span.value, str),
    }
    return {name for name, holds in shown.items() if holds}


def _ranks(spans: Sequence[Span]) -> dict[tuple[int, str], int]:
    ranks: dict[tuple[int, str], int] = {}
    for kind in _RANKED:
        alike = [span for span in spans if kind in span.kinds]
        places = {place: n for n, place in enumerate(sorted({(span.turn, span.start) for span in alike}))}
        ranks |= {(id(span), kind): places[span.turn, span.start] for span in alike}
    return ranks
