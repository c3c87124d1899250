"""Requests with the tools that they are most easily mistaken for: what a cross-encoder learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.lexical import LexicalIndex, tool_words
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.scoring import LEXICAL_WEIGHT
from nexus_lab.routing.views import tool_document

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.base import Embedder, Message
    from nexus_lab.routing.training_rows import Pool, TrainingRow

    Floats = NDArray[np.float32]

__all__ = ["CandidateList", "Choice", "candidate_lists"]

# A tool of another server whose text is nearer than this may well do the same job, and is no mistake.
_RIVAL_COSINE = 0.8


@dataclass(frozen=True, slots=True)
class Choice:
    """A tool as a candidate, and its request that is nearest to the one in question, as it is matched."""

    tool: ToolSpec
    example: str | None


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A request, the tools that are right, and wrong ones, the likeliest mistake first."""

    request: str
    context: tuple[Message, ...]
    right: tuple[Choice, ...]
    wrong: tuple[Choice, ...]


def candidate_lists(pool: Pool, embedder: Embedder, *, wrong: int = 9) -> list[CandidateList]:
    """Return the requests of `pool`, each with the `wrong` likeliest wrong tools."""
    return _Lists(pool, embedder, wrong).all()


class _Lists:
    def __init__(self, pool: Pool, embedder: Embedder, wrong: int) -> None:
        self._pool, self._wrong = pool, wrong
        self._keys = list(pool.tools)
        self._tools = list(pool.tools.values())
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._texts = [normalise(row.request).text for row in pool.rows]
        self._documents = embedder.embed_documents([tool_document(tool) for tool in self._tools])
        self._requests = embedder.embed_queries(self._texts)
        self._lexical = LexicalIndex()
        for key, tool in pool.tools.items():
            self._lexical.put(key, tool_words(tool))
        servers: dict[str | None, int] = {}
        self._servers = np.asarray([servers.setdefault(tool.server, len(servers)) for tool in self._tools])
        self._by_tool: dict[int, list[int]] = {}
        for number, row in enumerate(pool.rows):
            for key in row.tools[:1]:
                self._by_tool.setdefault(self._place[key], []).append(number)

    def all(self) -> list[CandidateList]:
        return [self._list(number, row) for number, row in enumerate(self._pool.rows)]

    def _list(self, number: int, row: TrainingRow) -> CandidateList:
        alike = self._requests @ self._requests[number]
        alike[[n for n, text in enumerate(self._texts) if text == self._texts[number]]] = -1.0
        scores = self._documents @ self._requests[number]
        for place, numbers in self._by_tool.items():
            scores[place] = max(scores[place], float(alike[numbers].max()))
        scores += np.float32(LEXICAL_WEIGHT) * self._lexical.scores(self._texts[number])
        right = [self._place[key] for key in row.tools]
        scores[self._barred(right)] = -np.inf
        near = [self._place[key] for key in row.near]
        order = [*near, *(int(place) for place in np.argsort(-scores)[: self._wrong] if place not in near)]
        wrong = [place for place in order if np.isfinite(scores[place])][: self._wrong]
        return CandidateList(
            row.request,
            row.context,
            tuple(self._choice(place, alike) for place in right),
            tuple(self._choice(place, alike) for place in wrong),
        )

    def _barred(self, right: list[int]) -> Any:
        """Return which tools are no mistakes: the right ones, and those of other servers like them."""
        barred = np.zeros(len(self._keys), bool)
        for place in right:
            rivals = self._documents @ self._documents[place] > _RIVAL_COSINE
            barred |= rivals & (self._servers != self._servers[place])
        barred[right] = True
        return barred

    def _choice(self, place: int, alike: Floats) -> Choice:
        numbers = [number for number in self._by_tool.get(place, ()) if alike[number] > -1]
        if not numbers:
            return Choice(self._tools[place], None)
        return Choice(self._tools[place], self._texts[max(numbers, key=lambda number: float(alike[number]))])
