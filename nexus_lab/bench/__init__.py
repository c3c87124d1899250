"""The bench room: how well does it do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.bench.splice import splice_sweep
    from nexus_lab.bench.splice_report import SpliceSweep

__all__ = ["SpliceSweep", "splice_sweep"]

__getattr__, __dir__ = lazy_names(__name__, {"SpliceSweep": "splice_report", "splice_sweep": "splice"})
