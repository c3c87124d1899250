"""A trained LoRA adapter as a GGUF file, in the order of rows that llama.cpp expects."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.adapter import ALPHA, BASE_SHA256, KIND, OURS
from nexus_lab.engine.catalogue import file_sha256
from nexus_lab.engine.errors import AdapterMismatch, UnsupportedModel
from nexus_lab.paths import atomic_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nexus_lab.engine.gguf_file import GgufFile

    Pair = tuple[NDArray[np.float32], NDArray[np.float32]]

__all__ = ["MODULES", "check_trainable", "write_adapter"]

MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
"""What transformers calls the matrices of a layer, and what a GGUF file calls them."""

# Whether the GGUF file has each head's rows of Q and K as pairs that turn together side by side.
_INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
_NAME = re.compile(r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<module>\w+)")


def check_trainable(model: GgufFile) -> None:
    """Raise UnsupportedModel unless an adapter for `model` can be trained and written here."""
    heads = (model.value("attention.head_count"), model.value("attention.head_count_kv", 1))
    even = all(isinstance(count, int) and count > 0 for count in heads)
    if model.architecture not in _INTERLEAVED or not even or model.value("expert_count"):
        raise UnsupportedModel(
            f"no adapter can be trained for {model.path.name} ({model.architecture!r:.40})",
            next_step=f"choose a dense model with even heads, of one of {', '.join(_INTERLEAVED)}",
        )


def write_adapter(
    path: Path,
    pairs: Mapping[str, Pair],
    model: GgufFile,
    *,
    alpha: float,
    name: str = "adapter",
    facts: Mapping[str, float] | None = None,
) -> None:
    """Write an adapter for `model`, as float16; a kill leaves the old file or the whole new one.

    Parameters
    ----------
    pairs
        By the module's name in transformers (``model.layers.0.self_attn.q_proj``): A, float32 [rank, n_in],
        and B, float32 [n_out, rank].
    alpha
        Each pair is weighed by this over its rank.
    name
        For the header.
    facts
        Numbers for the header, of `AdapterInfo`.

    Raises
    ------
    AdapterMismatch
        When a module is not one of the model's.
    UnsupportedModel
        As `check_trainable`.
    """
    check_trainable(model)
    import gguf

    with tempfile.TemporaryDirectory(prefix="nexus-lab-adapter-") as folder:
        draft = Path(folder) / "adapter.gguf"
        writer = gguf.GGUFWriter(draft, model.architecture)
        writer.add_type("adapter")
        writer.add_name(name)
        writer.add_string(KIND, "lora")
        writer.add_float32(ALPHA, alpha)
        writer.add_string(BASE_SHA256, file_sha256(model.path))
        for key, value in (facts or {}).items():
            writer.add_float32(f"{OURS}{key}", value)
        for module, (a, b) in pairs.items():
            target = _target(module, model)
            writer.add_tensor(f"{target}.lora_a", np.ascontiguousarray(a, np.float16))
            writer.add_tensor(f"{target}.lora_b", np.ascontiguousarray(_rows(target, b, model), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        atomic_write(path, draft.read_bytes())


def _target(module: str, model: GgufFile) -> str:
    match = _NAME.fullmatch(module)
    kind = MODULES.get(match["module"]) if match else None
    target = f"blk.{match['layer']}.{kind}.weight" if match and kind else module
    if target not in model.tensors:
        raise AdapterMismatch(
            f"{model.path.name} has no matrix for {module!r:.80}", next_step="train on its own weights"
        )
    return target


def _rows(target: str, b: NDArray[np.float32], model: GgufFile) -> NDArray[np.float32]:
    """Return B with its rows as the file has those of the matrix: transformers keeps halves of a head."""
    heads = int(model.value("attention.head_count"))
    count = {"attn_q": heads, "attn_k": int(model.value("attention.head_count_kv", heads))}
    n_head = count.get(target.split(".")[2])
    if n_head is None or not _INTERLEAVED[model.architecture]:
        return b
    halves = b.reshape(n_head, 2, b.shape[0] // n_head // 2, *b.shape[1:])
    return halves.swapaxes(1, 2).reshape(b.shape)
