"""Result files survive the round trip, and their intervals are the known ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nexus_lab.bench import routing, splice_sweep, study_attention
from nexus_lab.bench.argument_cases import read_cases
from nexus_lab.bench.base import Result, ResultFile, ResultsError, bootstrap, median_interval, proportion


def test_wilson_s_interval_is_the_textbook_one():
    # The Nexus paper's own figure: 89 of 100 gives 81.4 to 93.7 %.
    result = proportion(89, 100, case={}, metric="top1")
    assert (round(result.low, 3), round(result.high, 3)) == (0.814, 0.937)


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (0, 0), (3, 2), (-1, 4)])
def test_no_share_of_nothing(successes, n):
    with pytest.raises(ResultsError):
        proportion(successes, n, case={}, metric="top1")


def test_the_bootstrap_brackets_the_median_and_repeats():
    sample = np.random.default_rng(1).exponential(size=200)
    first = median_interval(sample, case={}, metric="ms")
    assert first == median_interval(sample, case={}, metric="ms")
    assert first.low < np.median(sample) < first.high
    assert first.low < np.log(2) < first.high


def test_one_value_has_no_interval():
    result = bootstrap([3.0], np.mean, case={}, metric="s")
    assert (result.value, result.low, result.n) == (3.0, None, 1)
    with pytest.raises(ResultsError):
        bootstrap([], np.mean, case={}, metric="s")


def test_the_file_has_the_one_form(tmp_path):
    results = [proportion(3, 4, case={"n_tools": 250, "system": "full"}, metric="top1")]
    file = ResultFile.now("eval routing", results, settings={"tau": 0.1}, threads=2)
    values = json.loads(file.write(tmp_path / "r.json").read_text())
    assert set(values) == {"name", "created", "versions", "machine", "settings", "results"}
    assert values["results"][0]["case"] == {"n_tools": 250, "system": "full"}
    assert values["machine"]["threads"] == 2
    assert "python" in values["versions"]
    assert ResultFile.read(tmp_path / "r.json").to_dict() == values


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("place", "told"),
    [("value", "top1 of {'n': 1}"), ("high", "top1"), ("case", "top1"), ("settings", "sett")],
)
def test_what_json_cannot_say_is_not_written(tmp_path, odd, place, told):
    parts = {"value": 1.0, "low": 0.0, "high": 1.0, "case": {"n": 1}}
    if place in parts:
        parts[place] = {"tau": odd} if place == "case" else odd
    result = Result(metric="top1", **parts)
    settings = {"tau": odd if place == "settings" else None}
    file = ResultFile.now("eval routing", [proportion(1, 2, case={}, metric="x"), result], settings=settings)
    with pytest.raises(ResultsError) as caught:
        file.write(tmp_path / "r.json")
    assert told in caught.value.problem
    assert not list(tmp_path.iterdir())


def test_an_interval_that_does_not_apply_is_absent():
    assert set(Result(case={}, metric="exact", value=1.0).to_dict()) == {"case", "metric", "value", "unit"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"results": [1]}',
        '{"results": [{"metric": "x"}]}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_a_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ResultsError):
        ResultFile.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    "ask",
    [
        lambda _path: study_attention(None, [], n_turns=-1),
        lambda _path: study_attention(None, [], n_queries=0),
        lambda path: read_cases(path, limit=-1),
        lambda path: routing.run(path, path, sizes=[100, -1]),
        lambda _path: splice_sweep(tools=0),
    ],
)
def test_counts_below_one_are_refused_before_anything_is_read(ask, tmp_path):
    with pytest.raises(ResultsError, match=r"= (-1|0)\b"):
        ask(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"case": None}, "result 2: case is null, no object"),
        ({"value": "a"}, "result 2: value is a text, no number"),
        ({"value": -1e308}, "result 2: value is beyond ±1e+100"),
        ({"high": 1e308}, "result 2: high is beyond ±1e+100"),
        ({"n": 2.5}, "result 2: n is a float, no whole number"),
    ],
)
def test_a_wrong_figure_is_named_with_what_is_wrong(tmp_path, change, what):
    good = {"case": {}, "metric": "x", "value": 1.0}
    whole = {"name": "", "created": "", "versions": {}, "machine": {}, "settings": {}}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**whole, "results": [good, {**good, **change}]}))
    with pytest.raises(ResultsError) as told:
        ResultFile.read(path)
    assert told.value.problem.startswith(f"{path} is no result file: {what}")


def test_a_figure_that_is_no_number_can_still_be_read(tmp_path):
    whole = {"name": "", "created": "", "versions": {}, "machine": {}, "settings": {}}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**whole, "results": [{"case": {}, "metric": "x", "value": float("inf")}]}))
    assert ResultFile.read(path).results == (Result(case={}, metric="x", value=float("inf")),)
