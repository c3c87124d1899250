"""Which state to begin from, so that least is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.cache.base import StartKind
from nexus_lab.cache.ops import Append, CacheOp, Splice
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
        The program that leads to the beginning; for `StartKind.LIVE`, the live one or what it began with.
    match
        The sequence to share with, for `StartKind.SLOT`.
    """

    kind: StartKind
    rest: Sequence[CacheOp]
    prefix: CacheProgram
    match: SlotMatch | None = None


def plan_start(
    program: CacheProgram, live: CacheProgram, store: SnapshotStore | None, pool: SequencePool
) -> StartPlan:
    """Choose what has most of the program's tokens, then most of its operations.

    Parameters
    ----------
    program
        Where to get to.
    live
        What is on the sequence now.
    store
        Snapshots to begin with; None does without.
    """
    prefixes = list(program.prefixes())
    plans = (
        _continued(program, prefixes, live),
        None if store is None else _kept(program, prefixes, store),
        _shortened(program, prefixes, live),
        _shared(program, pool),
        _shared_program(program, pool),
        None if store is None else _cut(program, store),
        StartPlan(StartKind.EMPTY, program.ops, CacheProgram()),
    )
    found = [plan for plan in plans if plan is not None]
    return max(found, key=lambda plan: (len(plan.prefix.layout), -len(plan.rest)))


def _continued(program: CacheProgram, prefixes: list[CacheProgram], live: CacheProgram) -> StartPlan | None:
    """Go on from the live state, with the operations as issued where possible."""
    kind = StartKind.LIVE if len(live.layout) else StartKind.EMPTY
    for n in range(len(prefixes) - 1, -1, -1):
        if prefixes[n] == live:
            return StartPlan(kind, program.ops[n:], live)
    rest = program.remainder(live)
    return None if rest is None else StartPlan(kind, rest, live)


def _kept(program: CacheProgram, prefixes: list[CacheProgram], store: SnapshotStore) -> StartPlan | None:
    for n in range(len(prefixes) - 1, 0, -1):
        if prefixes[n].id in store:
            return StartPlan(StartKind.SNAPSHOT, program.ops[n:], prefixes[n])
    return None


def _cut(program: CacheProgram, store: SnapshotStore) -> StartPlan | None:
    """Begin with what another program, which is kept, has in common with this one."""
    prefix = store.beginning(program)
    if prefix == program:
        prefix = _without_newest(program)
    rest = None if prefix is None else _rest(program, prefix)
    return None if prefix is None or rest is None else StartPlan(StartKind.SNAPSHOT, rest, prefix)


def _shortened(program: CacheProgram, prefixes: list[CacheProgram], live: CacheProgram) -> StartPlan | None:
    """Cut off what the live state has appended since: that leaves the rows before it as they were."""
    for n in range(len(prefixes) - 1, 0, -1):
        since = live.remainder(prefixes[n])
        if since is not None and all(isinstance(op, Append | Splice) for op in since):
            return StartPlan(StartKind.LIVE, program.ops[n:], prefixes[n])
    return None


def _shared(program: CacheProgram, pool: SequencePool) -> StartPlan | None:
    tokens = program.plain_tokens()
    # The last of them is always computed, for its logits.
    match = pool.match(tokens[:-1]) if len(tokens) > 1 else None
    if match is None:
        return None
    return StartPlan(StartKind.SLOT, _without(program.ops, match.length), match.program, match)


def _shared_program(program: CacheProgram, pool: SequencePool) -> StartPlan | None:
    match = pool.match_program(program)
    if match is not None and match.program == program:
        match = pool.match_program(_without_newest(program))
    rest = None if match is None else _rest(program, match.program)
    if match is None or rest is None:
        return None
    return StartPlan(StartKind.SLOT, rest, match.program, match)


def _without_newest(program: CacheProgram) -> CacheProgram:
    """Return what leads to all but the newest token, which is computed for its logits; else the program."""
    *before, last = program.canonical_ops
    return CacheProgram((*before, Append(last.tokens[:-1]))) if isinstance(last, Append) else program


def _rest(program: CacheProgram, prefix: CacheProgram) -> Sequence[CacheOp] | None:
    """Return what is left behind a beginning without logits; None when that would leave none at the end."""
    rest = program.remainder(prefix)
    return rest if any(isinstance(op, Append) for op in rest or ()) else None


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
