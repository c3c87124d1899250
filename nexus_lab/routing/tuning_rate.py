"""How models learn in the course of their training: how fast, and by which steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["finite_step", "rate_share"]


def rate_share(gone: float) -> float:
    """Return the share of the highest rate when the share `gone` of the training is over.

    It is at its height after a tenth, and falls to 0 in a straight line.
    """
    return min(gone / 0.1 + 0.02, (1 - gone) / 0.9)


def finite_step(optimiser: Any, loss: Any, trained: Sequence[Any]) -> bool:
    """Take a step down `loss`, and return whether it was taken.

    Where the loss or its gradient is no finite number, the parameters stay as they are: one such step would
    leave none of them a number.
    """
    import torch

    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
    taken = bool(torch.isfinite(loss) and torch.isfinite(norm))
    if taken:
        optimiser.step()
    return taken
