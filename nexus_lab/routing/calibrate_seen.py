"""What a calibration sees of a request: over a registry, over its own tools, or over a part of a registry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.abstain import reading_signals, stage_signals
from nexus_lab.routing.base import CalibrationError
from nexus_lab.routing.deciding import read_candidates, reread
from nexus_lab.routing.examples import ExampleScores
from nexus_lab.routing.gate import Ranking, rank
from nexus_lab.routing.router import Router
from nexus_lab.routing.rows import read_rows, share_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nexus_lab.registry import Registry
    from nexus_lab.routing.scoring import StageScores

__all__ = ["Seen", "Unknown", "of_part", "see", "see_part", "see_unknown"]

_MOST_UNKNOWN = 200


@dataclass(frozen=True, slots=True)
class Unknown:
    """Requests for tools that nobody knows.

    Attributes
    ----------
    registry, rows
        The tools, and JSON Lines of ``query``, ``context`` and ``gold_tool`` (or ``right``).
    kept_apart
        Only requests for this share of the tools, by a hash of their names, take part: what `train_reader`
        was given. 0 takes all.
    """

    registry: Registry
    rows: Path
    kept_apart: float = 0.0

    @property
    def options(self) -> dict[str, str | float]:
        """How the command line says it."""
        told: dict[str, str | float] = {"unknown": self.rows.name, "unknown-registry": self.registry.name}
        return told | ({"kept-apart": self.kept_apart} if self.kept_apart else {})


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gate sees of one request.

    Attributes
    ----------
    text
        The request.
    kind, over
        Which group of requests it is of, and over which tools it was asked.
    right
        Places of the right tools.
    before
        The signals of the scores, see `stage_signals`.
    logits
        What the cross-encoder says, by place; empty without one.
    """

    text: str
    kind: str
    over: str
    right: frozenset[int]
    stage: StageScores
    ranking: Ranking
    before: Mapping[str, float]
    logits: Mapping[int, float]

    def signals(self, *, read: bool) -> dict[str, float]:
        """Return what the probability that no tool fits is made from."""
        if not read:
            return dict(self.before)
        return dict(self.before) | reading_signals(np.asarray(list(self.logits.values()), np.float32))

    def place(self, weight: float | None) -> int:
        """Return the place of the right tool, by the scores or after reading."""
        order = (
            self.ranking.order if weight is None else reread(self.stage, self.ranking, self.logits, weight)
        )
        return next(number for number, place in enumerate(order) if int(place) in self.right)


def see(router: Router, row: Mapping[str, Any], over: str, *, read: bool = True) -> Seen:
    """Return what is seen of a row with ``query``, ``context``, ``kind`` and ``right`` over all tools."""
    stage = router.scores(row["query"], row.get("context") or ())
    right = {stage.names.index(row["right"])} if row.get("right") in stage.names else set()
    return _seen(router, row, over, stage, frozenset(right), read=read)


def see_part(router: Router, row: Mapping[str, Any], over: str, names: Sequence[str], *, read: bool) -> Seen:
    """Return what is seen of a row when there are only the tools called `names`, read where that is asked."""
    stage = of_part(router.scores(row["query"], row.get("context") or ()), names)
    right = {stage.names.index(row["right"])} if row.get("right") in stage.names else set()
    return _seen(router, row, over, stage, frozenset(right), read=read)


def see_unknown(router: Router, unknown: Unknown, share: float) -> list[Seen]:
    """Return what is seen of the share of the requests for unknown tools, 200 at most, without examples.

    Raises
    ------
    CalibrationError
        When there are none.
    """
    given = ({"right": row.get("gold_tool"), **row} for row in read_rows(unknown.rows))
    rows = [
        row
        for row in given
        if row["right"] in unknown.registry
        and share_of(row["query"]) < share
        and (not unknown.kept_apart or share_of(row["right"]) < unknown.kept_apart)
    ]
    if not rows:
        raise CalibrationError(
            f"no request of {unknown.rows.name} is for a tool of {unknown.registry.name!r} kept apart",
            next_step="give the registry that the requests are for, and the share that training was given",
        )
    bare = Router(
        unknown.registry, router.embedder, cross_encoder=router.cross_encoder, known=False, store=False
    )
    chosen = sorted(rows, key=lambda row: share_of(row["query"]))[:_MOST_UNKNOWN]
    return [see(bare, row, unknown.registry.name) for row in chosen]


def of_part(stage: StageScores, names: Sequence[str]) -> StageScores:
    """Return the scores as if there were only the tools called `names`, in their own order."""
    wanted = set(names)
    places = [place for place, name in enumerate(stage.names) if name in wanted]
    kept = np.asarray(places, np.intp)
    examples = stage.examples
    return replace(
        stage,
        names=tuple(stage.names[place] for place in places),
        dense=stage.dense[kept],
        lexical=stage.lexical[kept],
        fused=stage.fused[kept],
        named=tuple(number for number, place in enumerate(places) if place in stage.named),
        examples=ExampleScores(examples.best[kept], examples.mean[kept], examples.nearest[kept]),
        times_ms=dict(stage.times_ms),
    )


def _seen(
    router: Router,
    row: Mapping[str, Any],
    over: str,
    stage: StageScores,
    right: frozenset[int],
    *,
    read: bool,
) -> Seen:
    ranking, scorer = rank(stage), router.scorer
    context = row.get("context") or ()
    reader = router.cross_encoder
    logits = (
        read_candidates(reader, row["query"], stage, ranking, scorer=scorer, context=context)
        if read and reader is not None and len(stage.names)
        else {}
    )
    kind = str(row.get("kind") or ("no tool" if row.get("right") is None else "answerable"))
    before = stage_signals(stage, ranking, scorer)
    return Seen(row["query"], kind, over, right, stage, ranking, before, logits)
