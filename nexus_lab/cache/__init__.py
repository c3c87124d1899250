"""The cache room answers what is in the KV cache, and why."""

from __future__ import annotations

from nexus_lab.cache.base import (
    Aside,
    BatchSchedule,
    BlockSource,
    DecodeBatch,
    DecodeKind,
    Edit,
    MessageSpan,
    Moment,
    OpRecord,
    Policy,
    PolicyHost,
    Restored,
    RunnerError,
    RunResult,
    Start,
    StartKind,
    TextMessage,
)
from nexus_lab.cache.disk import DEFAULT_DISK_BYTES, DiskForeign, DiskInUse, DiskUnusable, SnapshotDisk
from nexus_lab.cache.disk_home import open_disk
from nexus_lab.cache.make_policy import FunctionPolicy, make_policy
from nexus_lab.cache.ops import Append, CacheOp, Drop, OpKind, ProgramError, Repair, Repos, Splice
from nexus_lab.cache.policies import FullPolicy, RollingDropPolicy
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.residency import Residency, residency
from nexus_lab.cache.runner import ProgramRunner
from nexus_lab.cache.slots import SequencePool, SlotMatch, SlotUse
from nexus_lab.cache.snapshots import DEFAULT_ARENA_BYTES, Snapshot, SnapshotStore
from nexus_lab.cache.state import CacheState, IntegrityError, Origin, PositionRun, fold
from nexus_lab.cache.text_policies import SummarisePolicy, TrimPolicy
from nexus_lab.cache.tool_policy import ToolPolicy
from nexus_lab.cache.tree import OpTree, ProgramTree, Tier, TreeError, TreeMatch, TreeNode

__all__ = [
    "DEFAULT_ARENA_BYTES",
    "DEFAULT_DISK_BYTES",
    "Append",
    "Aside",
    "BatchSchedule",
    "BlockSource",
    "CacheOp",
    "CacheProgram",
    "CacheState",
    "DecodeBatch",
    "DecodeKind",
    "DiskForeign",
    "DiskInUse",
    "DiskUnusable",
    "Drop",
    "Edit",
    "FullPolicy",
    "FunctionPolicy",
    "IntegrityError",
    "MessageSpan",
    "Moment",
    "OpKind",
    "OpRecord",
    "OpTree",
    "Origin",
    "Policy",
    "PolicyHost",
    "PositionRun",
    "ProgramError",
    "ProgramRunner",
    "ProgramTree",
    "Repair",
    "Repos",
    "Residency",
    "Restored",
    "RollingDropPolicy",
    "RunResult",
    "RunnerError",
    "SequencePool",
    "SlotMatch",
    "SlotUse",
    "Snapshot",
    "SnapshotDisk",
    "SnapshotStore",
    "Splice",
    "Start",
    "StartKind",
    "SummarisePolicy",
    "TextMessage",
    "Tier",
    "ToolPolicy",
    "TreeError",
    "TreeMatch",
    "TreeNode",
    "TrimPolicy",
    "fold",
    "make_policy",
    "open_disk",
    "residency",
]
