"""Repair strategies: which tokens of a spliced block are computed in their true context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.shift import LEAST_HEAD
from nexus_lab.errors import NexusError
from nexus_lab.splice.base import RepairKind, RepairPlan
from nexus_lab.splice.curve import repair_count, repair_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from nexus_lab.settings import Profile
    from nexus_lab.splice.base import RepairStrategy

__all__ = [
    "BUDGETED",
    "Carried",
    "Full",
    "Leading",
    "NoProfile",
    "NoRepair",
    "Scattered",
    "Sensitive",
    "StrategyError",
    "Trailing",
    "strategy",
]


class StrategyError(NexusError):
    """No such strategy, or a budget that is no fraction."""


class NoProfile(StrategyError):
    """The block was compiled behind one context, so that nothing is known of its tokens' sensitivity."""


@dataclass(frozen=True, slots=True)
class NoRepair:
    """Splice the whole block."""

    @property
    def name(self) -> str:
        """``none``."""
        return RepairKind.NONE.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,  # noqa: ARG002
        budget: float | None = None,  # noqa: ARG002
        *,
        sensitivity: NDArray[np.float32] | None = None,  # noqa: ARG002
    ) -> RepairPlan:
        """Recompute nothing, whatever the depth and the budget."""
        return RepairPlan(RepairKind.NONE, n_tokens)


@dataclass(frozen=True, slots=True)
class Full:
    """Prefill the whole block."""

    @property
    def name(self) -> str:
        """``full``."""
        return RepairKind.FULL.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,  # noqa: ARG002
        budget: float | None = None,  # noqa: ARG002
        *,
        sensitivity: NDArray[np.float32] | None = None,  # noqa: ARG002
    ) -> RepairPlan:
        """Recompute everything, whatever the depth and the budget."""
        return RepairPlan(RepairKind.FULL, n_tokens, tuple(range(n_tokens)))


@dataclass(frozen=True, slots=True)
class Leading:
    """Prefill the head of the block and splice what follows.

    A block compiled at the start of a context puts an attention sink on its first tokens; those are what
    a relocation falsifies most.

    Attributes
    ----------
    default_budget
        Fraction recomputed when the caller names none.
    """

    default_budget: float = 0.25

    @property
    def name(self) -> str:
        """``leading``."""
        return RepairKind.LEADING.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,  # noqa: ARG002
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,  # noqa: ARG002
    ) -> RepairPlan:
        """Recompute the first ``ceil(budget * n_tokens)`` tokens."""
        fraction = _checked(self.default_budget if budget is None else budget)
        return _contiguous(RepairKind.LEADING, n_tokens, repair_count(n_tokens, fraction))


@dataclass(frozen=True, slots=True)
class Carried(Leading):
    """Prefill the head of the block, and splice what follows with the shift that the head's keys showed.

    Behind a conversation, the keys of all tokens of a block move in part together. What the head's keys turn
    out to differ by from the compiled ones is added to the others, as far as one half of the head foretells
    it for the other; see `nexus_lab.engine.shift`.
    """

    @property
    def name(self) -> str:
        """``carried``."""
        return RepairKind.CARRIED.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,
    ) -> RepairPlan:
        """Recompute the first ``ceil(budget * n_tokens)`` tokens; too short a head is merely leading."""
        plan = Leading.plan(self, n_tokens, n_past, budget, sensitivity=sensitivity)
        carries = plan.kind is RepairKind.LEADING and plan.count >= LEAST_HEAD
        return replace(plan, kind=RepairKind.CARRIED) if carries else plan


@dataclass(frozen=True, slots=True)
class Trailing:
    """Splice the whole block, then decode its suffix again: the source paper's repair.

    Attributes
    ----------
    k, m, r_base
        Constants of R(n_past), which sets the budget when the caller names none.
    """

    k: float = 4.0
    m: int = 256
    r_base: float = 0.05

    @property
    def name(self) -> str:
        """``trailing``."""
        return RepairKind.TRAILING.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,  # noqa: ARG002
    ) -> RepairPlan:
        """Recompute the last ``ceil(R(n_past) * n_tokens)`` tokens."""
        if budget is None:
            fraction = repair_fraction(n_past, k=self.k, m=self.m, r_base=self.r_base)
        else:
            fraction = _checked(budget)
        return _contiguous(RepairKind.TRAILING, n_tokens, repair_count(n_tokens, fraction))


@dataclass(frozen=True, slots=True)
class Scattered:
    """Recompute tokens at equal spacing from the first on: a negative control, not a repair to choose.

    The source paper retired this configuration. A token in the middle of rows that are wrong attends to
    them, so that its own rows come out wrong as well. At the same budget it is to be measured beside the
    contiguous repairs.

    Attributes
    ----------
    default_budget
        Fraction recomputed when the caller names none.
    """

    default_budget: float = 0.25

    @property
    def name(self) -> str:
        """``scattered``."""
        return RepairKind.SCATTERED.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,  # noqa: ARG002
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,  # noqa: ARG002
    ) -> RepairPlan:
        """Recompute ``ceil(budget * n_tokens)`` tokens, as far apart from each other as they can be."""
        fraction = _checked(self.default_budget if budget is None else budget)
        count = repair_count(n_tokens, fraction)
        chosen = (index * n_tokens // count for index in range(count))
        return _selected(RepairKind.SCATTERED, n_tokens, tuple(chosen))


@dataclass(frozen=True, slots=True)
class Sensitive:
    """Recompute the tokens whose rows move most between contexts, by the profile stored with the block.

    Attributes
    ----------
    default_budget
        Fraction recomputed when the caller names none.
    """

    default_budget: float = 0.25

    @property
    def name(self) -> str:
        """``profile``."""
        return RepairKind.PROFILE.value

    def plan(
        self,
        n_tokens: int,
        n_past: int,  # noqa: ARG002
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,
    ) -> RepairPlan:
        """Recompute the ``ceil(budget * n_tokens)`` most sensitive tokens; of equals the first.

        Raises
        ------
        NoProfile
            When the block has none.
        """
        fraction = _checked(self.default_budget if budget is None else budget)
        if sensitivity is None:
            raise NoProfile(
                "the block has no sensitivity profile",
                next_step="compile it behind several contexts, or choose the leading repair",
            )
        if sensitivity.shape != (n_tokens,):
            raise StrategyError(
                f"a profile of shape {sensitivity.shape} for {n_tokens} tokens", next_step="report this"
            )
        ranked = np.argsort(-sensitivity, kind="stable")[: repair_count(n_tokens, fraction)]
        return _selected(RepairKind.PROFILE, n_tokens, tuple(sorted(ranked.tolist())))


def strategy(name: str, profile: Profile | None = None) -> RepairStrategy:
    """Return the strategy `name`, with the constants of `profile` where it has any.

    Raises
    ------
    StrategyError
        When there is none of that name.
    """
    if name == RepairKind.TRAILING:
        return Trailing(profile.k, profile.m, profile.r_base) if profile else Trailing()
    if name in _BUDGETED:
        made = _BUDGETED[name]
        return made(profile.repair_budget) if profile else made()
    if name in _UNBUDGETED:
        return _UNBUDGETED[name]()
    known = ", ".join(kind.value for kind in RepairKind)
    raise StrategyError(f"no repair strategy {name!r}", next_step=f"choose one of {known}")


_UNBUDGETED: Mapping[str, Callable[[], RepairStrategy]] = {
    RepairKind.NONE: NoRepair,
    RepairKind.FULL: Full,
}
_BUDGETED: Mapping[str, Callable[..., RepairStrategy]] = {
    RepairKind.LEADING: Leading,
    RepairKind.CARRIED: Carried,
    RepairKind.PROFILE: Sensitive,
    RepairKind.SCATTERED: Scattered,
}


BUDGETED = tuple(map(str, _BUDGETED))
"""Names of the strategies that recompute a share of a block, as large as it is asked for."""


def _checked(budget: float) -> float:
    if not 0 <= budget <= 1:
        raise StrategyError(
            f"repair budget {budget!r} is no fraction", next_step="choose a value from 0 to 1"
        )
    return budget


def _contiguous(kind: RepairKind, n_tokens: int, count: int) -> RepairPlan:
    first = 0 if kind is RepairKind.LEADING else n_tokens - count
    return _selected(kind, n_tokens, tuple(range(first, first + count)))


def _selected(kind: RepairKind, n_tokens: int, chosen: tuple[int, ...]) -> RepairPlan:
    # Both ends meet: nothing recomputed and everything recomputed need no splice logic of their own.
    if not chosen:
        return RepairPlan(RepairKind.NONE, n_tokens)
    return RepairPlan(RepairKind.FULL if len(chosen) == n_tokens else kind, n_tokens, chosen)
