"""What scattering costs: one pass over tokens far apart, beside one over as many that follow each other."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.splice import Scattered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexus_lab.engine import Engine

__all__ = ["pass_rows"]

Row = dict[str, Any]


def pass_rows(
    engine: Engine, seq: int, block: Sequence[int], *, budget: float = 0.25, repeats: int = 5
) -> Iterator[Row]:
    """Time both passes in turns behind the live tokens of `seq`, which is left as it was.

    The scattered pass computes a share of the block's tokens anew where they stand. The contiguous one
    appends as many tokens to the same sequence, without patches: as many tokens in each decode call, the same
    cells taken, the same number of cells attended over. The first round warms up.

    Parameters
    ----------
    block
        Tokens to append first.
    budget
        Share of them that is recomputed.
    repeats
        Pairs to time.

    Yields
    ------
    dict
        ``depth``, ``n_tokens``, ``n_recomputed``, and the seconds of each pass.
    """
    depth = engine.pos_max(seq) + 1
    chosen = np.array(Scattered().plan(len(block), depth, budget).recomputed)
    tokens = np.asarray(block, np.int32)[chosen]
    end = depth + len(block)

    def scattered() -> None:
        engine.recompute(seq, tokens, depth + chosen)

    def contiguous() -> None:
        engine.prefill(seq, tokens, start=end, logits="none")

    try:
        engine.prefill(seq, block, logits="none")
        for number in range(1 + repeats):
            seconds = {}
            # Each goes first as often as the other, so that neither gets the warmer machine.
            for work in (scattered, contiguous) if number % 2 else (contiguous, scattered):
                seconds[work.__name__] = _timed(work)
                if engine.pos_max(seq) >= end:
                    engine.remove(seq, end)
            if number:
                yield {
                    "depth": depth,
                    "n_tokens": len(block),
                    "n_recomputed": len(chosen),
                    "scattered_s": seconds["scattered"],
                    "contiguous_s": seconds["contiguous"],
                }
    finally:
        engine.remove(seq, depth)


def _timed(work: Callable[[], None]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started
