"""How fast the models of this room learn in the course of their training."""

from __future__ import annotations

__all__ = ["rate_share"]


def rate_share(gone: float) -> float:
    """Return the share of the highest rate when the share `gone` of the training is over.

    It is at its height after a tenth, and falls to 0 in a straight line.
    """
    return min(gone / 0.1 + 0.02, (1 - gone) / 0.9)
