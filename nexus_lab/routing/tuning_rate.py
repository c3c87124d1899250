"""How models learn in the course of their training: how fast, how exactly, and by which steps."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["finite_step", "halves_are_faster", "rate_share"]


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


@cache
def halves_are_faster() -> bool:
    """Whether this CPU multiplies bfloat16 matrices faster than float32 ones; tried once, in some 20 ms."""
    import torch

    taken = []
    for kind in (torch.float32, torch.bfloat16):
        left, right = torch.ones((256, 576), dtype=kind), torch.ones((576, 1536), dtype=kind)
        tries = []
        for _ in range(5):
            began = time.perf_counter()
            left @ right
            tries.append(time.perf_counter() - began)
        taken.append(min(tries))
    return taken[1] < taken[0]
