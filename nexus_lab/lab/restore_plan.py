"""What bringing a state back would do, and what it did when it was tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    ProgramRunner,
    Repair,
    Repos,
    Splice,
    StartKind,
    Tier,
    fold,
)
from nexus_lab.cache.restore import passes
from nexus_lab.cache.start import plan_start
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.lab.tree_shot import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.cache import BlockSource, CacheOp, CacheState, RunResult
    from nexus_lab.engine import Engine

__all__ = [
    "START_WORDS",
    "ColdTrial",
    "Pass",
    "RestoreDone",
    "RestorePlan",
    "did",
    "plan_restore",
    "try_cold",
]

START_WORDS = {
    StartKind.LIVE: "the live sequence",
    StartKind.SNAPSHOT: "a snapshot",
    StartKind.SLOT: "another sequence",
    StartKind.EMPTY: "nothing",
}
NOTHING_BETWEEN = Decline(
    code="no_drop_between",
    reason="no drop lies between the appends that are left to compute",
    instead="each of them is one prefill in any case",
)
OTHER_STATE = Decline(
    code="another_state",
    reason="the operations led to another state than that of the conversation",
    instead="the times are of that other state",
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of a restore at once.

    Attributes
    ----------
    kinds
        Operations that it takes.
    tokens
        Tokens that it computes, those included that are dropped at its end.
    hidden
        Of them, tokens that later ones of the same prefill must not see.
    cells
        Cells that it needs at most.
    loaded
        Tokens whose rows come from a compiled block instead.
    """

    kinds: tuple[str, ...]
    tokens: int
    hidden: int
    cells: int
    loaded: int = 0

    @property
    def joined(self) -> bool:
        """Whether several operations are one prefill."""
        return len(self.kinds) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What bringing one state back would do.

    Attributes
    ----------
    op, of
        Operations of the live program up to that state, and all of them.
    state_id
        Id of its program.
    active, logical
        Its tokens.
    cold
        As if nothing were kept.
    start, places, there
        What it would begin with, where that is, and how many logical tokens it has.
    steps
        What is left, as passes of a restore at once.
    epochs
        Stretches between repos, each of which is prefilled by itself; 0 when nothing is left.
    declined
        Why nothing would be computed at once.
    evicted
        What had been evicted by then, as `nexus_lab.lab.residency_view.evictions` counts it.
    """

    op: int
    of: int
    state_id: str
    active: int
    logical: int
    cold: bool
    start: StartKind
    places: tuple[str, ...]
    there: int
    steps: tuple[Pass, ...]
    epochs: int
    declined: Decline | None
    evicted: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that would be computed."""
        return sum(step.tokens for step in self.steps)

    @property
    def loaded(self) -> int:
        """Tokens whose rows would come from compiled blocks."""
        return sum(step.loaded for step in self.steps)

    @property
    def joined(self) -> int:
        """Passes that take several operations."""
        return sum(step.joined for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDone:
    """What bringing a state back did.

    Attributes
    ----------
    op
        Operations of the live program up to that state.
    at_once
        Whether appends with drops between them were to be one prefill.
    start, there
        What it began with, and how many logical tokens that had.
    ops, computed
        Operations that were executed, and tokens that they computed.
    passes
        Prefills that took several operations.
    declined
        Why some were done one by one all the same.
    seconds
        Wall time.
    state_id
        Id of that state's program.
    from_disk
        What it began with had to be read from disk.
    """

    op: int
    at_once: bool
    start: StartKind
    there: int
    ops: int
    computed: int
    passes: int
    declined: Decline | None
    seconds: float
    state_id: str = ""
    from_disk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTrial:
    """One state computed from nothing on a sequence beside the conversation, at once and step by step.

    Attributes
    ----------
    difference
        Largest difference of a logit behind the newest token; ``None`` where there are none.
    declined
        Why an operation could not be done as the conversation did it, so that another state came about.
    """

    at_once: RestoreDone
    stepwise: RestoreDone
    difference: float | None
    declined: Decline | None = None


def plan_restore(
    runner: ProgramRunner,
    op: int,
    *,
    engine: Engine,
    cold: bool = False,
    blocks: BlockSource | None = None,
    evicted: int = 0,
) -> RestorePlan:
    """Return what going to `op` would do; runs nothing. From the thread that works with the engine.

    Parameters
    ----------
    blocks
        Where splices would find compiled blocks, which a library compiles anew when a file of its own is
        gone; tokens of a splice that finds none are computed.
    evicted
        What has been evicted so far.

    Raises
    ------
    ProgramError
        When the timeline has fewer operations.
    """
    program = runner.timeline.prefix(op)
    empty = CacheProgram()
    if cold:
        start, prefix, rest = StartKind.EMPTY, empty, program.ops
        places: tuple[str, ...] = ()
    else:
        plan = plan_start(program, runner.program, runner.store, runner.pool)
        start, prefix, rest = plan.kind, plan.prefix, tuple(plan.rest)
        places = _kept_in(runner, prefix) if start is StartKind.SNAPSHOT else ()
    steps = tuple(_passes(rest, prefix, None if "splice" in engine.declines else blocks))
    repos = sum(isinstance(item, Repos) for item in rest)
    return RestorePlan(
        op=op,
        of=len(runner.timeline),
        state_id=program.id,
        active=program.layout.n_active,
        logical=len(program.layout),
        cold=cold,
        start=start,
        places=places,
        there=len(prefix.layout),
        steps=steps,
        epochs=repos + 1 if steps else 0,
        declined=_declined(steps, engine),
        evicted=evicted,
    )


def _kept_in(runner: ProgramRunner, prefix: CacheProgram) -> tuple[str, ...]:
    """Return where the snapshot is that has the state of `prefix`, be it cut out of a longer one."""
    kept = Tier.HOST | Tier.DISK
    held = runner.store.tree.held(prefix, kept)
    if held is None or held[0] != prefix:
        return ()
    tiers = runner.store.tree.tiers(held[1]) & kept
    return place_of(Tier(tiers)) if tiers else ()


def _passes(rest: Sequence[CacheOp], prefix: CacheProgram, blocks: BlockSource | None) -> list[Pass]:
    found, program = [], prefix
    for group in passes(rest, prefix.layout):
        before = program.layout
        program = program.then(*group)
        found.append(_pass(group, before, program.layout, blocks))
    return found


def _pass(
    group: tuple[CacheOp, ...], before: CacheState, after: CacheState, blocks: BlockSource | None
) -> Pass:
    spliced = [op for op in group if isinstance(op, Splice)]
    loaded = sum(len(op.tokens) for op in spliced if _has_block(op, blocks))
    tokens = sum(_computed(op) for op in group) + sum(len(op.tokens) for op in spliced) - loaded
    drops = any(isinstance(op, Drop) for op in group[:-1])
    hidden = 0
    if drops and len(group) > 1:
        lost = np.count_nonzero(before.active & ~after.active[: len(before)])
        hidden = int(lost) + int(np.count_nonzero(~after.active[len(before) :]))
    added = len(after) - len(before)
    return Pass(tuple(op.kind.value for op in group), tokens, hidden, before.n_active + added, loaded)


def _has_block(op: Splice, blocks: BlockSource | None) -> bool:
    """Whether a splice finds the rows of its block, and need not compute them."""
    if blocks is None:
        return False
    try:
        return tuple(blocks.tokens(op.block_id)) == op.tokens
    except Cancelled:
        raise
    except (NexusError, OSError):  # as for the executor, which then prefills
        return False


def _computed(op: CacheOp) -> int:
    if isinstance(op, Append):
        return len(op.tokens)
    return len(op.selection) if isinstance(op, Repair) else 0


def _declined(steps: tuple[Pass, ...], engine: Engine) -> Decline | None:
    """Return why a restore at once would not join anything."""
    if not any(step.tokens for step in steps):
        return None
    patches = engine.declines.get("input_patches")
    if patches is not None:
        return patches
    joined = [step for step in steps if step.joined]
    if not joined:
        return NOTHING_BETWEEN
    most = max(step.cells for step in joined)
    if most > engine.n_ctx:
        return Decline(
            code="context_full",
            reason=f"a pass needs {most:,} cells at once, and the context has {engine.n_ctx:,}",
            instead="segment by segment, which frees cells on the way",
        )
    return None


def did(op: int, result: RunResult, *, at_once: bool, from_disk: bool = False) -> RestoreDone:
    """Return what a run did, and whether a snapshot was read from disk for it."""
    executed = [record.executed for record in result.records if record.executed is not None]
    reused = sum(record.reused for record in result.records)
    restored = result.restored
    return RestoreDone(
        op=op,
        at_once=at_once,
        start=result.start.kind,
        there=max(result.start.tokens, reused),
        ops=len(executed),
        computed=sum(map(_computed, executed)) - reused,
        passes=restored.passes if restored is not None else 0,
        declined=restored.declined if restored is not None else None,
        seconds=result.seconds,
        state_id=result.program.id,
        from_disk=from_disk and result.start.kind is StartKind.SNAPSHOT,
    )


def try_cold(engine: Engine, program: CacheProgram, blocks: BlockSource | None = None) -> ColdTrial:
    """Compute `program` from nothing, on a sequence of its own, in both ways; nothing of it stays.

    Parameters
    ----------
    blocks
        Where splices find compiled blocks. What is declined, such as a splice whose block is gone, leads to
        another state; the trial then has the reason, and no difference.

    Raises
    ------
    ContextFull
        When the cells beside the conversation are too few.
    """
    done, logits = [], []
    declined: Decline | None = None
    for at_once in (True, False):
        with ProgramRunner(engine, blocks=blocks) as runner:
            result = runner.run(program, at_once=at_once)
            logits.append(None if result.logits is None else result.logits.copy())
            declined = declined or _other_state(program, result)
            # The state that was asked for is what the figures are shown with, whatever came about.
            done.append(replace(did(len(program), result, at_once=at_once), state_id=program.id))
    left, right = logits
    if declined is not None or left is None or right is None:
        difference = None
    else:
        difference = float(np.abs(left - right).max())
    return ColdTrial(at_once=done[0], stepwise=done[1], difference=difference, declined=declined)


def _other_state(program: CacheProgram, result: RunResult) -> Decline | None:
    """Return why a run of `program` ended in another state; ``None`` when it did not."""
    if fold(program).same_layout(result.state):
        return None
    why = [record.declined for record in result.records if record.declined and record.executed != record.op]
    return why[0] if why else OTHER_STATE
