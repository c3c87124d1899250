"""The scan's bench: its form, and that a wrong scan does not pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nexus_lab.bench import slb
from nexus_lab.bench.base import ResultFile, ResultsError

SMALL: dict[str, Any] = {"rows": (40, 300), "dims": (64,), "rounds": 3, "seconds": 0.0}


def test_all_systems_are_exact_and_timed(tmp_path: Path):
    pytest.importorskip("faiss")
    pytest.importorskip("numkong")
    found = slb.run(**SMALL)
    path = found.write(tmp_path / "slb.json")
    assert ResultFile.read(path).results == found.results
    by_metric: dict[str, list[Any]] = {}
    for result in found.results:
        by_metric.setdefault(result.metric, []).append(result)
    cases = {(n, system) for n in SMALL["rows"] for system in slb.SYSTEMS}
    for metric in ("exact", "median_us"):
        assert {(r.case["rows"], r.case["system"]) for r in by_metric[metric]} == cases
    assert all(result.value == 1.0 for result in by_metric["exact"])
    for result in by_metric["median_us"]:
        assert 0 < result.low <= result.value <= result.high
        assert result.unit == "us"
    assert {r.case["peer"] for r in by_metric["median_us_ratio"]} == {"faiss_sq8", "numkong"}
    assert all(result.value > 0 for result in by_metric["copy_gb_per_s"] + by_metric["gb_per_s"])
    assert found.settings["kernel"]


def test_ours_alone_needs_no_peer():
    found = slb.run(**SMALL, systems=["nexus"])
    assert {result.case.get("system", "nexus") for result in found.results} == {"nexus"}


def test_a_wrong_scan_is_an_error(monkeypatch: pytest.MonkeyPatch):
    real = slb.SYSTEMS["nexus"]

    def wrong(rows: np.ndarray, queries: np.ndarray, k: int) -> Any:
        return real(np.roll(rows, 1, axis=1), queries, k)

    monkeypatch.setattr(slb, "SYSTEMS", {**slb.SYSTEMS, "nexus": wrong})
    with pytest.raises(ResultsError, match="right for 0%"):
        slb.run(**SMALL, systems=["nexus"])


def test_an_unknown_system_is_named():
    with pytest.raises(ResultsError, match="annoy"):
        slb.run(systems=["annoy"])
