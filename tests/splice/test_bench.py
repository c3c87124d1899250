"""The measurement of splices: its intervals, and one small run on the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nexus_lab.bench import splice as bench
from nexus_lab.bench.base import ResultFile, ResultsError
from nexus_lab.bench.splice_tools import SPLICE_CASES, case_of
from nexus_lab.engine import Engine
from nexus_lab.registry import Registry, ToolSpec

CASE = {"depth": 1}


def test_a_mean_of_few_cells_has_student_s_interval():
    result = bench.mean_interval([0.1, 0.2, 0.3, 0.4], case=CASE, metric="dkl_mean", unit="nat")
    # t(0.975, 3) = 3.1824, standard deviation 0.12910, four cells
    assert result.value == pytest.approx(0.25)
    assert result.low == pytest.approx(0.25 - 3.1824 * 0.12910 / 2, abs=1e-4)
    assert result.high == pytest.approx(0.25 + 3.1824 * 0.12910 / 2, abs=1e-4)
    assert bench.mean_interval([0.0, 1.0], case=CASE, metric="dkl_mean", unit="nat").low == 0
    alone = bench.mean_interval([0.1], case=CASE, metric="dkl_mean", unit="nat")
    assert (alone.low, alone.high, alone.n) == (None, None, 1)


def test_a_share_counts_cells_and_never_pretends_certainty():
    from nexus_lab.bench.base import proportion

    found = bench.share_interval([1.0] * 3 + [0.0], case=CASE, metric="top1_agreement")
    expected = proportion(3, 4, case=CASE, metric="top1_agreement")
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    certain = bench.share_interval([1.0] * 4, case=CASE, metric="top1_agreement")
    assert certain.value == 1
    assert certain.low < 0.6
    assert certain.high == pytest.approx(1)


def test_a_tool_known_by_its_schema_alone_gets_a_request_and_an_answer():
    tool = ToolSpec("find", "Find a thing. It may take long.", {"properties": {"what": {}, "where": {}}})
    case = case_of(tool)
    assert case.request.startswith("Find a thing")
    assert json.loads(case.answer) == {"name": "find", "arguments": {"what": "", "where": ""}}
    assert case_of(ToolSpec("bare")).request
    for own in SPLICE_CASES:
        answer = json.loads(own.answer)
        assert set(own.tool.required) <= set(answer["arguments"]) <= set(own.tool.properties)


@pytest.mark.model
def test_a_small_run_gives_every_figure_in_the_one_form(bundled_engine: Engine, tmp_path: Path):
    tool = SPLICE_CASES[1].tool
    some = {name: tool.properties[name] for name in ("time", "source_zone")}
    small = ToolSpec(tool.name, tool.description, {"type": "object", "properties": some})
    registry = Registry.of([ToolSpec("tiny"), small], name="two")
    steps = []
    result = bench.run(
        bundled_engine,
        registry=registry,
        depths=(48, 100_000),
        contexts=("system",),
        repairs=(
            bench.Repair("leading", 0.25),
            bench.Repair("trailing", None),
            bench.Repair("scattered", 0.25),
        ),
        speed_depth=64,
        repeats=1,
        folder=tmp_path / "blocks",
        on_progress=lambda *step: steps.append(step),
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert result.settings["tools"] == ["convert_time"]  # the other is too short to measure with
    assert result.settings["depths_left_out"] == [100_000]
    path = result.write(tmp_path / "splice.json")
    again = ResultFile.read(path)
    figures = {(r.metric, r.case.get("strategy"), r.case.get("compile_context")): r for r in again.results}
    for metric in ("dkl_mean", "dkl_p95", "top1_agreement", "ttft_ratio"):
        for strategy in ("leading", "trailing", "scattered"):
            assert (metric, strategy, "system") in figures
    assert figures["dkl_mean", "none", "identical"].value == 0
    assert figures["dkl_mean", "leading", "system"].value > 0
    assert figures["noise_floor", None, None].unit == "nat"
    assert figures["splice_speedup", None, None].value > 1
    assert again.results[-3].case["depth"] == 64
    assert bundled_engine.used_cells() == 0


@pytest.mark.model
def test_what_cannot_be_measured_is_refused(bundled_engine: Engine):
    with pytest.raises(ResultsError, match="fits"):
        bench.run(bundled_engine, depths=(100_000,))
    with pytest.raises(ResultsError, match="schema"):
        bench.run(bundled_engine, registry=Registry.of([ToolSpec("tiny")], name="one"))
    with pytest.raises(ResultsError, match="context"):
        bench.run(bundled_engine, depths=(8,), contexts=("moon",))
