"""Values that the conversation offers for an argument: a first, plain form of grounding.

A 135M model that writes freely copies the hints of a signature, or loops. Here its strings, numbers and
dates are spans of what the user said, sorted by what they look like; it only chooses among them. Enums and
booleans stay its own choice, and so does an argument for which nothing was said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.grammar import build_grammar
from nexus_lab.arguments.leaves import MAX_STRING, counts, longest_text
from nexus_lab.arguments.zones import zones_said
from nexus_lab.registry import repair_text
from nexus_lab.routing import SpanKind, normalise, split_identifiers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.arguments.base import GrammarPlan
    from nexus_lab.registry import ToolSpec

__all__ = ["mentioned", "plan_call", "spoken_values"]

_WORD = re.compile(r"[^\s,;:()\[\]{}<>\"“”`!?]+")
_FILE = re.compile(r"[\w.-]*\w\.[A-Za-z]\w{0,5}|\.\w[\w.-]*")
_PHRASE_WORDS = 7
_MOST = 96
_LONGEST = 4_000  # characters of a text that is offered
_DIGITS = 32
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a all an and any are as at be by can could did do does for from get give had has have i in into is "
        "it its just let make me my of on only or our please show so tell that the their them then there "
        "these they this those to us was we were what when where which who will with would you your",
    )
)
# Words in the name of an argument that say what its values look like.
_KIND_WORDS = {
    SpanKind.DATE: frozenset({"date", "since", "until", "before", "after", "start", "end", "day"}),
    SpanKind.TIME: frozenset({"time", "hour"}),
    SpanKind.URL: frozenset({"url", "uri", "link", "href", "website"}),
    SpanKind.PATH: frozenset({"path", "file", "filename", "directory", "folder", "source", "destination"}),
    SpanKind.HASH: frozenset({"sha", "hash", "commit", "revision"}),
}
_FREE_WORDS = frozenset(
    {"query", "body", "text", "content", "message", "comment", "title", "description", "q", "prompt"}
)
_ZONE_WORDS = frozenset({"timezone", "tz"})
_COUNT_WORDS = frozenset({"number", "id"})
_FORMATS = {
    "date": SpanKind.DATE,
    "date-time": SpanKind.DATE,
    "time": SpanKind.TIME,
    "uri": SpanKind.URL,
}


@dataclass(slots=True)
class _Said:
    """What the user said: parts by what they look like, in order, each once."""

    quotes: dict[str, None] = field(default_factory=dict)
    kinds: dict[SpanKind, dict[str, None]] = field(default_factory=dict)
    words: dict[str, None] = field(default_factory=dict)
    phrases: dict[str, None] = field(default_factory=dict)
    figures: dict[float, None] = field(default_factory=dict)

    def of(self, kind: SpanKind) -> list[str]:
        return list(self.kinds.get(kind, ()))

    def pairs(self) -> list[tuple[str, str]]:
        """Parts of the form ``owner/name``."""
        halves = [part.split("#")[0].split("/") for part in self.of(SpanKind.PATH)]
        return [(parts[0], parts[1]) for parts in halves if len(parts) == 2 and all(parts)]  # noqa: PLR2004

    def numbers(self) -> list[float]:
        behind = [part.rsplit("#", 1)[1] for part in self.of(SpanKind.PATH) if "#" in part]
        return list(dict.fromkeys([*self.figures, *map(_figure, filter(_is_number, behind))]))

    def n_numbers(self) -> int:
        return len({abs(number) for number in self.numbers()})


def plan_call(tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]] = ()) -> GrammarPlan:
    """Return the grammar for a call of `tool` that answers `request`.

    Optional arguments may come only where the conversation speaks of them, strings and numbers only as it
    says them.

    Parameters
    ----------
    context
        The turns before the request, oldest first.
    """
    return build_grammar(
        tool.input_schema,
        tool=tool.name,
        optional=mentioned(tool, request, context),
        values=spoken_values(tool, request, context),
    )


def spoken_values(
    tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return, for arguments by name, the values among which a call may choose; latest turn first.

    Arguments that are missing here are free: enums, booleans, objects, and those for which nothing was said.
    """
    said = _listen([*_user_turns(context), request])
    found = {}
    for name, schema in tool.properties.items():
        values = _values(name, schema, tool, said) if isinstance(schema, dict) else []
        values = [value for value in dict.fromkeys(values) if _is_admitted(value, schema)][:_MOST]
        if values:
            found[name] = tuple(values)
    return found


def mentioned(tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]] = ()) -> frozenset[str]:
    """Return the optional arguments that the conversation speaks of.

    An argument is spoken of when all words of its name occur in what the user said, or one of its enum
    values does, singular and plural alike; or when something was said that looks like its values and that
    no required argument takes: a date, an address, a hash, a quoted text, one more number, an ``owner/repo``.
    """
    turns = [*_user_turns(context), request]
    heard, said = _stems(" ".join(turns)), _listen(turns)
    required = set(tool.required)
    return frozenset(
        name
        for name, schema in tool.properties.items()
        if name not in required
        and (_stems(name) <= heard or _chosen(schema, heard) or _looks_said(name, schema, tool, said))
    )


def _user_turns(context: Sequence[Mapping[str, Any]]) -> list[str]:
    said = (turn.get("content") for turn in context if turn.get("role") == "user")
    return [text for text in said if isinstance(text, str)]


def _listen(turns: Sequence[str]) -> _Said:
    said = _Said()
    for turn in map(repair_text, reversed(turns)):
        found = normalise(turn)
        for span in found.spans:
            part = turn[span.start : span.stop]
            if span.kind is SpanKind.QUOTE:
                said.quotes[part[1:-1]] = None
            else:
                said.kinds.setdefault(span.kind, {})[part.rstrip(".,;:")] = None
            if span.kind is SpanKind.NUMBER:
                said.figures.update(dict.fromkeys(_figures(turn, span.start, part)))
        places = list(_words(_blank_quotes(turn)))
        words = [turn[start:stop] for start, stop in places]
        said.words.update(dict.fromkeys(word for word in words if word.lower() not in _STOP))
        said.phrases.update(dict.fromkeys(_phrases(turn, places)))
        for word in words:
            if _FILE.fullmatch(word) and not _is_number(word):
                said.kinds.setdefault(SpanKind.PATH, {})[word] = None
    return said


def _blank_quotes(turn: str) -> str:
    for span in normalise(turn).spans:
        if span.kind is SpanKind.QUOTE:
            turn = turn[: span.start] + " " * (span.stop - span.start) + turn[span.stop :]
    return turn


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the words of `text` begin and end, without the marks around them."""
    for match in _WORD.finditer(text):
        word = match[0].rstrip(".'’")
        start = match.start() + len(word) - len(word.lstrip("'’"))
        stop = match.start() + len(word.removesuffix("'s"))
        if start < stop:
            yield start, stop


def _phrases(turn: str, places: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield what runs from one word to another, as it was written, longest first.

    A run neither begins nor ends with a filler; one of many words reaches to the end of the turn. Of these
    come the longest that can be offered at all, and those that any argument takes.
    """
    marks = [turn[start:stop].lower() in _STOP for start, stop in places]
    last, many = len(places) - 1, 0
    for length in range(len(places), 1, -1):
        for first in range(0 if length <= _PHRASE_WORDS else last + 1 - length, last + 2 - length):
            final = first + length - 1
            begin, end = places[first][0], places[final][1]
            if marks[first] or marks[final] or end - begin > _LONGEST:
                continue
            if length > _PHRASE_WORDS and end - begin > MAX_STRING:
                if many == _MOST:
                    continue
                many += 1
            yield turn[begin:end]


def _values(name: str, schema: Mapping[str, Any], tool: ToolSpec, said: _Said) -> list[Any]:
    if "enum" in schema or "const" in schema:
        return []
    kinds = schema.get("type")
    if kinds in ("integer", "number"):
        return list(said.numbers())
    items = schema.get("items")
    if kinds == "array" and isinstance(items, dict) and items.get("type") == "string" and "enum" not in items:
        return [*said.quotes, *_plain_words(said)]
    if kinds != "string":
        return []
    return _strings(name, schema, tool, said)


def _strings(name: str, schema: Mapping[str, Any], tool: ToolSpec, said: _Said) -> list[str]:
    words = set(split_identifiers(name).split())
    if _is_pair_half(name, tool) and said.pairs():
        return [pair[name == "repo"] for pair in said.pairs()]
    if words & _ZONE_WORDS or {"time", "zone"} <= words:
        return zones_said([*said.quotes, *said.phrases, *said.words]) or _any_text(said)
    kind = _kind(words, schema)
    if kind is not None:
        found = said.of(kind)
        if kind is SpanKind.PATH and "repo" in tool.properties:
            repositories = {f"{owner}/{repo}" for owner, repo in said.pairs() if not _FILE.fullmatch(repo)}
            found = [part for part in found if part.split("#")[0] not in repositories] or found
        return found or _any_text(said)
    if words & _FREE_WORDS:
        return list(said.quotes) or [*said.phrases, *said.words]
    return _any_text(said)


def _kind(words: set[str], schema: Any) -> SpanKind | None:
    given = _FORMATS.get(schema.get("format", "")) if isinstance(schema, dict) else None
    return given or next((kind for kind, marks in _KIND_WORDS.items() if words & marks), None)


def _any_text(said: _Said) -> list[str]:
    halves = [half for pair in said.pairs() for half in pair]
    return [*said.quotes, *halves, *_plain_words(said)]


def _plain_words(said: _Said) -> list[str]:
    return [word for word in said.words if not _is_number(word.lstrip("#"))] or list(said.words)


def _looks_said(name: str, schema: Any, tool: ToolSpec, said: _Said) -> bool:
    words = set(split_identifiers(name).split())
    kind = _kind(words, schema)
    if kind in (SpanKind.DATE, SpanKind.TIME, SpanKind.URL, SpanKind.HASH):
        return bool(said.of(kind))
    taken = [tool.properties[other] for other in tool.required if other in tool.properties]
    if _is_pair_half(name, tool):
        return bool(said.pairs())
    if words & _FREE_WORDS and _type(schema) == "string":
        free = [other for other in tool.required if set(split_identifiers(other).split()) & _FREE_WORDS]
        return len(said.quotes) > len(free)
    if words & _COUNT_WORDS and _type(schema) in ("integer", "number"):
        return said.n_numbers() > sum(_type(other) in ("integer", "number") for other in taken)
    return False


def _is_pair_half(name: str, tool: ToolSpec) -> bool:
    return name in ("owner", "repo") and {"owner", "repo"} <= set(tool.properties)


def _type(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else None


def _chosen(schema: Any, heard: set[str]) -> bool:
    values = schema.get("enum") if isinstance(schema, dict) else None
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return any(words and words <= heard for words in map(_stems, texts))


def _stems(text: str) -> set[str]:
    return {word.removesuffix("s") for word in split_identifiers(text).split()}


def _is_admitted(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a text is short enough for its argument; the first of too many would crowd out all others."""
    part = schema.get("items") if schema.get("type") == "array" else schema
    if not isinstance(value, str) or not isinstance(part, dict):
        return True
    counted = counts(part, lambda *_departure: None, "minLength", "maxLength")
    return len(value) <= min(longest_text(counted), _LONGEST)


def _figures(turn: str, start: int, part: str) -> Iterator[float]:
    """Yield the numbers that `part` of `turn`, from `start` on, may stand for.

    ``7,000`` is one number and ``1,2`` are two; ``-7`` may be below zero or a mark and a number; the end of a
    version is none.
    """
    before = turn[max(start - 2, 0) : start]
    if before.endswith("."):
        if before[:-1].isalnum():
            return
        part = f"0.{part}"
    written = part.removeprefix("#")
    parts = [written.replace(",", "")] if _THOUSANDS.fullmatch(written) else written.split(",")
    numbers = [_figure(text) for text in parts if _is_number(text)]
    if numbers and before[-1:] in ("-", "−") and not before[:-1].strip().strip("(=:"):
        yield -numbers[0]
    yield from numbers


def _figure(text: str) -> float:
    return float(text) if "." in text else int(text)


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS and re.fullmatch(r"\d+(?:\.\d+)?", text) is not None
