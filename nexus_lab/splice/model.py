"""What a block must agree with: the running model, and the layout of its cache."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from nexus_lab import _core
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from nexus_lab._core import BlockHeader, StateLayout
    from nexus_lab.engine import Engine

__all__ = ["SpliceUnavailable", "block_fingerprint", "cache_layout", "model_header", "model_name"]

# Tokens of a decode call that an address does not mention.
_USUAL_CHUNK = 512

_layouts: WeakKeyDictionary[Engine, StateLayout] = WeakKeyDictionary()


class SpliceUnavailable(NexusError):
    """The model's cache cannot be spliced at all."""


def cache_layout(engine: Engine) -> StateLayout:
    """Return the layout of the engine's cache, from a state of one token; read once per engine.

    Raises
    ------
    SpliceUnavailable
        When the engine declines splices.
    """
    declined = engine.declines.get("splice")
    if declined is not None:
        raise SpliceUnavailable(declined.reason, next_step=f"instead: {declined.instead}")
    layout = _layouts.get(engine)
    if layout is None:
        with engine.scratch_sequence() as seq:
            engine.prefill(seq, [0], start=0, logits="none")
            layout = _layouts[engine] = engine.save_state(seq).layout
    return layout


def block_fingerprint(engine: Engine) -> str:
    """Return 32 hex digits that name who computed a block: the model, its adapter, and llama.cpp's build.

    A block counts as exact where the tokens before it are those it was compiled behind, which is true of rows
    of the same build alone.
    """
    named = f"nexus rows\0{engine.info.fingerprint}\0{engine.build}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def model_header(
    engine: Engine, *, anchor: int = 0, context_hash: bytes | None = None, v_trans: bool | None = None
) -> BlockHeader:
    """Return the header of a block compiled by `engine`.

    Parameters
    ----------
    engine
        The running model.
    anchor, context_hash
        Position of the first token, and hash of the tokens before it.
    v_trans
        Layout of V to state; by default the engine's own.
    """
    layout, rope = cache_layout(engine), engine.info.rope
    if rope is None:
        raise SpliceUnavailable("the model's rotation is not known", next_step="prefill instead")
    first = layout.layers[0]
    factors = None if rope.factors is None else np.asarray(rope.factors, np.float32)
    return _core.BlockHeader(
        n_layer=layout.n_layer,
        k_row_bytes=first.k_row_bytes,
        v_row_bytes=first.n_embd_v * np.dtype(np.float16).itemsize,
        v_trans=layout.v_trans if v_trans is None else v_trans,
        head_dim=rope.head_dim,
        n_rot=rope.n_rot,
        pairing=rope.pairing,
        rope_base=rope.base,
        rope_scale=rope.scale,
        ext_factor=rope.ext_factor,
        attn_factor=rope.attn_factor,
        n_ctx_orig=rope.n_ctx_orig,
        rope_factors_hash=_core.rope_factors_hash(factors),
        fingerprint=bytes.fromhex(block_fingerprint(engine)),
        anchor=anchor,
        context_hash=context_hash,
    )


def model_name(engine: Engine) -> str:
    """Text that tells models, builds, rotations, cache layouts and decode schedules apart, for addresses.

    llama.cpp has other kernels for few tokens, so that rows computed in smaller decode calls are others in
    their last bits; under a name of both, a block would count as exact where it is not.
    """
    schedule = engine.schedule
    calls = "" if schedule.chunk_tokens == _USUAL_CHUNK else f" calls={schedule.chunk_tokens}"
    layout = f"{schedule.kv_type} flash={schedule.flash_attention}{calls}"
    return f"{block_fingerprint(engine)} {engine.info.rope} {layout}"
