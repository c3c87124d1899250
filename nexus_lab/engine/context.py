"""The owned llama.cpp model and context: thin, typed steps over the C API, all run on the worker's thread."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.base import N_SCRATCH, N_SLOTS
from nexus_lab.engine.errors import ModelLoadFailed, UnsupportedModel
from nexus_lab.engine.native import LogTail, llama

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab._core import EvalBridge
    from nexus_lab.engine.base import KvType

__all__ = ["ContextSettings", "LlamaContext"]

_U8P = ctypes.POINTER(ctypes.c_uint8)
# The library asserts that one batch can hold an output of every sequence.
_LEAST_BATCH = 64
_N_SEQUENCES = N_SLOTS + N_SCRATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Parameters of a context; see `Engine.load`.

    Attributes
    ----------
    adapter
        A LoRA adapter that has been held against the model.
    """

    n_ctx: int
    n_batch: int
    n_ubatch: int
    flash_attention: bool
    threads: int
    kv_type: KvType
    gpu_layers: int
    adapter: Path | None = None


class LlamaContext:
    """One model, one context.

    Parameters
    ----------
    bridge
        Its callbacks are set on the context; an abort it is asked for also ends the loading.

    Attributes
    ----------
    window
        Positions that a sliding layer sees, 0 where none slides.

    Raises
    ------
    ModelLoadFailed
        With llama.cpp's own words.
    UnsupportedModel
        For a model that llama.cpp runs in another way than token after token.
    """

    def __init__(self, path: Path, settings: ContextSettings, bridge: EvalBridge) -> None:
        self._lib = llama()
        self._bridge = bridge  # the context keeps its bare address
        self.settings = settings
        self.model: Any = None
        self.ctx: Any = None
        self.window = 0
        with LogTail() as tail:
            self.model = self._load_model(path, tail)
            self.window = max(0, int(self._lib.llama_model_n_swa(self.model)))
            try:
                self._check_decodes(path)
                # Before the context, which reserves the room of its graph by the adapters that are loaded.
                adapter = self._load_adapter(settings.adapter, tail)
                self.ctx = self._make_context(settings, tail)
                self._set_adapter(adapter, tail)
            except (ModelLoadFailed, UnsupportedModel):
                self.free()
                raise
        self.memory = self._lib.llama_get_memory(self.ctx)
        self.vocab = self._lib.llama_model_get_vocab(self.model)
        self.n_ctx = int(self._lib.llama_n_ctx(self.ctx))
        self.n_vocab = int(self._lib.llama_vocab_n_tokens(self.vocab))
        self.n_head = int(self._lib.llama_model_n_head(self.model))
        self.chunk_tokens = min(settings.n_batch, settings.n_ubatch)
        self._batch = _Batch(self._lib, self.chunk_tokens)

    def _load_model(self, path: Path, tail: LogTail) -> Any:
        parameters = self._lib.llama_model_default_params()
        parameters.n_gpu_layers = self.settings.gpu_layers
        on_progress = self._lib.llama_progress_callback(
            lambda _share, _data: not self._bridge.abort_requested
        )
        parameters.progress_callback = on_progress
        model = self._lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise ModelLoadFailed(
                f"llama.cpp cannot load {path}: {tail.text() or 'it gives no reason'}",
                next_step="check that this build of llama.cpp knows the model's architecture",
            )
        return model

    def _check_decodes(self, path: Path) -> None:
        # Before there is a context: the graph that one reserves may already end the process.
        for kind, holds in (
            ("an encoder-decoder model", self._lib.llama_model_has_encoder(self.model)),
            ("a diffusion model", self._lib.llama_model_is_diffusion(self.model)),
        ):
            if holds:
                raise UnsupportedModel(
                    f"{path.name} is {kind}, which does not continue a prompt token after token",
                    next_step="use the GGUF of a decoder-only language model",
                )

    def _load_adapter(self, path: Path | None, tail: LogTail) -> Any:
        """Return the adapter, which is freed with the model; ``None`` where there is none."""
        if path is None:
            return None
        adapter = self._lib.llama_adapter_lora_init(self.model, str(path).encode())
        if not adapter:
            raise ModelLoadFailed(
                f"llama.cpp cannot load the adapter {path}: {tail.text() or 'it gives no reason'}",
                next_step="write the adapter again, or leave it out",
            )
        return adapter

    def _set_adapter(self, adapter: Any, tail: LogTail) -> None:
        if adapter is None:
            return
        held = (self._lib.llama_adapter_lora_p_ctypes * 1)(adapter)
        if self._lib.llama_set_adapters_lora(self.ctx, held, 1, (ctypes.c_float * 1)(1.0)) != 0:
            raise ModelLoadFailed(
                f"llama.cpp does not run the adapter: {tail.text() or 'it gives no reason'}",
                next_step="leave the adapter out",
            )

    def _make_context(self, settings: ContextSettings, tail: LogTail) -> Any:
        lib = self._lib
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = settings.n_ctx
        n_seq_max = _N_SEQUENCES * (2 if self._keeps else 1)
        parameters.n_batch = max(settings.n_batch, _LEAST_BATCH, n_seq_max)
        parameters.n_ubatch = settings.n_ubatch
        parameters.n_seq_max = n_seq_max
        parameters.n_threads = parameters.n_threads_batch = settings.threads
        parameters.flash_attn_type = 1 if settings.flash_attention else 0
        parameters.kv_unified = True
        parameters.swa_full = True
        parameters.type_k = parameters.type_v = settings.kv_type.value
        parameters.no_perf = True
        parameters.offload_kqv = settings.gpu_layers != 0
        parameters.cb_eval = lib.ggml_backend_sched_eval_callback(self._bridge.eval_callback)
        parameters.cb_eval_user_data = self._bridge.user_data
        parameters.abort_callback = lib.ggml_abort_callback(self._bridge.abort_callback)
        parameters.abort_callback_data = self._bridge.user_data
        context = lib.llama_init_from_model(self.model, parameters)
        if not context:
            raise ModelLoadFailed(
                f"no context of {settings.n_ctx} cells: {tail.text() or 'no reason given'}",
                next_step="choose a smaller n_ctx, or another kv_type or flash_attention",
            )
        return context

    def free(self) -> None:
        """Give everything back; the object is of no use afterwards."""
        if self.ctx is not None:
            self._lib.llama_free(self.ctx)
            self.ctx = None
        if self.model is not None:
            self._lib.llama_model_free(self.model)
            self.model = None

    def decode(self, tokens: NDArray[np.int32], start: int, seq: int, outputs: NDArray[np.int8]) -> int:
        """Run one decode call of at most `chunk_tokens` tokens and return llama.cpp's status."""
        status = int(self._lib.llama_decode(self.ctx, self._batch.fill(tokens, start, seq, outputs)))
        if status == 0:
            self._keep(seq, seq, start, start + len(tokens))
        return status

    @property
    def _keeps(self) -> bool:
        """Whether each sequence has a keeper, a second one with the same cells.

        A sliding layer's cache gives cells of a single sequence that have left the window to anyone, even
        when it is of full size; a sequence that is cut back, forked or saved would miss them without notice.
        Cells of two sequences are left alone.
        """
        lib = self._lib
        parts = lib.llama_model_is_recurrent(self.model) or lib.llama_model_is_hybrid(self.model)
        return self.window > 0 and not parts

    def _keep(self, src: int, dst: int, start: int, stop: int) -> None:
        if self._keeps:
            self._lib.llama_memory_seq_cp(self.memory, src, dst + _N_SEQUENCES, start, stop)

    def _forget(self, seq: int, start: int, stop: int) -> None:
        if self._keeps:
            self._lib.llama_memory_seq_rm(self.memory, seq + _N_SEQUENCES, start, stop)

    def last_logits(self) -> NDArray[np.float32]:
        """Logits of the last output, float32 [n_vocab], copied."""
        row = self._lib.llama_get_logits_ith(self.ctx, -1)
        return np.ctypeslib.as_array(row, shape=(self.n_vocab,)).copy()

    def all_logits(self, n_outputs: int) -> NDArray[np.float32]:
        """Logits of the last call's outputs in token order, float32 [n_outputs, n_vocab], copied."""
        rows = self._lib.llama_get_logits(self.ctx)
        return np.ctypeslib.as_array(rows, shape=(n_outputs, self.n_vocab)).copy()

    def pos_max(self, seq: int) -> int:
        """Last position of `seq`, -1 when it is empty."""
        return int(self._lib.llama_memory_seq_pos_max(self.memory, seq))

    def remove(self, seq: int, start: int, stop: int) -> bool:
        """Remove the positions in [start, stop) from `seq`; ``stop = -1`` for all that follow."""
        self._forget(seq, start, stop)
        return bool(self._lib.llama_memory_seq_rm(self.memory, seq, start, stop))

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """Let `dst` share the cells of `src` at positions in [start, stop)."""
        self._lib.llama_memory_seq_cp(self.memory, src, dst, start, stop)
        self._keep(src, dst, start, stop)

    def clear(self) -> None:
        """Empty every sequence and zero the cache's data."""
        self._lib.llama_memory_clear(self.memory, True)

    def state_size(self, seq: int) -> int:
        """Bytes that the state of `seq` takes."""
        return int(self._lib.llama_state_seq_get_size(self.ctx, seq))

    def read_state(self, seq: int, buffer: NDArray[np.uint8]) -> int:
        """Write the state of `seq` into `buffer` and return its length, 0 when it does not fit."""
        pointer = buffer.ctypes.data_as(_U8P)
        return int(self._lib.llama_state_seq_get_data(self.ctx, pointer, buffer.nbytes, seq))

    def write_state(self, seq: int, buffer: NDArray[np.uint8]) -> int:
        """Replace `seq` by the state in `buffer`; returns the bytes read, 0 when it was refused."""
        pointer = buffer.ctypes.data_as(_U8P)
        self._forget(seq, 0, -1)
        read = int(self._lib.llama_state_seq_set_data(self.ctx, pointer, buffer.nbytes, seq))
        if read:
            self._keep(seq, seq, 0, -1)
        return read

    def can_shift(self) -> bool:
        """Whether positions of this cache may be changed at all."""
        return bool(self._lib.llama_memory_can_shift(self.memory))

    def cell_positions(self, seq: int, n_cells: int) -> NDArray[np.int32] | None:
        """Positions of the cells of `seq` in ascending cell order, int32 [n_cells].

        Reads only the head of the state: the call stops at the first tensor that does not fit the buffer,
        after the cells' descriptions have been written. ``None`` when the head does not look like that.
        """
        head, cell = 4, 3
        words = np.zeros(head + cell * n_cells + 2, np.int32)
        with LogTail():
            self.read_state(seq, words.view(np.uint8))
        rows = words[head : head + cell * n_cells].reshape(n_cells, cell)
        # stream count, cell count, and one sequence per cell
        if words[2] != 1 or words[3] != n_cells or not np.all(rows[:, 1] == 1):
            return None
        return rows[:, 0].copy()


class _Batch:
    """A llama_batch over arrays of our own, filled anew for each call."""

    def __init__(self, lib: Any, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._seq = np.zeros(1, np.int32)
        # Every token points at the one sequence id.
        self._seq_pointers = np.full(capacity, self._seq.ctypes.data, np.uintp)
        i32p = ctypes.POINTER(ctypes.c_int32)
        self._struct = lib.llama_batch()
        self._struct.token = self._tokens.ctypes.data_as(i32p)
        self._struct.embd = None
        self._struct.pos = self._positions.ctypes.data_as(i32p)
        self._struct.n_seq_id = self._counts.ctypes.data_as(i32p)
        self._struct.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(i32p))
        self._struct.logits = self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def fill(self, tokens: NDArray[np.int32], start: int, seq: int, outputs: NDArray[np.int8]) -> Any:
        n_tokens = len(tokens)
        self._tokens[:n_tokens] = tokens
        self._positions[:n_tokens] = np.arange(start, start + n_tokens, dtype=np.int32)
        self._outputs[:n_tokens] = outputs
        self._seq[0] = seq
        self._struct.n_tokens = n_tokens
        return self._struct
