"""What a call was made from, for views: the request with what was taken from it marked, a word for each."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Grounds = Sequence[Mapping[str, Any]]

__all__ = ["ground_words", "marked"]

_WORDS = {
    "listed": "a value that the schema lists",
    "usual": "what the schema names where nothing is said",
    "model": "written by the model",
}


def marked(request: str, grounds: Grounds) -> tuple[tuple[str, str | None], ...]:
    """Return the request in pieces, each with the arguments that were taken from it, or ``None``.

    What two arguments share is marked once, with both names.
    """
    taken: dict[tuple[int, int], list[str]] = {}
    for ground in grounds:
        if ground.get("turn") == 0:
            taken.setdefault((int(ground["start"]), int(ground["stop"])), []).append(str(ground["argument"]))
    return tuple(_pieces(request, taken))


def _pieces(request: str, taken: Mapping[tuple[int, int], list[str]]) -> Iterator[tuple[str, str | None]]:
    edges = sorted({0, len(request), *(edge for span in taken for edge in span if edge <= len(request))})
    for start, stop in pairwise(edges):
        names = [name for span, names in taken.items() if span[0] <= start < span[1] for name in names]
        yield request[start:stop], ", ".join(dict.fromkeys(names)) or None


def ground_words(grounds: Grounds) -> dict[str, str]:
    """Return, by argument, where its value comes from."""
    found: dict[str, list[str]] = {}
    for ground in grounds:
        found.setdefault(str(ground["argument"]), []).append(_words(ground))
    return {name: "; ".join(dict.fromkeys(words)) for name, words in found.items()}


def _words(ground: Mapping[str, Any]) -> str:
    if ground["kind"] != "said":
        return _WORDS.get(str(ground["kind"]), str(ground["kind"]))
    turn = int(ground.get("turn") or 0)
    where = "said in the request" if turn == 0 else f"said {turn} message{'s' * (turn > 1)} before"
    return f"{where}, completed by the model" if ground.get("completed") else where
