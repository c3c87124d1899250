"""Measures of how far one next-token distribution is from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Fidelity", "LogitsError", "compare_logits", "kl_divergence", "top1_agreement", "top_k_overlap"]

_TOP = 5


class LogitsError(NexusError):
    """Logits that cannot be compared: other shapes, or values that are not finite."""


def kl_divergence(reference: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """D_KL(reference || other) of each position, over the full vocabulary.

    Parameters
    ----------
    reference, other
        Logits, [n_vocab] or [n, n_vocab], finite; computed in float64.

    Returns
    -------
    numpy.ndarray
        float64 [n], nats, at least 0; exactly 0 where the logits are equal.

    Raises
    ------
    LogitsError
        When the shapes differ or a value is not finite.
    """
    p, q = _paired(reference, other)
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    divergence: NDArray[np.float64] = np.sum(np.exp(log_p) * (log_p - log_q), axis=1)
    # D_KL is never negative; the sum can fall below 0 by its last rounding.
    return np.maximum(divergence, 0.0)


def top1_agreement(reference: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether both rank the same token first, bool [n]."""
    p, q = _paired(reference, other)
    return np.asarray(p.argmax(axis=1) == q.argmax(axis=1))


def top_k_overlap(reference: NDArray[Any], other: NDArray[Any], *, k: int = _TOP) -> NDArray[np.float64]:
    """Share of the reference's `k` likeliest tokens that are among the other's, float64 [n]."""
    p, q = _paired(reference, other)
    k = min(k, p.shape[1])
    best_p, best_q = (np.argpartition(-logits, k - 1, axis=1)[:, :k] for logits in (p, q))
    shared = [np.intersect1d(a, b).size for a, b in zip(best_p, best_q, strict=True)]
    return np.asarray(shared, dtype=np.float64) / k


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Distance between what a model says after a splice and after the full prefill.

    Attributes
    ----------
    dkl
        D_KL of each compared position, in nats.
    top1
        Share of positions whose likeliest token is the same.
    top5_overlap
        Mean share of the five likeliest tokens in common.
    greedy_match
        Compared positions, from the first on, before the likeliest token differs.
    noise_floor
        D_KL that the model shows between two exact computations of the same tokens, in nats;
        ``None`` when it was not measured.
    """

    dkl: tuple[float, ...]
    top1: float
    top5_overlap: float
    greedy_match: int
    noise_floor: float | None = None

    @property
    def n_positions(self) -> int:
        """Positions compared."""
        return len(self.dkl)

    @property
    def dkl_mean(self) -> float:
        """Mean D_KL, in nats."""
        return float(np.mean(self.dkl))

    @property
    def dkl_p95(self) -> float:
        """95th percentile of D_KL over the positions, in nats."""
        return float(np.quantile(self.dkl, 0.95))

    @property
    def excess(self) -> float | None:
        """Mean D_KL above the noise floor, in nats; negative below it."""
        return None if self.noise_floor is None else self.dkl_mean - self.noise_floor

    def to_row(self) -> dict[str, Any]:
        """Return the record as flat JSON values."""
        return {
            "dkl_mean": self.dkl_mean,
            "dkl_p95": self.dkl_p95,
            "top1_agreement": self.top1,
            "top5_overlap": self.top5_overlap,
            "greedy_match": self.greedy_match,
            "noise_floor": self.noise_floor,
            "n_positions": self.n_positions,
        }


def compare_logits(
    reference: NDArray[Any], other: NDArray[Any], *, noise_floor: float | None = None
) -> Fidelity:
    """Compare logits of the same positions.

    Parameters
    ----------
    reference, other
        Logits after the full prefill and after the splice, [n_vocab] or [n, n_vocab].
    noise_floor
        The model's noise floor in nats, to stand beside the result.
    """
    same = top1_agreement(reference, other)
    return Fidelity(
        dkl=tuple(float(value) for value in kl_divergence(reference, other)),
        top1=float(same.mean()),
        top5_overlap=float(top_k_overlap(reference, other).mean()),
        greedy_match=int(same.size if same.all() else same.argmin()),
        noise_floor=noise_floor,
    )


def _paired(reference: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, q = (np.atleast_2d(np.asarray(logits, dtype=np.float64)) for logits in (reference, other))
    if p.shape != q.shape or p.ndim != 2 or p.size == 0:  # noqa: PLR2004
        raise LogitsError(
            f"logits of shapes {p.shape} and {q.shape} cannot be compared",
            next_step="pass the same positions of both, [n_vocab] or [n, n_vocab]",
        )
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        raise LogitsError("logits hold values that are not finite", next_step="compare before masking tokens")
    return p, q


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
