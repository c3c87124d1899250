"""The router: from a request, and the conversation before it, to a tool."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.registry import Registry, load_registry, repair_text
from nexus_lab.routing.base import Candidate, RoutingDecision, RoutingError, View, ViewKind
from nexus_lab.routing.calibration import READER_WEIGHT, RouterCalibration, load_calibration
from nexus_lab.routing.context import checked_turns
from nexus_lab.routing.deciding import Course, ReaderWeights, Rules, read_candidates, settle
from nexus_lab.routing.gate import rank
from nexus_lab.routing.scoring import SCORING, Scorer, StageScores
from nexus_lab.routing.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.base import CrossEncoder, Embedder, Message
    from nexus_lab.routing.index import ToolIndex

    Progress = Callable[[str, float], None]

__all__ = ["Router"]

logger = logging.getLogger(__name__)

_FOREIGN = "shipped for another embedder"
# Scores of another embedder may all be lower: it should rather answer too often than never.
_FOREIGN_SHARE = 0.5


@dataclass(slots=True)
class _Warm:
    """What a router has once it is warm; `store` keeps the vectors where there is one."""

    scorer: Scorer
    calibration: RouterCalibration
    calibrated_by: str
    store: EmbeddingStore | None
    reader: CrossEncoder | None


class Router:
    """Chooses the tool for a request, and says how sure it is.

    Building is cheap; the embedder is loaded and the tools are embedded at the first use or by `warm_up`.
    A router may be used from several threads.

    Parameters
    ----------
    registry
        The tools, or whatever `load_registry` reads.
    embedder
        An `Embedder`, what `load_embedder` takes, or ``None`` for the bundled one.
    tau
        Margin from which a decision stands by itself; ``None`` takes the calibrated one.
    top_k
        Candidates that a decision lists.
    threshold
        Least score of a tool that fits; ``None`` takes the calibrated one, 0 hardly ever abstains.
    cross_encoder
        Who decides below tau; with ``None`` such a decision is marked ``escalation_unavailable``. ``bundled``
        is the one that comes with the package; ``auto`` takes it unless an embedder was given as an object.
    threads
        Most threads of the embedder.
    store
        Keep the vectors of tools on disk, so that the next router over the same tools starts at once.
    known
        Give tools of public servers the requests that come with the package, as examples.
    held
        Which of those are left out, so that one can measure on them; none by default.
    """

    def __init__(
        self,
        registry: Registry | Any,
        embedder: Embedder | str | None = None,
        *,
        tau: float | None = None,
        top_k: int = 3,
        threshold: float | None = None,
        cross_encoder: CrossEncoder | str | None = "auto",
        threads: int | None = None,
        store: bool = True,
        known: bool = True,
        held: Callable[[str], bool] | None = None,
    ) -> None:
        _check_gate(tau, top_k)
        self._registry = registry if isinstance(registry, Registry) else load_registry(registry)
        self.top_k = top_k
        self._reader = cross_encoder
        self._known, self._held = known, held
        self._given = embedder
        self._threads, self._store = threads, store
        self._tau, self._threshold = tau, threshold
        self._turn = threading.RLock()
        self._ready: _Warm | None = None

    def __repr__(self) -> str:
        return f"Router({self.registry.name!r}, {len(self.registry)} tools)"

    def warm_up(self, on_progress: Progress | None = None) -> Router:
        """Load the embedder and embed the tools now, telling what happens and the fraction done."""
        self._warm(on_progress)
        return self

    @property
    def registry(self) -> Registry:
        """The tools."""
        return self._registry

    @property
    def is_warm(self) -> bool:
        """Whether the embedder is loaded and the tools are embedded; never waits."""
        return self._ready is not None

    def configure(self, *, tau: float | None, top_k: int) -> None:
        """Set the gate of the decisions to come.

        Parameters
        ----------
        tau
            Margin from which a decision stands by itself; ``None`` takes the calibrated one.
        top_k
            Candidates that a decision lists.
        """
        _check_gate(tau, top_k)
        with self._turn:
            self._tau, self.top_k = tau, top_k

    @property
    def embedder(self) -> Embedder:
        """The embedder in use."""
        return self._warm().scorer.embedder

    @property
    def cross_encoder(self) -> CrossEncoder | None:
        """Who decides below tau."""
        return self._warm().reader

    @property
    def index(self) -> ToolIndex:
        """The vectors of the tools."""
        return self._warm().scorer.index

    @property
    def calibration(self) -> RouterCalibration:
        """Where the calibrated thresholds come from."""
        return self._warm().calibration

    @property
    def tau(self) -> float:
        """The margin from which a decision stands by itself."""
        return self.calibration.gate.tau if self._tau is None else self._tau

    @property
    def reader_weights(self) -> ReaderWeights:
        """What one unit of the cross-encoder's score adds to a fused score; calibrated for its own only."""
        calibration = self.calibration
        if not self._knows_reader(calibration):
            return ReaderWeights(READER_WEIGHT, READER_WEIGHT)
        known, unknown = calibration.reader_weight, calibration.reader_weight_unknown
        return ReaderWeights(known, known if unknown is None else unknown)

    @property
    def threshold(self) -> float:
        """The least score of a tool that fits."""
        if self._threshold is not None:
            return self._threshold
        threshold = self.calibration.abstention.at(len(self.index))
        return threshold if self._warm().calibrated_by != _FOREIGN else _FOREIGN_SHARE * threshold

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """The examples that were added: pairs of tool and request, oldest first."""
        return tuple(self._warm().scorer.examples)

    def route(
        self,
        request: str,
        context: Sequence[Message] = (),
        *,
        tau: float | None = None,
        top_k: int | None = None,
    ) -> RoutingDecision:
        """Choose the tool for `request`.

        Parameters
        ----------
        request
            What the user says now.
        context
            The turns before it, oldest first; read only where the request refers back.
        tau, top_k
            Of this decision alone; ``None`` takes the router's own.

        Raises
        ------
        RoutingError
            When the request is no text, a turn is no message, or `tau` or `top_k` is none.
        """
        if not isinstance(request, str):
            raise RoutingError(f"a request is a text, no {type(request).__name__}", next_step="give a text")
        request, context = repair_text(request), checked_turns(context or ())
        with self._turn:
            stage = self.scores(request, context)
            return self._decide(
                request,
                context,
                stage,
                self.tau if tau is None else tau,
                self.top_k if top_k is None else top_k,
            )

    def scores(self, request: str, context: Sequence[Message] = ()) -> StageScores:
        """Return what each stage says about all tools, without deciding."""
        with self._turn:
            return self._warm().scorer.scores(request, context)

    @property
    def scorer(self) -> Scorer:
        """The tools made searchable; not for several threads."""
        return self._warm().scorer

    def read(self, request: str, stage: StageScores, context: Sequence[Message] = ()) -> Mapping[int, float]:
        """Return what the cross-encoder says of the first ten tools, by place; empty without one."""
        with self._turn:
            warm = self._warm()
            if warm.reader is None or not len(stage.names):
                return {}
            return read_candidates(
                warm.reader, request, stage, rank(stage), scorer=warm.scorer, context=context
            )

    def update(self, registry: Registry) -> None:
        """Take over `registry`: tools that are new or changed are embedded, ones that are gone are dropped.

        Examples stay with the tool of their server as long as it is there, whatever it is called by.
        """
        with self._turn:
            if self._ready is not None:
                self._ready.scorer.apply(registry)
            self._registry = registry
            if self._ready is not None and self._ready.store is not None:
                self._ready.store.save()

    def add_tool(self, tool: ToolSpec) -> None:
        """Add `tool`, or put it in the place of the one of its server and name."""
        with self._turn:
            known = self.registry.get(tool.qualified_name)
            same = known is not None and known.qualified_name == tool.qualified_name
            self.update(self.registry.replace(tool) if same else self.registry.add(tool))

    def remove_tool(self, name: str) -> None:
        """Remove the tool called `name`."""
        with self._turn:
            self.update(self.registry.remove(name))

    def add_example(self, request: str, tool: str) -> None:
        """Remember that `request` belongs to `tool`: one more vector, at once in use.

        Raises
        ------
        RoutingError
            When there is no such tool.
        """
        with self._turn:
            self._warm().scorer.add_example(request, tool)

    def remove_example(self, request: str, tool: str) -> None:
        """Take an example back.

        Raises
        ------
        RoutingError
            When it was never added.
        """
        with self._turn:
            self._warm().scorer.remove_example(request, tool)

    def check_integrity(self) -> None:
        """Raise `RoutingError` when the index does not hold the registry's tools."""
        with self._turn:
            self._warm().scorer.check_integrity()

    def _decide(
        self, request: str, context: Sequence[Message], stage: StageScores, tau: float, top_k: int
    ) -> RoutingDecision:
        _check_gate(tau, top_k)
        course = settle(request, stage, self._warm().scorer, self._rules(tau), context)
        listed = course.order[:top_k]
        notes = self._warm().scorer.notes(request, stage, listed, context)
        candidates = tuple(
            self._candidate(stage, course, place, told) for place, told in zip(listed, notes, strict=True)
        )
        return RoutingDecision(
            request=request,
            normalised=stage.normalised,
            candidates=candidates,
            margin=course.ranking.margin,
            dense_margin=stage.dense_margin,
            tau=tau,
            outcome=course.verdict.outcome,
            tool=course.verdict.tool,
            reason=course.verdict.reason,
            fit=course.fit,
            threshold=course.threshold,
            no_tool_chance=course.no_tool,
            used_context=stage.reference is not None,
            times_ms=stage.times_ms,
            settings=self._settings(tau, top_k),
        )

    def _rules(self, tau: float) -> Rules:
        warm = self._warm()
        calibration = warm.calibration
        given = self._threshold is not None
        ours = warm.calibrated_by != _FOREIGN and not given
        read = ours and warm.reader is not None and self._knows_reader(calibration)
        return Rules(
            tau=tau,
            threshold=self.threshold,
            no_tool=calibration.no_tool if ours else None,
            no_tool_read=calibration.no_tool_read if read else None,
            reader=warm.reader,
            reader_weights=self.reader_weights,
        )

    def _knows_reader(self, calibration: RouterCalibration) -> bool:
        return calibration.reader == getattr(self.cross_encoder, "fingerprint", None)

    def _candidate(self, stage: StageScores, course: Course, place: int, notes: tuple[str, ...]) -> Candidate:
        name = stage.names[place]
        example = float(stage.examples.best[place])
        return Candidate(
            tool=name,
            score=float(stage.fused[place]),
            dense=float(stage.dense[place]),
            lexical=float(stage.lexical[place]),
            cross_encoder=_probability(course.logits.get(place)),
            view=self._matched(stage, place),
            example=example if stage.examples.nearest[place] >= 0 else None,
            notes=notes,
        )

    def _matched(self, stage: StageScores, place: int) -> View:
        """Return the view or the example of a tool that is nearest to the request."""
        scorer = self._warm().scorer
        view, cosine = scorer.index.best_view(stage.names[place], stage.query)
        if stage.examples.best[place] <= cosine:
            return view
        return View(ViewKind.EXAMPLE, scorer.example_index.text(int(stage.examples.nearest[place])))

    def _settings(self, tau: float, top_k: int) -> dict[str, Any]:
        warm = self._warm()
        return {
            "embedder": warm.scorer.embedder.name,
            "scoring": SCORING,
            "tau_from": warm.calibrated_by if tau == warm.calibration.gate.tau else "given",
            "top_k": top_k,
            "n_tools": len(warm.scorer.index),
            "n_vectors": warm.scorer.index.n_vectors,
            "kernel": warm.scorer.index.kernel,
            "n_examples": len(warm.scorer.example_index),
            "cross_encoder": warm.reader.name if warm.reader else None,
        }

    def _warm(self, on_progress: Progress | None = None) -> _Warm:
        with self._turn:
            if self._ready is None:
                self._ready = self._make(on_progress)
            return self._ready

    def _make(self, on_progress: Progress | None) -> _Warm:
        from nexus_lab.routing.reader import choose_reader

        embedder = self._load_embedder(on_progress)
        store = EmbeddingStore(embedder) if self._store and not isinstance(embedder, EmbeddingStore) else None
        scorer = Scorer(embedder if store is None else store, known=self._known, held=self._held)
        scorer.apply(self.registry, on_progress)
        if store is not None:
            store.save()
        calibration, origin = load_calibration(embedder.fingerprint, SCORING)
        if self._tau is None and calibration.embedder != embedder.fingerprint:
            logger.warning("tau was not calibrated for %s; run nexus-lab route calibrate", embedder.name)
        if on_progress is not None:
            on_progress("router ready", 1.0)
        return _Warm(scorer, calibration, origin, store, choose_reader(self._reader, self._given))

    def _load_embedder(self, on_progress: Progress | None) -> Embedder:
        if self._given is not None and not isinstance(self._given, str):
            return self._given
        from nexus_lab.routing.embedder import load_embedder

        return load_embedder(self._given or "bundled", threads=self._threads, on_progress=on_progress)


def _probability(logit: float | None) -> float | None:
    """Return what a logit against "none of them" says, in [0, 1]."""
    return None if logit is None else 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


def _check_gate(tau: float | None, top_k: int) -> None:
    if top_k < 1:
        raise RoutingError(f"top_k = {top_k}", next_step="choose at least 1")
    if tau is not None and not tau >= 0:
        raise RoutingError(f"tau = {tau} is no margin", next_step="choose a value of at least 0")
