"""How full the cache's memories are, where the kept states are, and what has been evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nexus_lab.cache import Tier
from nexus_lab.errors import Decline
from nexus_lab.lab.drawing import Drawing, aligned, el, pattern, table
from nexus_lab.lab.tree_drawing import PLACE_LETTERS, PLACE_WORDS
from nexus_lab.lab.tree_shot import PLACES
from nexus_lab.paths import shown_path
from nexus_lab.trace.text import count, plural, sentence, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from nexus_lab.cache import Residency, SnapshotDisk
    from nexus_lab.lab.drawing import Element

__all__ = ["COUNTERS", "ResidencyView", "disk_words", "evictions"]

COUNTERS: Mapping[str, str] = {
    "l0_sequences_evicted": "warm sequences that were emptied for others",
    "chunks_evicted": "chunks of rows that went from the arena",
    "dropped_evicted": "of these, chunks that only a step back would have used",
    "snapshots_evicted": "snapshots that are no longer in the arena",
    "tree_evictions": "programs that the tree had no room for",
    "disk_evicted": "snapshots that went from the disk",
    "found": "states that were kept when they were wanted",
    "cut": "of these, cut out of a longer program's",
    "missed": "states that were not kept when they were wanted",
    "declined": "states that were not kept, for want of room",
    "disk_written": "snapshots written to disk",
    "disk_read": "snapshots read back from disk",
    "disk_refused": "snapshots that could not be written to disk",
    "disk_corrupt": "snapshots on disk that were damaged, and deleted",
}
"""What is counted, in words, in the order it is shown."""
_EVICTED = (
    "l0_sequences_evicted",
    "chunks_evicted",
    "snapshots_evicted",
    "tree_evictions",
    "disk_evicted",
)
_BAR, _HIGH = 320, 16


def evictions(residency: Residency) -> int:
    """Return how many sequences, chunks, snapshots and programs have been evicted so far, taken together."""
    return sum(int(residency.counters.get(name, 0)) for name in _EVICTED)


def disk_words(disk: SnapshotDisk | Decline | None) -> str:
    """Return where snapshots go on disk, or why they do not; empty when nobody knows."""
    if disk is None:
        return ""
    if isinstance(disk, Decline):
        return f"{sentence(disk.reason)} Instead: {disk.instead}."
    return (
        f"Snapshots on disk are in {shown_path(disk.folder)}. They hold the tokens of conversations, and "
        "only you may read them; Workbench(disk_bytes=0) keeps none."
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    """One memory: what is used of it, and of how much; no limit is 0."""

    place: str
    name: str
    used: int
    limit: int
    unit: str
    programs: int

    @property
    def words(self) -> str:
        write = count if self.unit == "cells" else size
        if not self.limit:
            return "none kept on disk" if self.place == "disk" else write(self.used)
        unit = " cells" if self.unit == "cells" else ""
        return f"{write(self.used)} of {write(self.limit)}{unit} ({100 * self.used / self.limit:.1f} %)"


@dataclass(frozen=True, repr=False)
class ResidencyView(Drawing):
    """Limits and counters of live sequences, the snapshots' arena, and the disk.

    Attributes
    ----------
    residency
        Where rows are; ``None`` before the first operation.
    disk
        Where the disk's files are, or why there are none, in words.
    """

    title: ClassVar[str] = "Where the rows are"

    residency: Residency | None
    disk: str = ""

    @property
    def limits(self) -> tuple[_Limit, ...]:
        """The three memories, the fastest first."""
        found = self.residency
        if found is None:
            return ()
        figures = (
            ("live", "KV cells", found.cells, found.max_cells, "cells", Tier.LIVE),
            ("host", "snapshot arena", found.host_bytes, found.max_host_bytes, "bytes", Tier.HOST),
            ("disk", "disk", found.disk_bytes, found.max_disk_bytes, "bytes", Tier.DISK),
        )
        return tuple(
            _Limit(place, name, used, limit, unit, found.programs.get(tier, 0))
            for place, name, used, limit, unit, tier in figures
        )

    @property
    def counters(self) -> dict[str, int]:
        """Counters by name, those that there are."""
        if self.residency is None:
            return {}
        told = self.residency.counters
        return {name: told[name] for name in COUNTERS if name in told}

    def element(self) -> Element:
        """Return bars of the limits, and the counters."""
        if self.residency is None:
            return el("p", "No operation has ended yet.", class_="muted")
        counters = self.counters
        rows = ((words, count(counters[name])) for name, words in COUNTERS.items() if name in counters)
        return el(
            "div",
            *(self._limit(limit) for limit in self.limits),
            el("p", self.disk, class_="small muted") if self.disk else None,
            table(
                ("counted since the model was loaded", "n"), rows, label="Counters of the cache", right=(1,)
            ),
            class_="dr",
        )

    @staticmethod
    def _limit(limit: _Limit) -> Element:
        share = min(1.0, limit.used / limit.limit) if limit.limit else 0.0
        filled = max(1.0, share * _BAR) if limit.limit and limit.used else 0.0
        bar = el(
            "svg",
            el("rect", width=_BAR, height=_HIGH, class_="dr-track"),
            pattern(limit.place, 0, 0, filled, _HIGH) if filled else None,
            el("rect", width=filled, height=_HIGH, class_=f"dr-edge dr-edge-{limit.place}")
            if filled
            else None,
            viewBox=f"0 0 {_BAR} {_HIGH}",
            width=_BAR,
            height=_HIGH,
            role="img",
            aria_label=f"{limit.name}: {limit.words}",
        )
        return el(
            "div",
            el("b", f"{PLACE_LETTERS[limit.place]} {limit.name}"),
            el("span", f" {limit.words}; {plural(limit.programs, 'state')}", class_="small muted"),
            bar,
            class_="dr-limit",
        )

    def to_text(self) -> str:
        """Return limits and counters as text."""
        if self.residency is None:
            return "No operation has ended yet."
        limits = [(limit.name, limit.words, plural(limit.programs, "state")) for limit in self.limits]
        counted = [(COUNTERS[name], count(value)) for name, value in self.counters.items()]
        disk = f"\n{self.disk}" if self.disk else ""
        return f"{aligned(('memory', 'used', 'holds'), limits)}{disk}\n\n{aligned(('counted', 'n'), counted)}"

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each limit and counter: ``name``, ``value``, ``limit``, ``unit``, ``states``."""
        import polars as pl

        rows = [
            {
                "name": limit.name,
                "value": limit.used,
                "limit": limit.limit or None,
                "unit": limit.unit,
                "states": limit.programs,
            }
            for limit in self.limits
        ] + [
            {"name": name, "value": value, "limit": None, "unit": "", "states": None}
            for name, value in self.counters.items()
        ]
        whole = pl.Int64
        schema = {"name": pl.String, "value": whole, "limit": whole, "unit": pl.String, "states": whole}
        return pl.DataFrame(rows, schema=schema)


assert tuple(PLACES.values()) == tuple(PLACE_WORDS)[:3]  # noqa: S101 - one list of places
