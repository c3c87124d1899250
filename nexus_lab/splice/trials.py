"""Measuring splices: one block behind one live prefix, its full prefill once, then any number of repairs.

Every run of a trial starts from the same cells in the same order, so what differs is the splice alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.splice.fidelity import logits_of
from nexus_lab.splice.measures import compare_logits
from nexus_lab.splice.splicer import splice_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine
    from nexus_lab.splice.base import RepairStrategy, SpliceResult
    from nexus_lab.splice.blocks import ToolBlock
    from nexus_lab.splice.measures import Fidelity

__all__ = [
    "Reference",
    "Trial",
    "TrialCase",
    "ended",
    "growing_prefix",
    "left_as_it_was",
    "measure_reference",
    "measure_splice",
    "with_answer",
]


@dataclass(frozen=True, slots=True)
class TrialCase:
    """What is measured: a block, the prompt after it, and the tokens forced while distributions are compared.

    Attributes
    ----------
    name
        Name of the tool.
    block, rest, answer
        Tokens of the block, of the rest of the prompt, and of the answer.
    """

    name: str
    block: tuple[int, ...]
    rest: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The full prefill of a case behind a prefix.

    Attributes
    ----------
    logits
        After the rest and after each forced token, float32 [1 + n_answer, n_vocab].
    ttft_s
        Time of one prefill of block and rest together, in seconds.
    block_s
        Time of a prefill of the block alone, in seconds.
    """

    logits: NDArray[np.float32]
    ttft_s: float
    block_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One splice of a case, against its reference."""

    result: SpliceResult
    fidelity: Fidelity


def ended(tokens: Sequence[int], depth: int, ending: Sequence[int]) -> tuple[int, ...]:
    """Return `depth` tokens: the first of `tokens`, and then `ending` where there is room for it."""
    kept = depth - len(ending)
    return (*tokens[:kept], *ending) if kept > 0 else tuple(tokens[:depth])


@contextmanager
def growing_prefix(
    engine: Engine, tokens: Sequence[int], ending: Sequence[int] = ()
) -> Iterator[Callable[[int], int]]:
    """Lend a live sequence that can be grown to ever larger depths.

    Parameters
    ----------
    tokens
        The prefix up to the largest depth.
    ending
        What ends a message: at every depth the last tokens are these, since a block stands behind whole
        messages; a larger depth goes on from before them.

    Yields
    ------
    Callable
        Takes a depth, prefills the prefix up to it, and returns the sequence.
    """
    seq = engine.acquire_sequence()
    live: tuple[int, ...] = ()

    def grow(depth: int) -> int:
        nonlocal live
        if depth > len(live):
            wanted = ended(tokens, depth, ending)
            same = next(
                (at for at, pair in enumerate(zip(live, wanted, strict=False)) if len({*pair}) > 1), len(live)
            )
            engine.remove(seq, same, -1)
            live = wanted[:same]
            engine.prefill(seq, wanted[same:], start=same, logits="none")
            live = wanted
        return seq

    try:
        yield grow
    finally:
        engine.release_sequence(seq)


def measure_reference(engine: Engine, seq: int, case: TrialCase) -> Reference:
    """Prefill a case behind the live tokens of `seq`, twice: once for the clock, once for the logits."""
    with engine.turn(), left_as_it_was(engine, seq) as again:
        started = perf_counter()
        engine.prefill(seq, case.block + case.rest, logits="last")
        ttft_s = perf_counter() - started
        again()
        started = perf_counter()
        engine.prefill(seq, case.block, logits="none")
        block_s = perf_counter() - started
        first = logits_of(engine, seq, case.rest, "last")
        return Reference(with_answer(engine, seq, case, first), ttft_s, block_s)


def measure_splice(
    engine: Engine,
    seq: int,
    case: TrialCase,
    block: ToolBlock,
    reference: Reference,
    *,
    strategy: RepairStrategy,
    budget: float | None = None,
    preceding: Sequence[int] | None = None,
) -> Trial:
    """Splice a case behind the live tokens of `seq` and compare it with its reference; see `splice_block`."""
    with engine.turn(), left_as_it_was(engine, seq):
        result = splice_block(
            engine, seq, block, strategy=strategy, budget=budget, preceding=preceding, rest=case.rest
        )
        first = np.empty(0, np.float32) if result.logits is None else result.logits
        return Trial(result, compare_logits(reference.logits, with_answer(engine, seq, case, first)))


def with_answer(engine: Engine, seq: int, case: TrialCase, first: NDArray[np.float32]) -> NDArray[np.float32]:
    """Force the answer after `first`, float32 [n_vocab]; returns float32 [1 + n_answer, n_vocab]."""
    if not case.answer:
        return first[np.newaxis]
    return np.concatenate([first[np.newaxis], logits_of(engine, seq, case.answer, "all")])


@contextmanager
def left_as_it_was(engine: Engine, seq: int) -> Iterator[Callable[[], None]]:
    """Lend a sequence for the block; what is appended goes at its end, and when what it yields is called."""
    end = engine.pos_max(seq) + 1

    def restore() -> None:
        if engine.pos_max(seq) >= end:
            engine.remove(seq, end, -1)

    try:
        yield restore
    finally:
        restore()
