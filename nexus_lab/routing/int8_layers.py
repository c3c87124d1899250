"""INT8 layers for reading: the weights as they are kept, each token quantised as it comes.

A token is scaled by itself (symmetric: its largest magnitude is 127), so what a pair scores hardly depends on
which pairs are read with it, and the sums are exact integers. On a processor with VNNI the products of a
MiniLM layer take a ninth of the time of float32 (0.09 ms for 300 tokens and 384 x 384, and 0.79 ms), a fifth
with the quantising.
"""

from __future__ import annotations

from typing import Any

import torch

from nexus_lab._core import cpu_features

__all__ = ["Int8Linear", "int8_pays", "with_int8_layers"]

_LEVELS = 127
_TINY = torch.finfo(torch.float32).tiny


class Int8Linear(torch.nn.Module):
    """A linear layer with INT8 weights, one scale for each row; inference only.

    Parameters
    ----------
    layer
        The ``torch.nn.Linear`` whose weights are taken; those that were unpacked from INT8 come out as they
        were packed.
    """

    rows: Any
    scale: Any
    bias: Any

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1).clamp_(min=_TINY) / _LEVELS
        self.register_buffer("rows", (weight / scale[:, None]).round_().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", layer.bias.detach().clone())

    def forward(self, hidden: Any) -> Any:
        """Return float32 [..., n_out] for float32 [..., n_in]."""
        tokens = hidden.reshape(-1, hidden.shape[-1])
        step = tokens.abs().amax(1, keepdim=True).div_(_LEVELS).clamp_(min=_TINY)
        levels = (tokens / step).round_().to(torch.int8)
        # The name is torch's own; there is no public one.
        sums = torch._int_mm(levels, self.rows.t()).to(torch.float32)  # noqa: SLF001
        found = sums.mul_(step).mul_(self.scale).add_(self.bias)
        return found.reshape(*hidden.shape[:-1], -1)


def with_int8_layers(module: Any) -> Any:
    """Put `Int8Linear` in the place of every linear layer within `module`, and return it."""
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            with_int8_layers(child)
    return module


def int8_pays() -> bool:
    """Whether INT8 is faster than float32 here: without VNNI the products are made of wider ones."""
    return bool(cpu_features()["avx512vnni"])
