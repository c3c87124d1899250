"""Trying a splice beside the live conversation: the film of its steps, and what it costs in fidelity.

Every part runs on scratch sequences that share the cells of the tokens before the block, so the live
conversation stays as it is. The time to first token is that of one uncut splice, not the film's.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine import ContextFull
from nexus_lab.errors import Decline
from nexus_lab.lab.splice_film import MEASURES, BlockRows, FilmStep, play
from nexus_lab.lab.splice_parts import TrialError
from nexus_lab.lab.splice_records import MeasuredSplice, NextToken, SpliceSettings, SpliceTrial
from nexus_lab.splice import (
    Bounded,
    Exact,
    Fixed,
    Paper,
    RepairKind,
    RepairPath,
    RepairPlan,
    compare_logits,
    no_room,
    noise_floor,
    repair_count,
    repair_fraction,
    splice_block,
    stored_calibration,
    strategy,
)
from nexus_lab.splice.fidelity import logits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine
    from nexus_lab.engine.patches import AttentionCapture
    from nexus_lab.lab.splice_parts import TrialParts
    from nexus_lab.splice import (
        BlockContext,
        BlockLibrary,
        Calibration,
        SpliceContract,
        SpliceResult,
        ToolBlock,
    )

__all__ = ["run_trial"]

_FORCED = 40
_SHOWN = 8
_SEED = 7


@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    rows: BlockRows
    logits: NDArray[np.float32]
    forced: tuple[int, ...]
    prefill_s: float
    attention: NDArray[np.float32] | None


class _GoOn:
    """Forbids the tokens that end a reply, so that there are enough positions to compare."""

    stopped = False

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = np.asarray(sorted(ends), np.int64)

    def mask(self, logits: NDArray[np.float32]) -> None:
        logits[self._ends] = -np.inf

    def accept(self, token: int) -> None:
        """Every token is fine."""


def run_trial(
    engine: Engine,
    library: BlockLibrary,
    parts: TrialParts,
    settings: SpliceSettings,
    *,
    name: str,
    behind: BlockContext,
    m: int = 256,
    r_base: float = 0.05,
    watch: Callable[[str], None] = lambda _stage: None,
) -> SpliceTrial:
    """Try a splice; blocks, and stops within a graph node when the engine is cancelled.

    Parameters
    ----------
    name
        Identifier of the trial.
    behind
        What the block is compiled behind.
    m, r_base
        Further constants of R(n_past).
    watch
        Called with a few words at each stage.

    Raises
    ------
    ContextFull, Cancelled, CompileError, StrategyError, CurveError
        When the trial does not fit, was stopped, or its settings mean nothing.
    """
    fraction = repair_fraction(settings.n_past, k=settings.k, m=m, r_base=r_base)
    asked = _Asked(settings, parts, fraction, name, behind.anchor, _contract(settings, fraction, m, r_base))
    unavailable = engine.declines.get("splice")
    if unavailable is not None:
        return _declined(engine, asked, unavailable, watch)
    watch("block")
    block = library.get_or_compile(parts.block, behind)
    with engine.turn(), engine.scratch_sequence() as seq:
        watch("context")
        _prefill_context(engine, seq, parts)
        watch("splice")
        findings = _Findings(calibration=_calibration(engine, block, asked))
        with _behind(engine, seq, parts) as own:
            result = _splice(engine, own, block, asked, findings.calibration)
            if result.declined is not None:
                return _made(engine, asked, block, result, findings)
            reference = _reference(engine, seq, own, result, asked, findings=findings, watch=watch)
        watch("film")
        _filmed(engine, seq, block, asked, findings, result=result, reference=reference)
    return _made(engine, asked, block, result, findings)


@dataclass(frozen=True, slots=True)
class _Asked:
    settings: SpliceSettings
    parts: TrialParts
    curve: float
    name: str
    anchor: int
    contract: SpliceContract


def _contract(settings: SpliceSettings, curve: float, m: int, r_base: float) -> SpliceContract:
    if settings.contract == "exact":
        return Exact()
    if settings.contract == "bounded":
        return Bounded(settings.epsilon)
    if settings.contract == "paper":
        return Paper(settings.k, m, r_base)
    return Fixed(strategy(settings.repair), curve if settings.budget is None else settings.budget)


def _calibration(engine: Engine, block: ToolBlock, asked: _Asked) -> Calibration | None:
    if asked.settings.contract != "bounded":
        return None
    found = stored_calibration(engine, block.context_hash)
    return None if isinstance(found, Decline) else found  # the splice will say why


@dataclass(slots=True)
class _Findings:
    steps: tuple[FilmStep, ...] = ()
    drift: NDArray[np.float32] | None = None
    attention: NDArray[np.float32] | None = None
    floor: NDArray[np.float32] | None = None
    attention_floor: NDArray[np.float32] | None = None
    attention_declined: Decline | None = None
    measured: MeasuredSplice | None = None
    measure_declined: Decline | None = None
    calibration: Calibration | None = None


def _prefill_context(engine: Engine, seq: int, parts: TrialParts) -> None:
    """Prefill the system prompt by itself, as a turn does, then what follows it."""
    head = min(len(parts.context), len(parts.before))
    for piece in (parts.before[:head], parts.before[head:]):
        if piece:
            engine.prefill(seq, piece, logits="none")


@contextmanager
def _behind(engine: Engine, seq: int, parts: TrialParts) -> Iterator[int]:
    """Lend a sequence that begins with the cells of `seq`."""
    with engine.scratch_sequence() as own:
        if parts.before:
            engine.copy_sequence(seq, own, 0, len(parts.before))
        yield own


def _splice(
    engine: Engine, seq: int, block: ToolBlock, asked: _Asked, calibration: Calibration | None
) -> SpliceResult:
    return splice_block(
        engine,
        seq,
        block,
        contract=asked.contract,
        calibration=calibration,
        preceding=asked.parts.before,
        rest=asked.parts.rest,
    )


def _reference(
    engine: Engine,
    seq: int,
    own: int,
    result: SpliceResult,
    asked: _Asked,
    *,
    findings: _Findings,
    watch: Callable[[str], None],
) -> _Reference | None:
    """Measure the splice on `own` against a prefill behind `seq`; without the cells for it, say so."""
    if not asked.settings.measure:
        return None
    watch("reference")
    try:
        reference = _refer(engine, seq, asked)
        findings.measured = _measured(engine, own, result, reference)
    except ContextFull as error:
        findings.measure_declined = no_room(error)
        return None
    watch("floor")
    # Without the cells for it there is no floor to show; the drift itself needs none.
    with suppress(ContextFull):
        findings.floor, findings.attention_floor = _floor(engine, seq, asked, reference)
    return reference


def _floor(
    engine: Engine, seq: int, asked: _Asked, reference: _Reference
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Prefill the block once more, behind the rows of `seq` in other cells, and compare as a splice is.

    Returns
    -------
    tuple
        Drift as one frame of a film, and attention as one frame of its own; ``None`` without tokens before
        the block, since there is no other order then.
    """
    parts, n_past = asked.parts, len(asked.parts.before)
    if not n_past:
        return None, None
    with engine.scratch_sequence() as own:
        state = engine.save_state(seq)
        engine.restore_state(state.take(np.random.default_rng(_SEED).permutation(state.n_cells)), own)
        engine.prefill(own, parts.block, start=n_past, logits="none")
        rows = engine.save_state(own, start=n_past, stop=n_past + len(parts.block))
        drift = reference.rows.drift([rows], first=n_past, n_head_kv=engine.info.n_head_kv)
        if reference.attention is None:
            return drift, None
        return drift, _attention_drift(_next(engine, own, asked)[1], reference.attention, parts)


def _refer(engine: Engine, seq: int, asked: _Asked) -> _Reference:
    """Prefill the same tokens: once in one go for the clock, once apart for rows and logits."""
    parts, n_past = asked.parts, len(asked.parts.before)
    with _behind(engine, seq, parts) as own:
        began = perf_counter()
        engine.prefill(own, (*parts.block, *parts.rest), start=n_past, logits="last")
        prefill_s = perf_counter() - began
        engine.remove(own, n_past, -1)
        engine.prefill(own, parts.block, start=n_past, logits="none")
        rows = BlockRows.of(engine.save_state(own, start=n_past, stop=n_past + len(parts.block)))
        first, attention = _next(engine, own, asked)
        reply = engine.generate(own, first, max_tokens=_FORCED, mask=_GoOn(tuple(engine.vocabulary.eog)))
        engine.remove(own, n_past + len(parts.block) + len(parts.rest), -1)
        logits = np.concatenate([first[np.newaxis], logits_of(engine, own, reply.tokens, "all")])
    return _Reference(rows, logits, reply.tokens, prefill_s, attention)


def _next(engine: Engine, seq: int, asked: _Asked) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Prefill the rest; returns the logits of the next token, and its attention where that is wanted.

    Attention is float32 [n_layer, n_head, n_keys].
    """
    if not asked.settings.attention or "attention_capture" in engine.declines:
        return logits_of(engine, seq, asked.parts.rest, "last"), None
    layers = range(engine.info.n_layer)
    with engine.capture_attention(layers, n_queries=1) as capture:
        logits = logits_of(engine, seq, asked.parts.rest, "last")
    return logits, _last_query(capture, layers)


def _last_query(capture: AttentionCapture, layers: range) -> NDArray[np.float32]:
    return np.stack([capture.rows(layer)[:, -1] for layer in layers])


def _measured(engine: Engine, seq: int, result: SpliceResult, reference: _Reference) -> MeasuredSplice:
    """Force the reference's reply on the spliced sequence and compare."""
    if result.logits is None:
        raise TrialError("the splice gave no logits", next_step="report this")
    other = np.concatenate([result.logits[np.newaxis], logits_of(engine, seq, reference.forced, "all")])
    floor = noise_floor(engine).dkl
    fidelity = compare_logits(reference.logits, other, noise_floor=floor)
    return MeasuredSplice(
        prefill_ms=reference.prefill_s * 1e3,
        dkl=fidelity.dkl_mean,
        noise_floor=floor,
        n_positions=fidelity.n_positions,
        top1=fidelity.top1,
        same_first=bool(reference.logits[0].argmax() == other[0].argmax()),
        next=_next_tokens(engine, reference.logits[0], other[0]),
    )


def _next_tokens(
    engine: Engine, reference: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[NextToken, ...]:
    p, q = _softmax(reference), _softmax(other)
    best = np.argsort(-p, kind="stable")[:_SHOWN]
    rows = [NextToken(engine.vocabulary.token_text(int(i)), float(p[i]), float(q[i])) for i in best]
    others = NextToken("all others", max(0.0, 1 - float(p[best].sum())), max(0.0, 1 - float(q[best].sum())))
    return (*rows, others)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = np.exp(np.asarray(logits, np.float64) - float(logits.max()))
    share: NDArray[np.float64] = shifted / shifted.sum()
    return share


def _filmed(
    engine: Engine,
    seq: int,
    block: ToolBlock,
    asked: _Asked,
    findings: _Findings,
    *,
    result: SpliceResult,
    reference: _Reference | None,
) -> None:
    """Play the film; attention is read where the block is whole: once written, and at the end."""
    n_past, attention = len(asked.parts.before), {}
    wanted = reference is not None and reference.attention is not None
    with _behind(engine, seq, asked.parts) as own:
        counted: list[str] = []

        def watch(step: str) -> None:
            counted.append(step)
            if wanted and step == "write":
                attention[len(counted) - 1] = _attention(engine, own, asked, reference)

        steps, drift = play(
            engine,
            own,
            block,
            result.plan,
            n_past=n_past,
            one_pass=result.repair_path is RepairPath.ONE_PASS,
            reference=None if reference is None else reference.rows,
            watch=watch,
        )
        if wanted:
            attention[len(steps) - 1] = _attention(engine, own, asked, reference)
    findings.steps, findings.drift = steps, drift
    if attention:
        shape = (len(steps), len(MEASURES), engine.info.n_layer, engine.info.n_head)
        findings.attention = np.full(shape, np.nan, np.float32)
        for step, values in attention.items():
            findings.attention[step] = values
    elif asked.settings.attention:
        findings.attention_declined = _no_attention(engine)


def _attention(engine: Engine, seq: int, asked: _Asked, reference: _Reference | None) -> NDArray[np.float32]:
    """Compare the next token's attention with the reference's, float32 [3, n_layer, n_head].

    Absolute is the mean difference over the keys, relative the same divided by the mean weight of a key, and
    signed how much more weight falls on the block.
    """
    if reference is None or reference.attention is None:
        raise TrialError("no attention was captured", next_step="report this")
    with engine.scratch_sequence() as copy:
        engine.copy_sequence(seq, copy, 0, len(asked.parts.before) + len(asked.parts.block))
        _, rows = _next(engine, copy, asked)
    return _attention_drift(rows, reference.attention, asked.parts)


def _attention_drift(
    rows: NDArray[np.float32] | None, reference: NDArray[np.float32], parts: TrialParts
) -> NDArray[np.float32]:
    start, stop = len(parts.before), len(parts.before) + len(parts.block)
    difference = np.asarray(rows) - reference
    absolute = np.abs(difference).mean(axis=2)
    weight = reference.mean(axis=2)
    signed = difference[..., start:stop].sum(axis=2)
    return np.stack([absolute, absolute / np.where(weight > 0, weight, 1.0), signed]).astype(np.float32)


def _no_attention(engine: Engine) -> Decline:
    declined = engine.declines.get("attention_capture")
    if declined is not None:
        return declined
    return Decline("not_measured", "attention is compared with a prefill, which was not run", "no attention")


def _declined(engine: Engine, asked: _Asked, declined: Decline, watch: Callable[[str], None]) -> SpliceTrial:
    """Prefill the block as text, which is what a turn does then, and say what that took."""
    parts = asked.parts
    with engine.turn(), engine.scratch_sequence() as seq:
        watch("context")
        _prefill_context(engine, seq, parts)
        watch("prefill")
        began = perf_counter()
        engine.prefill(seq, (*parts.block, *parts.rest), start=len(parts.before), logits="last")
        seconds = perf_counter() - began
    return _record(engine, asked, _Findings(), declined=declined, ttft_s=seconds)


def _made(
    engine: Engine, asked: _Asked, block: ToolBlock, result: SpliceResult, findings: _Findings
) -> SpliceTrial:
    return _record(
        engine,
        asked,
        findings,
        declined=result.declined,
        ttft_s=result.ttft_s or result.seconds,
        block=block,
        result=result,
    )


def _record(
    engine: Engine,
    asked: _Asked,
    findings: _Findings,
    *,
    declined: Decline | None,
    ttft_s: float,
    block: ToolBlock | None = None,
    result: SpliceResult | None = None,
) -> SpliceTrial:
    for array in (findings.drift, findings.attention, findings.floor, findings.attention_floor):
        if array is not None:
            array.flags.writeable = False
    n_tokens = len(asked.parts.block)
    plan = RepairPlan(RepairKind.FULL, n_tokens, tuple(range(n_tokens))) if result is None else result.plan
    return SpliceTrial(
        id=asked.name,
        settings=asked.settings,
        n_tokens=n_tokens,
        anchor=asked.anchor,
        bytes=0 if block is None else block.nbytes,
        anchored=result is not None and result.anchored,
        source=asked.parts.source,
        repaired=plan.count,
        curve_tokens=repair_count(n_tokens, asked.curve),
        steps=findings.steps,
        declined=declined,
        ttft_ms=ttft_s * 1e3,
        measured=findings.measured,
        measure_declined=findings.measure_declined,
        attention_declined=findings.attention_declined,
        drift=findings.drift,
        attention_drift=findings.attention,
        drift_floor=findings.floor,
        attention_floor=findings.attention_floor,
        n_layer=engine.info.n_layer,
        n_head_kv=engine.info.n_head_kv,
        n_head=engine.info.n_head,
        plan=plan.kind.value,
        recomputed=plan.recomputed,
        repair_path=RepairPath.RUNS.value if result is None else result.repair_path.value,
        repair_declined=None if result is None else result.repair_declined,
        calibration=findings.calibration,
        sensitivity=None if block is None else block.sensitivity,
    )
