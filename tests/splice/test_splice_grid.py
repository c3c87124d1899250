"""What a splice sweep is asked for, and what it is measured on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nexus_lab.bench import splice_figures
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.splice import splice_sweep
from nexus_lab.bench.splice_decisions import Decision, call_grammar, decide, decide_like, settled_decision
from nexus_lab.bench.splice_grid import (
    EngineSettings,
    Repair,
    SpliceTask,
    TaskKind,
    compile_contexts,
    known_context,
)
from nexus_lab.bench.splice_inputs import choose_subjects, read_cases, trial_case
from nexus_lab.bench.splice_proxy import preceding_variance, rank_correlation
from nexus_lab.bench.splice_tools import SPLICE_CASES, case_of
from nexus_lab.engine import Engine
from nexus_lab.registry import Registry, ToolSpec
from nexus_lab.splice import BlockContext, TrialCase


@pytest.mark.parametrize(
    ("text", "strategy", "budget", "label"),
    [
        ("none", "none", None, 0.0),
        ("full", "full", None, 1.0),
        ("leading:0.25", "leading", 0.25, 0.25),
        ("profile:0.25", "profile", 0.25, 0.25),
        ("trailing:R", "trailing", None, "R(k=4)"),
        ("no_reanchor", "no_reanchor", None, 0.0),
    ],
)
def test_a_repair_is_read_and_written(text, strategy, budget, label):
    repair = Repair.parse(text)
    assert (repair.strategy, repair.budget, repair.label, repair.text) == (strategy, budget, label, text)


@pytest.mark.parametrize("text", ["", "middle:0.5", "leading:1.5", "leading:x", "trailing:-1"])
def test_another_repair_is_refused(text):
    with pytest.raises(ResultsError) as error:
        Repair.parse(text)
    assert "leading:0.25" in error.value.next_step


def test_a_key_stands_for_all_that_determines_the_rows_and_for_no_more():
    task = SpliceTask(
        kind=TaskKind.CELLS,
        engine=EngineSettings(model="bundled", sha256="ab", n_ctx=1024),
        folder="here",
        server="git",
        case=TrialCase("tool", (1, 2), (3,), (4,)),
        prefix_name="p",
        prefix=(5, 6),
        depths=(2,),
        repairs=(Repair("none"),),
        contexts=("none",),
    )
    moved = replace(task, folder="there", engine=replace(task.engine, model="copy.gguf"))
    assert moved.key == task.key
    adapted = replace(task, engine=replace(task.engine, adapter="a.gguf", adapter_sha256="ef"))
    assert replace(adapted, engine=replace(adapted.engine, adapter="b.gguf")).key == adapted.key
    assert "adapter_sha256" not in task.engine.facts  # so that keys of sweeps without one are as ever
    others = [
        replace(task, engine=replace(task.engine, sha256="cd")),
        replace(task, engine=replace(task.engine, flash_attention=True)),
        replace(task, engine=replace(task.engine, adapter="a.gguf", adapter_sha256="ef")),
        replace(task, engine=replace(task.engine, adapter="a.gguf", adapter_sha256="01")),
        replace(task, prefix=(5, 7)),
        replace(task, case=replace(task.case, answer=(9,))),
        replace(task, repairs=(Repair("leading", 0.25),)),
        replace(task, contexts=("system",)),
        replace(task, kind=TaskKind.PROXY),
        replace(task, attention=True),
    ]
    assert len({other.key for other in others} | {task.key}) == 1 + len(others)


def test_conversations_of_ones_own_are_taken_where_there_are_any():
    own = BlockContext((1, 2), ((3,),), consensus=True)
    assert compile_contexts(None, known_context("own"), own=own) is own
    with pytest.raises(ResultsError, match="of your own") as error:
        compile_contexts(None, "own")
    assert "--trajectories" in error.value.next_step
    with pytest.raises(ResultsError, match="no compile context"):
        known_context("their")


def test_a_tool_known_by_its_schema_alone_gets_a_request_and_an_answer():
    properties = {
        "where": {"type": "string"},
        "kind": {"enum": ["old", "new"]},
        "what": {"type": "array", "items": {"type": "integer", "minimum": 3}},
        "never": {},
    }
    tool = ToolSpec(
        "find", "Find a thing. It may take long.", {"properties": properties, "required": ["what"]}
    )
    case = case_of(tool)
    assert case.request.startswith("Find a thing")
    arguments = {"what": [3], "where": "the where", "kind": "old"}
    assert json.loads(case.answer) == {"name": "find", "arguments": arguments}
    assert case_of(ToolSpec("bare")).request
    for own in SPLICE_CASES:
        answer = json.loads(own.answer)
        assert set(own.tool.required) <= set(answer["arguments"]) <= set(own.tool.properties)


def test_rows_of_cases_are_checked_and_bring_their_tools(tmp_path: Path):
    path = tmp_path / "cases.jsonl"
    tool = {"name": "look", "description": "Look.", "inputSchema": {"properties": {"at": {}}}}
    rows = [
        {"query": "a", "gold_tool": "look", "gold_args": {"at": "x"}, "tools": [tool, {"name": "other"}]},
        {"query": "b", "gold_tool": "look", "gold_args": {"at": "longer"}, "tools": [tool]},
        {"query": "c", "gold_tool": None},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    cases, tools = read_cases(path, None)
    assert [tool.name for tool in tools] == ["look", "other"]
    assert cases["look"].request == "b"
    assert json.loads(cases["look"].answer) == {"name": "look", "arguments": {"at": "longer"}}
    with pytest.raises(ResultsError, match="registry"):
        read_cases(path, Registry.of([ToolSpec("third")], name="one"))
    for bad in ({"gold_tool": 3, "gold_args": {}}, {"gold_tool": "look", "gold_args": "x"}):
        path.write_text(json.dumps({"query": "a", **bad}))
        with pytest.raises(ResultsError, match="row 1"):
            read_cases(path, None)
    path.write_text(json.dumps({"query": "a", "gold_tool": "x", "gold_args": {}, "tools": [{"no": 1}]}))
    with pytest.raises(ResultsError, match="tools of row 1"):
        read_cases(path, None)


def test_the_proxy_is_the_variance_of_the_keys_before():
    keys = np.random.default_rng(0).normal(size=(2, 9, 3, 4))
    found = preceding_variance(keys, 4, window=3)
    assert found.shape == (2, 5, 3)
    for number, token in enumerate(range(4, 9)):
        expected = keys[:, token - 3 : token].var(axis=1).sum(axis=-1)
        assert np.allclose(found[:, number], expected)


def test_the_rank_correlation_is_spearman_s():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(1)
    pairs = [(x, x + rng.normal(size=40)) for x in rng.normal(size=(6, 40))]
    within, over_all = rank_correlation(pairs, list("aabbcc"), case={})
    assert within.value == pytest.approx(np.mean([spearmanr(*pair).statistic for pair in pairs]))
    whole = spearmanr(*(np.concatenate(values) for values in zip(*pairs, strict=True))).statistic
    assert over_all.value == pytest.approx(whole)
    assert over_all.low < over_all.value < over_all.high
    (flat,) = rank_correlation([([1, 1, 1], [1, 2, 3])], ["a"], case={})
    assert (flat.value, flat.low) == (0.0, None)


@pytest.mark.model
@pytest.mark.parametrize(("floor", "others"), [(0.0, 0.5), (0.25, 0.0)])
def test_beside_nothing_there_is_no_ratio(floor, others):
    row = {"tool": "t", "depth": 1, "prefix": 0, "dkl": [0.5], "dkl_mean": 0.5, "floor": floor, "excess": 0.5}
    row |= {"greedy_match": 1, "greedy_n": 1}
    found = {one.metric: one for one in splice_figures.quality([row], {})}
    assert ("dkl_ratio" in found) == (floor > 0)
    assert not floor or found["dkl_ratio"].value == 2
    excess = {("t", 0, 1, "trailing", "0.25", context): others for context in ("none", "system")}
    beside = list(splice_figures._against_peers([row], excess, {}, ("leading", "0.25", "system")))
    assert [one.value for one in beside] == ([1.0, 1.0] if others else [])


def test_tools_come_in_turn_from_every_server_with_and_without_calls(bundled_engine: Engine):
    def tools(server, count):
        own = SPLICE_CASES[0].tool
        return [ToolSpec(f"{server}_{n}", own.description, own.input_schema, server) for n in range(count)]

    registry = Registry.of([*tools("big", 6), *tools("small", 1), *tools("mid", 2), ToolSpec("tiny")])
    cases = {tool.name: case_of(tool) for tool in registry.tools if tool.server == "big"}
    found = choose_subjects(bundled_engine, registry=registry, cases=cases, n_tools=6)
    assert [subject.server for subject in found] == ["big", "small", "big", "mid", "big", "mid"]
    assert [subject.real for subject in found] == [True, False] * 3
    assert all(len(subject.case.answer) >= 32 and subject.grammar for subject in found)
    with pytest.raises(ResultsError, match="schema"):
        choose_subjects(bundled_engine, registry=Registry.of([ToolSpec("tiny")]))


@pytest.mark.model
def test_a_short_call_goes_on_in_words(bundled_engine: Engine):
    case = case_of(ToolSpec("ping", "Ping a host.", {"properties": {"host": {"description": "Its name"}}}))
    bare = trial_case(bundled_engine, case)
    padded = trial_case(bundled_engine, case, at_least=60)
    assert len(bare.answer) < 60 == len(padded.answer)
    text = bundled_engine.detokenize(padded.answer)
    assert text.startswith(case.answer + "\nI call ping, where host is")
    assert "Ping a host. The argument host: Its name." in text


@pytest.mark.model
def test_contexts_have_names(bundled_engine: Engine):
    system, history, more, typical, mean = (
        compile_contexts(bundled_engine, name)
        for name in ("system", "history", "history:100", "typical", "consensus")
    )
    assert compile_contexts(bundled_engine, "none").tokens == ()
    assert history.tokens[: len(system.tokens) - 2] == system.tokens[:-2]
    assert (len(history.tokens), len(more.tokens)) == (64, 100)
    assert more.tokens[:64] == history.tokens
    assert typical.tokens == mean.tokens
    assert typical.probes
    assert (typical.consensus, mean.consensus) == (False, True)
    with pytest.raises(ResultsError, match="moon"):
        compile_contexts(bundled_engine, "moon")


@pytest.mark.model
def test_a_decision_is_the_greedy_call_whatever_it_is_compared_with(bundled_engine: Engine):
    engine, case = bundled_engine, SPLICE_CASES[0]
    grammar = call_grammar(case.tool, [other.tool for other in SPLICE_CASES[1:]], case.request)
    trial = trial_case(engine, case)
    seq = engine.acquire_sequence()
    try:
        first = engine.prefill(seq, trial.block + trial.rest)
        n = engine.pos_max(seq)
        own = decide(engine, seq, first, grammar)
        assert own.tool in {other.tool.name for other in SPLICE_CASES}
        assert json.loads(own.arguments) == json.loads(own.text)["arguments"]
        settled = settled_decision(engine, seq, first, grammar)
        assert decide_like(engine, seq, first, grammar, settled) == settled
        # Compared with a call that parts from it, early or late, it comes out the same.
        for place in (3, len(settled.tokens) - 6):
            wrong = settled.tokens[place] + 1
            other = Decision((*settled.tokens[:place], wrong, *settled.tokens[place + 1 :]), "other")
            found = decide_like(engine, seq, first, grammar, other)
            assert (found.tokens, found.text) == (settled.tokens, settled.text)
        assert engine.pos_max(seq) == n
    finally:
        engine.release_sequence(seq)
    cut = Decision((1,), '{"name": "open_issue", "arguments": {"title":"The imp')
    assert (cut.tool, cut.arguments) == ('{"name": "open_issue', '{"title":"The imp')


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"depths": (0,)}, "depths"),
        ({"depths": (100_000,)}, "trained"),
        ({"contexts": ("moon",)}, "moon"),
        ({"strategies": ("middle:0.5",)}, "middle"),
        ({"strategies": ("profile:0.25",), "contexts": ("system",)}, "profile"),
        ({"tools": 0}, "tools"),
        ({"attention": True, "flash_attention": True}, "attention"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, wrong, tmp_path: Path):
    with pytest.raises(ResultsError, match=wrong) as error:
        splice_sweep(work=tmp_path, **options)
    assert error.value.next_step
