"""Calibrating the agent's own blocks, on a grid as small as it can be."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nexus_lab.agent import SYSTEM_PROMPT
from nexus_lab.agent.blocks import block_recipes
from nexus_lab.bench.calibration import agent_cases, calibrate_agent
from nexus_lab.bench.splice_inputs import FORCED
from nexus_lab.bench.splice_tools import SPLICE_CASES
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.engine import Engine
from nexus_lab.registry import Registry
from nexus_lab.splice import (
    Calibration,
    CalibrationError,
    keep_conversations,
    load_calibration,
    save_calibration,
)

pytestmark = pytest.mark.model


def test_half_of_the_conversations_give_the_bounds_and_half_hold_them(
    bundled_engine: Engine, tmp_path: Path, nexus_home: Path
):
    cases, steps = SPLICE_CASES[:1], []
    with ThreadPoolExecutor(1) as executor:
        found = calibrate_agent(
            cases=cases,
            depths=(64,),
            budgets=(0.0, 0.5),
            prefixes=2,
            quantile=0.5,
            executor=executor,
            work=tmp_path,
            on_progress=lambda done, total: steps.append((done, total)),
        )
    assert steps[-1] == (2, 2)
    calibration = found.calibration
    assert [(cell.budget, cell.n) for cell in calibration.cells] == [(0.0, 1), (0.5, 1)]
    assert all(0 < cell.dkl_mean <= cell.dkl_upper < 1 for cell in calibration.cells)
    assert calibration.noise_floor > 0
    assert [row.n for row in calibration.coverage] == [1, 1, 1, 1]
    assert all(row.prefilled <= row.covered <= row.n for row in calibration.coverage)
    metrics = [result.metric for result in found.results().results]
    assert [name for name in metrics if name != "coverage_spliced"] == [
        "coverage",
        "prefilled",
        "recomputed",
    ] * 4
    # A prefill keeps every bound, so that what is spliced has a figure of its own.
    assert metrics.count("coverage_spliced") == sum(row.prefilled < row.n for row in calibration.coverage)
    # It is found where the agent looks for it.
    (recipe,) = block_recipes(bundled_engine, [cases[0].tool], system=SYSTEM_PROMPT)
    save_calibration(calibration)
    assert nexus_home.is_dir()
    stored = load_calibration(
        bundled_engine.info.fingerprint, recipe.context.hash.hex(), flash_attention=False
    )
    assert stored == calibration
    assert Calibration.from_dict(calibration.to_dict()) == calibration


@pytest.mark.usefixtures("nexus_home")
def test_conversations_that_blocks_are_compiled_behind_calibrate_nothing(tmp_path: Path):
    talk = {"id": "a", "messages": [{"role": "user", "content": "Where is my bag?"}]}
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(talk))
    keep_conversations([talk["messages"]])
    with pytest.raises(CalibrationError, match="not compiled behind: 0"):
        calibrate_agent(cases=SPLICE_CASES[:1], context="typical", trajectories=path, prefixes=2)


def test_one_conversation_cannot_both_give_the_bounds_and_hold_them(tmp_path: Path):
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "Where is my bag?"}]}))
    with pytest.raises(CalibrationError, match="not compiled behind: 1"):
        calibrate_agent(cases=SPLICE_CASES[:1], trajectories=path, prefixes=2)


def test_no_conversation_is_in_both_halves(tmp_path: Path):
    path = tmp_path / "talks.jsonl"
    lost = "My bag is lost, and nobody tells me where it may be. " * 6
    talks = [
        {"id": name, "messages": [{"role": "user", "content": f"I am {name}. {lost}"}]}
        for name in ("Ann", "Ben", "Cid", "Dot", "Eve")
    ]
    path.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    with ThreadPoolExecutor(1) as executor:
        found = calibrate_agent(
            cases=SPLICE_CASES[:1],
            trajectories=path,
            depths=(64,),
            budgets=(0.0,),
            prefixes=4,
            quantile=0.5,
            executor=executor,
            work=tmp_path / "work",
        )
    # What a stretch begins with: the halves' first conversations, then their second ones.
    begun = [
        json.loads(line)["rows"][0]["prefix"]
        for line in (tmp_path / "work" / JOURNAL).read_text().splitlines()
    ]
    assert sorted(begun) == ["Ann@0", "Ben@0", "Cid@0", "Dot@0"]
    assert len(found.apart) == 2


def test_what_cannot_be_calibrated_is_refused_before_anything_is_measured():
    for options in (
        {"prefixes": 3},
        {"prefixes": 0},
        {"prefixes": 2},  # one conversation for each half, and 0.95 wants 19
        {"depths": (10**6,)},
        {"depths": (0,)},
        {"budgets": ()},
        {"budgets": (1.0,)},
        {"strategy": "full"},
        {"strategy": "no_reanchor"},
        {"strategy": "profile"},
    ):
        with pytest.raises(CalibrationError) as caught:
            calibrate_agent(cases=SPLICE_CASES[:1], **options)
        assert caught.value.next_step


def test_the_tools_of_a_registry_are_measured_with_answers_long_enough(
    bundled_engine: Engine, tmp_path: Path
):
    tools = [case.tool for case in SPLICE_CASES[:2]]
    row = {
        "query": "Open an issue about the crash.",
        "gold_tool": tools[0].name,
        "gold_args": {"title": "The crash"},
    }
    calls = tmp_path / "calls.jsonl"
    calls.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with ThreadPoolExecutor(1) as executor:
        found = calibrate_agent(
            registry=Registry.of(tools, name="mine"),
            calls=calls,
            tools=1,
            depths=(64,),
            budgets=(0.0,),
            prefixes=2,
            quantile=0.5,
            executor=executor,
            work=tmp_path / "work",
        )
    assert found.settings["tools"] == [tools[0].name]
    assert (found.settings["registry"], found.settings["calls"]) == ("mine", "calls.jsonl")
    _, (case,) = agent_cases(bundled_engine, SYSTEM_PROMPT, SPLICE_CASES[:1])
    assert len(case.answer) >= FORCED
