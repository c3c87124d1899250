"""The engine: one model, one context, one owner."""

from __future__ import annotations

import _thread
import threading
import weakref
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from nexus_lab.engine.base import N_SLOTS, DecodeSchedule, KvType, SamplerSettings
from nexus_lab.engine.context import ContextSettings
from nexus_lab.engine.errors import EngineError, PatchFailed, SequenceError
from nexus_lab.engine.generation import generate
from nexus_lab.engine.loader import load
from nexus_lab.engine.machine import machine_facts
from nexus_lab.engine.native import llama_build
from nexus_lab.engine.patches import AttentionCapture, PatchReport
from nexus_lab.engine.text import ModelText
from nexus_lab.engine.threads import cap_threads

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.engine.base import DecodeCall, Generation, ModelInfo, TokenMask
    from nexus_lab.engine.loader import Loaded
    from nexus_lab.engine.patches import PatchPlan
    from nexus_lab.engine.runtime import Runtime
    from nexus_lab.engine.state import SequenceState
    from nexus_lab.errors import Decline

__all__ = ["Engine"]

Logits = Literal["last", "all", "none"]


class Engine(ModelText):
    """Runs a local model; made by `Engine.load`.

    Every operation takes the turn lock, runs on the engine's own thread and can be interrupted: by `cancel`
    from any thread, and by Ctrl-C. What an interrupted operation had written is removed again.

    Attributes
    ----------
    info
        The model.
    n_ctx
        Cells of the context, shared by all sequences.
    threads
        Threads that llama.cpp uses.
    schedule
        How tokens are cut into decode calls.
    build
        Names the build of llama.cpp; under another one the same tokens have other last bits.
    declines
        What this context will not do, among ``splice``, ``shift``, ``input_patches`` and
        ``attention_capture``; what is absent is available.
    """

    def __init__(self, loaded: Loaded, *, schedule: DecodeSchedule, seed: int) -> None:
        self._runtime: Runtime = loaded.runtime
        super().__init__(loaded.vocabulary, loaded.chat)
        self.info: ModelInfo = loaded.info
        self.n_ctx = loaded.runtime.context.n_ctx
        self.threads = schedule.threads
        self.schedule = schedule
        self.build = llama_build()
        self.seed = seed
        self.declines: Mapping[str, Decline] = MappingProxyType(loaded.declines)
        self._slots = list(range(N_SLOTS - 1, -1, -1))
        self.on_pressure(self._release_abandoned)
        # Frees the model when the engine is forgotten, and before the interpreter goes.
        self._finalizer = weakref.finalize(self, _let_go, loaded)

    @classmethod
    def load(
        cls,
        model: str | Path = "bundled",
        *,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 512,
        flash_attention: bool = False,
        threads: int | None = None,
        kv_type: str = "f16",
        seed: int = 0,
        capture: bool = False,
        gpu_layers: int = 0,
        adapter: str | Path | None = None,
    ) -> Engine:
        """Load a model and make its context.

        Parameters
        ----------
        model
            ``bundled``, a path, or ``hf:owner/repository/file.gguf``.
        n_ctx
            Cells of the KV cache, shared by all sequences.
        n_batch, n_ubatch
            The smaller is the number of tokens per decode call, each one graph.
        threads
            At most the physical cores, which ``None`` takes.
        kv_type
            ``f16``, ``q8_0`` or ``f32``; only ``f16`` can be spliced.
        seed
            Default seed of sampling.
        capture
            Insist that attention rows can be captured.
        gpu_layers
            Layers given to a GPU, where this build of llama.cpp has one.
        adapter
            GGUF file of a LoRA adapter that runs with the model, always. It is part of the model's
            fingerprint: blocks, snapshots and calibrations made without it are foreign, and the other way.

        Raises
        ------
        ModelNotFound, ModelUnavailable, NotAGguf, TruncatedModel, UnsupportedModel, ModelLoadFailed
            When there is no such model, or it cannot be used.
        AdapterMismatch, UnsupportedAdapter
            When the adapter belongs to another model, or is of a kind that is not run here.
        EngineError
            When a setting means nothing.
        """
        _check_sizes(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch)
        if capture and flash_attention:
            raise EngineError(
                "attention rows do not exist with flash attention",
                next_step="load with flash_attention=False",
            )
        settings = ContextSettings(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=min(n_ubatch, n_batch),
            flash_attention=flash_attention,
            threads=cap_threads(threads),
            kv_type=_kv_type(kv_type),
            gpu_layers=gpu_layers,
        )
        loaded = load(model, settings, adapter=adapter)
        if capture and "attention_capture" in loaded.declines:
            loaded.runtime.close()
            raise EngineError(
                f"attention rows cannot be captured: {loaded.declines['attention_capture'].reason}",
                next_step="load with capture=False",
            )
        schedule = DecodeSchedule(
            chunk_tokens=loaded.runtime.context.chunk_tokens,
            n_ubatch=settings.n_ubatch,
            flash_attention=flash_attention,
            threads=settings.threads,
            kv_type=kv_type,
        )
        return cls(loaded, schedule=schedule, seed=seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free model and context; waits for a running turn. Later calls raise EngineClosed."""
        held = self._finalizer.detach()
        if held is not None:
            _, _, (loaded,), _ = held
            _close(loaded)

    # -- the turn -----------------------------------------------------------------------------------------

    def turn(self) -> AbstractContextManager[None]:
        """Hold the context for the block; re-entrant, and every operation takes it by itself."""
        return self._runtime.operation()

    def cancel(self) -> bool:
        """Stop the running turn, from any thread; returns whether there was one.

        A prefill stops within one graph node. The operation raises Cancelled, and so does every later decode
        of the same turn, until its outermost block is left.
        """
        return self._runtime.turn_lock.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether the running turn has been asked to stop."""
        return self._runtime.turn_lock.cancelled

    @cached_property
    def machine(self) -> dict[str, Any]:
        """Facts about machine and versions, with this engine's threads."""
        return machine_facts(threads=self.threads)

    # -- sequences ----------------------------------------------------------------------------------------

    def acquire_sequence(self) -> int:
        """Take a free, empty sequence slot.

        Raises
        ------
        SequenceError
            When all 32 are held.
        """
        with self._runtime.operation():
            while not self._slots:
                if not self._runtime.reclaim():
                    raise SequenceError(
                        f"all {N_SLOTS} sequence slots are held", next_step="release one first"
                    )
            return self._slots.pop()

    def release_sequence(self, seq: int) -> None:
        """Empty a slot and give it back."""
        with self._runtime.operation():
            if not 0 <= seq < N_SLOTS or seq in self._slots:
                raise SequenceError(f"sequence {seq} is not held", next_step="release each slot once")
            self._slots.append(seq)
            self._runtime.roll_back(seq, 0)

    @property
    def abandoned(self) -> deque[int]:
        """Slots whose holder is gone: append to it from anywhere, also while objects are collected.

        They are released when cells or slots are short.
        """
        return self._runtime.abandoned

    def _release_abandoned(self) -> bool:
        if not self._runtime.abandoned:
            return False
        self.release_sequence(self._runtime.abandoned.popleft())
        return True

    def on_pressure(self, release: Callable[[], bool]) -> None:
        """Have a method called, in the turn, whenever cells or sequence slots are short.

        Parameters
        ----------
        release
            A bound method that gives something dispensable back and says whether it did; held weakly.
        """
        self._runtime.reclaimers.append(weakref.WeakMethod(release))

    def make_room(self, n_cells: int) -> None:
        """Make sure that `n_cells` are free.

        Raises
        ------
        ContextFull
            When they are not, and nothing dispensable is left.
        """
        with self._runtime.operation():
            self._runtime.make_room(n_cells)

    def scratch_sequence(self) -> AbstractContextManager[int]:
        """Lend a sequence for the block, which holds the turn; it is emptied at the end."""
        return self._runtime.scratch()

    def copy_sequence(self, src: int, dst: int, start: int = 0, stop: int = -1) -> None:
        """Let `dst` share the cells of `src` at positions in [start, stop); ``stop = -1`` for the end.

        The cells are shared, not duplicated, and count once.
        """
        with self._runtime.operation():
            self._runtime.copy(src, dst, start, stop)

    def remove(self, seq: int, start: int = 0, stop: int = -1) -> None:
        """Take the positions in [start, stop) from `seq`; ``stop = -1`` for the end."""
        with self._runtime.operation():
            self._runtime.remove(seq, start, stop)

    def clear(self) -> None:
        """Empty every sequence and zero the cache, so that the next prefill finds a fresh context's layout.

        Slots that are held stay held.
        """
        with self._runtime.operation():
            self._runtime.clear()

    def pos_max(self, seq: int) -> int:
        """Last position of `seq`, -1 when it is empty."""
        with self._runtime.operation():
            return self._runtime.pos_max(seq)

    def positions(self, seq: int) -> NDArray[np.int32]:
        """Positions that `seq` holds, rising, int32 [n]."""
        with self._runtime.operation():
            self._runtime.check_sequence(seq)
            return self._runtime.ledger.positions(seq).copy()

    def used_cells(self) -> int:
        """Cells that some sequence holds."""
        with self._runtime.operation():
            return self._runtime.ledger.used

    def scanned_cells(self) -> int:
        """Cells that each query of a decode would scan now: up to the highest in use, free ones included."""
        with self._runtime.operation():
            return self._runtime.ledger.scanned

    # -- decode -------------------------------------------------------------------------------------------

    def prefill(
        self,
        seq: int,
        tokens: Sequence[int] | NDArray[Any],
        *,
        start: int | None = None,
        logits: Logits = "last",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32] | None:
        """Append tokens to a sequence.

        Parameters
        ----------
        start
            Position of the first token; must follow the sequence's last one. An empty sequence may begin
            anywhere.
        logits
            ``last`` gives float32 [n_vocab] after the last token, ``all`` float32 [n_tokens, n_vocab],
            ``none`` nothing.
        on_progress
            Called after each decode call with the tokens done and all tokens.

        Raises
        ------
        ContextFull
            When they do not fit; nothing has been written.
        Cancelled
            After `cancel`; what was written has been removed.
        SequenceError, TokenError
            When `seq`, `start` or a token is wrong.
        """
        array = np.asarray(tokens)
        with self._runtime.operation():
            self.vocabulary.check(array)
            return self._runtime.prefill(
                seq, array.astype(np.int32), start=start, logits=logits, on_progress=on_progress
            )

    def recompute(
        self,
        seq: int,
        tokens: Sequence[int] | NDArray[Any],
        positions: Sequence[int] | NDArray[Any],
        *,
        logits: Logits = "none",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32] | None:
        """Compute rows that a sequence holds anew, in one pass, each behind what stands before it.

        The new rows take the places of the old ones, each in the cell it had; a token sees the new rows of
        the others. For the while it takes as many free cells as there are tokens, and for rows that another
        sequence shares, which keeps the old ones, as many again.

        Parameters
        ----------
        tokens
            One for each position.
        positions
            Positions that `seq` holds, rising; they need not follow each other.
        logits, on_progress
            As for `prefill`; the last token is that of the last position.

        Raises
        ------
        ContextFull, SequenceError, TokenError
            Before anything has been written.
        PatchFailed
            When patches are declined here (nothing has been written), or could not be carried out.
        Cancelled
            After `cancel`.

        Notes
        -----
        When it fails midway, `positions` are removed from the sequence: their rows may be half old, half new.
        """
        self._insist("input_patches")
        array = np.asarray(tokens)
        with self._runtime.operation():
            self.vocabulary.check(array)
            places = np.ascontiguousarray(positions, np.int32)
            return self._runtime.recompute(
                seq, array.astype(np.int32), places, logits=logits, on_progress=on_progress
            )

    def generate(
        self,
        seq: int,
        logits: NDArray[np.float32],
        *,
        max_tokens: int,
        sampler: SamplerSettings | None = None,
        mask: TokenMask | None = None,
        stop_tokens: Iterable[int] | None = None,
        on_token: Callable[[str], None] | None = None,
        decode_last: bool = True,
    ) -> Generation:
        """Generate after a prefill.

        Parameters
        ----------
        logits
            float32 [n_vocab] of the sequence's last token.
        sampler
            ``None`` takes the most likely token.
        mask
            Constrains each token; the generation ends when it has stopped.
        stop_tokens
            End the generation and are not part of it; the model's own end tokens always do.
        on_token
            Called with each piece of text, whole characters only.
        decode_last
            ``False`` spares the decode of the last token, which then is not in the cache.

        Raises
        ------
        Cancelled
            After `cancel`; the sequence is as it was before the call.
        MaskExhausted, GrammarError
            When the mask forbids everything, or breaks.
        """
        with self._runtime.operation():
            self._runtime.check_sequence(seq)
            return generate(
                self._runtime,
                self.vocabulary,
                seq,
                logits,
                max_tokens=max_tokens,
                sampler=sampler or SamplerSettings(seed=self.seed),
                mask=mask,
                stop_tokens=stop_tokens or (),
                on_token=on_token,
                decode_last=decode_last,
            )

    @contextmanager
    def metered(self, meter: Callable[[DecodeCall], None]) -> Iterator[None]:
        """Have `meter` told of every call of llama.cpp in the block, on the engine's thread.

        It must return soon, and not raise.
        """
        self._runtime.meters.append(meter)
        try:
            yield
        finally:
            self._runtime.meters.remove(meter)

    # -- state --------------------------------------------------------------------------------------------

    def save_state(
        self, seq: int, *, start: int = 0, stop: int = -1, arena: BuddyArena | None = None
    ) -> SequenceState:
        """Copy a sequence's keys, values and positions out of the context.

        Parameters
        ----------
        start, stop
            Positions to keep, half open; ``stop = -1`` for the end.
        arena
            Memory for the copy.

        Raises
        ------
        StateMismatch
            When the state has a layout that is not understood; see ``declines["splice"]``.
        """
        with self._runtime.operation():
            if start <= 0 and stop < 0:
                return self._runtime.save(seq, arena=arena)
            with self._runtime.scratch() as scratch:
                self._runtime.copy(seq, scratch, start, stop)
                return self._runtime.save(scratch, arena=arena)

    def restore_state(self, state: SequenceState, seq: int, *, append: bool = False) -> None:
        """Put a state into a sequence.

        Parameters
        ----------
        append
            Add the rows to what the sequence holds; otherwise it is replaced.

        Raises
        ------
        ContextFull, StateMismatch, SequenceError
            Before anything is written.
        StateRestoreFailed
            When llama.cpp refuses the state; the destination of a replacement is empty then.
        """
        with self._runtime.operation():
            self._runtime.restore(state, seq, append=append)

    # -- patches and captures -----------------------------------------------------------------------------

    @contextmanager
    def input_patches(self, plan: PatchPlan) -> Iterator[PatchReport]:
        """Let the first prefill of the block run with patched graph inputs.

        Raises
        ------
        PatchFailed
            When patches are declined here, or the plan is not for that prefill, or it could not be carried
            out (then what was written has been removed).
        """
        self._insist("input_patches")
        report = PatchReport()
        with self._runtime.arm(plan=plan, report=report, capture=None):
            yield report

    @contextmanager
    def capture_attention(
        self, layers: Iterable[int], *, n_queries: int | None = None
    ) -> Iterator[AttentionCapture]:
        """Copy attention rows of the first prefill of the block.

        Parameters
        ----------
        layers
            Layers to copy.
        n_queries
            Copy the last queries only; ``None`` for all: n_head * n_tokens * n_ctx floats a layer.

        Raises
        ------
        PatchFailed
            When captures are declined here.
        """
        self._insist("attention_capture")
        wanted = tuple(dict.fromkeys(int(layer) for layer in layers))
        if not wanted or not all(0 <= layer < self.info.n_layer for layer in wanted):
            raise PatchFailed(
                f"layers {wanted}", next_step=f"choose layers from 0 to {self.info.n_layer - 1}"
            )
        capture = AttentionCapture(wanted, n_queries)
        with self._runtime.arm(plan=None, report=None, capture=capture):
            yield capture

    def _insist(self, feature: str) -> None:
        decline = self.declines.get(feature)
        if decline is not None:
            raise PatchFailed(f"{feature}: {decline.reason}", next_step=f"instead: {decline.instead}")


def _close(loaded: Loaded) -> None:
    with loaded.runtime.turn_lock.hold():
        loaded.vocabulary.close()
        loaded.runtime.close()


def _let_go(loaded: Loaded) -> None:
    """Close what a forgotten engine held, in a thread of its own as long as there are threads.

    The collector comes anywhere, also where its thread holds a lock that closing waits for.
    """
    if threading.main_thread().is_alive():
        _thread.start_new_thread(_close, (loaded,))
    else:
        _close(loaded)


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise EngineError(f"{name} = {value}", next_step="choose at least 1")


def _kv_type(name: str) -> KvType:
    try:
        return KvType[name.upper()]
    except KeyError as error:
        raise EngineError(
            f"kv_type {name!r} is unknown",
            next_step="choose one of " + ", ".join(kind.name.lower() for kind in KvType),
        ) from error
