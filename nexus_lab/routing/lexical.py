"""The lexical score: BM25 over the words of a tool's name, description and arguments.

Words are not stemmed: ``list_issues`` and ``issue_read`` differ in just that, and stemming costs 3 to 6
points of top-1 on the development queries. Argument names and enum values add 10 points.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.normalise import split_identifiers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec

__all__ = ["LexicalIndex", "tool_words", "words"]

_NAME_WEIGHT = 3
_K1, _B = 1.5, 0.75
_HALF = 8.0  # the BM25 score that counts one half
_LONGEST_REQUEST = 256
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a all an and any are as at be by can could did do does for from get give how i in is it its just "
        "let make me my need of on or our please show that the then there this to us want was we what when "
        "which who will with would you your",
    )
)


def words(text: str) -> list[str]:
    """Return the words of `text` that carry meaning, identifiers taken apart."""
    return [word for word in split_identifiers(text).split() if word not in _STOP]


def tool_words(tool: ToolSpec) -> list[str]:
    """Return the words of `tool`: its name thrice, description, names and enum values of its arguments."""
    found = words(tool.name) * _NAME_WEIGHT + words(tool.description)
    for name, schema in tool.properties.items():
        found += words(name)
        values: Any = schema.get("enum") if isinstance(schema, dict) else None
        if isinstance(values, list):
            found += [word for value in values if isinstance(value, str) for word in words(value)]
    return found


class LexicalIndex:
    """BM25 over tools, which come and go.

    How rare a word is depends on all tools, so the statistics are made again at the first search after a
    change (2 ms for 250 tools); the words of a tool are kept.
    """

    def __init__(self) -> None:
        self._documents: dict[str, list[str]] = {}
        self._model: Any = None

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools in the order of their adding, which is the order of scores."""
        return tuple(self._documents)

    def put(self, name: str, document: list[str]) -> None:
        """Add the tool `name`, or replace its words; it goes last."""
        self._documents.pop(name, None)
        self._documents[name] = document
        self._model = None

    def remove(self, name: str) -> None:
        """Forget the tool `name`."""
        del self._documents[name]
        self._model = None

    def fit(self) -> None:
        """Make the statistics now, if tools came or went since."""
        if self._model is None:
            self._model = _fit(self._documents)

    def scores(self, text: str) -> NDArray[np.float32]:
        """Return float32 [n_tools] in [0, 1), tools in the order of their adding: BM25 / (BM25 + 8)."""
        self.fit()
        vocabulary: Mapping[str, int] = self._model.vocab_dict if self._model else {}
        known = [word for word in words(text)[:_LONGEST_REQUEST] if word in vocabulary]
        if not known:
            return np.zeros(len(self._documents), np.float32)
        raw = np.asarray(self._model.get_scores(known), np.float32)
        return raw / (raw + np.float32(_HALF))


def _fit(documents: Mapping[str, list[str]]) -> Any:
    """Return a fitted model, or False where no tool has a word."""
    import bm25s

    if not any(documents.values()):
        return False
    model = bm25s.BM25(method="lucene", k1=_K1, b=_B, backend="numpy")
    # An empty document would divide by its length.
    model.index([found or [""] for found in documents.values()], show_progress=False)
    return model
