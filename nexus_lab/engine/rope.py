"""Which rotation the model gives its keys, read from the GGUF and the context's size.

Every scheme llama.cpp knows (plain, linear, Llama 3 factors, LongRoPE, YaRN) turns each pair of a head by an
angle that is linear in the position, so one frequency per pair describes it. YaRN's magnitude multiplies keys
once, when they are computed; moving keys must never apply it again, and `inv_freq` leaves it out.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine.gguf_file import GgufFile

__all__ = ["RopeParameters", "rope_candidates", "rope_from_gguf"]

_BETA_FAST, _BETA_SLOW = 32.0, 1.0
# llama.cpp's base for sliding layers, where the file states none.
_SLIDING_BASE = 10000.0
_ALWAYS = "rope_freqs.weight"
_BY_CONTEXT = ("rope_factors_short.weight", "rope_factors_long.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """The rotation of one pair of key dimensions per position.

    Attributes
    ----------
    pairing
        ``norm`` turns (0, 1), (2, 3), ...; ``neox`` turns (0, n/2), (1, n/2 + 1), ...
    base, scale
        Frequency base, and the factor on positions (1 / context extension).
    head_dim
        Width of one key head.
    n_rot
        Dimensions of a head that turn; the rest stay.
    factors
        float32 per pair that divides its frequency (Llama 3, LongRoPE), or ``None``.
    ext_factor, attn_factor
        YaRN's mix, and the magnitude that computing a key applies.
    n_ctx_orig
        Context the model was trained with, which YaRN's ramp starts from.
    by_layer
        Where layers turn differently: the rotation of each layer of a state, ``None`` for one that does not
        turn. Empty where all turn like this one.
    by_context
        Whether `factors` are one of two sets: LongRoPE's, which llama.cpp picks by the size of the context.
    """

    pairing: str
    base: float
    scale: float
    head_dim: int
    n_rot: int
    factors: tuple[float, ...] | None
    ext_factor: float
    attn_factor: float
    n_ctx_orig: int
    beta_fast: float = _BETA_FAST
    beta_slow: float = _BETA_SLOW
    by_layer: tuple[RopeParameters | None, ...] = field(default=(), repr=False)
    by_context: bool = field(default=False, repr=False)

    def of_layer(self, layer: int) -> RopeParameters | None:
        """Rotation of a state's `layer`; ``None`` when its keys do not turn."""
        return self.by_layer[layer] if self.by_layer else self

    @property
    def inv_freq(self) -> NDArray[np.float64]:
        """Radians per position for each pair, float64 [n_rot / 2]."""
        from nexus_lab import _core

        factors = None if self.factors is None else np.asarray(self.factors, np.float32)
        frequencies: NDArray[np.float64] = _core.rope_frequencies(
            n_rot=self.n_rot,
            base=self.base,
            scale=self.scale,
            factors=factors,
            ext_factor=self.ext_factor,
            n_ctx_orig=float(self.n_ctx_orig),
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
        )
        return frequencies

    @property
    def factors_hash(self) -> str:
        """16 hex digits that name `factors`; zeros without any."""
        if self.factors is None:
            return "0" * 16
        return hashlib.sha256(np.asarray(self.factors, np.float32).tobytes()).hexdigest()[:16]

    @property
    def context_factors(self) -> str:
        """Name of the factors where a context of another size would have others; else empty."""
        return self.factors_hash if self.by_context and self.factors is not None else ""


def rope_from_gguf(gguf: GgufFile, *, pairing: str, n_ctx: int) -> RopeParameters:
    """Rotation that a context of `n_ctx` cells uses for the model `gguf`.

    Parameters
    ----------
    pairing
        ``norm`` or ``neox``, as the loaded model answers.
    """
    heads = _first(gguf.value("attention.head_count", 1))
    head_dim = int(
        gguf.value("attention.key_length", int(gguf.value("embedding_length", 0)) // max(1, heads))
    )
    n_rot = int(gguf.value("rope.dimension_count", head_dim))
    kind = str(gguf.value("rope.scaling.type", "linear"))
    factor = float(gguf.value("rope.scaling.factor", gguf.value("rope.scale_linear", 0.0)))
    scale = 1.0 if kind == "none" or factor == 0.0 else 1.0 / factor
    n_ctx_orig = int(gguf.value("rope.scaling.original_context_length", gguf.value("context_length", 0)))
    ext_factor = float(gguf.value("rope.scaling.yarn_ext_factor", -1.0))
    if ext_factor < 0:
        ext_factor = 1.0 if kind == "yarn" else 0.0
    factors = _factors(gguf, long=n_ctx > n_ctx_orig)
    by_context = _ALWAYS not in gguf.tensors and all(name in gguf.tensors for name in _BY_CONTEXT)
    return RopeParameters(
        pairing=pairing,
        base=float(gguf.value("rope.freq_base", 10000.0)),
        scale=scale,
        head_dim=head_dim,
        n_rot=n_rot,
        factors=None if factors is None else tuple(float(value) for value in factors),
        ext_factor=ext_factor,
        attn_factor=_attention_factor(gguf, scale=scale, ext_factor=ext_factor),
        n_ctx_orig=n_ctx_orig,
        beta_fast=float(gguf.value("rope.scaling.yarn_beta_fast", _BETA_FAST)),
        beta_slow=float(gguf.value("rope.scaling.yarn_beta_slow", _BETA_SLOW)),
        by_context=by_context,
    )


def rope_candidates(gguf: GgufFile, main: RopeParameters, *, sliding: bool) -> list[RopeParameters | None]:
    """Rotations that a layer of the model may have, the likeliest first; ``None`` stands for no rotation.

    Which layers of a model slide, or go without a rotation, is known to llama.cpp's code for its architecture
    and not to the file alone, so the layers themselves have to tell.

    Parameters
    ----------
    main
        What `rope_from_gguf` says.
    sliding
        Whether some layers have a sliding window; those may have a base, a scale and a width of their own.
    """
    if not sliding:
        return [main, None]
    bases = (main.base, float(gguf.value("rope.freq_base_swa", _SLIDING_BASE)))
    widths = (
        (main.head_dim, main.n_rot),
        (
            int(gguf.value("attention.key_length_swa", main.head_dim)),
            int(gguf.value("rope.dimension_count_swa", main.n_rot)),
        ),
    )
    found = [
        replace(main, base=base, scale=scale, factors=factors, head_dim=head_dim, n_rot=n_rot)
        for (head_dim, n_rot), factors, scale, base in product(
            widths, (main.factors, None), (main.scale, 1.0), bases
        )
        if factors is None or len(factors) == n_rot // 2
    ]
    return [*dict.fromkeys(found), None]


def _first(value: int | list[int]) -> int:
    return int(value[0]) if isinstance(value, list) else int(value)


def _factors(gguf: GgufFile, *, long: bool) -> NDArray[np.float32] | None:
    for name in (_ALWAYS, _BY_CONTEXT[long]):
        factors = gguf.read_f32(name)
        if factors is not None:
            return factors
    return None


def _attention_factor(gguf: GgufFile, *, scale: float, ext_factor: float) -> float:
    """Magnitude llama.cpp applies when it computes a key; kept for the record, never for a rotation."""
    stated = float(gguf.value("rope.scaling.attn_factor", 1.0))
    if ext_factor == 0 or scale >= 1.0:
        return stated
    log_multiplier = float(gguf.value("rope.scaling.yarn_log_multiplier", 0.0))
    magnitude = 1.0 + 0.1 * math.log(1.0 / scale)
    if log_multiplier != 0.0:
        return stated * magnitude / (1.0 + 0.1 * log_multiplier * math.log(1.0 / scale))
    return stated * magnitude
