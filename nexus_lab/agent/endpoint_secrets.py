"""What is sent to an endpoint and not shown: which headers hold it, and how it is cut out of a text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Secrets", "Stream", "is_secret", "secrets_of"]

_SHORTEST = 8  # a dummy key such as "test" is a word of many answers
_MARK = "[key]"
# They say who asks and what is taken. A list of those that do hold a secret would never be whole.
_PUBLIC = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-type", "http-referer", "user-agent", "x-title"}
)


def is_secret(header: str) -> bool:
    """Whether what a header of this name holds counts as secret: all do but a few that are known."""
    return header.lower() not in _PUBLIC


def secrets_of(key: str, headers: Mapping[str, str]) -> Secrets:
    """Return the secrets among what is sent: the key, and what the headers hold."""
    held = (part for name, value in headers.items() if is_secret(name) for part in _parts(name, value))
    return Secrets([key, *held])


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield a header's value, and those parts of it that are secrets by themselves."""
    yield value
    if "cookie" in name.lower():
        yield from (pair.partition("=")[2] for pair in value.split(";"))
    else:
        yield value.strip().partition(" ")[2]  # what follows on Bearer and the like


class Secrets:
    """Cuts secrets out of a text; those of fewer than 8 characters are left, since they could be any word.

    Parameters
    ----------
    values
        The secrets, ASCII.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        kept = {value.strip() for value in values if len(value.strip()) >= _SHORTEST}
        self._values = sorted(kept, key=len, reverse=True)  # the whole before its parts
        self._longest = max(map(len, self._values), default=0)
        self._escaped = re.compile("|".join(map(_escaped, self._values))) if self._values else None

    def cut(self, text: str) -> str:
        """Return `text` without the secrets, also where it is JSON that writes them with escapes."""
        for value in self._values:
            text = text.replace(value, _MARK)
        if self._escaped is not None and "\\" in text:
            text = self._escaped.sub(_MARK, text)
        return text

    def open_end(self, text: str) -> int:
        """Return where the end of `text` begins that may be the first part of a secret; else its length."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            end = text[start:]
            if any(value.startswith(end) for value in self._values):
                return start
        return len(text)


class Stream:
    """Cuts secrets out of a text that comes in pieces, also one that is split over several."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""

    def take(self, piece: str) -> str:
        """Return what can be shown now; an end that may become a secret waits for the next piece."""
        text = self._secrets.cut(self._held + piece)
        end = self._secrets.open_end(text)
        self._held = text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return what still waited, once no piece follows."""
        held, self._held = self._held, ""
        return held


def _escaped(value: str) -> str:
    """Return a pattern of a text as JSON may write it."""
    return "".join(_letter(letter) for letter in value)


def _letter(letter: str) -> str:
    own = ("\\\\?" if letter in '"\\/' else "") + re.escape(letter)
    return rf"(?:{own}|\\u(?i:{ord(letter):04x}))"
