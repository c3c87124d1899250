"""The measurement of routing, on requests whose answers are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from routing_tools import WordEmbedder

from nexus_lab.bench import routing as bench
from nexus_lab.bench import routing_rows
from nexus_lab.bench.base import ResultFile, ResultsError
from nexus_lab.routing.training_rows import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.registry import Registry

QUERIES = [
    {"query": "List the open issues of acme/docs", "gold_tool": "list_issues", "style": "plain"},
    {"query": "Tell the time", "gold_tool": "get_current_time", "style": "plain"},
    {"query": "Search the web for pages", "gold_tool": "fetch", "also_ok": ["search"], "style": "natural"},
    {"query": "Brew something up", "gold_tool": "search", "style": "natural"},
    {"query": "Merge it", "gold_tool": "merge"},
]
NEGATIVES = [
    {"query": "Dismantle my bicycle", "registry_valid": [3, 5]},
    {"query": "Wash windows", "registry_valid": [5]},
    {"query": "Paint walls", "registry_valid": [100]},
]


class Shortest:
    """A cross-encoder that prefers the tool with the shortest text."""

    name, fingerprint = "shortest", "shortest-1"

    def score(self, request: str, documents: Sequence[str]) -> NDArray[np.float32]:  # noqa: ARG002
        return np.asarray([-len(document) for document in documents], np.float32)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def value(found: ResultFile, metric: str, **case: Any) -> float:
    (result,) = [one for one in found.results if one.metric == metric and dict(one.case) == case]
    return result.value


@pytest.fixture
def found(tmp_path: Path, registry: Registry, words: WordEmbedder) -> ResultFile:
    return bench.run(
        registry,
        write(tmp_path / "queries.jsonl", QUERIES),
        negatives=write(tmp_path / "negatives.jsonl", NEGATIVES),
        sizes=[5, 3],
        embedder=words,
    )


def test_accuracy_is_the_share_of_right_tools(found: ResultFile):
    assert value(found, "top1", n_tools=5, system="full") == 0.75
    assert value(found, "top10", n_tools=5, system="full") == 1.0
    assert value(found, "top1", n_tools=3, system="full") == 1.0
    assert value(found, "mrr", n_tools=3, system="full") == 1.0
    assert value(found, "top1", n_tools=5, system="full", style="plain") == 1.0
    assert value(found, "top1", n_tools=5, system="full", style="natural") == 0.5
    for system in set(bench.SYSTEMS) - {"no_prefixes"}:
        assert (
            0
            <= value(found, "top1", n_tools=5, system=system)
            <= value(found, "top10", n_tools=5, system=system)
        )


def test_requests_without_their_tool_are_counted_apart(found: ResultFile):
    assert found.settings["left_out"] == {3: 3, 5: 1}
    (result,) = [
        one for one in found.results if one.metric == "top1" and one.case == {"n_tools": 5, "system": "full"}
    ]
    assert (result.n, result.low is not None) == (4, True)


def test_abstention_is_measured_on_negatives_of_the_size(found: ResultFile):
    # Three of the four answerable requests score above both negatives, the fourth above none.
    assert value(found, "abstain_auroc", n_tools=5, system="full", over="registry", negatives="all") == 0.75
    (result,) = [
        one
        for one in found.results
        if one.metric == "negatives_refused" and one.case["n_tools"] == 3 and one.case["negatives"] == "all"
    ]
    assert result.n == 1
    # Five of the six requests are answered, and three of the answers are right.
    case = {"n_tools": 5, "system": "full", "over": "registry", "negatives": "all", "coverage": 0.8}
    assert value(found, "selective_accuracy", **case, of="all requests") == pytest.approx(3 / 5)
    # Of the four that a tool fits three are answered, rightly, and no negative passes as they do.
    for of in ("requests with a tool, alone", "requests with a tool"):
        (result,) = [one for one in found.results if one.case == {**case, "of": of}]
        assert (result.n, result.value) == (3, 1.0)


def test_int8_loses_nothing_here_and_stages_are_timed(found: ResultFile):
    assert value(found, "recall_lost", n_tools=5, system="int8", peer="float32", top=1) == 0.0
    stages = {one.case["stage"] for one in found.results if one.metric == "median_ms"}
    assert stages == {"normalise", "embed", "scan", "lexical", "fuse", "gate", "all"}


def test_the_file_comes_back_as_it_was_written(found: ResultFile, tmp_path: Path):
    again = ResultFile.read(found.write(tmp_path / "out.json"))
    assert [one.to_dict() for one in again.results] == [one.to_dict() for one in found.results]
    assert again.name == "eval routing"


def test_examples_teach_what_is_not_asked(tmp_path: Path, registry: Registry, words: WordEmbedder):
    examples = [
        {"query": "Brew something up #7", "gold_tool": "search"},
        {"query": "Tell the time", "gold_tool": "fetch"},
    ]
    found = bench.run(
        registry,
        write(tmp_path / "queries.jsonl", QUERIES),
        examples=write(tmp_path / "examples.jsonl", examples),
        systems=["full"],
        embedder=words,
    )
    assert found.settings["examples"] == 1
    assert value(found, "top1", n_tools=5, system="full") == 1.0
    assert value(found, "recall_lost", n_tools=5, system="int8", peer="float32", top=10) == 0.0


def test_subsets_curve_and_confusions_are_reported(tmp_path: Path, registry: Registry, words: WordEmbedder):
    queries = [{**row, "id": f"q{number}"} for number, row in enumerate(QUERIES)]
    found = bench.run(
        registry,
        write(tmp_path / "queries.jsonl", queries),
        subsets={"core": ["q0", "q3"], "nobody": ["q9"]},
        embedder=words,
        cross_encoder=Shortest(),
    )
    assert value(found, "top1", n_tools=5, system="full", subset="core") == 0.5
    assert not any(one.case.get("subset") == "nobody" for one in found.results)
    curve = [one for one in found.results if one.metric == "curve_top1"]
    assert [one.case["escalated"] for one in curve] == [round(0.1 * step, 2) for step in range(11)]
    assert curve[0].value == value(found, "top1", n_tools=5, system="no_reader")
    assert curve[-1].value == value(found, "top1", n_tools=5, system="always_read")
    (at_tau,) = [one for one in found.results if one.metric == "curve_top1_at_tau"]
    # One of the four has a margin under tau, as at three tenths, where the one with the least is read.
    assert at_tau.case["escalated"] == 0.25
    assert at_tau.value == curve[3].value
    wrong = found.settings["confusions"][5]
    assert {(one["right"], one["n"]) for one in wrong} <= {("search", 1), ("fetch", 1), ("list_issues", 1)}
    assert "rerank" in {one.case["stage"] for one in found.results if one.metric == "median_ms"}
    depths = {one.case["turns_before"] for one in found.results if one.metric == "median_ms"}
    assert depths == {0, 1000}


def test_the_share_for_the_calibration_is_left_out(tmp_path: Path, registry: Registry, words: WordEmbedder):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    part = bench.run(registry, queries, systems=["full"], apart=0.5, embedder=words)
    kept = [row for row in QUERIES[:4] if share_of(row["query"]) >= 0.5]
    assert 0 < len(kept) < 4
    assert next(one.n for one in part.results if one.metric == "top1") == len(kept)


def test_only_tools_that_training_left_out_are_asked_for(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    found = bench.run(registry, queries, tools_apart=0.5, systems=["full"], embedder=words)
    kept = [row for row in QUERIES[:4] if share_of(row["gold_tool"]) < 0.5]
    assert 0 < len(kept) < 4
    assert next(one.n for one in found.results if one.metric == "top1") == len(kept)
    assert found.settings["tools_apart"] == 0.5


def test_only_the_tools_of_some_servers_take_part(tmp_path: Path, registry: Registry, words: WordEmbedder):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    found = bench.run(registry, queries, servers=["files", "web"], systems=["full"], embedder=words)
    assert {one.case["n_tools"] for one in found.results} == {2}
    # The web's search is not there any more, so the plain name is that of the files' one.
    assert found.settings["left_out"] == {2: 3}
    with pytest.raises(ResultsError, match="no tool of a server 'mail'"):
        bench.run(registry, queries, servers=["web", "mail"], embedder=words)


def test_negatives_bring_their_own_tools(tmp_path: Path, registry: Registry, words: WordEmbedder):
    own = [{"name": "braise", "description": "Braise cabbage"}, {"name": "fry", "description": "Fry leeks"}]
    rows = [{"query": "Wash windows", "kind": "irrelevance", "tools": own}]
    negatives = write(tmp_path / "negatives.jsonl", rows)
    told = {"n_tools": 5, "system": "full", "over": "candidates of the row", "negatives": "irrelevance"}

    def run(queries: list[dict[str, Any]]) -> ResultFile:
        path = write(tmp_path / "queries.jsonl", queries)
        return bench.run(registry, path, negatives=negatives, systems=["full"], embedder=words)

    alone = run(QUERIES)
    assert value(alone, "negatives_refused", **told) == 1.0
    assert not any(one.metric == "abstain_auroc" for one in alone.results)
    beside = run([*QUERIES, {"query": "Braise the cabbage", "gold_tool": "braise", "tools": own}])
    (result,) = [one for one in beside.results if one.metric == "abstain_auroc" and one.case == told]
    assert (result.n, result.value) == (2, 1.0)
    assert value(beside, "selective_accuracy", **told, coverage=0.8, of="all requests") == 0.5


def test_requests_of_the_package_are_left_out_and_counted(
    tmp_path: Path, registry: Registry, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
):
    learned = ["List the open issues of globex/infra", "wash windows!"]
    monkeypatch.setattr(routing_rows, "package_rows", lambda: tuple({"request": text} for text in learned))
    found = bench.run(
        registry,
        write(tmp_path / "queries.jsonl", QUERIES),
        negatives=write(tmp_path / "negatives.jsonl", NEGATIVES),
        systems=["full"],
        embedder=words,
    )
    assert found.settings["learned"] == {"queries": 1, "negatives": 1}
    assert {one.n for one in found.results if one.metric == "top1" and "style" not in one.case} == {3}


def test_nonsense_is_refused(tmp_path: Path, registry: Registry, words: WordEmbedder):
    queries = write(tmp_path / "queries.jsonl", QUERIES[-1:])
    with pytest.raises(ResultsError, match="no request has its tool"):
        bench.run(registry, queries, embedder=words)
    with pytest.raises(ResultsError, match="unknown system 'magic'"):
        bench.run(registry, queries, embedder=words, systems=["magic"])


class Prefixed(WordEmbedder):
    """Sees its prefixes as words of the text; without them it is a plain one."""

    query_prefix, document_prefix = "branch in a branch: ", "tell: "

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return super().embed_queries([self.query_prefix + text for text in texts])

    def without_prefixes(self) -> WordEmbedder:
        return WordEmbedder()


def test_what_the_prefixes_of_an_embedder_do_is_a_row_of_its_own(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    systems = ["full", "dense", "no_prefixes"]
    found = bench.run(registry, queries, systems=systems, embedder=Prefixed())
    plain = bench.run(registry, queries, systems=systems, embedder=words)
    bare = value(found, "top1", n_tools=5, system="no_prefixes")
    assert bare == value(plain, "top1", n_tools=5, system="dense")
    assert bare != value(found, "top1", n_tools=5, system="dense")
    assert found.settings["prefixes"] == {"query": "branch in a branch: ", "document": "tell: "}
    assert not any(one.case.get("system") == "no_prefixes" for one in plain.results)
    assert plain.settings["prefixes"] == {"query": "", "document": ""}
