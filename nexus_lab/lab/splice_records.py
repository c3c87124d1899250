"""The records of splice trials: what was asked, what was measured, and the frames behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.lab.splice_film import MEASURES, FilmStep
from nexus_lab.lab.splice_parts import CONTEXTS, TrialError
from nexus_lab.lab.splice_words import ProfileFigure, led_words, profile_figure
from nexus_lab.splice import RepairKind, RepairPath

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.errors import Decline
    from nexus_lab.splice import Calibration

__all__ = ["MeasuredSplice", "NextToken", "SpliceSettings", "SpliceTrial"]

_CONTRACTS = ("fixed", "exact", "bounded", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceSettings:
    """What is tried; as ``SpliceSettings`` of the wire.

    Attributes
    ----------
    context
        What the block is compiled behind: ``system``, ``typical`` or ``none``.
    contract
        ``fixed`` runs `repair` with `budget`; ``exact``, ``bounded`` and ``paper`` choose by themselves.
    epsilon
        Bound of ``bounded``, in nats.
    budget
        Fraction of the block to recompute; ``None`` takes R(n_past) from `k`.
    measure
        Prefill the same tokens as a reference; without it there is no drift and no fidelity.
    attention
        Compare the attention of the next token, where it can be read.
    """

    tool: str
    n_past: int
    repair: str = "leading"
    budget: float | None = 0.25
    k: float = 4.0
    measure: bool = True
    attention: bool = False
    context: str = "system"
    contract: str = "fixed"
    epsilon: float = 0.02

    def __post_init__(self) -> None:
        kinds = {"n_past": Integral, "budget": Real, "k": Real, "epsilon": Real}
        for name, kind in kinds.items():
            value = getattr(self, name)
            left_out = name == "budget" and value is None
            if isinstance(value, bool) or not (left_out or isinstance(value, kind)):
                whole = "whole " if kind is Integral else ""
                raise TrialError(f"{name} is {value!r:.60}", next_step=f"choose a {whole}number")
        choices = (
            ("repair", self.repair, tuple(RepairKind)),
            ("compile context", self.context, tuple(CONTEXTS)),
            ("contract", self.contract, _CONTRACTS),
        )
        for what, value, known in choices:
            if value not in known:
                raise TrialError(f"no {what} {value!r}", next_step=f"choose one of {', '.join(known)}")
        if not 0 < self.epsilon < math.inf:
            raise TrialError(
                f"epsilon {self.epsilon!r} is no bound", next_step="choose a D_KL bound in nats above 0"
            )


@dataclass(frozen=True, slots=True)
class NextToken:
    """A token and its probability by both paths."""

    text: str
    prefill: float
    spliced: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSplice:
    """The splice against the prefill of the same tokens; times in ms, divergences in nats.

    Attributes
    ----------
    n_positions
        Positions compared: after the prompt, and after each token that both paths were forced to say.
    next
        The likeliest next tokens of the prefill, and all others as one.
    """

    prefill_ms: float
    dkl: float
    noise_floor: float
    n_positions: int
    top1: float
    same_first: bool
    next: tuple[NextToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpliceTrial:
    """One trial, as ``SpliceRun`` of the wire; the arrays behind `frame` are its own.

    Attributes
    ----------
    source
        Where the tokens before the block come from.
    repaired, curve_tokens
        Tokens recomputed, and how many R(n_past) asks for.
    plan, recomputed
        Repair that ran, and the tokens of the block that it computed.
    repair_path, repair_declined
        Whether they were computed in one pass, and why not although there are several stretches.
    calibration
        What ``bounded`` went by.
    sensitivity
        Profile of the block, float32 [n_tokens]; ``None`` when it was compiled behind one context.
    ttft_ms
        From nothing of the block in the cache to the logits of the first new token.
    measure_declined, attention_declined
        Why there is no measure, or no attention, although it was asked for.
    drift
        float32 [n_steps, 2, 3, n_layer, n_head_kv]: K and V by ``MEASURES``; ``None`` without a reference.
    attention_drift
        float32 [n_steps, 3, n_layer, n_head].
    drift_floor, attention_floor
        What the same prefill drifts by with the rows before the block in other cells, as one step of the two:
        float32 [2, 3, n_layer, n_head_kv] and [3, n_layer, n_head]; ``None`` where it was not measured.
    """

    id: str
    settings: SpliceSettings
    n_tokens: int
    anchor: int
    bytes: int
    anchored: bool
    source: str
    repaired: int
    curve_tokens: int
    steps: tuple[FilmStep, ...]
    declined: Decline | None
    n_layer: int
    n_head_kv: int
    n_head: int
    ttft_ms: float
    measured: MeasuredSplice | None
    measure_declined: Decline | None
    attention_declined: Decline | None
    drift: NDArray[np.float32] | None
    attention_drift: NDArray[np.float32] | None
    drift_floor: NDArray[np.float32] | None = None
    attention_floor: NDArray[np.float32] | None = None
    plan: str = RepairKind.FULL.value
    recomputed: tuple[int, ...] = ()
    repair_path: str = RepairPath.RUNS.value
    repair_declined: Decline | None = None
    calibration: Calibration | None = None
    sensitivity: NDArray[np.float32] | None = None

    @property
    def led(self) -> tuple[str, ...]:
        """What was asked for and what it led to, a sentence each."""
        return led_words(self)

    @property
    def profile(self) -> ProfileFigure | None:
        """The sensitivity of the block's tokens, drawn; ``None`` when it has no profile."""
        return None if self.sensitivity is None else profile_figure(self.sensitivity, self.recomputed)

    def to_part(self) -> dict[str, Any]:
        """Return what views show of it, without the arrays."""
        arrays = ("drift", "attention_drift", "drift_floor", "attention_floor", "sensitivity")
        hidden = (*arrays, "calibration", "recomputed")
        shown = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in hidden}
        return {**shown, "has_attention": self.has_attention, "led": self.led, "profile": self.profile}

    @property
    def has_attention(self) -> bool:
        """Whether attention was compared."""
        return self.attention_drift is not None

    def frames(self, tensor: str, measure: str) -> NDArray[np.float32] | None:
        """Return float32 [n_steps, rows, columns] of one tensor and measure; ``None`` where not measured.

        Raises
        ------
        TrialError
            When there is no such tensor or measure.
        """
        at = _place(tensor, measure)
        if tensor == "attention":
            return None if self.attention_drift is None else self.attention_drift[:, at]
        return None if self.drift is None else self.drift[:, "kv".index(tensor), at]

    def floor(self, tensor: str, measure: str) -> NDArray[np.float32] | None:
        """Return the noise floor of each cell, float32 [rows, columns]; ``None`` where it was not measured.

        Raises
        ------
        TrialError
            When there is no such tensor or measure.
        """
        at = _place(tensor, measure)
        whole = self.attention_floor if tensor == "attention" else self.drift_floor
        if whole is None:
            return None
        floor: NDArray[np.float32] = np.abs(
            whole[at] if tensor == "attention" else whole["kv".index(tensor), at]
        )
        return floor


def _place(tensor: str, measure: str) -> int:
    if measure not in MEASURES or tensor not in ("k", "v", "attention"):
        raise TrialError(
            f"nothing is measured as {tensor!r}, {measure!r}",
            next_step="choose k, v or attention, and relative, absolute or signed",
        )
    return MEASURES.index(measure)
