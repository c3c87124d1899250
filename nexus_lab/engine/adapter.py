"""LoRA adapters in GGUF files: held against the model before llama.cpp reads them.

llama.cpp refuses some adapters that do not fit, and ends the process at others: a number of the wrong width
in the header, a type that it cannot multiply by, an adapter of embeddings that are the output as well. So a
file is read here first, and what is not known to run is refused with what is wrong.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from nexus_lab.engine.base import AdapterInfo
from nexus_lab.engine.catalogue import file_sha256
from nexus_lab.engine.errors import AdapterMismatch, ModelNotFound, UnsupportedAdapter
from nexus_lab.engine.gguf_file import read_gguf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexus_lab.engine.gguf_file import GgufFile, TensorEntry

__all__ = ["ALPHA", "BASE_SHA256", "KIND", "OURS", "model_fingerprint", "read_adapter"]

KIND, ALPHA = "adapter.type", "adapter.lora.alpha"
OURS = "nexus_lab."
"""How names begin that no other program gives."""
BASE_SHA256 = f"{OURS}base_sha256"
"""Digest of the model file that an adapter of ours was trained on."""
_INVOKED = "adapter.alora.invocation_tokens"
_FLOAT32 = 6
_EMBEDDING = "token_embd.weight"
_SIDES = (".lora_a", ".lora_b")
_MATRIX = 2
_DIMENSIONS = 4
# ggml types that run as the pair of any weight: F32, F16, BF16, and Q8_0 in blocks of 32.
_TYPES = {0: 1, 1: 1, 30: 1, 8: 32}


def read_adapter(path: Path, model: GgufFile) -> AdapterInfo:
    """Read the LoRA adapter at `path`, and hold every pair of it against the tensors of `model`.

    Raises
    ------
    ModelNotFound, NotAGguf, TruncatedModel
        When there is no whole GGUF file.
    UnsupportedAdapter
        When it is no LoRA adapter, or of a kind that is not run here.
    AdapterMismatch
        When it belongs to another model, with what differs.
    """
    if not path.is_file():
        raise ModelNotFound(
            f"there is no adapter {path}", next_step="check the path, or leave the adapter out"
        )
    adapter = read_gguf(path)
    alpha = _check_kind(adapter)
    _check_base(adapter, model)
    pairs = _pairs(adapter)
    for name, (a, b) in pairs.items():
        _check_pair(path, model, name, a, b)
    return AdapterInfo(
        name=path.stem,
        path=path,
        sha256=file_sha256(path),
        rank=max(b.shape[0] for _, b in pairs.values()),
        alpha=alpha,
        targets=tuple(pairs),
        size_bytes=adapter.size_bytes,
        facts={
            key.removeprefix(OURS): value
            for key, value in adapter.metadata.items()
            if key.startswith(OURS) and isinstance(value, float) and math.isfinite(value)
        },
    )


def model_fingerprint(sha256: str, adapter: AdapterInfo | None) -> str:
    """Return 32 hex digits that name a model file, hence its tokenizer, and the adapter it runs with."""
    beside = "" if adapter is None else f"\0adapter\0{adapter.sha256}"
    return hashlib.sha256(f"nexus model\0{sha256}{beside}".encode()).hexdigest()[:32]


def _check_kind(adapter: GgufFile) -> float:
    """Return the adapter's alpha, when it is a LoRA adapter."""
    kind = adapter.metadata.get("general.type", "model")
    form = adapter.metadata.get(KIND)
    if kind != "adapter" or form != "lora":
        what = f"a {kind!r:.40}" if kind != "adapter" else f"an adapter of type {form!r:.40}"
        raise UnsupportedAdapter(
            f"{adapter.path} is {what}, no LoRA adapter", next_step="name the GGUF of a LoRA adapter"
        )
    if _INVOKED in adapter.metadata:
        raise UnsupportedAdapter(
            f"{adapter.path} is an activated LoRA, which works behind certain tokens only",
            next_step="use a plain LoRA adapter",
        )
    alpha = adapter.metadata.get(ALPHA, 0.0)
    usual = ALPHA not in adapter.metadata or adapter.kinds[ALPHA] == _FLOAT32
    if not usual or not isinstance(alpha, float) or not math.isfinite(alpha):
        raise UnsupportedAdapter(
            f"{adapter.path}: {ALPHA} is {alpha!r:.40}, not a finite float32",
            next_step="write the adapter again with a float32 there",
        )
    return alpha


def _check_base(adapter: GgufFile, model: GgufFile) -> None:
    if adapter.architecture != model.architecture:
        raise AdapterMismatch(
            f"the adapter {adapter.path.name} is for the architecture {adapter.architecture!r:.40}, and "
            f"{model.path.name} is {model.architecture!r:.40}",
            next_step="name the model that it was trained on, or leave it out",
        )
    trained_on = adapter.metadata.get(BASE_SHA256)
    if trained_on is not None and trained_on != (own := file_sha256(model.path)):
        raise AdapterMismatch(
            f"the adapter {adapter.path.name} was trained on a model with sha256 {trained_on!r:.66}, and "
            f"{model.path.name} has {own}",
            next_step="name that model, or train one for this: nexus-lab train-arguments --model",
        )


def _pairs(adapter: GgufFile) -> Mapping[str, tuple[TensorEntry, TensorEntry]]:
    found: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in adapter.tensors.items():
        side = name[-len(_SIDES[0]) :]
        if side not in _SIDES:
            raise UnsupportedAdapter(
                f"{adapter.path}: the tensor {name!r:.80} is no part of a LoRA pair",
                next_step="train the adapter on matrices alone",
            )
        found.setdefault(name.removesuffix(side), {})[side] = entry
    for name, sides in found.items():
        if len(sides) != len(_SIDES):
            raise UnsupportedAdapter(
                f"{adapter.path}: {name!r:.80} has one half of its pair", next_step="write the adapter again"
            )
    if not found:
        raise UnsupportedAdapter(
            f"{adapter.path} changes nothing: it has no tensors", next_step="leave it out"
        )
    return {name: (sides[_SIDES[0]], sides[_SIDES[1]]) for name, sides in found.items()}


def _check_pair(path: Path, model: GgufFile, name: str, a: TensorEntry, b: TensorEntry) -> None:
    for entry in (a, b):
        block = _TYPES.get(entry.type)
        if block is None or not entry.shape or entry.shape[0] % block:
            raise UnsupportedAdapter(
                f"{path}: {entry.name!r:.80} has the ggml type {entry.type} and the shape {entry.shape}",
                next_step="write the adapter in F16 or F32",
            )
    weight = model.tensors.get(name)
    if weight is None:
        raise AdapterMismatch(
            f"the adapter {path.name} changes {name!r:.80}, which {model.path.name} has not",
            next_step="name the model that it was trained on, or leave it out",
        )
    if name == _EMBEDDING or len(weight.shape) < _MATRIX:
        raise UnsupportedAdapter(
            f"{path}: it changes {name!r:.80}; llama.cpp runs adapters of the layers' matrices",
            next_step="train the adapter without embeddings and norms",
        )
    wide, out, *rest = _whole(weight.shape)
    rank = _whole(a.shape)[1]
    if rank < 1 or _whole(a.shape) != (wide, rank, *rest) or _whole(b.shape) != (rank, out, *rest):
        raise AdapterMismatch(
            f"the adapter {path.name} has {a.shape} and {b.shape} for {name!r:.80}, which is {weight.shape} "
            f"in {model.path.name}",
            next_step="name the model that it was trained on, or leave it out",
        )


def _whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return all four dimensions of a shape."""
    return (*shape, *(1,) * (_DIMENSIONS - len(shape)))
