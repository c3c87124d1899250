"""What a conversation offers as values: parts that could fill an argument, by what they look like."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.codes import codes_said
from nexus_lab.arguments.lexicon import FILLERS, LEADS, NUMBERS
from nexus_lab.arguments.moments import dates_in, times_in, today_in
from nexus_lab.arguments.zones import zones_said
from nexus_lab.registry import repair_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Span", "Turn", "hear", "is_statement"]

_LISTED = (
    *(
        "quote",
        "number",
        "money",
        "ticket",
        "ordinal",
        "digits",
        "date",
        "iso_date",
        "user",
        "capitals",
        "code",
        "word",
        "file",
    ),
    *("path", "email", "phrase", "split", "unit"),
    *("currency", "language", "country"),
)
# Kinds that nearly everything is; only of the request itself.
_VAGUE = frozenset(
    {"word", "phrase", "tail", "whole", "unit", "list", "list_word", "list_phrase", "list_unit"}
)
_TURNS, _MOST = 12, 1_500
_WHOM = frozenset({"slug", "owner", "name", "url", "email", "user", "path"})
_LONGEST = 4_000  # characters of a turn that are read, and of a text that is offered
_PHRASE_WORDS, _MANY_WORDS, _DIGITS, _MOST_NAMES = 9, 40, 32, 24
_TOKEN = re.compile(r"[^\s,;:()\[\]{}<>\"“”`!?=]+")
_STATEMENT = re.compile(
    r"\b(?:SELECT(?=[^;]*(?:FROM|[*(\d]))|INSERT\s+INTO|UPDATE|DELETE\s+FROM|CREATE\s+(?:TABLE|VIEW|INDEX)|DROP\s+TABLE|ALTER\s+TABLE|WITH)"
    r"(?=\s+\S)(?:(?!\.(?:\s|\Z))[^;\n])+"
)
_SENTENCE = re.compile(r"[.!?](?=\s|$)|\n|$")
_LEAD = re.compile(
    r":\s+(?=\S)|\b(?:say(?:ing|s)?|titled|called|named|about|that|whether|message|text)\s+(?=\S)"
    r"|\b(?:search|look)(?:\s\w+){0,3}?\s+for\s+(?=\S)",
    re.IGNORECASE,
)
_QUOTE = re.compile(r'"([^"\n]+)"|“([^”\n]+)”|`([^`\n]+)`|(?<!\w)[\'‘]([^\n]+?)[\'’](?!\w)')
_URL = re.compile(r"\b(?:https?|ftp|s3)://[^\s\"'<>)\]]+|\bwww\.[^\s\"'<>)\]]+")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_USER = re.compile(r"(?<![\w@/.])@([A-Za-z0-9][\w-]*)")
_SLUG = re.compile(r"(?<![\w/.~@-])([A-Za-z0-9][\w.-]*)/([A-Za-z0-9_.-]*\w)(?:#(\d+))?(?![\w/])")
_PATH = re.compile(r"(?<![\w/])(?:[A-Za-z]:[\\/][\w./\\-]*\w|~?/?[\w.@-]+(?:/[\w.@-]+)+/?|~?/[\w.@-]+/?)")
# The folder one is in, the one above it, or one's own, where such a sign stands by itself.
_FOLDER = re.compile(r"(?<=\s)(?:\.\.?|~)/?(?=\s*(?:$|[,;?!]|\.(?:\s|$))|\s+\w)")
_FILE = re.compile(r"(?<![\w/*])(?:[\w-][\w.-]*\.[A-Za-z]\w{0,5}|\.[A-Za-z][\w.-]*)(?![\w/@])")
_GLOB = re.compile(r"(?<![\w*/])[\w./-]*\*[\w.*/{},-]*[\w*}]")
_SHA = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,40}\b", re.IGNORECASE)
_CODE = re.compile(
    r"(?<![\w/.-])(?=[\w.-]*\w)[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)+(?![\w/])|\bv?\d+\.(?:\d+|x)(?:\.\w+)*\b|\b(?=\w*\d)(?=\w*[A-Za-z])\w{3,}\b"
)
_FIGURE = re.compile(
    r"(?<![\w.])[#$€£]?(?P<n>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e-?\d{1,2})?)(?P<unit>\s?%|[kKmM]\b|\s(?:hundred|thousand|million|billion)\b|(?:st|nd|rd|th)\b)?"
)
_SCALES = {"k": 10**3, "m": 10**6, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
# A number ends where no more of a word follows but a unit: ``70kg``.
_ENDS_HERE = re.compile(r"(?!\.\d)(?:[A-Za-z°]{1,5}\b(?!\.\w)|(?![A-Za-z_]))")
_NAME = r"(?:[A-Z]\.|(?:Mr|Mrs|Ms|Dr|St)\.|[A-Z][\w'’&-]*(?:\.\w+)*)"
_NAMES = re.compile(rf"\b{_NAME}(?:,? (?:(?:of|the|and|de|la|van|von) )*(?:{_NAME}|\d+\b))*")
# Who speaks begins another clause: ``by Ann Lee I can watch``.
_I_DO = re.compile(
    r"\s+(?:am|can|could|had|have|like|love|may|might|must|need|saw|should|want|was|will|would)\b|['’]"
)
_NO_SLUG = re.compile(
    r"\d+/\d+|(?:and/or|he/she|his/her|i/o|on/off|yes/no|read/write|input/output|client/server|ci/cd|tcp/ip|a/b|n/a|w/o)",
    re.IGNORECASE,
)
_BRACKET = re.compile(r"\[([^\[\]\n]*)\]")
_SEPARATOR = re.compile(r"\s*(?:,\s*(?:and|or)\s+|,\s*|\s(?:and|or|&)\s+)(?:(?:the|also|an?)\s+)*")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the conversation that may be a value.

    Attributes
    ----------
    turn
        How many turns ago it was said; 0 is the request.
    start, stop
        Character offsets in that turn.
    value
        What it stands for: text, a number, a list.
    kinds
        What it looks like, such as ``quote``, ``number``, ``path``.
    part
        Of a half of ``owner/name``: that slug's place in the turn, by which the other half is known.
    """

    turn: int
    start: int
    stop: int
    value: Any
    kinds: frozenset[str]
    part: int = -1

    def overlaps(self, other: Span) -> bool:
        """Whether both hold some of the same characters."""
        return self.turn == other.turn and self.start < other.stop and other.start < self.stop

    def is_apart(self, other: Span) -> bool:
        """Whether both are halves of ``owner/name``, and not of the same."""
        return min(self.part, other.part) >= 0 and (self.turn, self.part) != (other.turn, other.part)


@dataclass(slots=True)
class Turn:
    """One turn, read.

    Attributes
    ----------
    age
        How many turns ago.
    user
        Whether the user said it.
    words
        Where its words begin and end, without the marks around them.
    lower
        Its words in lower case.
    """

    text: str
    age: int
    user: bool
    today: dt.date | None = None
    words: list[tuple[int, int]] = field(default_factory=list)
    lower: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = list(_words(self.text))
        self.lower = [self.text[start:stop].lower() for start, stop in self.words]

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first word that ends behind `start` and the first that begins at or behind `stop`."""
        first = next((n for n, (_, end) in enumerate(self.words) if end > start), len(self.words))
        last = next((n for n, (begin, _) in enumerate(self.words) if begin >= stop), len(self.words))
        return first, max(first, last)


def is_statement(text: str) -> bool:
    """Whether `text` is a statement in SQL, of more than its first word."""
    return _STATEMENT.fullmatch(text.strip().rstrip(";")) is not None


def hear(turns: Sequence[Mapping[str, Any]]) -> tuple[list[Turn], list[Span]]:
    """Return the turns, latest first, and what they offer.

    Parameters
    ----------
    turns
        Oldest first; ``role`` and ``content``. System prompts give no values but today's date. What tools and
        the model said is not to be trusted: it never says which day it is, and never competes with the user
        about whom or where.
    """
    said = [
        (str(turn.get("role")), turn["content"]) for turn in turns if isinstance(turn.get("content"), str)
    ]
    trusted = [text for role, text in reversed(said) if role in ("system", "user")]
    today = next((day for text in trusted if (day := today_in(text[:_LONGEST]))), None)
    spoken = [(role, text) for role, text in said if role in ("user", "assistant")]
    heard = [
        Turn(_beginning(repair_text(text)), age, role == "user", today)
        for age, (role, text) in enumerate(reversed(spoken))
    ]
    spans = [span for turn in heard[:_TURNS] for span in _spans(turn) if not turn.age or span.kinds - _VAGUE]
    spans = _telling(spans)
    named = frozenset[str]().union(*(span.kinds for span in spans if heard[span.turn].user)) & _WHOM
    return heard, [span for span in spans if heard[span.turn].user or not span.kinds & named]


def _telling(spans: list[Span]) -> list[Span]:
    """Return at most so many of the spans; where there are too many, the last runs of words go."""
    if len(spans) <= _MOST:
        return spans
    order = sorted(range(len(spans)), key=lambda place: not spans[place].kinds - {"phrase"})
    return [spans[place] for place in sorted(order[:_MOST])]


def _beginning(text: str) -> str:
    """Return what is read of a turn; half a word would be another one, so none is cut."""
    cut = text[:_LONGEST]
    if len(text) == len(cut) or text[_LONGEST].isspace():
        return cut
    return cut[: len(cut) - len(cut.split()[-1])] if cut[-1:].strip() else cut


def _words(text: str) -> Iterator[tuple[int, int]]:
    for match in _TOKEN.finditer(text):
        word = match[0].rstrip(".'’")
        start = match.start() + len(word) - len(word.lstrip("'’"))
        stop = match.start() + len(word.removesuffix("'s").removesuffix("’s"))
        if start < stop:
            yield start, stop


def _spans(turn: Turn) -> list[Span]:
    """Return the spans of a turn; the same characters as the same value are one, of several kinds."""
    found: dict[tuple[int, int, str], tuple[Any, set[str], int]] = {}
    for start, stop, value, kind, part in _recognised(turn):
        kinds = found.setdefault((start, stop, f"{type(value).__name__}{value}"), (value, set(), part))[1]
        kinds.add(kind)
    spans = [
        Span(turn.age, start, stop, value, frozenset(kinds), part)
        for (start, stop, _), (value, kinds, part) in found.items()
    ]
    return [*spans, *_lists(turn, spans)]


def _recognised(turn: Turn) -> Iterator[tuple[int, int, Any, str, int]]:
    text = turn.text
    for match in _QUOTE.finditer(text):
        group = match.lastindex or 1
        yield match.start(group), match.end(group), match[group], "quote", -1
    for kind, pattern in (
        ("url", _URL),
        ("email", _EMAIL),
        ("sha", _SHA),
        ("code", _CODE),
        ("file", _FILE),
        ("glob", _GLOB),
    ):
        for match in pattern.finditer(text):
            value = match[0].rstrip(".,;:")
            yield match.start(), match.start() + len(value), value, kind, -1
    for match in _STATEMENT.finditer(text):
        value = match[0].rstrip(" .\"'`”")
        yield match.start(), match.start() + len(value), value, "statement", -1
    for match in _USER.finditer(text):
        yield match.start(1), match.end(1), match[1], "user", -1
    yield from _paths(text)
    for moment in dates_in(text, turn.today):
        yield moment.start, moment.stop, text[moment.start : moment.stop], "date", -1
        if moment.iso:
            yield moment.start, moment.stop, moment.iso, "iso_date", -1
    for moment in times_in(text):
        yield moment.start, moment.stop, text[moment.start : moment.stop], "time", -1
        yield moment.start, moment.stop, moment.iso, "clock", -1
    for start, stop, code, kind in codes_said(text, turn.words):
        yield start, stop, code, kind, -1
    yield from _numbers(turn)
    yield from _phrases(turn)


def _paths(text: str) -> Iterator[tuple[int, int, Any, str, int]]:
    for match in _SLUG.finditer(text):
        if _NO_SLUG.fullmatch(f"{match[1]}/{match[2]}"):
            continue
        place = match.start()
        yield match.start(1), match.end(2), f"{match[1]}/{match[2]}", "slug", -1
        yield match.start(1), match.end(1), match[1], "owner", place
        yield match.start(2), match.end(2), match[2], "name", place
        if match[3]:
            yield match.start(3) - 1, match.end(3), int(match[3][:_DIGITS]), "ticket", -1
    for match in _PATH.finditer(text):
        value = match[0].rstrip(".,;:")
        if not _NO_SLUG.fullmatch(value):
            yield match.start(), match.start() + len(value), value, "path", -1
    for match in _FOLDER.finditer(text):
        yield match.start(), match.end(), match[0], "path", -1


def _numbers(turn: Turn) -> Iterator[tuple[int, int, Any, str, int]]:
    for match in _FIGURE.finditer(turn.text):
        if len(match["n"]) <= _DIGITS and _ENDS_HERE.match(turn.text[match.end() :]):
            yield from _readings(turn.text, match)
    for (start, stop), word in zip(turn.words, turn.lower, strict=True):
        if word in NUMBERS:
            yield start, stop, NUMBERS[word], "number_word", -1


def _readings(text: str, match: re.Match[str]) -> Iterator[tuple[int, int, Any, str, int]]:
    """Yield what figures may stand for; ``7,000`` is one and may be two, ``-7`` may be below zero."""
    said, unit = match["n"], (match["unit"] or "").strip().lower()
    start, end, stop = match.start("n"), match.end("n"), match.end()
    value = _figure(said.replace(",", ""))
    before = text[max(0, match.start() - 2) : match.start()]
    below = before.endswith(("-", "−")) and not before[:-1].strip().strip("([=:,")
    if below:
        yield start - 1, end, -value, "negative", -1
    if unit == "%":
        yield start, stop, round(value / 100, 10), "share", -1
    if unit in _SCALES:
        scaled = value * _SCALES[unit]
        yield start, stop, int(scaled) if float(scaled).is_integer() else scaled, "scaled", -1
    mark = "ticket" if match[0].startswith("#") else "money" if match[0][0] in "$€£" else "number"
    if (unit not in _SCALES or unit in "km") and not below:
        ordinal = unit.isalpha() and unit not in _SCALES
        yield start, stop if ordinal else end, value, "ordinal" if ordinal else mark, -1
    yield start, end, said, "digits", -1
    if "," in said:
        yield from ((start, stop, _figure(half), "split", -1) for half in said.split(","))
    beside = re.match(r"\s?([A-Za-z]+)\b", text[end:])
    if beside and not unit:
        yield end + beside.start(1), end + beside.end(1), beside[1], "unit", -1


def _figure(said: str) -> float:
    return int(said) if said.isdigit() else float(said)


def _phrases(turn: Turn) -> Iterator[tuple[int, int, Any, str, int]]:
    """Yield words, runs of words, and what stands behind a lead such as ``saying``."""
    text, words, lower = turn.text, turn.words, turn.lower
    breaks = {
        n
        for n, ((_, a), (b, _)) in enumerate(pairwise(words), 1)
        if re.search(r"[;!?()\n]|\.\s|--", text[a:b])
    }
    for first, (start, _) in enumerate(words):
        spelt = text[start : words[first][1]]
        if lower[first] in LEADS or (lower[first] in FILLERS and not (spelt.isupper() and len(spelt) > 1)):
            continue
        for last in range(first, min(first + _PHRASE_WORDS, len(words))):
            if last > first and last in breaks:
                break
            stop = words[last][1]
            if lower[last] not in FILLERS or last == first:
                yield start, stop, text[start:stop], "word" if first == last else "phrase", -1
    yield from _capitals(turn)
    yield from _zones(text)
    ends = [match.start() for match in _SENTENCE.finditer(text)]
    for match in _LEAD.finditer(text):
        for end in (next((e for e in ends if e > match.end()), len(text)), len(text.rstrip())):
            value = text[match.end() : end].strip(" .\"'“”")
            if value:
                start = text.index(value, match.end())
                yield start, start + len(value), value, "tail", -1
    whole = text.strip()
    if len(words) <= _MANY_WORDS and whole:
        yield text.index(whole), len(text.rstrip()), whole, "whole", -1


def _capitals(turn: Turn) -> Iterator[tuple[int, int, Any, str, int]]:
    """Yield runs of words with a capital, such as ``San Francisco, CA``; longest only."""
    text = turn.text
    for match in _NAMES.finditer(text):
        value = match[0].rstrip(".,'’-")
        if value.endswith(" I") and _I_DO.match(text, match.end()):
            value = value[:-2].rstrip(",")
        if value.endswith(("'s", "’s")):
            yield match.start(), match.start() + len(value), value, "possessive", -1
            value = value[:-2]
        # A sentence begins with a capital anyway, and a list of names is several.
        cuts = [0, *(cut.end() for cut in islice(_SEPARATOR.finditer(value), _MOST_NAMES))]
        if turn.words and match.start() == turn.words[0][0] and " " in value:
            cuts.append(value.index(" ") + 1)
        for cut in cuts:
            rest = value[cut:]
            if rest.lower() in FILLERS and not (rest.isupper() and len(rest) > 1):
                continue
            for part in dict.fromkeys((rest, re.split(r",? and ", rest)[0], _SEPARATOR.split(rest)[0])):
                yield match.start() + cut, match.start() + cut + len(part), part, "capitals", -1


def _zones(text: str) -> Iterator[tuple[int, int, Any, str, int]]:
    """Yield time zones that are named, by themselves or by their city."""
    for zone in zones_said(
        [
            value
            for match in re.finditer(r"\b[A-Z]\w+(?:[ /_][A-Z]\w+)*", text)
            for value in (match[0], match[0].rsplit(" ", 1)[-1])
        ]
    ):
        for said in (zone, zone.rsplit("/", 1)[-1].replace("_", " ")):
            place = text.find(said)
            if place >= 0:
                yield place, place + len(said), zone, "zone", -1
                break


def _lists(turn: Turn, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield bracketed lists, and runs of values of one kind: ``a, b and c``."""
    for match in _BRACKET.finditer(turn.text):
        parts = [part.strip().strip("'\"“”") for part in match[1].split(",")]
        if all(parts):
            value = [_figure(part) if re.fullmatch(r"-?\d{1,32}(\.\d+)?", part) else part for part in parts]
            yield Span(turn.age, match.start(), match.end(), value, frozenset({"list", "bracketed"}))
    for kind in _LISTED:
        chosen = sorted(
            (span for span in spans if kind in span.kinds or (kind == "number" and "negative" in span.kinds)),
            key=lambda span: (span.start, span.stop),
        )
        yield from _runs(turn, chosen, kind)
    yield from _scattered(turn, spans)


def _scattered(turn: Turn, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield all numbers and all quotes of a turn, for lists that are told piece by piece."""
    for name, kinds in (("numbers", {"number", "number_word"}), ("quotes", {"quote"})):
        found = {span.start: span for span in spans if span.kinds & kinds}
        if len(found) > 1:
            ordered = [found[start] for start in sorted(found)]
            values = [span.value for span in ordered]
            kind = frozenset({"list", f"all_{name}"})
            yield Span(turn.age, ordered[0].start, ordered[-1].stop, values, kind)


def _runs(turn: Turn, spans: Sequence[Span], kind: str) -> Iterator[Span]:
    at: dict[int, list[Span]] = {}
    for span in spans:
        at.setdefault(span.start, []).append(span)
    joined: set[int] = set()
    for span in spans:
        if span.start in joined:
            continue
        run = [span]
        # Every word may begin a run of its own, so these have an end.
        while kind not in ("phrase", "word") or len(run) < _MOST_NAMES:
            stop = run[-1].stop
            gap = _SEPARATOR.match(turn.text, stop + turn.text.startswith(('"', "'", "”", "’"), stop))
            place = gap.end() if gap and gap.end() > run[-1].stop else -1
            following = at.get(place) or at.get(place + 1 if kind == "quote" else -1)
            if not following:
                break
            run.append(following[0])
            if kind not in ("phrase", "word"):
                joined.add(following[0].start)
        mixed = len({", " in one.value for one in run if isinstance(one.value, str)}) > 1
        if len(run) > 1 and not mixed:
            yield Span(
                turn.age,
                span.start,
                run[-1].stop,
                [one.value for one in run],
                frozenset({"list", f"list_{kind}"}),
            )
