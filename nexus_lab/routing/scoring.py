"""The stages of a decision, and the tools they run over: embed, scan, lexical, fuse."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nexus_lab.registry import Registry, ToolSpec, neutralise
from nexus_lab.routing.base import RoutingError
from nexus_lab.routing.context import Reference, resolve
from nexus_lab.routing.coverage import Vocabulary, stems
from nexus_lab.routing.examples import ExampleIndex, ExampleScores
from nexus_lab.routing.index import QuantisedQuery, ToolIndex
from nexus_lab.routing.known import known_requests, known_vectors, known_without_tool
from nexus_lab.routing.lexical import LexicalIndex, tool_words
from nexus_lab.routing.names import NameFinder
from nexus_lab.routing.naming_servers import ServerFinder
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.slots import Slots
from nexus_lab.routing.views import tool_views, whole_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing.base import Embedder, Message, View

    Floats = NDArray[np.float32]
    Progress = Callable[[str, float], None]

__all__ = ["LEXICAL_WEIGHT", "SCORING", "Scorer", "StageScores", "timed", "tools_by_key"]

# Measured with the tuned embedder on requests that it was not tuned on: words help over tools that it has
# never seen (BFCL functions: MRR .69 without, .74 at 0.2, .75 at 0.3, .76 at 0.5) and hurt a little over
# those that it knows (.73, .73, .72, .71).
LEXICAL_WEIGHT = 0.25
# What of the distance to its examples a tool gains: half to the nearest, half to the mean of the three
# nearest, so that one odd example decides less.
_EXAMPLE_WEIGHT = 0.5
# By so much an example must be nearer than a view: two requests are alike sooner than a request and a
# description, and a tool without examples stands beside tools that have some. At 0 the tools of a server
# whose examples were taken away lose 3 points of top-10, at 0.1 the tools with examples lose 4 of top-3.
_EXAMPLE_LEAD = 0.04
# Share of the whole text, name as it is written and description, beside the best of the views: the fewer
# tools have examples, the more. Over 716 functions without any, top-1 is .61 by the views and .71 with seven
# tenths of the whole text; over tools with examples it is .74 with three tenths and .70 with seven.
_WHOLE_LEAST, _WHOLE_MOST = 0.3, 0.8
SCORING = (
    f"cosine of views, wholes, examples - {_EXAMPLE_LEAD}, + {LEXICAL_WEIGHT} x BM25/(BM25+8), masked, "
    "- what is missing, unplaced or foreign, + a named server"
)
# A request that refers back: share of the text of the turns before it and itself, and what a tool of the
# server that was called last gains. On 88 requests of our own that were kept apart this gives 59 % top-1 and
# 97 % top-10; three tenths of the user's turn before gave 55 % and 92 %, no context 38 % and 72 %.
_CONTEXT_WEIGHT = 0.5
_SERVER_BONUS = 0.05
# A request that is so near to one that the user gave is that tool's, and no cross-encoder is asked. Of 11
# requests of the package as near to an example of the first tool reading moved none; at .6 to .7 it helps.
_TAUGHT = 0.8
_BUILD_BATCH = 32
_IN_VAIN = ("",)


@dataclass(slots=True)
class StageScores:
    """What each stage says about all tools, in the order of `names`.

    Attributes
    ----------
    normalised
        The text that was matched.
    dense, lexical, fused
        float32 [n_tools]; `fused` without the gain of a tool that the request names.
    named
        Places of the tools that the request names.
    dense_margin
        Of the request alone, as the scan returned it.
    reference
        What the request refers back to, where it does.
    examples
        What the examples say, of the request alone.
    query
        The request's vector.
    in_vain
        Cosine of the request and the nearest one that is known to have no tool here; -1 where none is known.
    times_ms
        Milliseconds by stage.
    """

    names: tuple[str, ...]
    normalised: str
    dense: Floats
    lexical: Floats
    fused: Floats
    named: tuple[int, ...]
    dense_margin: float
    reference: Reference | None
    examples: ExampleScores
    query: QuantisedQuery
    in_vain: float = -1.0
    times_ms: dict[str, float] = field(default_factory=dict)


class _Embedded(NamedTuple):
    """A tool with the vectors of its views, its whole text and its examples."""

    key: str
    tool: ToolSpec
    views: Sequence[View]
    vectors: Floats
    whole: View
    whole_vector: Floats
    examples: list[str]
    example_vectors: Floats


class Scorer:
    """A registry made searchable: vectors, words and names of its tools. Not for several threads.

    Parameters
    ----------
    embedder
        Who makes the vectors.
    known
        Give tools of public servers the requests that come with the package.
    held
        Which of those are left out; none by default.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        known: bool = True,
        held: Callable[[str], bool] | None = None,
    ) -> None:
        self.embedder = embedder
        self.index = ToolIndex(embedder.dim)
        self.whole = ToolIndex(embedder.dim)
        self.example_index = ExampleIndex(embedder.dim)
        self._known, self._held = known, held or (lambda _request: False)
        self._in_vain = ExampleIndex(embedder.dim)
        self._spoken: dict[str, frozenset[str]] = {}
        self._vocabulary: Vocabulary | None = None
        self._slots = Slots(())
        self._servers = ServerFinder(())
        self.lexical = LexicalIndex()
        self.registry = Registry()
        # By qualified name: which server's tool goes by the plain one depends on the others.
        self._given: list[tuple[str, str]] = []
        self._tools: dict[str, ToolSpec] = {}
        self._names: tuple[str, ...] = ()
        self._finder = NameFinder((), self.registry)

    def apply(self, registry: Registry, on_progress: Progress | None = None) -> None:
        """Hold the tools of `registry`: embed the new and changed ones, drop the ones that are gone.

        All are embedded before anything changes: where that fails or is broken off, all stays as it was.
        """
        wanted = tools_by_key(registry)
        changed = [(key, tool) for key, tool in wanted.items() if self._tools.get(key) != tool]
        embedded: list[_Embedded] = []
        for start in range(0, len(changed), _BUILD_BATCH):
            if on_progress is not None:
                on_progress(f"embedding {len(changed)} tools", start / len(changed))
            embedded += self._embedded(changed[start : start + _BUILD_BATCH])
        in_vain = self._learned_in_vain(registry)
        gone = [key for key in self._tools if key not in wanted]
        for index in (self.index, self.whole):
            index.discard([*gone, *(key for key, _ in changed)])
        for key in gone:
            self._drop(key)
        for one in embedded:
            self._put(one)
        self.lexical.fit()
        self.registry = registry
        self._names = self.index.names
        self._finder = NameFinder(self._names, registry)
        self._spoken.clear()
        self._vocabulary = None
        self._slots = Slots(self._tools[key] for key in self._names)
        self._servers = ServerFinder(self._tools[key] for key in self._names)
        self._in_vain = in_vain
        there = {tool.qualified_name for tool in wanted.values()}
        self._given = [pair for pair in self._given if pair[0] in there]

    @property
    def examples(self) -> list[tuple[str, str]]:
        """The examples that were given: pairs of the tool, as decisions call it, and the request."""
        keys = {tool.qualified_name: key for key, tool in self._tools.items()}
        return [(keys[name], request) for name, request in self._given]

    def scores(self, request: str, context: Sequence[Message] = ()) -> StageScores:
        """Return what each stage says about all tools."""
        times: dict[str, float] = {}
        with timed(times, "normalise"):
            read = normalise(request)
            matched = read.text
            reference = resolve(request, context)
            texts = [matched]
            if reference is not None and reference.spoken:
                texts.append(normalise(f"{reference.spoken} {request}").text)
        with timed(times, "embed"):
            vectors = self.embedder.embed_queries(texts)
        with timed(times, "scan"):
            queries = [self.index.quantise_query(vector) for vector in vectors]
            views = [self._by_texts(query) for query in queries]
            examples = [self.example_index.scores(query, self._names) for query in queries]
        with timed(times, "lexical"):
            lexical = _blend([self.lexical.scores(text) for text in texts])
        with timed(times, "fuse"):
            pooled = [_pooled(*pair) for pair in zip(views, examples, strict=True)]
            dense = _blend(pooled)
            fused = dense + np.float32(LEXICAL_WEIGHT) * lexical + self._server_gain(reference)
            before = None if reference is None else context
            fused += self._servers.gain(matched, before=before) - self._slots.loss(read, before=before)
            named = self._finder.places(request)
        return StageScores(
            names=self._names,
            normalised=matched,
            dense=dense,
            lexical=lexical,
            fused=fused,
            named=named,
            dense_margin=_margin(pooled[0]),
            reference=reference,
            examples=examples[0],
            query=queries[0],
            in_vain=float(self._in_vain.scores(queries[0], _IN_VAIN).best[0]),
            times_ms=times,
        )

    def notes(
        self, request: str, stage: StageScores, places: Sequence[int], context: Sequence[Message] = ()
    ) -> list[tuple[str, ...]]:
        """Return for the tools at `places` what else moved their scores, each in a few words."""
        before = None if stage.reference is None else context
        lost = self._slots.reasons(normalise(request), places, before=before)
        named = self._servers.gain(stage.normalised, before=before)
        called = self._server_gain(stage.reference)
        return [
            (
                *(("its server is named",) if named[place] else ()),
                *(("its server was called last",) if called[place] else ()),
                *reasons,
            )
            for place, reasons in zip(places, lost, strict=True)
        ]

    def add_example(self, request: str, key: str) -> None:
        """Give the tool `key` one more vector, of a request that belongs to it."""
        if key not in self.index:
            raise RoutingError(
                f"no tool {neutralise(key, limit=80)!r} in {self.registry.name!r}",
                next_step="name a tool of the registry",
            )
        pair = (self._tools[key].qualified_name, request)
        if pair not in self._given:
            text = normalise(request).text
            if text not in self.example_index.texts(key):
                self.example_index.extend(key, [text], self._example_vectors([text]))
            self._given.append(pair)
            self._spoken.pop(key, None)

    def remove_example(self, request: str, key: str) -> None:
        """Take an example back; its vector goes with the last request that is matched as the same text."""
        if (key, request) not in self.examples:
            raise RoutingError("there is no such example", next_step="see router.examples")
        tool = self._tools[key]
        self._given.remove((tool.qualified_name, request))
        text = normalise(request).text
        if text not in {normalise(other).text for other in self._requests(tool)}:
            self.example_index.drop(key, text)
        self._spoken.pop(key, None)

    def taught(self, stage: StageScores, place: int) -> bool:
        """Whether the request is much like an example of the tool at `place` that was given, not shipped."""
        nearest = int(stage.examples.nearest[place])
        if nearest < 0 or not self._given or stage.examples.best[place] < _TAUGHT:
            return False
        owner, text = self._tools[stage.names[place]].qualified_name, self.example_index.text(nearest)
        return any(name == owner and normalise(request).text == text for name, request in self._given)

    def covered(self, text: str, key: str) -> float:
        """Return the share of a request, as it is matched, that the tool `key` or its examples speak of."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(tool_words(tool) for tool in self._tools.values())
        if key not in self._spoken:
            told = [*tool_words(self._tools[key]), *self.example_index.texts(key)]
            self._spoken[key] = stems(told)
        return self._vocabulary.covered(text, self._spoken[key])

    def tool(self, key: str) -> ToolSpec:
        """Return the tool that is known by `key`."""
        return self._tools[key]

    def check_integrity(self) -> None:
        """Raise `RoutingError` when index, words and registry do not tally."""
        self.index.check_integrity()
        self.whole.check_integrity()
        names = self.index.names
        if (
            names != self.lexical.names
            or names != self.whole.names
            or set(names) != set(tools_by_key(self.registry))
        ):
            raise RoutingError(
                "the index does not hold the registry's tools", next_step="build the router anew"
            )

    def _embedded(self, tools: Sequence[tuple[str, ToolSpec]]) -> Iterator[_Embedded]:
        views = [tool_views(tool) for _, tool in tools]
        whole = [whole_view(tool) for _, tool in tools]
        wholes = self.embedder.embed_documents([view.text for view in whole])
        vectors = self.embedder.embed_documents([view.text for found in views for view in found])
        start = 0
        for (key, tool), view, row, found in zip(tools, whole, wholes, views, strict=True):
            texts = list(dict.fromkeys(normalise(request).text for request in self._requests(tool)))
            stop = start + len(found)
            yield _Embedded(
                key, tool, found, vectors[start:stop], view, row, texts, self._example_vectors(texts)
            )
            start = stop

    def _put(self, one: _Embedded) -> None:
        self.whole.put(one.key, [one.whole], one.whole_vector[None, :])
        self.index.put(one.key, one.views, one.vectors)
        self.lexical.put(one.key, tool_words(one.tool))
        # A changed tool goes last in the index, and so it must here.
        self._tools.pop(one.key, None)
        self._tools[one.key] = one.tool
        self.example_index.drop(one.key)
        if one.examples:
            self.example_index.extend(one.key, one.examples, one.example_vectors)

    def _drop(self, key: str) -> None:
        self.example_index.drop(key)
        self.lexical.remove(key)
        del self._tools[key]

    def _requests(self, tool: ToolSpec) -> list[str]:
        """Return the examples of `tool`: what comes with the package, then what was given."""
        given = [request for name, request in self._given if name == tool.qualified_name]
        known = known_requests(tool) if self._known else ()
        return [*(request for request in known if not self._held(request)), *given]

    def _learned_in_vain(self, registry: Registry) -> ExampleIndex:
        """Return what is asked in vain of the servers whose tools are known."""
        found = ExampleIndex(self.embedder.dim)
        asked = known_without_tool(registry) if self._known else ()
        texts = list(dict.fromkeys(normalise(request).text for request in asked if not self._held(request)))
        if texts:
            found.extend(*_IN_VAIN, texts, self._example_vectors(texts))
        return found

    def _example_vectors(self, texts: Sequence[str]) -> Floats:
        """Return float32 [len(texts), dim]: those that come with the package, and the others embedded."""
        if not texts:
            return np.zeros((0, self.embedder.dim), np.float32)
        found = known_vectors(self.embedder.fingerprint, texts) if self._known else {}
        missing = [text for text in texts if text not in found]
        if missing:
            found |= zip(missing, self.embedder.embed_queries(missing), strict=True)
        return np.stack([found[text] for text in texts])

    def _by_texts(self, query: QuantisedQuery) -> Floats:
        """Return float32 [n_tools]: the cosine of a tool's best view and of its whole text, mixed."""
        views = self.index.scan(query).scores
        if not len(views):
            return views
        bare = 1 - self.example_index.n_tools / len(views)
        share = np.float32(_WHOLE_LEAST + (_WHOLE_MOST - _WHOLE_LEAST) * bare)
        mixed: Floats = (1 - share) * views + share * self.whole.scan(query).scores
        return mixed

    def _server_gain(self, reference: Reference | None) -> Floats:
        """Return float32 [n_tools]: what the tools of the server that was called last gain."""
        called = self.registry.get(reference.tool) if reference and reference.tool else None
        if called is None or called.server is None:
            return np.zeros(len(self.index), np.float32)
        same = np.fromiter((tool.server == called.server for tool in self._tools.values()), np.float32)
        return same * np.float32(_SERVER_BONUS)


def tools_by_key(registry: Registry) -> dict[str, ToolSpec]:
    """Tools by the name that a decision gives: plain, or qualified where another server has the plain one."""
    plain = {tool.name: tool for tool in registry.tools}
    # A tool may be called what another one is with its server. As in the registry the plain name counts, so
    # that a decision never goes to another tool than the one that is run by its name.
    aside = {tool.qualified_name: tool for tool in registry.shadowed if tool.qualified_name not in plain}
    return plain | aside


@contextmanager
def timed(times: dict[str, float], stage: str) -> Iterator[None]:
    """Write the milliseconds of the block into `times` under `stage`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        times[stage] = (time.perf_counter() - start) * 1000


def _pooled(views: Floats, examples: ExampleScores) -> Floats:
    """Return float32 [n_tools]: the cosine of the best view, drawn towards nearer examples."""
    reached: Floats = views + np.float32(_EXAMPLE_LEAD)
    nearest: Floats = np.maximum(examples.best - reached, np.float32(0))
    typical: Floats = np.maximum(examples.mean - reached, np.float32(0))
    pooled: Floats = views + np.float32(_EXAMPLE_WEIGHT) * nearest + np.float32(1 - _EXAMPLE_WEIGHT) * typical
    return pooled


def _margin(scores: Floats) -> float:
    """Return the best score minus the second; the best one itself where it has no rival."""
    if len(scores) < 2:  # noqa: PLR2004 - a rival
        return float(scores.sum())
    second, best = np.partition(scores, -2)[-2:]
    return float(best - second)


def _blend(scores: list[Floats]) -> Floats:
    """Return the request's scores, with those of the turns before it mixed in."""
    if len(scores) == 1:
        return scores[0]
    return np.float32(1 - _CONTEXT_WEIGHT) * scores[0] + np.float32(_CONTEXT_WEIGHT) * scores[1]
