"""The source paper's repair curve R(n_past; M, R_base, K)."""

from __future__ import annotations

import math

from nexus_lab.errors import NexusError

__all__ = ["CURVE", "CurveError", "repair_count", "repair_fraction"]

CURVE = (
    "R(n_past) = r_base + (n_past - m) / (m (k - 1)) * (1 - r_base) for n_past > m, else r_base; at most 1"
)

# Fractions are products of short decimals: what is left beyond this digit is float noise, not a token.
_DIGITS = 9


class CurveError(NexusError):
    """The constants of the repair curve leave it undefined."""


def repair_fraction(n_past: int, *, k: float, m: int = 256, r_base: float = 0.05) -> float:
    """Fraction of a spliced block that the paper's suffix repair decodes again.

    Parameters
    ----------
    n_past
        Tokens before the block, at least 0.
    k
        Multiple of `m` at which the fraction reaches 1; must exceed 1.
    m
        Splice threshold in tokens.
    r_base
        Fraction repaired at and below the threshold, in [0, 1].

    Returns
    -------
    float
        A fraction in [`r_base`, 1], never falling with `n_past`.

    Raises
    ------
    CurveError
        When a constant leaves the curve undefined; the text holds the formula.

    Notes
    -----
    Source: the Nexus paper, section 3.1, in fractions in place of percent.
    """
    _check_constants(n_past, k=k, m=m, r_base=r_base)
    if n_past <= m:
        return r_base
    reached = (n_past - m) / (m * (k - 1.0))
    return min(1.0, r_base + reached * (1.0 - r_base))


def repair_count(n_tokens: int, fraction: float) -> int:
    """Tokens that a fraction of a block stands for: the ceiling, from 0 to `n_tokens`."""
    return min(n_tokens, max(0, math.ceil(round(n_tokens * fraction, _DIGITS))))


def _check_constants(n_past: int, *, k: float, m: int, r_base: float) -> None:
    if not (math.isfinite(k) and k > 1):
        raise CurveError(
            f"k = {k!r} leaves the repair curve undefined: {CURVE}",
            next_step="choose k > 1; repair reaches 100 % at depth k * m",
        )
    if m < 1:
        raise CurveError(
            f"m = {m!r} is no splice threshold: {CURVE}", next_step="choose m of at least 1 token"
        )
    if not 0 <= r_base <= 1:
        raise CurveError(
            f"r_base = {r_base!r} is no fraction: {CURVE}", next_step="choose r_base from 0 to 1"
        )
    if n_past < 0:
        raise CurveError(f"n_past = {n_past!r} is no depth", next_step="pass the tokens before the block")
