"""The cache room answers what is in the KV cache, and why."""

from __future__ import annotations

from nexus_lab.cache.base import (
    BatchSchedule,
    BlockSource,
    DecodeBatch,
    DecodeKind,
    MessageSpan,
    OpRecord,
    Policy,
    RunnerError,
    RunResult,
    Start,
    StartKind,
)
from nexus_lab.cache.ops import Append, CacheOp, Drop, OpKind, ProgramError, Repair, Repos, Splice
from nexus_lab.cache.policies import FullPolicy, RollingDropPolicy, make_policy
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.runner import ProgramRunner
from nexus_lab.cache.slots import SequencePool, SlotMatch, SlotUse
from nexus_lab.cache.snapshots import DEFAULT_ARENA_BYTES, Snapshot, SnapshotStore
from nexus_lab.cache.state import CacheState, IntegrityError, Origin, PositionRun, fold

__all__ = [
    "DEFAULT_ARENA_BYTES",
    "Append",
    "BatchSchedule",
    "BlockSource",
    "CacheOp",
    "CacheProgram",
    "CacheState",
    "DecodeBatch",
    "DecodeKind",
    "Drop",
    "FullPolicy",
    "IntegrityError",
    "MessageSpan",
    "OpKind",
    "OpRecord",
    "Origin",
    "Policy",
    "PositionRun",
    "ProgramError",
    "ProgramRunner",
    "Repair",
    "Repos",
    "RollingDropPolicy",
    "RunResult",
    "RunnerError",
    "SequencePool",
    "SlotMatch",
    "SlotUse",
    "Snapshot",
    "SnapshotStore",
    "Splice",
    "Start",
    "StartKind",
    "fold",
    "make_policy",
]
