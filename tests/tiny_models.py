"""Writes small random models of several architectures, so that a test loads in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF = 5, 64, 4, 2, 96
HEAD_DIM = N_EMBD // N_HEAD
N_CTX_TRAIN = 512
WORDS = ("▁the", "▁7", "▁of", "▁red", "▁cat", "▁sat", "▁on", "▁mat", "é")
N_VOCAB = 260 + len(WORDS)
BOS, EOS = 1, 2

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Kind:
    """How an architecture differs from llama's tensors and metadata.

    Attributes
    ----------
    values
        Metadata, without the architecture's prefix.
    blocks
        Tensors of each layer; llama's when absent.
    top
        Further tensors outside the layers.
    extra
        Tensors with data of their own.
    """

    values: dict[str, Any] = field(default_factory=dict)
    head_dim: int = HEAD_DIM
    blocks: Callable[[Kind, int], Shapes] | None = None
    top: Shapes = field(default_factory=dict)
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
    _finish(writer)
    return path


def write_kind(path: Path, name: str) -> Path:
    """Write the model `name` of `KINDS`."""
    return write_model(path, *KINDS[name])


def write_metadata_only(path: Path, architecture: str, **values: int | str) -> Path:
    """A GGUF without tensors, for what is decided before loading."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        "context_length": N_CTX_TRAIN,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD_KV,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
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


def _shapes(kind: Kind) -> Shapes:
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), **kind.top}
    if "dec.output_norm.weight" not in shapes:
        shapes["output_norm.weight"] = (N_EMBD,)
    for layer in range(N_LAYER):
        block = (kind.blocks or _llama)(kind, layer)
        # Names that begin with "enc." and "dec." have the layer's number after that.
        for name, shape in block.items():
            side, _, rest = name.partition("/")
            shapes[f"{side}.blk.{layer}.{rest}" if rest else f"blk.{layer}.{name}"] = shape
    return shapes


def _llama(kind: Kind, _layer: int) -> Shapes:
    q, kv = N_HEAD * kind.head_dim, N_HEAD_KV * kind.head_dim
    return {
        "attn_norm.weight": (N_EMBD,),
        "attn_q.weight": (q, N_EMBD),
        "attn_k.weight": (kv, N_EMBD),
        "attn_v.weight": (kv, N_EMBD),
        "attn_output.weight": (N_EMBD, q),
        "ffn_norm.weight": (N_EMBD,),
        "ffn_gate.weight": (N_FF, N_EMBD),
        "ffn_up.weight": (N_FF, N_EMBD),
        "ffn_down.weight": (N_EMBD, N_FF),
    }


def _qwen2(kind: Kind, layer: int) -> Shapes:
    q, kv = N_HEAD * kind.head_dim, N_HEAD_KV * kind.head_dim
    return {**_llama(kind, layer), "attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}


def _gemma2(kind: Kind, layer: int) -> Shapes:
    norms = {"post_attention_norm.weight": (N_EMBD,), "post_ffw_norm.weight": (N_EMBD,)}
    return {**_llama(kind, layer), **norms}


def _head_norms(kind: Kind) -> Shapes:
    return {"attn_q_norm.weight": (kind.head_dim,), "attn_k_norm.weight": (kind.head_dim,)}


def _gemma3(kind: Kind, layer: int) -> Shapes:
    return {**_gemma2(kind, layer), **_head_norms(kind)}


def _without(shapes: Shapes, *names: str) -> Shapes:
    return {name: shape for name, shape in shapes.items() if name not in names}


def _cohere2(kind: Kind, layer: int) -> Shapes:
    return _without(_llama(kind, layer), "ffn_norm.weight")


def _one_up(shapes: Shapes) -> Shapes:
    """Gate and up in one tensor."""
    return {**_without(shapes, "ffn_gate.weight"), "ffn_up.weight": (2 * N_FF, N_EMBD)}


def _phi3(kind: Kind, layer: int) -> Shapes:
    return _one_up(_llama(kind, layer))


def _glm4(kind: Kind, layer: int) -> Shapes:
    return _one_up(_gemma2(kind, layer))


def _stablelm(kind: Kind, layer: int) -> Shapes:
    return {**_llama(kind, layer), "attn_norm.bias": (N_EMBD,), "ffn_norm.bias": (N_EMBD,)}


def _gpt2(kind: Kind, layer: int) -> Shapes:
    qkv = (N_HEAD + 2 * N_HEAD_KV) * kind.head_dim
    return {
        **_without(_stablelm(kind, layer), *(f"attn_{name}.weight" for name in "qkv"), "ffn_gate.weight"),
        "attn_qkv.weight": (qkv, N_EMBD),
        "attn_qkv.bias": (qkv,),
        "attn_output.bias": (N_EMBD,),
        "ffn_up.bias": (N_FF,),
        "ffn_down.bias": (N_EMBD,),
    }


_UNEVEN_KV = [1, 2, 4, 2, 1]


def _openelm(kind: Kind, layer: int) -> Shapes:
    return {
        **_without(_llama(kind, layer), *(f"attn_{name}.weight" for name in "qkv")),
        **_head_norms(kind),
        "attn_qkv.weight": ((N_HEAD + 2 * _UNEVEN_KV[layer]) * kind.head_dim, N_EMBD),
    }


_LATENT, _TURNED, _UNTURNED = 32, 8, 16


def _latent(kind: Kind, layer: int) -> Shapes:
    return {
        **_without(_llama(kind, layer), "attn_k.weight", "attn_v.weight"),
        "attn_q.weight": (N_HEAD * (_TURNED + _UNTURNED), N_EMBD),
        "attn_kv_a_mqa.weight": (_LATENT + _TURNED, N_EMBD),
        "attn_kv_a_norm.weight": (_LATENT,),
    }


def _deepseek2(kind: Kind, layer: int) -> Shapes:
    return {
        **_latent(kind, layer),
        "attn_k_b.weight": (N_HEAD, _LATENT, _UNTURNED),
        "attn_v_b.weight": (N_HEAD, HEAD_DIM, _LATENT),
    }


def _deepseek2_expanded(kind: Kind, layer: int) -> Shapes:
    return {**_latent(kind, layer), "attn_kv_b.weight": (N_HEAD * (_UNTURNED + HEAD_DIM), _LATENT)}


_D_INNER, _D_STATE, _D_CONV, _DT_RANK = 2 * N_EMBD, 8, 4, 4


def _mamba(_kind: Kind, _layer: int) -> Shapes:
    return {
        "attn_norm.weight": (N_EMBD,),
        "ssm_in.weight": (2 * _D_INNER, N_EMBD),
        "ssm_conv1d.weight": (_D_INNER, _D_CONV),
        "ssm_conv1d.bias": (_D_INNER,),
        "ssm_x.weight": (_DT_RANK + 2 * _D_STATE, _D_INNER),
        "ssm_dt.weight": (_D_INNER, _DT_RANK),
        "ssm_dt.bias": (_D_INNER,),
        "ssm_a": (_D_INNER, _D_STATE),
        "ssm_d": (_D_INNER,),
        "ssm_out.weight": (N_EMBD, _D_INNER),
    }


_HYBRID_KV = [0, N_HEAD_KV, 0, N_HEAD_KV, 0]


def _jamba(kind: Kind, layer: int) -> Shapes:
    if _HYBRID_KV[layer]:
        return _llama(kind, layer)
    norms = {"ssm_dt_norm.weight": (_DT_RANK,), **{f"ssm_{name}_norm.weight": (_D_STATE,) for name in "bc"}}
    feed_forward = {name: shape for name, shape in _llama(kind, layer).items() if name.startswith("ffn")}
    return {**_mamba(kind, layer), **norms, **feed_forward}


_BUCKETS = 32


def _t5(kind: Kind, layer: int) -> Shapes:
    wide = {f"attn_{name}.weight": (N_EMBD, N_EMBD) for name in "kvo"}
    wide["attn_rel_b.weight"] = (_BUCKETS, N_HEAD)
    block = _without({**_llama(kind, layer), **wide}, "attn_output.weight", "ffn_gate.weight")
    cross = {f"cross_{name}": shape for name, shape in block.items() if name.startswith("attn")}
    encoder = {f"enc/{name}": shape for name, shape in block.items()}
    return {**encoder, **{f"dec/{name}": shape for name, shape in {**block, **cross}.items()}}


_OUTPUT = {"output.weight": (N_VOCAB, N_EMBD)}
_NORM_BIAS = {"output_norm.bias": (N_EMBD,)}
WINDOW = 32
_CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}
_GEMMA2 = {"attention.sliding_window": WINDOW, **_CAPPED}
_SSM = {
    "ssm.conv_kernel": _D_CONV,
    "ssm.inner_size": _D_INNER,
    "ssm.state_size": _D_STATE,
    "ssm.time_step_rank": _DT_RANK,
}
_MLA = {
    "attention.q_lora_rank": 0,
    "attention.kv_lora_rank": _LATENT,
    "leading_dense_block_count": N_LAYER,
    "expert_feed_forward_length": N_FF,
    "expert_shared_count": 0,
    "rope.dimension_count": _TURNED,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
    "rope.freq_base": 10000.0,
}
_LONG_ROPE = {
    "rope_factors_short.weight": np.linspace(1.0, 2.0, HEAD_DIM // 2),
    "rope_factors_long.weight": np.linspace(1.0, 9.0, HEAD_DIM // 2),
}


def _long_rope(n_ctx_orig: int) -> tuple[str, Kind]:
    scaling = {"rope.scaling.original_context_length": n_ctx_orig, "rope.scaling.attn_factor": 1.2}
    # llama.cpp knows the architecture's window and leaves it out.
    values = {**scaling, "attention.sliding_window": WINDOW}
    return "phi3", Kind(values, blocks=_phi3, extra=_LONG_ROPE)


KINDS: dict[str, tuple[str, Kind]] = {
    "plain": ("llama", Kind()),
    "linear": ("llama", Kind({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})),
    "yarn": ("llama", Kind(YARN)),
    "factors": (
        "llama",
        Kind(extra={"rope_freqs.weight": np.linspace(1.0, 8.0, HEAD_DIM // 2)}),
    ),
    "long_rope_short": _long_rope(1024),
    "long_rope_long": _long_rope(128),
    "neox": ("qwen2", Kind(blocks=_qwen2)),
    "wide": ("llama", Kind(head_dim=32)),
    "whole_64s": ("llama", Kind(head_dim=64)),
    "partial_neox": (
        "stablelm",
        Kind({"rope.dimension_count": 8}, blocks=_stablelm, top={**_OUTPUT, **_NORM_BIAS}),
    ),
    "partial_norm": ("glm4", Kind({"rope.dimension_count": 8}, blocks=_glm4)),
    "m_rope": ("qwen2vl", Kind({"rope.dimension_sections": [4, 2, 2, 0]}, blocks=_qwen2)),
    "sliding": ("gemma2", Kind(_GEMMA2, blocks=_gemma2)),
    "sliding_all": (
        "gemma2",
        Kind({**_GEMMA2, "attention.sliding_window_pattern": [True] * N_LAYER}, blocks=_gemma2),
    ),
    "sliding_two_bases": (
        "gemma3",
        Kind(
            {
                "attention.sliding_window": WINDOW,
                "attention.sliding_window_pattern": [True, True, False, True, False],
                "rope.freq_base": 1_000_000.0,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
            },
            blocks=_gemma3,
        ),
    ),
    "sliding_full_unrotated": (
        "cohere2",
        Kind({"attention.sliding_window": WINDOW, "logit_scale": 0.25}, blocks=_cohere2),
    ),
    "window_ignored": ("llama", Kind({"attention.sliding_window": WINDOW})),
    "some_layers_unrotated": ("smollm3", Kind()),
    "uneven_heads": (
        "openelm",
        Kind(
            {
                "attention.head_count": [N_HEAD] * N_LAYER,
                "attention.head_count_kv": _UNEVEN_KV,
                "feed_forward_length": [N_FF] * N_LAYER,
            },
            blocks=_openelm,
        ),
    ),
    "latent": (
        "deepseek2",
        Kind(
            {
                **_MLA,
                "attention.head_count_kv": 1,
                "attention.key_length": _LATENT + _TURNED,
                "attention.value_length": _LATENT,
                "attention.key_length_mla": _TURNED + _UNTURNED,
                "attention.value_length_mla": HEAD_DIM,
            },
            blocks=_deepseek2,
        ),
    ),
    "latent_expanded": (
        "deepseek2",
        Kind(
            {
                **_MLA,
                "attention.head_count_kv": N_HEAD,
                "attention.key_length": _TURNED + _UNTURNED,
                "attention.value_length": HEAD_DIM,
            },
            blocks=_deepseek2_expanded,
        ),
    ),
    "learned_positions": (
        "gpt2",
        Kind(blocks=_gpt2, top={**_NORM_BIAS, "position_embd.weight": (N_CTX_TRAIN, N_EMBD)}),
    ),
    "recurrent": (
        "mamba",
        Kind({**_SSM, "attention.head_count": 0, "feed_forward_length": 0}, blocks=_mamba),
    ),
    "hybrid": ("jamba", Kind({**_SSM, "attention.head_count_kv": _HYBRID_KV}, blocks=_jamba)),
    "encoder_decoder": (
        "t5",
        Kind(
            {"attention.relative_buckets_count": _BUCKETS, "attention.head_count_kv": N_HEAD},
            blocks=_t5,
            top={"enc.output_norm.weight": (N_EMBD,), "dec.output_norm.weight": (N_EMBD,)},
        ),
    ),
    "diffusion": ("dream", Kind(blocks=_qwen2)),
}
