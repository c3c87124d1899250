"""Records of the models panel: a model as views show it, and how fast the loaded one is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.engine import EngineError
from nexus_lab.lab.adapter_words import adapter_row
from nexus_lab.lab.wire import error_info

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.engine import Engine, ModelEntry
    from nexus_lab.engine.gguf_file import GgufFile

__all__ = [
    "ModelRow",
    "Speed",
    "measure_speed",
    "memory_free",
    "quantisation",
    "read_model",
    "row_of_engine",
    "row_of_entry",
    "same_file",
]

_MEASURED_TOKENS = 256
_DECODED_TOKENS = 32
_TEXT = "Measured on a text of no meaning, which every model reads alike. "
# Names of ``general.file_type``, as llama.cpp numbers them.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model as views show it; see ``ModelRow`` in ``protocol.ts``."""

    name: str
    path: str
    source: str
    size_bytes: int
    architecture: str | None = None
    quantisation: str | None = None
    n_layer: int | None = None
    n_head: int | None = None
    n_head_kv: int | None = None
    n_ctx_train: int | None = None
    memory_bytes: int | None = None
    license: str | None = None
    declines: tuple[dict[str, Any], ...] = ()
    error: dict[str, Any] | None = None
    loaded: bool = False
    adapter: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of the loaded model on this machine: medians of `n_runs` runs after one that is not counted.

    Attributes
    ----------
    prefill_tps, n_tokens
        Tokens a second over so many tokens of prefill.
    decode_tps, n_decoded
        Tokens a second over so many generated tokens.
    """

    prefill_tps: float
    decode_tps: float
    n_tokens: int
    n_decoded: int
    n_runs: int


def measure_speed(engine: Engine, *, progress: Callable[[str, int, int], None], n_runs: int = 3) -> Speed:
    """Measure prefill and decode of an engine on a scratch sequence.

    Raises
    ------
    ContextFull, Cancelled
        When there is no room, or it is stopped.
    """
    text = engine.tokenize(_TEXT * 64, special=False)
    n_tokens = min(_MEASURED_TOKENS, len(text), max(1, engine.n_ctx // 4))
    endless = _Endless(sorted(engine.vocabulary.eog))
    prefills, decodes, n_decoded = [], [], _DECODED_TOKENS
    for run in range(n_runs + 1):
        progress("measuring", run, n_runs + 1)
        with engine.scratch_sequence() as seq:
            began = time.perf_counter()
            logits = engine.prefill(seq, text[:n_tokens])
            prefill_s = time.perf_counter() - began
            if logits is None:
                break
            made = engine.generate(seq, logits, max_tokens=_DECODED_TOKENS, mask=endless)
        if run and made.decode_s > 0:
            n_decoded = len(made.tokens)
            prefills.append(n_tokens / prefill_s)
            decodes.append(n_decoded / made.decode_s)
    return Speed(
        prefill_tps=_median(prefills),
        decode_tps=_median(decodes),
        n_tokens=n_tokens,
        n_decoded=n_decoded,
        n_runs=len(prefills),
    )


class _Endless:
    """Keeps the model from ending its answer, so that every run decodes as many tokens."""

    stopped = False

    def __init__(self, ends: list[int]) -> None:
        self._ends = ends

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Forbid the tokens that end an answer."""
        logits[self._ends] = -float("inf")

    def accept(self, token: int) -> None:
        """Take note of nothing."""


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def row_of_entry(entry: ModelEntry, gguf: GgufFile | None, n_ctx: int, engine: Engine | None) -> ModelRow:
    """Return the row of a model of the catalogue."""
    loaded = engine is not None and same_file(entry, engine)
    broken = entry.decline is not None and gguf is None
    declines = (
        [{"what": "load", "decline": entry.decline}] if entry.decline is not None and not broken else []
    )
    if loaded and engine is not None:
        declines += [{"what": what, "decline": decline} for what, decline in engine.declines.items()]
    adapter = engine.info.adapter if loaded and engine is not None else None
    more = 0 if adapter is None else adapter.size_bytes
    row = ModelRow(
        name=entry.name,
        path=str(entry.path) if entry.path is not None else entry.name,
        source="bundled" if entry.bundled else str(entry.path.parent) if entry.path is not None else "",
        size_bytes=entry.size_bytes,
        memory_bytes=entry.memory_estimate_bytes(n_ctx) + more if gguf is not None else None,
        declines=tuple(declines),
        error=_error_of(entry) if broken else None,
        loaded=loaded,
        adapter=adapter_row(adapter),
    )
    return _with_shape(row, gguf) if gguf is not None else row


def _with_shape(row: ModelRow, gguf: GgufFile) -> ModelRow:
    return replace(
        row,
        architecture=gguf.architecture or None,
        quantisation=quantisation(gguf),
        n_layer=_whole(gguf.value("block_count")),
        n_head=_whole(gguf.value("attention.head_count")),
        n_head_kv=_whole(gguf.value("attention.head_count_kv")),
        n_ctx_train=_whole(gguf.value("context_length")),
        license=_text(gguf.metadata.get("general.license")),
    )


def row_of_engine(engine: Engine) -> ModelRow:
    """Return the row of a loaded model that no folder lists."""
    info = engine.info
    return ModelRow(
        name=info.name,
        path=str(info.path),
        source=str(Path(info.path).parent),
        size_bytes=info.size_bytes,
        architecture=info.architecture,
        n_layer=info.n_layer,
        n_head=info.n_head,
        n_head_kv=info.n_head_kv,
        n_ctx_train=info.n_ctx_train,
        license=info.license,
        declines=tuple({"what": what, "decline": decline} for what, decline in engine.declines.items()),
        loaded=True,
        adapter=adapter_row(info.adapter),
    )


def _error_of(entry: ModelEntry) -> dict[str, Any] | None:
    decline = entry.decline
    return None if decline is None else error_info(EngineError(decline.reason, next_step=decline.instead))


def same_file(entry: ModelEntry, engine: Engine) -> bool:
    """Return whether `engine` runs the model of `entry`."""
    return entry.path is not None and Path(entry.path).resolve() == Path(engine.info.path).resolve()


def read_model(path: Path | None) -> GgufFile | None:
    """Return the header of a model that can be loaded, ``None`` where it cannot."""
    from nexus_lab.engine.catalogue import check_generates
    from nexus_lab.engine.gguf_file import read_gguf

    if path is None:
        return None
    try:
        gguf = read_gguf(path)
        check_generates(gguf)
    except (EngineError, OSError):
        return None
    return gguf


def quantisation(gguf: GgufFile | None) -> str | None:
    """Return how the weights are quantised, in the usual words."""
    number = gguf.metadata.get("general.file_type") if gguf is not None else None
    return _FILE_TYPES.get(number) if isinstance(number, int) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, list):
        return max((int(item) for item in value), default=None)
    return int(value) if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def memory_free() -> int | None:
    """Return the memory that could be given out now, in bytes."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
