"""Missing state computed again at once: appends and the drops between them as one prefill.

Segment-batch attention: the tokens of all segments go through the model together, and what a segment must not
see, because it had been dropped before, is hidden from its queries. Against the same steps one by one, in the
same cells, that gives the same bits (see `nexus_lab.engine.patches`). A cached key carries one rotation, so a
repos ends a pass; so does what is no append, and a drop behind which positions are given out anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache.base import DecodeKind
from nexus_lab.cache.executor import Outcome
from nexus_lab.cache.ops import Append, CacheOp, Drop, ranges_of
from nexus_lab.cache.snapshots import Snapshot
from nexus_lab.cache.state import CacheState, advance, fold
from nexus_lab.engine import PatchPlan
from nexus_lab.engine.errors import ContextFull, PatchFailed
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from nexus_lab.cache.rows import RowMover
    from nexus_lab.engine import Engine

__all__ = ["PASSED", "passes", "run_pass"]

PASSED = Decline(
    code="passed_in_one_prefill",
    reason="the state was passed through in the middle of one prefill",
    instead="stepping back to it computes again from the nearest one that was kept",
)


def passes(ops: Iterable[CacheOp], state: CacheState) -> Iterator[tuple[CacheOp, ...]]:
    """Group `ops`, which go on from `state`: what can be one prefill together, everything else alone."""
    group: list[CacheOp] = []
    for op in ops:
        after = advance(state, op)
        if not isinstance(op, Append | Drop):
            yield from _closed(group)
            yield (op,)
            group = []
        elif isinstance(op, Drop) and after.next_position != state.next_position:
            yield from _closed([*group, op])  # the next tokens get positions that were in use already
            group = []
        else:
            group.append(op)
        state = after
    yield from _closed(group)


def _closed(group: list[CacheOp]) -> Iterator[tuple[CacheOp, ...]]:
    """Yield a group as a pass from its first append to its last, if there is a drop between."""
    appends = [number for number, op in enumerate(group) if isinstance(op, Append) and op.tokens]
    first, last = (appends[0], appends[-1] + 1) if appends else (0, 0)
    if not any(isinstance(op, Drop) for op in group[first:last]):
        yield from ((op,) for op in group)
        return
    yield from ((op,) for op in group[:first])
    yield tuple(group[first:last])
    yield from ((op,) for op in group[last:])


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation of a pass: the state it leads to, and the tokens that it drops or appends."""

    op: CacheOp
    after: Snapshot
    touched: NDArray[np.int64]
    dropped: NDArray[np.int32]


def run_pass(
    ops: tuple[CacheOp, ...],
    before: Snapshot,
    seq: int,
    *,
    engine: Engine,
    rows: RowMover,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Outcome] | Decline:
    """Execute one of `passes` on `seq`, which holds `before`, with a single prefill.

    Returns
    -------
    list of Outcome, or Decline
        One for each operation, of which only the last has rows to keep and logits; or why it has to be done
        step by step. Then `seq` is as it was.

    Raises
    ------
    Cancelled
        When the turn was stopped; `seq` is as it was.
    """
    declined = engine.declines.get("input_patches")
    if declined is not None:
        return replace(declined, instead="segment by segment")
    steps = list(_steps(ops, before))
    start, final = len(before.state), steps[-1].after
    gone = [int(step.touched[0]) for step in steps if step.dropped.size]
    with rows.undo(seq, before, min((start, *gone))):
        logits = _prefill(steps, before, seq, engine, on_progress)
        if isinstance(logits, Decline):
            return logits
        for first, last in ranges_of(np.concatenate([step.dropped for step in steps]).tolist()):
            engine.remove(seq, first, last)
    done = before.schedule.then(DecodeKind.PREFILL, start, len(final.state) - start)
    computed = np.arange(start, len(final.state))
    computed = computed[final.state.active[start:]]
    kept = [Outcome(step.after, step.op, step.touched) for step in steps[:-1]]
    last_step = Outcome(
        replace(final, logits=logits, schedule=done), steps[-1].op, steps[-1].touched, computed=computed
    )
    return [*kept, last_step]


def _steps(ops: tuple[CacheOp, ...], before: Snapshot) -> Iterator[_Step]:
    for op in ops:
        program = before.program.then(op)
        state = fold(program)
        was = before.state
        lost = np.flatnonzero(was.active & ~state.active[: len(was)])
        new = np.arange(len(was), len(state))
        rows = before.rows.extended(len(new)).kept(state.active)
        before = Snapshot(program, state, rows, None, before.schedule)
        yield _Step(op, before, new if new.size else lost, was.positions[lost])


def _prefill(
    steps: list[_Step],
    before: Snapshot,
    seq: int,
    engine: Engine,
    on_progress: Callable[[int, int], None] | None,
) -> NDArray[np.float32] | Decline | None:
    """Compute the tokens of all steps, each blind to what was dropped before it."""
    start = len(before.state)
    tokens = steps[-1].after.state.tokens[start:]
    drops = [
        (len(step.after.state) - start, first, last)
        for step in steps
        for first, last in ranges_of(step.dropped.tolist())
    ]
    try:
        with engine.input_patches(PatchPlan.for_drops(len(tokens), drops)):
            return engine.prefill(
                seq, tokens, start=before.state.next_position, logits="last", on_progress=on_progress
            )
    except PatchFailed as error:
        return Decline("patch_failed", error.problem, "segment by segment")
    except ContextFull as error:
        return Decline("context_full", error.problem, "segment by segment, which frees cells on the way")
