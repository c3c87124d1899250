"""Requests with the tools that they are most easily mistaken for: what a cross-encoder learns from.

The wrong tools of a request are those that the router as it is puts first, since these are what a
cross-encoder is asked about. The requests themselves are its examples; that a request is one of its own tool
does not matter, as the right tool takes part in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.registry import Registry
from nexus_lab.routing.gate import rank
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.scoring import Scorer
from nexus_lab.routing.store import EmbeddingStore
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


def candidate_lists(
    pool: Pool, embedder: Embedder, *, plain: Embedder | None = None, wrong: int = 9
) -> list[CandidateList]:
    """Return the requests of `pool`, each with the `wrong` likeliest wrong tools.

    Parameters
    ----------
    embedder
        The router's; a store is asked as it is, so that several pools share what they embed.
    plain
        Who says that two tools do the same job; an embedder that was tuned to tell tools apart may not.
    """
    return _Lists(pool, embedder, plain or embedder, wrong).all()


class _Lists:
    def __init__(self, pool: Pool, embedder: Embedder, plain: Embedder, wrong: int) -> None:
        self._pool, self._wrong = pool, wrong
        store = embedder if isinstance(embedder, EmbeddingStore) else EmbeddingStore(embedder, queries=True)
        self._scorer = Scorer(store, known=False)
        self._scorer.apply(Registry.of(pool.tools.values(), name=pool.name))
        keys = {tool.qualified_name: key for key, tool in pool.tools.items()}
        self._keys = [keys[self._scorer.tool(name).qualified_name] for name in self._scorer.index.names]
        self._tools = [pool.tools[key] for key in self._keys]
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._texts = [normalise(row.request).text for row in pool.rows]
        self._same: dict[str, list[int]] = {}
        for number, text in enumerate(self._texts):
            self._same.setdefault(text, []).append(number)
        self._requests = store.embed_queries(self._texts)
        self._documents = plain.embed_documents([tool_document(tool) for tool in self._tools])
        servers: dict[str | None, int] = {}
        self._servers = np.asarray([servers.setdefault(tool.server, len(servers)) for tool in self._tools])
        self._by_tool: dict[int, list[int]] = {}
        for number, row in enumerate(pool.rows):
            for key in row.tools[:1] if not row.context else ():
                self._by_tool.setdefault(self._place[key], []).append(number)
        self._teach()

    def _teach(self) -> None:
        """Give the router the requests as examples."""
        for place, numbers in self._by_tool.items():
            texts = {self._texts[number]: number for number in numbers}
            name = self._scorer.index.names[place]
            self._scorer.example_index.extend(name, list(texts), self._requests[list(texts.values())])

    def all(self) -> list[CandidateList]:
        return [self._list(number, row) for number, row in enumerate(self._pool.rows)]

    def _list(self, number: int, row: TrainingRow) -> CandidateList:
        alike = self._requests @ self._requests[number]
        alike[self._same[self._texts[number]]] = -1.0
        right = [self._place[key] for key in row.tools]
        barred = self._barred(right)
        near = [self._place[key] for key in row.near]
        ranked = rank(self._scorer.scores(row.request, row.context)).order
        order = dict.fromkeys([*near, *(int(place) for place in ranked)])
        wrong = [place for place in order if not barred[place]][: self._wrong]
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
