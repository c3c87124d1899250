"""The cache room answers what is in the KV cache, and why."""

from __future__ import annotations

from nexus_lab.cache.ops import Append, CacheOp, Drop, OpKind, ProgramError, Repair, Repos, Splice
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.state import CacheState, IntegrityError, Origin, PositionRun, fold

__all__ = [
    "Append",
    "CacheOp",
    "CacheProgram",
    "CacheState",
    "Drop",
    "IntegrityError",
    "OpKind",
    "Origin",
    "PositionRun",
    "ProgramError",
    "Repair",
    "Repos",
    "Splice",
    "fold",
]
