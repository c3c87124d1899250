"""The tree's bench: its form, and that a tree that answers otherwise does not pass."""

from __future__ import annotations

from typing import Any

import pytest

from nexus_lab.bench import tree
from nexus_lab.bench.base import ResultsError

SMALL: dict[str, Any] = {"programs": (5, 20), "tokens": (700,), "requests": 30, "rounds": 2}


def test_every_case_is_answered_alike_and_timed():
    found = tree.run(**SMALL)
    by_metric: dict[str, list[Any]] = {}
    for result in found.results:
        by_metric.setdefault(result.metric, []).append(result)
    cases = {(n, 700, system) for n in (5, 20) for system in ("nexus", "python_radix")}
    for metric in ("match_us_median", "match_us_p99"):
        assert {(r.case["programs"], r.case["tokens"], r.case["system"]) for r in by_metric[metric]} == cases
        assert all(0 < r.low <= r.value <= r.high for r in by_metric[metric])
    assert [r.value for r in by_metric["allocations_per_hit"]] == [0, 0]
    assert {r.case["peer"] for r in by_metric["match_us_ratio"]} == {"python_radix"}


def test_a_tree_that_answers_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tree.RadixPeer, "match", lambda _self, _program: (0, 0, 0))
    with pytest.raises(ResultsError, match="differ"):
        tree.run(**SMALL)
