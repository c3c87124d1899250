"""What the Cache panel makes of files that are wrong or hostile, of prices, and of plans that grew old."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nexus_lab.bench.base import Result, ResultFile, ResultsError
from nexus_lab.bench.cache_report import CacheSweep
from nexus_lab.bench.policy_proposers import Trial
from nexus_lab.bench.policy_search import PolicySearch
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.cache import StartKind
from nexus_lab.cache.costs import Prices
from nexus_lab.errors import Decline, NexusError
from nexus_lab.lab.attention_figure import AttentionFigure, Looked
from nexus_lab.lab.axes import axis_for
from nexus_lab.lab.cache_costs import CostBook
from nexus_lab.lab.cache_work import CacheWork
from nexus_lab.lab.drawing import aligned, html_of
from nexus_lab.lab.dry_session import DryCost
from nexus_lab.lab.named_path import PathRefused
from nexus_lab.lab.pareto import ParetoFront
from nexus_lab.lab.pareto_points import PolicyPoint, marked_front
from nexus_lab.lab.policy_form import chosen_policy
from nexus_lab.lab.policy_knobs import PolicyCost, PolicyKnobs
from nexus_lab.lab.restore_plan import ColdTrial, Pass, RestoreDone, RestorePlan
from nexus_lab.lab.restore_view import RestoreView
from nexus_lab.settings import Profile

ESCAPING = "full\x1b[2J\x9b31m\r\nforged line\u202e"
ROW = {
    "policy": "full",
    "trajectory": "a",
    "nll": 10.0,
    "scored": 10,
    "declined": None,
    "declined_code": None,
    "tokens_prefilled": 100,
    "tokens_decoded": 10,
    "cells_attended": 2000,
    "cells_scanned": 0,
    "peak_cells": 1,
    "wall_s": 1.0,
    "ttft_s": [0.1],
    "turn_s": [0.2],
    "input_tokens": 1,
    "dry": False,
}


def result_file(path, *changes, settings=None, wrong=None):
    results = [
        {"case": {"policy": "full"}, "metric": metric, "value": value, "unit": ""}
        for metric, value in (("nll_per_token", 1.0), ("cost", 9.0))
    ]
    for number, change in enumerate(changes):
        results[number] |= change
    whole = {"name": "eval cache", "created": "", "versions": {}, "machine": {}, "settings": settings or {}}
    path.write_text(json.dumps({**whole, "results": results, **(wrong or {})}))
    return path


def search_folder(path, *rows):
    tasks = [{"key": f"full {n}", "rows": [row], "seconds": 1.0} for n, row in enumerate(rows)]
    tasks.append({"key": "trial 0", "rows": [{"policy": "full", "proposer": "seed"}], "seconds": 0.0})
    path.mkdir()
    (path / JOURNAL).write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


# -- wrong files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"case": None}, "result 1: case is null"),
        ({"case": {"policy": "full", "trial": [1]}}, "unhashable"),
        ({"value": "a"}, "result 1: value is a text"),
        ({"value": True}, "result 1: value is a bool"),
        ({"value": 1e308}, "result 1: value is beyond"),
        ({"value": -1e308}, "result 1: value is beyond"),
        ({"value": 10**400}, "result 1: value is beyond"),
        ({"low": [1]}, "result 1: low is a list"),
        ({"n": 1.5}, "result 1: n is a float"),
        ({"metric": 3}, "result 1: metric is a int"),
        ({"unit": None}, "result 1: unit is null"),
        ({"\x1b[2J": 1}, "result 1: "),
    ],
)
@pytest.mark.parametrize("figure", [ParetoFront, AttentionFigure])
def test_a_wrong_figure_is_told_with_its_file(tmp_path, change, what, figure):
    path = result_file(tmp_path / "wrong.json", change)
    if figure is AttentionFigure and what == "unhashable":
        what = "no attention"
    with pytest.raises(ResultsError) as told:
        figure.of(path)
    assert str(path) in told.value.problem
    assert what in told.value.problem
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"results": ' + "[" * 100_000, "\x00", "9" * 5000])
def test_what_cannot_be_parsed_is_told_with_its_file(tmp_path, text):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    for figure in (ParetoFront, AttentionFigure):
        with pytest.raises(ResultsError) as told:
            figure.of(path)
        assert str(path) in told.value.problem
        assert len(told.value.problem) < 700


@pytest.mark.parametrize("name", ["settings", "versions", "machine"])
def test_parts_of_a_result_file_are_objects(tmp_path, name):
    path = result_file(tmp_path / "wrong.json", wrong={name: None})
    with pytest.raises(ResultsError, match=f"{name} is null"):
        ResultFile.read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"nll": "a"},
        {"nll": 1e308},
        {"nll": -1e308},
        {"tokens_prefilled": None},
        {"tokens_prefilled": 10**400},
        {"declined": 3, "policy": ["full"]},
    ],
)
def test_wrong_rows_of_a_folder_are_told_with_it(tmp_path, change):
    folder = search_folder(tmp_path / "work", {**ROW, **change})
    with pytest.raises(NexusError) as told:
        ParetoFront.of(folder)
    assert str(folder) in str(told.value)


@pytest.mark.parametrize("name", ["x" * 5000, "~no-such-user/x", "a\x00b"])
@pytest.mark.parametrize("drawing", ["front", "attention"])
def test_a_name_that_no_file_can_have_is_the_panel_s_problem(files_desk, name, drawing):
    panel: CacheWork = files_desk.panels["cache"]
    told = json.dumps(panel.study(drawing, {drawing: name}))
    assert "dr-bad" in told
    assert "cannot be read" in told
    assert "Next:" in told
    for figure in (ParetoFront, AttentionFigure):
        with pytest.raises(PathRefused):
            figure.of(name)
    with pytest.raises(PathRefused):
        CostBook().talks(Path(name))


def test_a_wrong_file_is_the_panel_s_problem(files_desk, tmp_path):
    path = result_file(tmp_path / "wrong.json", {"value": 1e308})
    for drawing in ("front", "attention"):
        told = json.dumps(files_desk.panels["cache"].study(drawing, {drawing: str(path)}))
        assert "dr-bad" in told
        assert "is beyond" in told


@pytest.mark.parametrize(
    "values", [(1e308, -1e308), (0.0, 5e-324), (1e17, 1e17 + 16), (float("nan"), float("inf")), (1e-320,)]
)
def test_an_axis_stands_whatever_its_values_are(values):
    axis = axis_for(values, 0, 100, "x")
    assert axis.low < axis.high
    assert 1 < len(axis.ticks) < 20
    assert sorted(set(axis.ticks)) == list(axis.ticks)
    assert all(len(axis.label(tick)) < 160 for tick in axis.ticks)


# -- prices --------------------------------------------------------------------------------------------------


def test_a_file_s_prices_stand_at_the_axis(tmp_path):
    prices = Prices(decoded=5.0, attended=0.0)
    path = result_file(tmp_path / "search.json", settings={"prices": prices.to_dict()})
    front = ParetoFront.of(path)
    assert front.prices == prices
    html = html_of(front.element())
    assert "cost at prefilled 1, decoded 5 →" in html
    assert "default prices" not in html
    assert "prices that the file does not say" in ParetoFront.of(result_file(tmp_path / "n.json")).to_text()
    with pytest.raises(ResultsError, match="priced anew"):
        ParetoFront.of(path, prices=Prices())


@pytest.mark.parametrize("prices", ["x", {"gold": 1}, {"decoded": -1}, {"decoded": "\x1b"}])
def test_prices_that_mean_nothing_are_told(tmp_path, prices):
    path = result_file(tmp_path / "search.json", settings={"prices": prices})
    with pytest.raises(ResultsError, match="prices that mean nothing") as told:
        ParetoFront.of(path)
    assert "\x1b" not in str(told.value)


def test_a_folder_is_priced_at_what_is_asked_for(tmp_path):
    folder = search_folder(tmp_path / "work", ROW)
    front = ParetoFront.of(folder)
    assert front.points[0].cost == 100 + 4 * 10 + 0.0005 * 2000
    assert "at default prices: prefilled 1, decoded 4, attended 0.0005" in front.to_text()
    assert "at default prices" in html_of(front.element())
    other = ParetoFront.of(folder, prices=Prices(decoded=50.0))
    assert other.points[0].cost == 100 + 50 * 10 + 0.0005 * 2000
    assert "default" not in other.to_text()
    assert "decoded 50" in other.to_text()


def test_a_result_keeps_its_own_prices():
    prices = Prices(decoded=9.0)
    trial = Trial(number=0, proposer="seed", policy="full", nll=1.0, cost=2.0)
    for source in (PolicySearch({}, [trial], prices), CacheSweep({"dry": False}, [ROW], prices)):
        assert ParetoFront.of(source).prices == prices
        with pytest.raises(ResultsError):
            ParetoFront.of(source, prices=Prices())


# -- text of files in a terminal -----------------------------------------------------------------------------


def hostile_drawings():
    yield ParetoFront(marked_front([PolicyPoint(policy=ESCAPING, nll=1.0, cost=2.0)]))
    yield ParetoFront(path=ESCAPING, problem=ESCAPING)
    looked = Looked(role="user", age="0", share=0.5, lift=1.0)
    yield AttentionFigure((looked,), model=ESCAPING, policy=ESCAPING)
    cost = PolicyCost(ESCAPING, 3, (DryCost("full"), DryCost(ESCAPING)))
    yield PolicyKnobs(choice=chosen_policy({}, Profile()), profile=Profile(), cost=cost, problem="x\x1b[2J")


@pytest.mark.parametrize("drawing", list(hostile_drawings()), ids=lambda drawing: type(drawing).__name__)
def test_text_of_a_file_neither_moves_a_terminal_nor_forges_a_line(drawing):
    for told in (str(drawing), repr(drawing)):
        assert not set("\x1b\x9b\r\u202e").intersection(told)
        assert "U+001B" in told
    if not getattr(drawing, "problem", "").startswith("full"):
        assert not any(line.startswith("forged") for line in str(drawing).split("\n"))


def test_cells_stay_on_their_line():
    told = aligned(("a", "b\x1b"), [("1\n2", "\u2028x\ty")])
    assert told.split("\n") == ["a" + " " * 11 + "b⟨U+001B⟩", "1⟨U+000A⟩2  ⟨U+2028⟩x⟨U+0009⟩y"]


# -- restores ------------------------------------------------------------------------------------------------

PLAN = RestorePlan(
    op=3,
    of=4,
    state_id="s",
    active=60,
    logical=80,
    cold=False,
    start=StartKind.SNAPSHOT,
    places=("disk",),
    there=30,
    steps=(Pass(("splice",), 0, 0, 50, loaded=20), Pass(("append",), 10, 0, 60)),
    epochs=1,
    declined=None,
    evicted=7,
)
OPS = ("append", "splice", "append", "drop")


def test_a_state_on_disk_is_drawn_as_one():
    html = html_of(RestoreView(ops=OPS, plan=PLAN, live=False, evicted=7).element())
    assert "dr-edge-disk" in html
    assert "dr-edge-host" not in html
    both = html_of(RestoreView(ops=OPS, plan=replace(PLAN, places=("host", "disk")), live=False).element())
    assert "dr-edge-host" in both
    assert "dr-edge-disk" not in both


def test_tokens_of_compiled_blocks_are_told_beside_those_that_are_computed():
    view = RestoreView(ops=OPS, plan=PLAN, live=False, evicted=7)
    assert "computes 10 tokens" in view.to_text()
    assert "20 tokens from compiled blocks" in view.to_text()
    html = html_of(view.element())
    assert "30 tokens there, 10 tokens computed, 20 tokens from compiled blocks" in html
    assert view.to_frame()["loaded"].to_list() == [20, 0]


def test_evictions_since_a_plan_are_told():
    view = RestoreView(ops=OPS, plan=PLAN, cold=replace(PLAN, cold=True), live=False, evicted=9)
    assert view.to_text().count("2 evictions since this was planned") == 1
    assert "2 evictions since" in html_of(view.element())
    assert "since this was planned" not in replace(view, evicted=7).to_text()


def test_a_trial_of_another_state_says_why():
    done = RestoreDone(
        op=3,
        at_once=True,
        start=StartKind.EMPTY,
        there=0,
        ops=3,
        computed=80,
        passes=0,
        declined=None,
        seconds=0.1,
    )
    gone = Decline("block_refused", "the block is not in the library")
    trial = ColdTrial(at_once=done, stepwise=done, difference=None, declined=gone)
    told = RestoreView(ops=OPS, trial=trial, live=False).to_text()
    assert "Another state came about, since the block is not in the library." in told
    assert "logits differ" not in told


def test_a_result_that_is_not_finite_is_no_point(tmp_path):
    path = result_file(tmp_path / "nan.json", {"value": float("nan")})
    assert ResultFile.read(path).results[1] == Result(case={"policy": "full"}, metric="cost", value=9.0)
    with pytest.raises(ResultsError, match="no policy"):
        ParetoFront.of(path)
