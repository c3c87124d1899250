"""Replays of conversations under cache policies: on the model, and what is made of their rows."""

from __future__ import annotations

import json
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from nexus_lab.bench import CacheSweep, cache_sweep
from nexus_lab.bench import cache as cache_bench
from nexus_lab.bench.base import Result, ResultFile, ResultsError
from nexus_lab.bench.cache import policy_tasks
from nexus_lab.bench.cache_replay import (
    CONTEXT_FULL,
    PAST_TRAINING,
    count,
    negative_log_likelihood,
    replay,
    turns_of,
)
from nexus_lab.bench.sweep import JOURNAL, SweepError
from nexus_lab.bench.trajectories import Trajectory, TrajectoryError
from nexus_lab.cache import RunnerError
from nexus_lab.cache.costs import CostMeter, Costs, CostsError, Prices
from nexus_lab.engine import DecodeCall, Engine
from nexus_lab.policy_text import PolicySpec

FIND = {"name": "find", "arguments": {"to": "Milan"}}


def message(role, content, *calls):
    return {"role": role, "content": content, **({"tool_calls": list(calls)} if calls else {})}


TALK = Trajectory(
    "talk",
    (
        message("system", "Book flights."),
        message("user", "To Milan."),
        message("assistant", None, FIND),
        message("tool", "AZ 569 leaves at nine and costs 120."),
        message("assistant", "Let me compare.", FIND),
        message("tool", "LX 1612 leaves at ten and costs 99."),
        message("assistant", "LX 1612 is cheaper."),
        message("user", "Thanks!"),
    ),
)


def test_a_conversation_is_cut_into_turns():
    system, turns = turns_of(TALK)
    assert system == "Book flights."
    assert [turn.inputs[0][0] for turn in turns] == ["user", "tool", "tool"]
    assert [turn.reply.calls for turn in turns] == [True, True, False]
    assert turns[1].reply.text == "Let me compare.\n" + json.dumps(FIND)
    assert turns[1].reply.thought == "Let me compare.\n"
    with pytest.raises(TrajectoryError):
        turns_of(Trajectory("mute", (message("user", "Hello?"),)))


def test_likelihoods_are_those_of_a_softmax():
    logits = np.random.default_rng(0).normal(size=(100, 7)).astype(np.float32)
    tokens = np.arange(100) % 7
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(100), tokens]).sum()
    assert negative_log_likelihood(logits, tokens.tolist()) == pytest.approx(expected, rel=1e-5)


def test_costs_are_counted_by_call_and_priced_by_the_user():
    meter = CostMeter()
    call = {"attended": 10, "scanned": 512, "used": 9}
    meter(DecodeCall(tokens=4, generated=False, **call))
    meter(DecodeCall(tokens=1, generated=True, **call))
    with meter.replying():
        meter(DecodeCall(tokens=3, generated=False, **{**call, "used": 5}))
    assert meter.costs == Costs(
        tokens_prefilled=4, tokens_decoded=4, cells_attended=30, cells_scanned=1536, peak_cells=9
    )
    prices = Prices.parse("prefilled=2, decoded=3, attended=0.5, peak=1")
    assert meter.costs.price(prices) == 8 + 12 + 15 + 9
    for wrong in ("decoded=-1", "decoded=nan", "tokens=1", "decoded"):
        with pytest.raises(CostsError):
            Prices.parse(wrong)


def row(policy, trajectory, scale=1.0, declined=None, **changed):
    values = {
        "policy": policy,
        "trajectory": trajectory,
        "declined": declined,
        "declined_code": declined and PAST_TRAINING,
        "nll": 100.0 * scale,
        "scored": 100,
        "wall_s": 10.0 * scale,
        "input_tokens": 500,
        "tokens_prefilled": 500,
        "tokens_decoded": 100,
        "cells_attended": 1000,
        "cells_scanned": 2000,
        "peak_cells": 300,
        "ttft_s": [0.5, 0.5],
        "turn_s": [1.0 * scale, 3.0 * scale],
        "active": [10, 20],
    }
    return {**values, **changed}


def test_figures_compare_what_both_went_through():
    rows = [
        row("full", "a"),
        row("full", "b", declined="too long"),
        row("rolling_drop_repos", "a", 0.5, cells_attended=700),
        row("rolling_drop_repos", "b", 2.0),
        row("trim", "a", 2.0, tokens_prefilled=900),
        row("trim", "b", 2.0, tokens_prefilled=1100),
    ]
    sweep = CacheSweep({"threads": 1}, rows, Prices(prefilled=1, decoded=0, attended=0))
    of = sweep.figure_of
    assert of("declined", "full").value == 1
    assert of("nll_per_token", "rolling_drop_repos").value == pytest.approx(1.25)
    assert of("tokens_prefilled_again", "trim").value == 500
    assert of("cost", "trim").value == 1000
    assert of("turn_p95_s", "full").n == 2
    assert of("nll_ratio", "rolling_drop_repos", "full").value == pytest.approx(0.5)
    assert of("cells_attended_ratio", "rolling_drop_repos", "full").value == pytest.approx(0.7)
    assert of("wall_s_ratio", "rolling_drop_repos", "trim").value == pytest.approx(25 / 40)
    ratio = of("turn_p95_ratio", "rolling_drop_repos", "trim")
    assert ratio.low <= ratio.value <= ratio.high
    assert sweep.declined() == [
        {"policy": "full", "trajectory": "b", "declined_code": PAST_TRAINING, "declined": "too long"}
    ]
    assert sweep.overview()[1][0][:2] == ["full", "1 of 2"]
    assert "rolling_drop_repos" in sweep._repr_html_()
    # Of the longer conversation that one policy declined, the table says nothing of the others either.
    lines = {line[0]: line for line in sweep.overview()[1]}
    assert lines["rolling_drop_repos"][1:3] == ["2", "0.5000"]
    assert lines["trim"][3] == "900"
    assert sweep.told().startswith("Means over 1 conversation that")
    free = CacheSweep({"threads": 1}, rows, Prices(prefilled=0, decoded=0, attended=0))
    assert free.figure_of("cost_ratio", "trim", "full") is None
    assert [trace.name for trace in sweep.figure().data] == ["full", "rolling_drop_repos", "trim"]
    assert len(sweep.to_frame()) == 6


class NeverRuns(Executor):
    def submit(self, *_args, **_options):
        raise AssertionError("nothing was to be run")


@pytest.mark.model
def test_a_sweep_from_end_to_end(tmp_path):
    options = {
        "policies": "full,rolling_drop_repos(keep_last=1),trim(keep_last=1)",
        "work": tmp_path / "work",
    }
    with ThreadPoolExecutor(1) as executor:
        sweep = cache_sweep([TALK], executor=executor, threads=1, **options)
    again = cache_sweep([TALK], executor=NeverRuns(), threads=1, **options)
    assert [dict(row) for row in again.raw] == [dict(row) for row in sweep.raw]
    assert CacheSweep.read(tmp_path / "work").raw == sweep.raw
    full, dropped, trimmed = sweep.raw
    assert full["input_tokens"] == dropped["input_tokens"] == full["tokens_prefilled"]
    assert dropped["tokens_prefilled"] == full["tokens_prefilled"]
    assert dropped["tokens_decoded"] == full["tokens_decoded"] >= full["scored"]
    assert trimmed["tokens_prefilled"] > full["tokens_prefilled"]
    assert dropped["cells_attended"] < full["cells_attended"] <= full["cells_scanned"]
    assert full["peak_cells"] == full["tokens_prefilled"] + full["tokens_decoded"]
    assert dropped["active"][0] == full["active"][0]
    assert dropped["active"][-1] < full["active"][-1]
    assert len(full["turn_s"]) == len(full["ttft_s"]) == 3
    assert all(ttft <= turn for ttft, turn in zip(full["ttft_s"], full["turn_s"], strict=True))
    assert 0 < full["nll"] / full["scored"] < 10
    path = sweep.results().write(tmp_path / "cache.json")
    assert ResultFile.read(path).name == "eval cache"
    with pytest.raises(SweepError):
        CacheSweep.read(tmp_path)
    assert (tmp_path / "work" / JOURNAL).exists()


@pytest.mark.model
def test_restores_are_measured_once_beside_the_replays(tmp_path, monkeypatch):
    done = []

    def measure(task):
        done.append(task.engine.n_ctx)
        return [Result(case={"drops": 10}, metric="restore_speedup", value=2.0, n=7).to_dict()]

    monkeypatch.setattr(cache_bench, "measure", lambda task: [row(task.policy, task.trajectory.name)])
    monkeypatch.setattr(cache_bench, "measure_restores", measure)
    options = {"policies": "full", "work": tmp_path, "restore": True, "threads": 1}
    with ThreadPoolExecutor(1) as executor:
        for _ in range(2):
            sweep = cache_sweep([TALK], executor=executor, **options)
    assert len(done) == 1
    assert sweep.figures[-1].metric == "restore_speedup"
    assert CacheSweep.read(tmp_path).figures[-1] == sweep.figures[-1]


@pytest.mark.model
def test_a_dry_sweep_counts_only(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        sweep = cache_sweep(
            [TALK],
            policies="full,rolling_drop_repos(keep_last=1)",
            dry=True,
            executor=executor,
            work=tmp_path,
        )
    metrics = {result.metric for result in sweep.figures}
    assert {"cells_attended", "cells_attended_ratio", "cost", "tokens_prefilled_again"} <= metrics
    assert not {"nll_per_token", "nll_ratio", "wall_s", "turn_p95_s", "ttft_ratio"} & metrics
    assert sweep.figure_of("cells_attended_ratio", "rolling_drop_repos(keep_last=1)", "full").value < 1
    assert sweep.overview()[1][0][2] == "-"
    with pytest.raises(ResultsError):
        cache_sweep([TALK], policies="agent", dry=True)


@pytest.mark.model
def test_counts_need_no_run(bundled_engine):
    for policy in (
        "full",
        "rolling_drop_repos(keep_last=1)",
        "drop_both(keep_last=1,repos=no)",
        "trim(keep_last=0)",
    ):
        ran, counted = replay(bundled_engine, TALK, policy), count(bundled_engine, TALK, policy)
        for name in ("tokens_prefilled", "tokens_decoded", "cells_attended", "peak_cells", "active"):
            assert counted[name] == ran[name], (policy, name)
    with pytest.raises(RunnerError):
        count(bundled_engine, TALK, "agent(every=1)")


@pytest.mark.model
def test_a_conversation_past_the_trained_positions_goes_on_under_repos_only(bundled_engine, monkeypatch):
    from dataclasses import replace

    n_tokens = replay(bundled_engine, TALK, "full")["peak_cells"]
    short = replace(bundled_engine.info, n_ctx_train=n_tokens - 4)
    monkeypatch.setattr(bundled_engine, "info", short)
    declined = replay(bundled_engine, TALK, "full")
    assert declined["declined_code"] == PAST_TRAINING
    assert len(declined["turn_s"]) == 2
    going = replay(bundled_engine, TALK, "rolling_drop_repos(keep_last=1)")
    assert going["declined"] is None
    assert len(going["turn_s"]) == 3
    assert bundled_engine.used_cells() == 0


@pytest.mark.model
def test_a_conversation_without_room_is_declined_at_the_turn():
    n_ctx = 256
    said = message("assistant", "Milan has " + "flights, " * 40)
    long = Trajectory(
        "long", (*TALK.messages[:2], said, *TALK.messages[1:2], said, *TALK.messages[1:2], said)
    )
    system = Trajectory("system", (message("system", "Book flights. " * 200), *TALK.messages[1:]))
    with Engine.load("bundled", n_ctx=n_ctx, threads=1) as engine:
        row, at_once = (replay(engine, talk, "full") for talk in (long, system))
        assert engine.used_cells() == 0
    assert (row["declined_code"], at_once["declined_code"]) == (CONTEXT_FULL, CONTEXT_FULL)
    assert 1 <= len(row["turn_s"]) < 3
    assert row["declined"].startswith(f"turn {len(row['turn_s']) + 1}: ")
    assert at_once["turn_s"] == []
    whole = CacheSweep({"threads": 1}, [{"policy": "full", **found} for found in (row, at_once)])
    assert whole.figure_of("declined", "full").value == 2


def test_an_edited_function_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "policy_that_is_edited.py"
    (tmp_path / "policy_named_here.py").write_text(f"from {path.stem} import decide")
    engine = cache_bench.EngineSettings(model="", sha256="", n_ctx=512)

    def key(place):
        (task,) = policy_tasks(engine, [TALK], [PolicySpec("python", {"function": f"{place}:decide"})], None)
        return task.key

    for place in (str(path), path.stem, "policy_named_here"):
        keys = []
        for text in ("def decide(moment): ...", "def decide(moment): return []", "def decide(moment): ..."):
            path.write_text(text)
            keys.append(key(place))
        assert keys[0] == keys[2] != keys[1], place
    built_in = PolicySpec("python", {"function": "sys:getsizeof"})  # of no file
    assert policy_tasks(engine, [TALK], [built_in], None)[0].source == ""


def test_nothing_to_replay_is_refused():
    for options in ({"policies": ""}, {"n_turns": 0}, {"n_turns": -1}, {"limit": 0}, {"limit": -1}):
        with pytest.raises(ResultsError):
            cache_sweep([TALK], **options)
