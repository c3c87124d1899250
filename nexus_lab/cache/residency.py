"""Where the cache's rows are right now, as one immutable record for views."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from nexus_lab.cache.tree import Tier, TreeNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.cache.slots import SequencePool
    from nexus_lab.cache.snapshots import SnapshotStore
    from nexus_lab.engine import Engine

__all__ = ["Residency", "residency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What is on live sequences, in host memory and on disk.

    Attributes
    ----------
    nodes
        The op tree, parents before children.
    programs
        Programs whose state is in a tier.
    cells, max_cells
        KV cells in use by all sequences, and those of the context.
    host_bytes, max_host_bytes
        Bytes of the arena that are handed out, and its size.
    disk_bytes, max_disk_bytes
        Bytes of all files, and their limit; 0 without a disk.
    counters
        What the store, its arena, its tree, its disk, and the pool count, by name.
    """

    nodes: tuple[TreeNode, ...]
    programs: Mapping[Tier, int]
    cells: int
    max_cells: int
    host_bytes: int
    max_host_bytes: int
    disk_bytes: int
    max_disk_bytes: int
    counters: Mapping[str, int]


def residency(engine: Engine, store: SnapshotStore, pool: SequencePool) -> Residency:
    """Return the residency now; from the thread that holds the turn."""
    counters = {**store.counters(), **{f"l0_{name}": value for name, value in pool.counters().items()}}
    nodes = store.tree.survey()
    tiers = (Tier.LIVE, Tier.HOST, Tier.DISK)
    return Residency(
        nodes=nodes,
        programs=MappingProxyType({tier: sum(tier in node.entry for node in nodes) for tier in tiers}),
        cells=engine.used_cells(),
        max_cells=engine.n_ctx,
        host_bytes=counters["arena_used_bytes"],
        max_host_bytes=counters["arena_capacity_bytes"],
        disk_bytes=counters.get("disk_bytes", 0),
        max_disk_bytes=counters.get("disk_max_bytes", 0),
        counters=MappingProxyType(counters),
    )
