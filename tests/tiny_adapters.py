"""Writes LoRA adapters for the small random models, right ones and wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from tiny_models import HEAD_DIM, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_LAYER

if TYPE_CHECKING:
    from pathlib import Path

RANK = 3
SHAPES = {
    "attn_q": (N_HEAD * HEAD_DIM, N_EMBD),
    "attn_k": (N_HEAD_KV * HEAD_DIM, N_EMBD),
    "attn_v": (N_HEAD_KV * HEAD_DIM, N_EMBD),
    "attn_output": (N_EMBD, N_HEAD * HEAD_DIM),
    "ffn_gate": (N_FF, N_EMBD),
    "ffn_up": (N_FF, N_EMBD),
    "ffn_down": (N_EMBD, N_FF),
}
"""Rows and columns of each matrix of a layer."""

HEADER = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0}


def pairs(*, scale: float = 0.2, seed: int = 5) -> dict[str, np.ndarray]:
    """Both halves of a pair for every matrix of every layer, by their names in the file."""
    random = np.random.default_rng(seed)
    found = {}
    for layer in range(N_LAYER):
        for name, (rows, columns) in SHAPES.items():
            found[f"blk.{layer}.{name}.weight.lora_a"] = random.normal(0, scale, (RANK, columns))
            found[f"blk.{layer}.{name}.weight.lora_b"] = random.normal(0, scale, (rows, RANK))
    return {name: values.astype(np.float32) for name, values in found.items()}


def write_lora(
    path: Path,
    tensors: dict[str, np.ndarray] | None = None,
    *,
    architecture: str = "llama",
    header: dict[str, Any] | None = None,
) -> Path:
    """Write an adapter; `header` is laid over the usual one, and leaves out what it has as ``None``."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**HEADER, **(header or {})}.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, np.float64):
            writer.add_float64(key, float(value))
        elif value is not None:
            writer.add_float32(key, value)
    for name, values in (pairs() if tensors is None else tensors).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
