"""Choosing the next token from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.errors import EngineError, MaskExhausted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine.base import SamplerSettings

__all__ = ["Sampler"]


class Sampler:
    """Draws tokens under `settings` with a random generator of its own.

    Raises
    ------
    EngineError
        When a setting means nothing.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        if not settings.temperature >= 0 or not 0 < settings.top_p <= 1 or settings.top_k < 0:
            raise EngineError(
                f"{settings} cannot be sampled with",
                next_step="choose temperature >= 0, top_k >= 0 and 0 < top_p <= 1",
            )
        self._settings = settings
        self._random = np.random.default_rng(settings.seed)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """Return a token. `logits` is float32 [n_vocab]; -inf forbids.

        Raises
        ------
        MaskExhausted
            When every token is forbidden.
        """
        best = int(np.argmax(logits))
        if not np.isfinite(logits[best]):
            raise MaskExhausted("no token is allowed here", next_step="check the grammar or the mask")
        if self._settings.temperature == 0:
            return best
        tokens = self._candidates(logits)
        scaled = logits[tokens].astype(np.float64) / self._settings.temperature
        weights = np.exp(scaled - scaled[0])
        weights = self._nucleus(weights / weights.sum())
        return int(tokens[self._random.choice(len(weights), p=weights / weights.sum())])

    def _candidates(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Tokens from likely to unlikely, at most `top_k`."""
        allowed = np.flatnonzero(np.isfinite(logits))
        order = np.argsort(-logits[allowed], kind="stable")
        return allowed[order[: self._settings.top_k or None]]

    def _nucleus(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Smallest prefix that reaches `top_p`; always at least the first."""
        if self._settings.top_p >= 1:
            return probabilities
        kept = int(np.searchsorted(np.cumsum(probabilities), self._settings.top_p)) + 1
        return probabilities[:kept]
