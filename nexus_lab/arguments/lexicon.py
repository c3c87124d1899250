"""Common English that tells where values stand and what they are called; no tool's own words."""

from __future__ import annotations

import re

from nexus_lab.routing import split_identifiers

__all__ = [
    "CALLED",
    "FILLERS",
    "LEADS",
    "NEGATIONS",
    "NUMBERS",
    "PREPOSITIONS",
    "PROSE",
    "ROLES",
    "WAYS",
    "content_words",
    "sense",
    "stem",
]


_ENDING = re.compile(r"(?:ies|(?<=[sxz])es|(?<=ch)es|(?<=sh)es|s)$")
_SHORTEST = 4


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILLERS = _listed(
    "a all an and any are as at be been by can could did do does for from get give had has have i if "
    "in into is it its just let like make me my need of on only or our please show so tell that the "
    "their them then there these they this those to us want was we were what when where which who "
    "will with would you your"
)
LEADS = _listed("named called titled labelled labeled saying says entitled")
PREPOSITIONS = _listed(
    "about above after against and around as at before behind below between by during for from in "
    "inside into is of off on onto or over per since than through till to toward towards under until "
    "up using via with within without"
)
NEGATIONS = _listed(
    "not no without don't dont doesn't never exclude excluding except skip omit isn't aren't non"
)
# What arguments are called that take a text of anybody's making.
PROSE = _listed(
    "body caption comment content description explanation instruction message note prompt reason "
    "summary text title"
)
# Words of descriptions that tell which way a value goes.
ROLES = _listed(
    "source target destination origin start end begin from to after before departure arrival author "
    "sender recipient base head initial final since until lower upper"
)
# Words of arguments that stand for where something comes from or goes to, and what leads to their values.
WAYS = (
    (
        _listed("from source origin departure sender start begin since src old"),
        _listed("from off since"),
    ),
    (
        _listed("to target destination arrival recipient end until dest dst into new"),
        _listed("to into onto till until toward towards"),
    ),
)
NUMBERS = {
    word: number
    for number, words in enumerate(
        re.findall(
            r"\S+",
            "zero one/first two/second three/third four/fourth five/fifth six/sixth seven/seventh "
            "eight/eighth nine/ninth ten/tenth eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty",
        )
    )
    for word in words.split("/")
} | {
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
    "hundred": 100,
    "thousand": 1000,
    "dozen": 12,
    "million": 10**6,
}
_SAME = {
    word: one
    for one, words in {
        "pull": "pr prs mr merge",
        "issue": "ticket tickets bug",
        "repository": "repo repos project",
        "organization": "org organisation",
        "description": "desc",
        "directory": "folder dir",
        "identifier": "id",
        "number": "num no nr count quantity amount",
        "closed": "close shut closing done",
        "descending": "desc newest latest recent most highest largest",
        "ascending": "asc oldest earliest least lowest smallest cheapest",
        "created": "creation",
        "create": "new add make",
        "delete": "remove drop erase throw",
        "update": "change edit modify rename",
        "comment": "comments reply replies replied answer",
        "minimum": "min",
        "maximum": "max",
        "temperature": "temp",
        "message": "msg",
        "picture": "image photo",
        "location": "city place where",
        "people": "person persons guest guests passengers",
        "actor": "actress cast star starring feature featuring",
        "director": "directed",
    }.items()
    for word in words.split()
}


def stem(word: str) -> str:
    """Return `word` without what marks the plural."""
    if len(word) < _SHORTEST or word.endswith("ss"):
        return word
    return _ENDING.sub(lambda ending: "y" if ending[0] == "ies" else "", word)


def sense(word: str) -> str:
    """Return the one word that stands for all that mean the same as `word`."""
    return _SAME.get(word, word)


def content_words(text: str) -> frozenset[str]:
    """Return the words of `text` that carry meaning, without plurals, one for each sense."""
    return frozenset(
        sense(stem(word)) for word in split_identifiers(text).split() if word not in FILLERS and len(word) > 1
    )


# What arguments are called whose values look like a kind of span.
CALLED = {
    kind: frozenset(stem(word) for word in words.split())
    for kind, words in {
        "owner": "owner organization org user namespace account group workspace login",
        "name": "repo repository project name package",
        "slug": "repository repo project slug full name",
        "ticket": "number issue pull ticket id iid key discussion alert",
        "user": "user username login assignee author reviewer member account handle creator owner",
        "path": "path file filename directory folder source destination src dst dir root cwd location",
        "file": "path file filename document attachment",
        "url": "url uri link href website webpage site page address endpoint",
        "email": "email mail address recipient to sender from cc bcc",
        "sha": "sha commit hash revision ref id digest gist key",
        "digits": "id iid key code resource thread number",
        "code": "branch tag ref version release head base key id slug code identifier sha name model",
        "date": "date day since until before after start end deadline due birthday when from to "
        "timestamp datetime created updated expiry expiration",
        "iso_date": "date day since until before after start end deadline due birthday when from to "
        "timestamp datetime created updated expiry expiration",
        "time": "time hour at when start end",
        "clock": "time hour at when start end",
        "quote": "title body text message comment content name query label subject description phrase "
        "keyword note summary caption",
        "tail": "title body text message comment content query subject description note prompt question "
        "command",
        "zone": "timezone tz zone",
        "currency": "currency",
        "language": "language lang locale",
        "country": "country nation",
        "glob": "pattern glob match filter mask",
        "unit": "unit currency",
        "statement": "query sql statement command script",
        "money": "amount price cost budget salary income value principal investment payment fee total",
        "share": "rate percentage percent ratio interest yield growth probability fraction discount tax",
        "capitals": "name city location title artist author person country place state team company "
        "destination origin actor director",
        "number": "number count limit size amount quantity id page line year age",
        "whole": "query prompt text question message input content",
        "phrase": "query text content title description keyword topic message",
    }.items()
}
