"""Contracts of the engine room: the records it returns and the protocol of a token mask."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.engine.rope import RopeParameters
    from nexus_lab.errors import Decline

__all__ = [
    "AdapterInfo",
    "DecodeCall",
    "DecodeSchedule",
    "Generation",
    "KvType",
    "ModelEntry",
    "ModelInfo",
    "SamplerSettings",
    "StopReason",
    "TokenMask",
]

N_SLOTS = 32
"""Sequence slots that callers can hold at once."""

N_SCRATCH = 8
"""Further sequences for work that ends within one operation."""


class KvType(Enum):
    """Element type of the KV cache; the value is ggml's number."""

    F32 = 0
    F16 = 1
    Q8_0 = 8


class StopReason(Enum):
    """Why a generation ended."""

    EOG = "eog"
    MAX_TOKENS = "max_tokens"
    MASK = "mask"
    STOP_TOKEN = "stop_token"  # noqa: S105 - a token of text, no secret
    CONTEXT_FULL = "context_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """What is known of a LoRA adapter that runs with a model.

    Attributes
    ----------
    sha256
        Hex digest of the file; part of the model's fingerprint.
    rank
        Largest inner width of its pairs.
    alpha
        Each pair is weighed by this over its rank; 0 leaves it as it is.
    targets
        Names of the model's tensors that it changes.
    facts
        Numbers of ours in its header, by their names without ``nexus_lab.``.
    """

    name: str
    path: Path
    sha256: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    size_bytes: int
    facts: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values; of the targets their number."""
        return {**asdict(self), "path": str(self.path), "targets": len(self.targets)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is known of the loaded model.

    Attributes
    ----------
    sha256
        Hex digest of the file (of its parts' digests when it is split).
    head_dim_k, head_dim_v
        Width of one key and one value head.
    fingerprint
        32 hex digits that name model, tokenizer and adapter together, as block files carry them.
    adapter
        The LoRA adapter that runs with it, if there is one.
    """

    name: str
    path: Path
    sha256: str
    architecture: str
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    rope: RopeParameters | None
    fingerprint: str
    size_bytes: int
    license: str | None
    adapter: AdapterInfo | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values; the adapter's only where there is one."""
        facts = {**asdict(self), "path": str(self.path)}
        del facts["adapter"]
        return facts if self.adapter is None else {**facts, "adapter": self.adapter.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of the catalogue.

    Attributes
    ----------
    path
        ``None`` when the file is not on this machine.
    decline
        Why it cannot be loaded here, or what it will do without.
    """

    name: str
    path: Path | None
    size_bytes: int
    sha256: str | None
    decline: Decline | None
    bundled: bool
    estimate: Callable[[int], int]

    def memory_estimate_bytes(self, n_ctx: int) -> int:
        """Weights, KV cache at `n_ctx` cells and compute buffers, in bytes."""
        return self.estimate(n_ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSchedule:
    """How tokens are cut into decode calls. It moves the last bits of logits, so results record it.

    Attributes
    ----------
    chunk_tokens
        Most tokens per llama.cpp call, each of which runs exactly one graph.
    """

    chunk_tokens: int
    n_ubatch: int
    flash_attention: bool
    threads: int
    kv_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """How the next token is chosen.

    Attributes
    ----------
    temperature
        0 takes the most likely token (the lowest id of equals).
    top_k
        Candidates kept, 0 for all.
    top_p
        Smallest probability mass kept, in (0, 1].
    seed
        Seeds a generator of this call's own.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCall:
    """What one call of llama.cpp computed, and what its queries cost; see `Engine.metered`.

    Attributes
    ----------
    tokens
        Tokens computed.
    attended
        KV cells that they attended to, summed over the tokens, each counting itself.
    scanned
        KV cells that were scanned for that: every query scans up to the highest cell in use, those of other
        sequences and free ones below it included.
    used
        Cells in use afterwards, all sequences together.
    generated
        Whether the token was one that the model chose.
    """

    tokens: int
    attended: int
    scanned: int
    used: int
    generated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What `Engine.generate` produced.

    Attributes
    ----------
    tokens
        Without the token that ended it. All are in the KV cache, unless `cached` says less.
    logits
        float32 [n_vocab] after the last cached token.
    ttft_s
        Seconds from the call to the first token; prefill came before and is not in it.
    """

    tokens: tuple[int, ...]
    text: str
    stop_reason: StopReason
    ttft_s: float
    decode_s: float
    cached: int
    logits: NDArray[np.float32]


class TokenMask(Protocol):
    """Constrains which token may come next."""

    @property
    def stopped(self) -> bool:
        """Whether nothing more may follow."""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to -inf, in place. `logits` is float32 [n_vocab]."""

    def accept(self, token: int) -> None:
        """Advance past `token`, which has been chosen."""
