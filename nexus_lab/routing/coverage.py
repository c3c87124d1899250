"""What of a request a tool speaks of, in words: a job that a tool almost does is told by the word it lacks.

``Delete the branch spike`` is near to a tool that creates branches, in vectors and in what most of its words
say; but nothing of that tool says delete.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from nexus_lab.routing.lexical import words

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Vocabulary", "stems"]


class Vocabulary:
    """How rare each word is among the tools of a registry.

    Parameters
    ----------
    documents
        The words of each tool.
    """

    def __init__(self, documents: Iterable[Iterable[str]]) -> None:
        found = [{_stem(word) for word in document} for document in documents]
        self._count = max(len(found), 1)
        self._having = Counter(stem for document in found for stem in document)

    def covered(self, text: str, spoken: frozenset[str]) -> float:
        """Return how much of `text` a tool that has the stems `spoken` speaks of, in [0, 1].

        Each word weighs the more the fewer tools have it; those that no tool has, most often names, do not
        count.
        """
        asked = dict.fromkeys(_stem(word) for word in words(text))
        weights = {
            stem: math.log(1 + self._count / (1 + self._having[stem]))
            for stem in asked
            if stem in self._having
        }
        whole = sum(weights.values())
        return sum(weight for stem, weight in weights.items() if stem in spoken) / whole if whole else 0.0


def stems(texts: Iterable[str]) -> frozenset[str]:
    """Return the stems of the words of some texts."""
    return frozenset(_stem(word) for text in texts for word in words(text))


def _stem(word: str) -> str:
    """Return `word` without the commonest endings, so that closes, closed and closing are one."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word.removesuffix(ending).removesuffix("e")
    return word.removesuffix("e")
