"""What routing is measured against: one vector for a tool, BM25, and the two by reciprocal rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.routing.lexical import LexicalIndex, words
from nexus_lab.routing.scoring import tools_by_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.registry import Registry
    from nexus_lab.routing import Embedder

    Order = NDArray[np.intp]

__all__ = ["Baselines"]

_RANK_OFFSET = 60


class Baselines:
    """Plain rankings of the tools of a registry; requests are taken as they are, without what came before.

    Parameters
    ----------
    embedder
        As it came, or ours, so that what differs is what is done with its vectors.
    """

    def __init__(self, registry: Registry, embedder: Embedder) -> None:
        tools = tools_by_key(registry)
        self._embedder = embedder
        self._vectors = embedder.embed_documents(
            [f"{tool.name} {tool.description}" for tool in tools.values()]
        )
        self._lexical = LexicalIndex()
        for key, tool in tools.items():
            self._lexical.put(key, words(tool.name) * 3 + words(tool.description))

    def dense(self, query: str) -> Order:
        """Return the tools, best first, by the cosine of one float32 vector of name and description."""
        cosines = self._vectors @ self._embedder.embed_queries([query])[0]
        return np.argsort(-cosines, kind="stable")

    def bm25(self, query: str) -> Order:
        """Return the tools, best first, by BM25 over the name, thrice, and the description."""
        return np.argsort(-self._lexical.scores(query), kind="stable")

    def rrf(self, query: str) -> Order:
        """Return the tools, best first, by the sum of 1 / (60 + rank) in both."""
        total = np.zeros(len(self._vectors))
        for order in (self.dense(query), self.bm25(query)):
            total[order] += 1 / (_RANK_OFFSET + 1 + np.arange(len(order)))
        return np.argsort(-total, kind="stable")
