"""The bench of restores: its form, and that it sees a difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from nexus_lab.bench import cache as cache_bench
from nexus_lab.bench import restore
from nexus_lab.bench.base import Result, ResultsError
from nexus_lab.bench.restore import RestoreDeclined, measure_restore, program_with_drops
from nexus_lab.bench.splice_grid import EngineSettings
from nexus_lab.cache import runner
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from nexus_lab.engine import Engine

pytestmark = pytest.mark.model

SMALL = {"drops": 3, "segments": (8,), "rounds": 2}


def test_each_case_is_restored_both_ways(bundled_engine: Engine):
    found = measure_restore(bundled_engine, **SMALL, repos_every=(0, 2))
    by_metric = {}
    for result in found:
        by_metric.setdefault((result.metric, result.case["repos_every"]), []).append(result)
    assert [item.value for item in by_metric["restore_exact", 0]] == [1.0]
    assert {item.case["system"] for item in by_metric["restore_s", 2]} == {"at_once", "by_segment"}
    assert all(item.value > 0 and item.n == 2 for item in by_metric["restore_speedup", 2])
    assert by_metric["restore_dkl", 2][0].value < 0.02
    assert by_metric["noise_dkl", 2][0].value < 0.02
    assert bundled_engine.used_cells() == 0


def test_rows_that_differ_are_not_exact(bundled_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    text = list(range(100, 140))
    other = program_with_drops(text[::-1], drops=3, size=8)
    apart = restore._apart
    monkeypatch.setattr(restore, "_apart", lambda engine, _program: apart(engine, other))
    found = measure_restore(bundled_engine, **SMALL, repos_every=(0,), tokens=text)
    assert [item.value for item in found if item.metric == "restore_exact"] == [0.0]


def test_an_engine_in_use_is_refused(bundled_engine: Engine):
    seq = bundled_engine.acquire_sequence()
    try:
        bundled_engine.prefill(seq, [1, 2], logits="none")
        with pytest.raises(ResultsError, match="in use"):
            measure_restore(bundled_engine, **SMALL)
    finally:
        bundled_engine.release_sequence(seq)


@pytest.mark.parametrize("feature", ["input_patches", "splice"])
def test_an_engine_that_cannot_restore_says_why(bundled_engine: Engine, monkeypatch, feature: str):
    monkeypatch.setattr(bundled_engine, "declines", {feature: Decline("sliding_window", "it slides")})
    monkeypatch.setattr(cache_bench, "worker_engine", lambda _settings: bundled_engine)
    settings = EngineSettings(model="", sha256="", n_ctx=2048)
    (row,) = cache_bench.measure_restores(cache_bench.RestoreTask(engine=settings))
    found = Result(**row)
    assert (found.metric, found.case["declined_code"]) == ("restore_declined", "sliding_window")
    assert found.case["declined"] == "it slides"


def test_patches_that_fail_on_the_way_decline_too(bundled_engine: Engine, monkeypatch):
    declined = Decline("patch_failed", "llama.cpp has other inputs")
    monkeypatch.setattr(runner, "run_pass", lambda *_args, **_options: declined)
    with pytest.raises(RestoreDeclined, match="other inputs"):
        measure_restore(bundled_engine, **SMALL)


def test_a_program_has_its_drops_and_repos():
    program = program_with_drops(range(50), drops=10, size=8, repos_every=5)
    kinds = [op.kind.value for op in program.ops]
    assert (kinds.count("append"), kinds.count("drop"), kinds.count("repos")) == (11, 10, 2)
    assert len(program.layout) == 88
    assert program.layout.n_active == 48
    assert np.all(program.layout.positions < 64)
