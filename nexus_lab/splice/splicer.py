"""Splicing a block at the live cursor: check, rotate once, append, repair; or prefill, and say why."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from nexus_lab.engine.errors import ContextFull, PatchFailed, StateRestoreFailed
from nexus_lab.engine.shift import add_shift
from nexus_lab.errors import Decline
from nexus_lab.splice.base import (
    BlockRefused,
    RepairKind,
    RepairPath,
    SplicePath,
    SpliceResult,
    SpliceTimings,
)
from nexus_lab.splice.calibration import CalibrationError, calibrated_rotations, load_calibration
from nexus_lab.splice.carry import head_shift
from nexus_lab.splice.contracts import Bounded, Choice, choose
from nexus_lab.splice.identity import context_hash
from nexus_lab.splice.strategies import Full, Leading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena
    from nexus_lab.engine import Engine
    from nexus_lab.engine.shift import KeyShift
    from nexus_lab.splice.base import RepairPlan, RepairStrategy
    from nexus_lab.splice.blocks import ToolBlock
    from nexus_lab.splice.calibration import Calibration
    from nexus_lab.splice.contracts import SpliceContract

__all__ = ["choose_for", "is_anchored", "splice_block", "stored_calibration", "why_not"]

_LOG = logging.getLogger(__name__)


def splice_block(
    engine: Engine,
    seq: int,
    block: ToolBlock,
    *,
    contract: SpliceContract | None = None,
    strategy: RepairStrategy | None = None,
    budget: float | None = None,
    preceding: Sequence[int] | None = None,
    calibration: Calibration | None = None,
    rest: Sequence[int] = (),
    arena: BuddyArena | None = None,
) -> SpliceResult:
    """Append a block to a live sequence, and after it the rest of the prompt.

    Whatever stands in the way of a splice is found before a row is written; the block is then prefilled as
    text, and the result says why. When anything fails or is cancelled, the sequence is left as it was.

    Parameters
    ----------
    engine
        The running model.
    seq
        Sequence to append to; the block's first token gets the position after its last.
    block
        The compiled block.
    contract
        What to hold the splice to; sets the repair. Give this or `strategy`.
    strategy, budget
        Repair to run in place of a contract; leading, with its default budget, when both are absent.
    preceding
        Tokens of the sequence, when every one of them was computed behind the ones before it. They decide
        whether the splice is anchored; without them it is not.
    calibration
        Measured bounds for ``bounded``; by default those stored for this model and compile context.
    rest
        Tokens after the block. With them the result holds logits and a time to first token.
    arena
        Memory for the rows on their way from the file into the cache.

    Returns
    -------
    SpliceResult
        Path, repair, timings, and the reason of a decline.

    Raises
    ------
    ContextFull
        When block and rest do not fit; nothing was written.
    Cancelled
        When the engine was cancelled; the sequence is as before.
    """
    with engine.turn():
        started = perf_counter()
        n_past = engine.pos_max(seq) + 1
        declined = why_not(engine, block)
        anchored = declined is None and is_anchored(engine, block, n_past=n_past, preceding=preceding)
        if declined is not None:
            choice = Choice(Full().plan(block.n_tokens, n_past), declined)
        elif contract is None:
            choice = Choice(
                (strategy or Leading()).plan(block.n_tokens, n_past, budget, sensitivity=block.sensitivity)
            )
        else:
            choice = choose_for(engine, block, contract, n_past, calibration, anchored=anchored)
        check_s = perf_counter() - started
        written = _write(engine, seq, block, choice.plan, n_past=n_past, rest=rest, arena=arena)
    for what, why in (("splice", choice.declined), ("one-pass repair", written.declined)):
        if why is not None:
            _LOG.info("%s declined (%s): %s", what, why.code, why.reason)
    return SpliceResult(
        path=SplicePath.PREFILL if choice.plan.count == block.n_tokens else SplicePath.SPLICE,
        plan=choice.plan,
        contract="" if contract is None else str(contract),
        n_past=n_past,
        n_tokens=block.n_tokens,
        anchored=anchored,
        timings=replace(written.timings, check_s=check_s),
        declined=choice.declined,
        repair_path=written.path,
        repair_declined=written.declined,
        logits=written.logits,
    )


def why_not(engine: Engine, block: ToolBlock) -> Decline | None:
    """Say why `block` cannot be spliced into `engine`, or ``None`` when it can; reads, and writes nothing."""
    declined = engine.declines.get("splice")
    if declined is not None:
        return declined
    try:
        block.check(engine)
    except BlockRefused as refused:
        return Decline(f"block_{refused.field}", refused.problem)
    return None


def is_anchored(engine: Engine, block: ToolBlock, *, n_past: int, preceding: Sequence[int] | None) -> bool:
    """Whether the block stands behind the tokens it was compiled behind, under the same attention kernel.

    An equal position is not enough: the tokens decide, by their hash.
    """
    return (
        preceding is not None
        and "splice" not in engine.declines
        and len(preceding) == n_past == block.anchor
        and block.same_kernel(engine)
        and context_hash(preceding) == block.context_hash
    )


def choose_for(
    engine: Engine,
    block: ToolBlock,
    contract: SpliceContract,
    n_past: int,
    calibration: Calibration | None = None,
    *,
    anchored: bool,
    whole: bool = True,
) -> Choice:
    """Turn a contract into a repair plan for `block` at position `n_past` of `engine`.

    Parameters
    ----------
    calibration
        Measured bounds for ``bounded``; by default those stored for this model and compile context.
    anchored
        As `is_anchored` says.
    whole
        Whether every token before the block is still attended.
    """
    if isinstance(contract, Bounded) and calibration is None and not anchored:
        stored = stored_calibration(engine, block.context_hash)
        if isinstance(stored, Decline):
            return Choice(Full().plan(block.n_tokens, n_past), stored)
        calibration = stored
    return choose(
        contract,
        n_tokens=block.n_tokens,
        n_past=n_past,
        anchored=anchored,
        calibration=calibration,
        sensitivity=block.sensitivity,
        whole=whole,
    )


def stored_calibration(engine: Engine, context_hash: bytes) -> Calibration | Decline | None:
    """Return the bounds stored for `engine` behind a compile context, or why their file is of no use."""
    model, behind, flash = engine.info.fingerprint, context_hash.hex(), engine.schedule.flash_attention
    rotation = "" if engine.info.rope is None else engine.info.rope.context_factors
    try:
        found = load_calibration(model, behind, flash_attention=flash, rotation=rotation)
    except CalibrationError as error:
        return Decline("calibration_refused", f"{error.problem}; {error.next_step}")
    if found is None and rotation and calibrated_rotations(model, behind, flash_attention=flash):
        reason = (
            f"bounds are measured, but not under the rotation that the model has in {engine.n_ctx:,} cells; "
            f"nexus-lab eval calibrate --n-ctx {engine.n_ctx} measures them"
        )
        return Decline("other_rotation", reason)
    return found


@dataclass(slots=True)
class _Written:
    timings: SpliceTimings
    path: RepairPath
    declined: Decline | None
    logits: NDArray[np.float32] | None


def _write(
    engine: Engine,
    seq: int,
    block: ToolBlock,
    plan: RepairPlan,
    *,
    n_past: int,
    rest: Sequence[int],
    arena: BuddyArena | None,
) -> _Written:
    """Bring block and rest into the sequence, or leave it as it was."""
    clock = _Clock()
    splice = _Splice(engine, seq, block, n_past, arena, clock)
    path, declined = RepairPath.RUNS, None
    try:
        if sum(run.recomputed for run in plan.runs()) > 1:
            declined = splice.in_one_pass(plan)
            path = RepairPath.ONE_PASS if declined is None else RepairPath.RUNS
        if path is RepairPath.RUNS:
            splice.in_runs(plan)
        with clock.step("rest_s"):
            logits = engine.prefill(seq, rest, logits="last") if len(rest) else None
    except BaseException:
        engine.remove(seq, n_past, -1)
        raise
    return _Written(SpliceTimings(**clock.seconds), path, declined, logits)


@dataclass(slots=True)
class _Splice:
    """The two ways to bring a block into a sequence under a repair plan."""

    engine: Engine
    seq: int
    block: ToolBlock
    n_past: int
    arena: BuddyArena | None
    clock: _Clock

    def in_runs(self, plan: RepairPlan) -> None:
        """Splice and prefill stretch by stretch, from the first to the last."""
        shift = None
        for run in plan.runs():
            if run.recomputed:
                with self.clock.step("repair_s"):
                    self.engine.prefill(self.seq, self.block.tokens[run.start : run.stop], logits="none")
                    if plan.kind is RepairKind.CARRIED:
                        shift = head_shift(
                            self.engine, self.seq, self.block, n_past=self.n_past, n_head=run.stop
                        )
            else:
                self._splice(run.start, run.stop, shift)

    def in_one_pass(self, plan: RepairPlan) -> Decline | None:
        """Splice the whole block and compute the plan's tokens over it, or say why not and leave nothing."""
        if (declined := self.engine.declines.get("input_patches")) is not None:
            return declined
        try:
            self.engine.make_room(self.block.n_tokens + plan.count)
        except ContextFull as error:
            reason = f"one pass needs {error.needed} cells for a while, and {error.free} are free"
            return Decline("no_room", reason, _INSTEAD)
        chosen = list(plan.recomputed)
        try:
            self._splice(0, self.block.n_tokens)
            with self.clock.step("repair_s"):
                tokens = [self.block.tokens[index] for index in chosen]
                self.engine.recompute(self.seq, tokens, [self.n_past + index for index in chosen])
        except (PatchFailed, StateRestoreFailed) as error:
            self.engine.remove(self.seq, self.n_past, -1)
            return Decline("pass_failed", error.problem, _INSTEAD)
        return None

    def _splice(self, start: int, stop: int, shift: KeyShift | None = None) -> None:
        with self.clock.step("rotate_s"):
            rows = self.block.rows_at(self.engine, self.n_past, start=start, stop=stop, arena=self.arena)
            if shift is not None:
                add_shift(rows, shift, self.engine.info.rope)
        with self.clock.step("restore_s"):
            self.engine.restore_state(rows, self.seq, append=True)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - started


_INSTEAD = "the tokens are computed stretch by stretch"
