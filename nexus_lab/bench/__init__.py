"""The bench room: how well does it do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.bench.attention import AttentionStudy, study_attention
    from nexus_lab.bench.cache import cache_sweep
    from nexus_lab.bench.cache_report import CacheSweep
    from nexus_lab.bench.policy_search import PolicySearch, search_policies
    from nexus_lab.bench.splice import splice_sweep
    from nexus_lab.bench.splice_report import SpliceSweep

_HOME_OF = {
    "AttentionStudy": "attention",
    "CacheSweep": "cache_report",
    "PolicySearch": "policy_search",
    "SpliceSweep": "splice_report",
    "cache_sweep": "cache",
    "search_policies": "policy_search",
    "splice_sweep": "splice",
    "study_attention": "attention",
}

__all__ = [
    "AttentionStudy",
    "CacheSweep",
    "PolicySearch",
    "SpliceSweep",
    "cache_sweep",
    "search_policies",
    "splice_sweep",
    "study_attention",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
