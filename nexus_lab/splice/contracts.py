"""What a caller can ask of a splice: ``exact``, ``bounded(epsilon)``, ``paper`` or ``fixed``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nexus_lab.errors import Decline, NexusError
from nexus_lab.splice.strategies import Full, Leading, NoProfile, NoRepair, Trailing, strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.settings import Profile
    from nexus_lab.splice.base import RepairPlan, RepairStrategy
    from nexus_lab.splice.calibration import Calibration

__all__ = [
    "Bounded",
    "Choice",
    "ContractError",
    "Exact",
    "Fixed",
    "Paper",
    "SpliceContract",
    "choose",
    "parse_contract",
]

_MODE = re.compile(r"splice\((?P<kind>exact|paper|fixed|bounded\((?P<epsilon>[^()]*)\))\)")


class ContractError(NexusError):
    """The text names no splice contract."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Splice only where the result is the prefill's: behind the identical preceding tokens.

    It is so to the last bit in the cells that the rows were computed in, and in others up to the model's
    noise floor, as for any prefill there.
    """

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True, slots=True)
class Bounded:
    """Splice where the measured upper quantile of D_KL stays under `epsilon` nats; prefill elsewhere."""

    epsilon: float

    def __str__(self) -> str:
        return f"bounded({self.epsilon:g})"


@dataclass(frozen=True, slots=True)
class Paper:
    """Splice, then decode the suffix that the source paper's R(n_past) asks for."""

    k: float = 4.0
    m: int = 256
    r_base: float = 0.05

    def __str__(self) -> str:
        return "paper"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Splice, then repair as a strategy says; nothing is promised of the result.

    Attributes
    ----------
    repair
        The strategy.
    budget
        Fraction of the block that may be recomputed; ``None`` leaves it to the strategy.
    """

    repair: RepairStrategy
    budget: float | None = None

    def __str__(self) -> str:
        return "fixed"


SpliceContract: TypeAlias = Exact | Bounded | Paper | Fixed


@dataclass(frozen=True, slots=True)
class Choice:
    """The repair a contract leads to, and why when it leads to a full prefill."""

    plan: RepairPlan
    declined: Decline | None = None


def parse_contract(schema_mode: str, profile: Profile | None = None) -> SpliceContract | None:
    """Read the contract in a profile's `schema_mode`.

    Parameters
    ----------
    schema_mode
        ``signature``, ``full``, ``splice(exact)``, ``splice(bounded(EPSILON))``, ``splice(paper)`` or
        ``splice(fixed)``.
    profile
        Gives the constants of the paper's curve, and the repair of ``fixed``; its defaults stand in when
        absent.

    Returns
    -------
    SpliceContract or None
        ``None`` for the modes that do not splice.

    Raises
    ------
    ContractError
        When the text is none of these.
    """
    if schema_mode in ("signature", "full"):
        return None
    match = _MODE.fullmatch(schema_mode)
    if match is None:
        raise ContractError(
            f"unknown schema mode {schema_mode!r}",
            next_step="choose signature, full, splice(exact), splice(bounded(0.02)), splice(paper) "
            "or splice(fixed)",
        )
    if match["epsilon"] is not None:
        return Bounded(_epsilon(match["epsilon"], schema_mode))
    if match["kind"] == "exact":
        return Exact()
    if match["kind"] == "fixed":
        return Fixed(strategy(profile.repair, profile) if profile else Leading())
    return Paper(profile.k, profile.m, profile.r_base) if profile else Paper()


def choose(
    contract: SpliceContract,
    *,
    n_tokens: int,
    n_past: int,
    anchored: bool,
    calibration: Calibration | None = None,
    sensitivity: NDArray[np.float32] | None = None,
    whole: bool = True,
) -> Choice:
    """Turn a contract into a repair plan for one block at one depth.

    Parameters
    ----------
    contract
        What was asked for.
    n_tokens, n_past
        Length of the block, and tokens before it.
    anchored
        The preceding tokens are those the block was compiled behind.
    calibration
        Measured bounds for this model and this block's compile context.
    sensitivity
        The block's profile, float32 [n_tokens], if it has one.
    whole
        Whether every token before the block is still attended; bounds are measured behind such
        conversations alone.
    """
    if isinstance(contract, Paper):
        return Choice(Trailing(contract.k, contract.m, contract.r_base).plan(n_tokens, n_past))
    if isinstance(contract, Fixed):
        return _fixed(contract.repair, n_tokens, n_past, sensitivity, contract.budget)
    if anchored:
        return Choice(NoRepair().plan(n_tokens, n_past))
    if isinstance(contract, Exact):
        reason = "the preceding tokens are not those the block was compiled behind"
        return Choice(Full().plan(n_tokens, n_past), Decline("not_anchored", reason))
    if not whole:
        reason = "tokens before the block are dropped, and bounds are measured behind whole conversations"
        return Choice(Full().plan(n_tokens, n_past), Decline("outside_calibration", reason))
    return _bounded(contract, n_tokens, n_past, calibration, sensitivity)


def _fixed(
    repair: RepairStrategy,
    n_tokens: int,
    n_past: int,
    sensitivity: NDArray[np.float32] | None,
    budget: float | None = None,
) -> Choice:
    try:
        return Choice(repair.plan(n_tokens, n_past, budget, sensitivity=sensitivity))
    except NoProfile as error:
        return Choice(Full().plan(n_tokens, n_past), Decline("no_profile", error.problem))


def _bounded(
    contract: Bounded,
    n_tokens: int,
    n_past: int,
    calibration: Calibration | None,
    sensitivity: NDArray[np.float32] | None,
) -> Choice:
    full = Full().plan(n_tokens, n_past)
    if calibration is None:
        reason = "no calibration of this model behind this compile context has been measured"
        return Choice(full, Decline("not_calibrated", reason))
    budget = calibration.budget_for(contract.epsilon, n_tokens=n_tokens, n_past=n_past)
    if isinstance(budget, Decline):
        return Choice(full, budget)
    return _fixed(strategy(calibration.strategy), n_tokens, n_past, sensitivity, budget)


def _epsilon(text: str, schema_mode: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise ContractError(
            f"epsilon {text!r} in {schema_mode!r} is no bound",
            next_step="choose a D_KL bound in nats above 0",
        )
    return value
