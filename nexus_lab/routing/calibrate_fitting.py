"""Fitting what "no tool fits" is judged by, and judging requests by what was fitted without them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.routing.abstain import NoTool, fit_no_tool
from nexus_lab.routing.base import CalibrationError
from nexus_lab.routing.calibration import calibrate_abstention
from nexus_lab.routing.rows import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.routing.calibrate_seen import Seen
    from nexus_lab.routing.calibration import Abstention

__all__ = ["FOLDS", "Fitting", "Judge", "fold_of"]

FOLDS = 5
"""Parts of the requests, each judged by what was fitted to the others."""

# Answerable requests over the registry from which parts of them are worth fitting to.
_FEWEST = 8 * FOLDS
_SMALLEST_PART = 4
_DRAWS = 8


def fold_of(one: Seen) -> int:
    """Return the part that a request belongs to; the same text is always in the same one."""
    # Another digit than the one by which a share of a file is kept apart.
    return int(share_of(f"fold {one.text}") * FOLDS)


@dataclass(frozen=True, slots=True)
class Judge:
    """What "no tool fits" is judged by, before and after the cross-encoder."""

    abstention: Abstention
    before: NoTool | None
    after: NoTool | None

    def doubt(self, one: Seen) -> tuple[float, bool]:
        """Return how doubtful it is that a tool fits, and whether the request would be refused."""
        read = self.after is not None and bool(one.logits)
        model = self.after if read else self.before
        if model is None:
            fit = one.ranking.fit
            return -fit, fit < self.abstention.at(len(one.stage.names))
        chance = model.chance(one.signals(read=read))
        return chance, chance >= model.limit


@dataclass(frozen=True, slots=True)
class Fitting:
    """How judges are made.

    Attributes
    ----------
    package
        What was seen of the package's own requests.
    learn_from
        ``files``, ``package`` or ``all``.
    target
        Share of answerable requests that may be refused.
    over
        Name of the registry.
    source
        Whose requests the files' are.
    reads
        Whether a second model hears the cross-encoder.
    kept
        What stays where there are too few requests to fit to, before and after the cross-encoder; it refuses
        no more of the registry's requests than `target`.
    """

    package: Sequence[Seen]
    learn_from: str
    target: float
    over: str
    source: str
    reads: bool = True
    kept: tuple[NoTool | None, NoTool | None] = (None, None)

    def judge(self, files: Sequence[Seen]) -> Judge:
        """Return the judge that is fitted to these requests of the files, and the package's."""
        ours = [one for one in files if one.over == self.over and one.right]
        abstention = calibrate_abstention(_fits_by_size(ours), target=self.target, source=self.source)
        seen = [
            *(files if self.learn_from != "package" else ()),
            *(self.package if self.learn_from != "files" else ()),
        ]
        before = self._model(seen, read=False)
        if before is None:
            kept = (
                self._held_to(model, ours, read=read)
                for model, read in zip(self.kept, (False, True), strict=True)
            )
            return Judge(abstention, *kept)
        return Judge(abstention, before, self._model(seen, read=True) if self.reads else None)

    def doubts(self, files: Sequence[Seen]) -> tuple[list[tuple[float, bool]], int]:
        """Return the doubt about each request by a judge that was fitted without it, and how many there are.

        One judge of all where they are too few.
        """
        ours = sum(one.over == self.over and bool(one.right) for one in files)
        if ours < _FEWEST:
            judge = self.judge(files)
            return [judge.doubt(one) for one in files], 1
        judges = [self.judge([one for one in files if fold_of(one) != fold]) for fold in range(FOLDS)]
        return [judges[fold_of(one)].doubt(one) for one in files], FOLDS

    def _model(self, seen: Sequence[Seen], *, read: bool) -> NoTool | None:
        """Return the model of "no tool fits"; none where there are too few requests to fit it to."""
        used = [one for one in seen if one.logits or not read]
        try:
            return fit_no_tool(
                [one.signals(read=read) for one in used],
                [not one.right for one in used],
                target=self.target,
                groups=[one.over for one in used],
                source=self._told(used),
            )
        except (CalibrationError, IndexError):
            return None

    def _held_to(self, model: NoTool | None, ours: Sequence[Seen], *, read: bool) -> NoTool | None:
        """Return a model of other requests that refuses no more of these than it may; none of very few."""
        chances = [model.chance(one.signals(read=read)) for one in ours if model and (one.logits or not read)]
        if model is None or not chances:
            return model
        few = len(chances) * self.target < 1
        least = float(np.nextafter(max(chances), 2.0) if few else np.quantile(chances, 1 - self.target))
        if least <= model.limit:
            return model
        return replace(model, limit=min(1.0, least), source=f"{model.source}; its limit by {self.source}")

    def _told(self, used: Sequence[Seen]) -> str:
        if self.learn_from == "package":
            return f"{len(used)} observations of the package's held requests"
        return f"{self.source}, and {len(used) - sum(one.over == self.over for one in used)} more"


def _fits_by_size(seen: Sequence[Seen]) -> dict[int, list[float]]:
    """Return the best scores over the registry, and over random parts of it that hold the right tool."""
    n_tools = len(seen[0].stage.names)
    chooser = np.random.default_rng(0)
    fits: dict[int, list[float]] = {n_tools: [float(one.stage.fused.max()) for one in seen]}
    size = n_tools // 2
    while size >= _SMALLEST_PART:
        fits[size] = [
            max(float(one.stage.fused[min(one.right)]), float(part.max()))
            for one in seen
            for part in (chooser.choice(one.stage.fused, size - 1, replace=False) for _ in range(_DRAWS))
        ]
        size //= 2
    return fits
