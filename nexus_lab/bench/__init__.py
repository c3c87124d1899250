"""The bench room: how well does it do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.bench.cache import cache_sweep
    from nexus_lab.bench.cache_report import CacheSweep
    from nexus_lab.bench.splice import splice_sweep
    from nexus_lab.bench.splice_report import SpliceSweep

_HOME_OF = {
    "CacheSweep": "cache_report",
    "SpliceSweep": "splice_report",
    "cache_sweep": "cache",
    "splice_sweep": "splice",
}

__all__ = ["CacheSweep", "SpliceSweep", "cache_sweep", "splice_sweep"]

__getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
