"""The decode loop: mask, choose, stream, append."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.base import Generation, StopReason
from nexus_lab.engine.errors import ContextFull, EngineError
from nexus_lab.engine.sampling import Sampler
from nexus_lab.engine.vocab import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from nexus_lab.engine.base import SamplerSettings, TokenMask
    from nexus_lab.engine.runtime import Runtime
    from nexus_lab.engine.vocab import Vocabulary

__all__ = ["generate"]


def generate(
    runtime: Runtime,
    vocabulary: Vocabulary,
    seq: int,
    logits: NDArray[np.float32],
    *,
    max_tokens: int,
    sampler: SamplerSettings,
    mask: TokenMask | None,
    stop_tokens: Iterable[int],
    on_token: Callable[[str], None] | None,
    decode_last: bool,
) -> Generation:
    """See `Engine.generate`."""
    if max_tokens < 1:
        raise EngineError(f"max_tokens = {max_tokens}", next_step="choose at least 1")
    start = runtime.pos_max(seq) + 1
    loop = _Loop(
        runtime=runtime,
        vocabulary=vocabulary,
        seq=seq,
        logits=np.array(logits, np.float32),
        sampler=Sampler(sampler),
        mask=mask,
        on_token=on_token,
    )
    try:
        reason = loop.run(max_tokens, frozenset(stop_tokens), decode_last=decode_last)
    except BaseException:
        # Stopped or failed: what this call wrote goes, so that the sequence is as the caller left it.
        runtime.roll_back(seq, start)
        raise
    return loop.result(reason)


class _Loop:
    def __init__(
        self,
        *,
        runtime: Runtime,
        vocabulary: Vocabulary,
        seq: int,
        logits: NDArray[np.float32],
        sampler: Sampler,
        mask: TokenMask | None,
        on_token: Callable[[str], None] | None,
    ) -> None:
        self._runtime = runtime
        self._vocabulary = vocabulary
        self._seq = seq
        self._logits = logits
        self._sampler = sampler
        self._mask = mask
        self._on_token = on_token
        self._stream = TextStream(vocabulary)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._cached = 0
        self._began = time.perf_counter()
        self._first: float | None = None

    def run(self, max_tokens: int, stop_tokens: frozenset[int], *, decode_last: bool) -> StopReason:
        ends = {**dict.fromkeys(stop_tokens, StopReason.STOP_TOKEN)}
        ends.update(dict.fromkeys(self._vocabulary.eog, StopReason.EOG))
        if self._mask is not None and self._mask.stopped:
            return StopReason.MASK
        while True:
            token = self._choose()
            if token in ends:
                return ends[token]
            self._take(token)
            reason = self._over(max_tokens)
            if reason is not None and not decode_last:
                return reason
            try:
                self._append(token)
            except ContextFull:
                return StopReason.CONTEXT_FULL
            if reason is not None:
                return reason

    def _choose(self) -> int:
        self._runtime.raise_if_cancelled()
        if self._mask is None:
            token = self._sampler.choose(self._logits)
        else:
            masked = self._logits.copy()
            self._mask.mask(masked)
            token = self._sampler.choose(masked)
        if self._first is None:
            self._first = time.perf_counter()
        return token

    def _take(self, token: int) -> None:
        if self._mask is not None:
            self._mask.accept(token)
        self._tokens.append(token)
        self._emit(self._stream.push(token))

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            if self._on_token is not None:
                self._on_token(text)

    def _over(self, max_tokens: int) -> StopReason | None:
        if self._mask is not None and self._mask.stopped:
            return StopReason.MASK
        return StopReason.MAX_TOKENS if len(self._tokens) >= max_tokens else None

    def _append(self, token: int) -> None:
        logits = self._runtime.prefill(self._seq, np.array([token], np.int32), logits="last", generated=True)
        if logits is None:
            raise EngineError("a decode gave no logits", next_step="report this")
        self._logits = logits
        self._cached += 1

    def result(self, reason: StopReason) -> Generation:
        self._emit(self._stream.finish())
        ended = time.perf_counter()
        first = self._first if self._first is not None else ended
        return Generation(
            tokens=tuple(self._tokens),
            text="".join(self._text),
            stop_reason=reason,
            ttft_s=first - self._began,
            decode_s=ended - first,
            cached=self._cached,
            logits=self._logits,
        )
