"""What needs a generator: the model as the router of its own tools, and decisions behind a full cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexus_lab.bench import routing as bench
from nexus_lab.bench.routing_model import Generator, concat_all, depths
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.engine import Engine
from nexus_lab.routing import Router

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from routing_tools import WordEmbedder

    from nexus_lab.bench.base import Result
    from nexus_lab.registry import Registry

pytestmark = pytest.mark.model

ROWS: list[dict[str, Any]] = [
    {"query": "List the open issues of acme/docs", "gold_tool": "list_issues"},
    {"query": "What time is it in Oslo?", "gold_tool": "get_current_time"},
    {
        "query": "Download it",
        "gold_tool": "fetch",
        "context": [{"role": "user", "content": "See https://example.org"}],
    },
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("bundled", n_ctx=1536) as loaded:
        yield loaded


def quiet(_what: str, _done: float) -> None:
    """Hear of nothing."""


def one(results: list[Result], metric: str, **case: Any) -> Result:
    (found,) = [one for one in results if one.metric == metric and case.items() <= dict(one.case).items()]
    return found


def test_the_model_chooses_a_tool_that_there_is_and_is_asked_once(
    engine: Engine, registry: Registry, tmp_path: Path
):
    generator = Generator(engine=engine, work=tmp_path)
    results, told = concat_all(generator, registry, ROWS, quiet)
    assert told["fits"] is True
    assert one(results, "top1").n == 3
    assert one(results, "prompt_tokens").value == told["prompt_tokens"] > 250
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    names = {*registry.names, *(tool.qualified_name for tool in registry.shadowed)}
    assert len(lines) == 3
    assert all(json.loads(line)["rows"][0]["tool"] in names for line in lines)
    again, _ = concat_all(generator, registry, ROWS, quiet)
    assert [result.to_dict() for result in again] == [result.to_dict() for result in results]
    assert (tmp_path / JOURNAL).read_text().splitlines() == lines


def test_tools_that_overflow_the_context_are_said_with_their_tokens(
    engine: Engine, registry: Registry, tmp_path: Path
):
    long = [{**ROWS[0], "context": [{"role": "user", "content": "word " * 2000}]}]
    results, told = concat_all(Generator(engine=engine, work=tmp_path), registry, long, quiet)
    assert told["fits"] is False
    assert told["context_tokens"] == 1536
    assert [result.metric for result in results] == ["prompt_tokens"]
    assert results[0].value > 2000
    assert not (tmp_path / JOURNAL).exists()


def test_a_full_cache_changes_no_decision(engine: Engine, registry: Registry, words: WordEmbedder):
    router = Router(registry, words)
    results = depths(engine, router, ROWS, [0, 700])
    assert one(results, "same_decision", kv_tokens=700).value == 1.0
    assert one(results, "used_cells", kv_tokens=0).value == 0
    assert one(results, "used_cells", kv_tokens=700).value == 700
    assert one(results, "median_ms", kv_tokens=700).n == 3
    assert engine.used_cells() == 0


def test_the_figures_stand_beside_the_others(
    engine: Engine, registry: Registry, words: WordEmbedder, tmp_path: Path
):
    queries = tmp_path / "queries.jsonl"
    queries.write_text("\n".join(map(json.dumps, ROWS)))
    found = bench.run(
        registry,
        queries,
        systems=["full"],
        embedder=words,
        generator=Generator(engine=engine, queries=2, kv_tokens=[0], work=tmp_path),
    )
    assert one(list(found.results), "top1", system="concat_all").n == 2
    assert found.settings["concat_all"]["5"]["queries"] == 2
