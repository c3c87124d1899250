"""Which state to begin from, so that least is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.cache.base import StartKind
from nexus_lab.cache.ops import Append, CacheOp
from nexus_lab.cache.program import CacheProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.cache.slots import SequencePool, SlotMatch
    from nexus_lab.cache.snapshots import SnapshotStore

__all__ = ["StartPlan", "plan_start"]


@dataclass(frozen=True, slots=True, eq=False)
class StartPlan:
    """Where to begin.

    Attributes
    ----------
    kind
        What to begin with.
    rest
        Operations that are left.
    prefix
        The program that leads to the beginning.
    match
        The sequence to share with, for `StartKind.SLOT`.
    """

    kind: StartKind
    rest: Sequence[CacheOp]
    prefix: CacheProgram
    match: SlotMatch | None = None


def plan_start(
    program: CacheProgram, live: CacheProgram, store: SnapshotStore, pool: SequencePool
) -> StartPlan:
    """Choose what has most of the program's tokens, then most of its operations.

    Parameters
    ----------
    program
        Where to get to.
    live
        What is on the sequence now.
    """
    prefixes = list(program.prefixes())
    kept = next((n for n in range(len(prefixes) - 1, 0, -1) if prefixes[n].id in store), 0)
    plans = [StartPlan(StartKind.EMPTY, program.ops, CacheProgram())]
    if kept:
        plans.insert(0, StartPlan(StartKind.SNAPSHOT, program.ops[kept:], prefixes[kept]))
    rest = _live_rest(program, prefixes, live)
    if rest is not None:
        plans.insert(0, StartPlan(StartKind.LIVE if len(live.layout) else StartKind.EMPTY, rest, live))
    shared = _shared(program, pool)
    if shared is not None:
        plans.append(shared)
    return max(plans, key=lambda plan: (len(plan.prefix.layout), -len(plan.rest)))


def _live_rest(
    program: CacheProgram, prefixes: list[CacheProgram], live: CacheProgram
) -> Sequence[CacheOp] | None:
    """Return the operations from `live` to `program`, as issued where possible."""
    for n in range(len(prefixes) - 1, -1, -1):
        if prefixes[n] == live:
            return program.ops[n:]
    return program.remainder(live)


def _shared(program: CacheProgram, pool: SequencePool) -> StartPlan | None:
    tokens = program.plain_tokens()
    # The last of them is always computed, for its logits.
    match = pool.match(tokens[:-1]) if len(tokens) > 1 else None
    if match is None:
        return None
    prefix = CacheProgram((Append(tokens[: match.length]),))
    return StartPlan(StartKind.SLOT, _without(program.ops, match.length), prefix, match)


def _without(ops: Sequence[CacheOp], n_tokens: int) -> list[CacheOp]:
    """Return `ops` without the first `n_tokens` tokens, which the appends at their start bring."""
    left = n_tokens
    rest = list(ops)
    while left:
        op = rest.pop(0)  # what stands between these appends has no effect, or they would be no prefix
        if isinstance(op, Append) and len(op.tokens) > left:
            rest.insert(0, Append(op.tokens[left:]))
            break
        left -= len(op.tokens) if isinstance(op, Append) else 0
    return rest
