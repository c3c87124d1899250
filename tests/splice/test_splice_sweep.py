"""A splice sweep from end to end on the model, on one tiny grid, on every kind of executor."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from nexus_lab.bench import SpliceSweep, splice_sweep
from nexus_lab.bench.base import ResultFile
from nexus_lab.bench.splice_tools import SPLICE_CASES
from nexus_lab.bench.sweep import JOURNAL, SweepError
from nexus_lab.registry import Registry, ToolSpec

pytestmark = pytest.mark.model


def one_tool() -> Registry:
    own = SPLICE_CASES[1].tool
    some = {name: own.properties[name] for name in ("time", "source_zone")}
    small = ToolSpec(own.name, own.description, {"type": "object", "properties": some}, "clock")
    return Registry.of([ToolSpec("tiny"), small], name="two")


class NeverRuns(Executor):
    def submit(self, *_args, **_options):
        raise AssertionError("nothing was to be run")


GRID = {
    "registry": one_tool(),
    "depths": (48,),
    "prefixes": 1,
    "contexts": ("none", "system"),
    "strategies": ("none", "leading:0.25", "trailing:0.25", "no_reanchor", "full"),
    "attention": True,
    "proxy": True,
    "repeats": 1,
}
LEAST = {
    "registry": one_tool(),
    "depths": (16,),
    "prefixes": 1,
    "contexts": ("none",),
    "strategies": ("none",),
    "decisions": (),
    "repeats": 1,
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def sweep(work: Path) -> SpliceSweep:
    with ThreadPoolExecutor(1) as executor:
        return splice_sweep(executor=executor, work=work, **GRID)


def test_a_full_repair_is_exact_and_a_worse_splice_is_worse(sweep: SpliceSweep):
    frame = sweep.to_frame()
    assert frame.height == 9  # full once, the others behind both contexts
    by = {(row["strategy"], row["context"]): row for row in frame.iter_rows(named=True)}
    full = by["full", "none"]
    for name in ("dkl_mean", "k_drift", "v_drift", "attention_drift"):
        assert full[name] == 0
        assert by["none", "none"][name] > by["leading", "none"][name] > 0
    assert full["top1"] == full["top5_overlap"] == 1
    assert full["greedy_match"] == full["greedy_n"] > 0
    assert full["tool_match"]
    assert full["arguments_match"]
    assert (full["path"], by["none", "none"]["path"]) == ("B", "A")
    assert by["no_reanchor", "system"]["k_drift"] > by["none", "system"]["k_drift"]
    assert by["no_reanchor", "system"]["v_drift"] == pytest.approx(by["none", "system"]["v_drift"])
    assert frame["prefill_ttft_s"].n_unique() == 1
    assert (frame["excess"] + frame["floor"] - frame["dkl_mean"]).abs().max() < 1e-12
    assert len(full["dkl"]) >= 33
    assert len(full["attention_heads"]) == 30
    assert full["server"] == "clock"


def test_the_floor_is_measured_in_the_same_cell(sweep: SpliceSweep):
    permuted, split = ({row["budget"]: row for row in sweep.floors}[name] for name in ("permuted", "split"))
    assert 0 < permuted["dkl_mean"] < 0.1
    assert permuted["k_drift"] > 0
    assert split["dkl_mean"] < permuted["dkl_mean"]
    assert sweep.floor_schedule == "permuted"
    assert set(sweep.to_frame()["floor"]) == {permuted["dkl_mean"]}


def test_every_figure_comes_in_the_one_form(sweep: SpliceSweep, tmp_path: Path):
    file = ResultFile.read(sweep.results().write(tmp_path / "splice.json"))
    figures = {
        (r.metric, r.case.get("strategy"), r.case.get("compile_context"), r.case.get("peer")): r
        for r in file.results
    }
    for metric in ("dkl_mean", "dkl_p95", "top1_agreement", "greedy_match", "tool_match", "attention_drift"):
        for strategy in ("none", "leading", "trailing", "no_reanchor", "floor"):
            assert (metric, strategy, "" if strategy == "floor" else "none", None) in figures
    assert figures["dkl_mean", "none", "identical", None].value == 0
    assert figures["excess_ratio", "leading", "system", "trailing 0.25 behind none"].value > 0
    assert figures["splice_speedup", "none", "system", "prefill of the block"].value > 1
    assert figures["one_pass_ratio", None, None, "pass over as many tokens in a row"].value > 0
    floors = [r for r in file.results if r.metric == "noise_floor"]
    assert {r.case["schedule"] for r in floors} == {"permuted cells", "batch split"}
    proxies = [r for r in file.results if r.metric == "spearman"]
    assert {(r.case["level"], r.case["compile_context"]) for r in proxies} == {
        (level, context) for level in ("token", "head") for context in ("none", "system")
    }
    assert all(-1 <= r.value <= 1 for r in proxies)
    assert file.settings["tools"] == ["convert_time"]  # the other is too short to measure with
    assert sweep.summary().filter(pl.col("metric") == "dkl_mean").height > 9


def test_a_ratio_is_paired_and_asks_for_what_was_measured(sweep: SpliceSweep):
    ratio = sweep.excess_ratio(("leading:0.25", "system"), ("trailing:0.25", "none"))
    by = {(row["strategy"], row["context"]): row["excess"] for row in sweep.cells}
    assert ratio.value == pytest.approx(by["leading", "system"] / by["trailing", "none"])
    with pytest.raises(SweepError, match="no cell"):
        sweep.excess_ratio(("leading:0.5", "system"), ("trailing:0.25", "none"))


def test_a_notebook_sees_a_table_and_a_chart(sweep: SpliceSweep):
    html = sweep._repr_html_()
    assert html.count("<tr>") == 1 + 2 + 9
    assert "noise floor, permuted" in html
    wild = SpliceSweep({**sweep.settings, "model": "<b>"}, sweep.raw)._repr_html_()
    assert "<b>" not in wild
    figure = sweep.figure()
    assert {trace.name for trace in figure.data} == {
        "none",
        "leading:0.25",
        "trailing:0.25",
        "no_reanchor",
        "noise floor",
    }


def test_a_second_run_measures_nothing_again(sweep: SpliceSweep, work: Path):
    steps = []
    again = splice_sweep(
        executor=NeverRuns(), work=work, on_progress=lambda *step: steps.append(step), **GRID
    )
    ((done, total),) = steps  # nothing was left to do
    assert done == total > 3
    assert again.raw == sweep.raw
    assert SpliceSweep.read(work).raw == sweep.raw
    assert not (work / "blocks").exists()
    with pytest.raises(SweepError, match="holds no splice sweep"):
        SpliceSweep.read(work / "elsewhere")


def test_processes_are_the_default_and_leave_nothing_behind(nexus_home: Path):
    sweep = splice_sweep(workers=1, **LEAST)
    assert [row["strategy"] for row in sweep.cells] == ["none"]
    assert not list(nexus_home.rglob(JOURNAL))


def test_dask_runs_a_sweep(tmp_path: Path):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        sweep = splice_sweep(executor=client.get_executor(), work=tmp_path, **LEAST)
    assert [row["strategy"] for row in sweep.cells] == ["none"]


def test_ipyparallel_runs_a_sweep(tmp_path: Path):
    import ipyparallel

    with ipyparallel.Cluster(n=1, log_level=30) as client:
        client.wait_for_engines(1)
        sweep = splice_sweep(executor=client.executor(), work=tmp_path, **LEAST)
    assert [row["strategy"] for row in sweep.cells] == ["none"]
