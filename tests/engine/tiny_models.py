"""Writes small random models of several architectures, so that a test loads in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF = 5, 64, 4, 2, 96
HEAD_DIM = N_EMBD // N_HEAD
WORDS = ("▁the", "▁7", "▁of", "▁red", "▁cat", "▁sat", "▁on", "▁mat", "é")
BOS, EOS = 1, 2


@dataclass(frozen=True)
class Kind:
    """How an architecture differs from llama's tensors and metadata."""

    values: dict[str, Any] = field(default_factory=dict)
    head_dim: int = HEAD_DIM
    post_norms: bool = False
    biases: bool = False
    gated: bool = True
    output: bool = False
    extra: dict[str, np.ndarray] = field(default_factory=dict)


def write_model(path: Path, architecture: str = "llama", kind: Kind | None = None, *, seed: int = 3) -> Path:
    kind = kind or Kind()
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, architecture, kind)
    _add_vocabulary(writer)
    random = np.random.default_rng(seed)
    for name, shape in _shapes(kind).items():
        is_scale = name.endswith("norm.weight")
        data = np.ones(shape) if is_scale else random.normal(0, 0.15, shape)
        writer.add_tensor(name, data.astype(np.float32))
    for name, data in kind.extra.items():
        writer.add_tensor(name, data.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata_only(path: Path, architecture: str, **values: int | str) -> Path:
    """A GGUF without tensors, for what is decided before loading."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, int(value))


def _add_metadata(writer: gguf.GGUFWriter, architecture: str, kind: Kind) -> None:
    values = {
        "block_count": N_LAYER,
        "context_length": 512,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD_KV,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": kind.head_dim,
        "attention.value_length": kind.head_dim,
        "rope.dimension_count": kind.head_dim,
        **kind.values,
    }
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *WORDS]
    kinds = [2, 3, 3, *[6] * 256, 1, *[1] * len(WORDS)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(i) for i in range(len(WORDS))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)


def _shapes(kind: Kind) -> dict[str, tuple[int, ...]]:
    n_vocab = 260 + len(WORDS)
    q, kv = N_HEAD * kind.head_dim, N_HEAD_KV * kind.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_vocab, N_EMBD),
        "output_norm.weight": (N_EMBD,),
    }
    if kind.output:
        shapes["output.weight"] = (n_vocab, N_EMBD)
    for layer in range(N_LAYER):
        block = {
            "attn_norm.weight": (N_EMBD,),
            "attn_q.weight": (q, N_EMBD),
            "attn_k.weight": (kv, N_EMBD),
            "attn_v.weight": (kv, N_EMBD),
            "attn_output.weight": (N_EMBD, q),
            "ffn_norm.weight": (N_EMBD,),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
        if kind.gated:
            block["ffn_gate.weight"] = (N_FF, N_EMBD)
        if kind.post_norms:
            block["post_attention_norm.weight"] = (N_EMBD,)
            block["post_ffw_norm.weight"] = (N_EMBD,)
        if kind.biases:
            block.update({"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)})
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
    return shapes


YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
    "rope.freq_base": 10000.0,
}
KINDS: dict[str, tuple[str, Kind]] = {
    "plain": ("llama", Kind()),
    "linear": ("llama", Kind({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})),
    "yarn": ("llama", Kind(YARN)),
    "factors": (
        "llama",
        Kind(extra={"rope_freqs.weight": np.linspace(1.0, 8.0, HEAD_DIM // 2)}),
    ),
    "neox": ("qwen2", Kind(biases=True)),
    "wide": ("llama", Kind(head_dim=32)),
    "m_rope": ("qwen2vl", Kind({"rope.dimension_sections": [4, 2, 2, 0]}, biases=True)),
    "sliding": ("gemma2", Kind({"attention.sliding_window": 32}, post_norms=True)),
    "some_layers_unrotated": ("smollm3", Kind()),
}
