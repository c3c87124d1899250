"""Where the replies of a conversation look: captured from the model, by role and age of message."""

from __future__ import annotations

import polars as pl
import pytest
from tiny_models import write_model

from nexus_lab.bench.attention import AttentionStudy, age_bucket, study_attention
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.trajectories import Trajectory
from nexus_lab.engine import Engine


def test_ages_fall_into_buckets():
    assert [age_bucket(age) for age in (0, 1, 3, 8, 9, 40)] == ["0", "1", "3-4", "5-8", "9+", "9+"]


def row(trajectory, turn, role, age, tokens, mass):  # noqa: PLR0917 - a line of a table
    return {
        "trajectory": trajectory, "turn": turn, "layer": 0, "role": role, "age": age,
        "tokens": tokens, "seen": 100, "mass": mass,
    }  # fmt: skip


def test_figures_set_attention_against_tokens():
    rows = [
        row("a", 1, "tool", 0, 20, 0.4), row("a", 2, "tool", 0, 20, 0.2), row("b", 1, "tool", 0, 20, 0.3),
        row("a", 2, "tool", 3, 40, 0.1), row("a", 2, "tool", 4, 40, 0.1), row("a", 1, "sink", 0, 1, 0.5),
    ]  # fmt: skip
    study = AttentionStudy({"layers": [0]}, rows)
    found = {(r.case["role"], r.case["age"], r.metric): r for r in study.figures}
    assert found["tool", "0", "attention_share"].value == pytest.approx(0.3)
    assert found["tool", "0", "attention_lift"].value == pytest.approx(1.5)
    assert found["tool", "3-4", "attention_lift"].value == pytest.approx(0.25)
    assert found["sink", "any", "attention_lift"].value == pytest.approx(50)
    assert found["tool", "0", "attention_lift"].low is not None
    lines = study.text().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("sink  any")
    assert "<td>tool</td>" in study._repr_html_()
    assert [trace.name for trace in study.figure().data] == ["tool"]
    assert study.to_frame()["mass"].sum() == pytest.approx(1.6)


@pytest.mark.model
@pytest.mark.parametrize("policy", ["full", "rolling_drop_repos(keep_last=1)"])
def test_the_attention_of_each_turn_is_shared_out(bundled_engine, policy):
    call = {"name": "find", "arguments": {}}
    talk = Trajectory(
        "talk",
        (
            {"role": "user", "content": "To Milan."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "AZ 569 costs 120."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "LX 1612 costs 99."},
            {"role": "assistant", "content": "LX 1612."},
        ),
    )
    study = study_attention(bundled_engine, [talk], policy=policy, layers=[0, 29], n_queries=4)
    frame = study.to_frame()
    sums = frame.group_by("turn", "layer").agg(pl.sum("mass"))
    assert len(sums) == 6
    assert sums["mass"].to_list() == pytest.approx([1.0] * 6, abs=1e-4)
    last = frame.filter((frame["turn"] == 3) & (frame["layer"] == 29))
    ages = {(r["role"], r["age"]) for r in last.to_dicts()}
    assert {("sink", 0), ("self", 0), ("tool", 0), ("call", 1), ("call", 2), ("user", 2)} <= ages
    assert (("tool", 1) in ages) == (policy == "full")
    assert bundled_engine.used_cells() == 0


@pytest.mark.model
def test_nothing_to_study_is_refused(bundled_engine):
    with pytest.raises(ResultsError):
        study_attention(bundled_engine, [])


HELLO = ({"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on the mat"})
LONG = Trajectory("long", ({"role": "system", "content": "the cat sat " * 300}, *HELLO))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random model that was trained on 512 positions."""
    with Engine.load(
        write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), n_ctx=512, threads=1
    ) as made:
        yield made


def test_a_layer_that_is_named_twice_counts_once(tiny):
    talk = Trajectory("talk", HELLO)
    once, twice = (study_attention(tiny, [talk], layers=layers) for layers in ([1], [1, 1]))
    assert twice.settings["layers"] == [1]
    assert [result.value for result in twice.figures] == [result.value for result in once.figures]


def test_turns_that_are_left_out_are_told_and_a_study_of_none_is_refused(tiny):
    study = study_attention(tiny, [LONG, Trajectory("talk", HELLO * 2)])
    assert study.settings["turns_left_out"] == 1
    assert study.told().startswith("The last tokens of 2 replies; 1 more did not fit")
    assert study_attention(tiny, [Trajectory("talk", HELLO)]).told() == "The last tokens of 1 replies."
    with pytest.raises(ResultsError, match="none of 1 turns fits 512 cells") as refused:
        study_attention(tiny, [LONG])
    assert refused.value.next_step
    assert tiny.used_cells() == 0


@pytest.mark.model
def test_turns_without_room_are_left_out():
    hello = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello to you."})
    short = Trajectory("short", hello)
    long = Trajectory("long", ({"role": "system", "content": "Book flights. " * 200}, *hello))
    with Engine.load("bundled", n_ctx=256, threads=1) as engine:
        study = study_attention(engine, [long, short], layers=[0], n_queries=4)
    assert set(study.to_frame()["trajectory"]) == {"short"}
