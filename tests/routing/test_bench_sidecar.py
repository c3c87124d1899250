"""The measurement of the sidecar: close decisions, before and after, on requests whose answers are known."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nexus_lab.agent.sidecar import SidecarResult, SidecarScore
from nexus_lab.agent.window import recent_window
from nexus_lab.bench import sidecar as bench
from nexus_lab.bench.base import ResultFile, ResultsError

if TYPE_CHECKING:
    from pathlib import Path

    from routing_tools import WordEmbedder

    from nexus_lab.engine import Engine
    from nexus_lab.registry import Registry

pytestmark = pytest.mark.model

QUERIES = [
    {"query": "List the open issues of acme/docs", "gold_tool": "list_issues", "style": "plain"},
    {"query": "Tell the time", "gold_tool": "get_current_time", "style": "plain"},
    {
        "query": "Search there",
        "context": [{"role": "user", "content": "The web has many pages."}],
        "gold_tool": "fetch",
        "also_ok": ["search"],
        "style": "coreference",
    },
    {"query": "Merge it", "gold_tool": "merge"},
]
TALK = {
    "id": "talk",
    "messages": [
        {"role": "system", "content": "Be good"},
        {"role": "user", "content": "Fetch the page of acme"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "fetch", "arguments": {"url": "acme"}}]},
        {"role": "tool", "content": "page " * 400},
        {"role": "assistant", "content": "It is long."},
        {"role": "user", "content": "What time is it there?"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "get_current_time"}]},
    ],
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def value(found: ResultFile, metric: str, **case: Any) -> float:
    (result,) = [
        one for one in found.results if one.metric == metric and case.items() <= dict(one.case).items()
    ]
    return result.value


@pytest.fixture
def measured(bundled_engine: Engine, registry: Registry, words: WordEmbedder):
    def measure(*queries: Path, **options: Any) -> ResultFile:
        options = {"tau": float("inf"), "embedder": words, "leads": (0.0, 1e9), **options}
        return bench.run(bundled_engine, registry, queries, **options)

    return measure


def test_before_and_after_are_paired(measured, tmp_path: Path):
    found = measured(write(tmp_path / "q.jsonl", QUERIES))
    assert found.settings["requests"] == 3, "no tool merges"
    assert found.settings["close"] == 3
    tried = {"system": "sidecar", "lead": 0.0, "score": "mean"}
    rows = [one for one in found.results if not {"style", "context"} & set(one.case)]
    found = ResultFile.now("x", rows)
    before = value(found, "top1", system="no_rerank")
    after = value(found, "top1", **tried)
    gain = value(found, "top1_difference", **tried)
    assert gain == pytest.approx(after - before)
    assert gain == pytest.approx(value(found, "mended", **tried) - value(found, "spoiled", **tried))
    # No lead is that large: everything stays.
    kept = {"system": "sidecar", "lead": 1e9}
    assert value(found, "top1", **kept) == before
    assert value(found, "changed", **kept) == 0
    for way in ("log_chance", "lift"):
        other = {"system": "sidecar", "score": way}
        assert value(found, "top1_difference", **other) == pytest.approx(
            value(found, "top1", **other) - before
        )
    assert before <= value(found, "among_candidates", system="no_rerank")
    assert value(found, "median_ms", system="sidecar") > 0
    assert value(found, "declined") == 0


@pytest.mark.parametrize(("reader", "system"), [(None, "no_rerank"), ("bundled", "cross_encoder")])
def test_the_baseline_is_named_by_who_was_asked(measured, tmp_path: Path, reader, system):
    found = measured(write(tmp_path / "q.jsonl", QUERIES), cross_encoder=reader, depth=2)
    systems = {one.case.get("system") for one in found.results}
    assert systems == {None, system, "no_rerank", "sidecar"}
    assert {one.case["peer"] for one in found.results if "peer" in one.case} == {system, "no_rerank"}
    assert {one.case["reader"] for one in found.results} == {reader is not None}


def scored(name: str, *, mean: float, log_chance: float) -> SidecarScore:
    return SidecarScore(
        tool=name,
        score=mean,
        log_chance=log_chance,
        name_tokens=1,
        block_tokens=1,
        path="prefill",
        declined=None,
        ms=0.0,
    )


def test_candidates_are_compared_in_each_way():
    """The best mean is a long name's, the best sum a short one's, and a third is raised most."""
    long = scored("long", mean=-0.1, log_chance=-4.0)
    short = scored("short", mean=-0.5, log_chance=-1.0)
    rare = scored("rare", mean=-0.9, log_chance=-2.0)
    scores = (scored("first", mean=-1.0, log_chance=-5.0), long, short, rare)
    result = SidecarResult(scores=scores, window=recent_window((), len), tail_tokens=1, ms=0.0)
    decision = SimpleNamespace(tool="first")
    tried = bench._Tried({}, frozenset({"rare"}), decision, None, result, (-5.0, -4.0, -1.0, -8.0))
    chosen = {way: tried.chosen(0.0, way) for way in bench.WAYS}
    assert chosen == {"mean": "long", "log_chance": "short", "lift": "rare"}
    assert tried.chosen(1.0, "mean") == "first"
    assert [tried.after(0.0, way) for way in bench.WAYS] == [False, False, True]


@pytest.mark.parametrize(("tau", "told"), [(float("inf"), None), (1e6, 1e6)])
def test_depth_and_margin_stand_in_every_case_and_in_json(measured, tmp_path: Path, tau, told):
    found = measured(write(tmp_path / "q.jsonl", QUERIES), cross_encoder=None, depth=2, tau=tau)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    values = json.loads(found.write(tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert values["settings"]["tau"] == told
    assert {(one["case"]["depth"], one["case"]["tau"]) for one in values["results"]} == {(2, told)}


def test_calls_behind_a_request_are_cases_with_all_that_was_said_before(measured, tmp_path: Path):
    talk = write(tmp_path / "t.jsonl", [TALK])
    first, second = bench._spoken_cases(talk)
    assert (first["query"], first["gold_tool"], len(first["context"])) == (
        "Fetch the page of acme",
        "fetch",
        1,
    )
    assert (second["query"], second["gold_tool"]) == ("What time is it there?", "get_current_time")
    roles = [turn["role"] for turn in second["context"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    found = measured(trajectories=talk)
    assert found.settings["requests"] == 2
    assert value(found, "surrogates") == pytest.approx(0.5), "the page, before the second"
    without = measured(trajectories=talk, windows=False)
    assert value(without, "surrogates") == 0
    assert value(without, "tail_tokens") < value(found, "tail_tokens")


def test_what_means_nothing_is_refused(measured, tmp_path: Path):
    queries = write(tmp_path / "q.jsonl", QUERIES)
    with pytest.raises(ResultsError, match="too close"):
        measured(queries, tau=0.0)
    with pytest.raises(ResultsError, match="unknown mode"):
        measured(queries, schema_mode="splice")
    with pytest.raises(ResultsError, match="depth = 6"):
        measured(queries, depth=6)
    with pytest.raises(ResultsError, match="limit = 0"):
        measured(queries, limit=0)
