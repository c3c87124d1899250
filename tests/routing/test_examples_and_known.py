"""Examples of tools: their index, and the requests that come with the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry, ToolSpec
from nexus_lab.routing import Router, known
from nexus_lab.routing.examples import ExampleIndex
from nexus_lab.routing.index import ToolIndex
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.training_rows import training_pool

if TYPE_CHECKING:
    from pathlib import Path

DIM = 384


def unit(rng: np.random.Generator, n: int) -> np.ndarray:
    rows = rng.standard_normal((n, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_tool_counts_by_its_nearest_examples():
    rng = np.random.default_rng(0)
    index, rows = ExampleIndex(DIM), unit(rng, 6)
    index.extend("a", ["a0", "a1"], rows[:2])
    index.extend("b", ["b0", "b1", "b2", "b3"], rows[2:])
    query = unit(rng, 1)[0]
    found = index.scores(ToolIndex(DIM).quantise_query(query), ("c", "b", "a"))
    cosines = rows @ query
    np.testing.assert_allclose(found.best, [-1, cosines[2:].max(), cosines[:2].max()], atol=0.03)
    np.testing.assert_allclose(
        found.mean, [-1, np.sort(cosines[2:])[-3:].mean(), cosines[:2].mean()], atol=0.03
    )
    assert found.nearest[0] == -1
    assert index.text(int(found.nearest[2])) == ["a0", "a1"][int(cosines[:2].argmax())]
    index.drop("b", "b1")
    assert index.texts("b") == ("b0", "b2", "b3")
    index.drop("b")
    assert len(index) == 2
    assert index.scores(ToolIndex(DIM).quantise_query(query), ("b",)).nearest[0] == -1


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> ToolSpec:
    spec = tool("fetch", "Download a web page.")
    monkeypatch.setattr(known, "_digests", lambda: json.loads(known.digests_of([spec])))
    monkeypatch.setattr(known, "_by_tool", lambda: {"fetch": ("Brew a page", "Steam 12 pages")})
    return spec


def test_only_the_very_tool_gets_what_comes_along(fetch: ToolSpec, words: WordEmbedder):
    other = tool("fetch", "Fetch the ball.")
    assert known.known_requests(fetch) == ("Brew a page", "Steam 12 pages")
    assert known.known_requests(other) == ()
    router = Router(Registry.of([fetch, tool("search", "Search pages.")]), words, tau=0.0, threshold=0.0)
    decision = router.route("Brew it")
    assert (decision.tool, str(decision.candidates[0].view)) == ("fetch", "example: Brew a page")
    assert decision.candidates[0].example is not None
    assert router.examples == ()
    bare = Router(router.registry, words, tau=0.0, threshold=0.0, known=False)
    assert bare.route("Brew it").candidates[0].example is None


def test_taking_back_a_correction_leaves_what_came_along(fetch: ToolSpec, words: WordEmbedder):
    router = Router(Registry.of([fetch, tool("search", "Search pages.")]), words, tau=0.0, threshold=0.0)
    router.add_example("Steam 99 pages", "fetch")
    router.remove_example("Steam 99 pages", "fetch")
    assert router.route("Steam 3 pages").candidates[0].example == pytest.approx(1, abs=0.02)
    router.remove_tool("fetch")
    router.add_tool(fetch)
    assert router.route("Steam 3 pages").tool == "fetch"


def test_vectors_that_come_along_are_those_of_their_embedder(
    tmp_path: Path, fetch: ToolSpec, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
):
    known.write_known_vectors(tmp_path / "vectors.safetensors", words)
    monkeypatch.setattr(known, "files", lambda _package: tmp_path.parent)
    monkeypatch.setattr(known, "_FOLDER", tmp_path.name)
    known._vectors.cache_clear()
    texts = [normalise(request).text for request in known.known_requests(fetch)]
    found = known.known_vectors(words.fingerprint, texts)
    np.testing.assert_allclose(
        np.stack([found[text] for text in texts]), words.embed_queries(texts), atol=0.002
    )
    assert known.known_vectors("another", texts) == {}
    known._vectors.cache_clear()


def test_a_request_without_a_tool_is_one_only_where_nothing_fits(monkeypatch: pytest.MonkeyPatch):
    checked = [tool("list_branches", "List branches."), tool("run_shell", "Run a command.")]
    digests = json.loads(known.digests_of(checked))
    rows = (
        {"tool": None, "near": ["list_branches"], "fitted_by": ["run_shell"], "request": "Push my clone"},
        {"tool": None, "near": ["list_branches"], "request": "Delete the branch old-login"},
        {"tool": "list_branches", "request": "Which branches are there?"},
    )
    monkeypatch.setattr(known, "_digests", lambda: digests)
    monkeypatch.setattr(known, "package_rows", lambda: rows)

    def requests(*tools: ToolSpec) -> list[str]:
        return [row["request"] for row in known.package_rows_for(Registry.of(tools))]

    push, delete, which = (row["request"] for row in rows)
    assert requests(checked[0]) == [push, delete, which]
    assert requests(*checked) == [delete, which]
    # A tool that no request was held against may do the job.
    assert requests(checked[0], tool("delete_branch", "Delete a branch.")) == [push, which]
    assert requests(checked[0], tool("add_label", "Add a label.")) == [push, delete, which]
    # A tool of that name that does another job has no requests here.
    assert requests(tool("list_branches", "List or delete branches.")) == []


def test_requests_of_the_package_hold_only_beside_the_tools_that_they_were_written_for(
    monkeypatch: pytest.MonkeyPatch,
):
    branches, files = tool("list_branches", "List branches."), tool("read_file", "Read a file.")
    own = tool("joke", "Tell a joke.")
    rows = (
        {"tool": None, "near": [], "request": "How is it going?"},
        {"tool": None, "near": ["list_branches", "read_file"], "request": "Delete old-login"},
        {"tool": "list_branches", "near": ["read_file"], "request": "Which are there?"},
        {"tool": "ends", "description": "Sums up.", "near": ["begins"], "request": "Sum it up"},
    )
    monkeypatch.setattr(known, "_digests", lambda: json.loads(known.digests_of([branches, files])))
    monkeypatch.setattr(known, "package_rows", lambda: rows)

    def told(*tools: ToolSpec) -> list[tuple[str | None, list[str]]]:
        return [(row["tool"], row["near"]) for row in known.package_rows_for(Registry.of(tools))]

    described = ("ends", ["begins"])
    assert told(branches) == [(None, []), (None, ["list_branches"]), ("list_branches", []), described]
    assert told(branches, own) == [(None, ["list_branches"]), ("list_branches", []), described]
    assert told(own) == [described]
    # Where another server has the plain name, the known tool goes by its server's.
    other = tool("list_branches", "List branches of trees.", server="forest")
    mine = tool("list_branches", "List branches.", server="git")
    assert told(other, mine) == [(None, ["git.list_branches"]), ("git.list_branches", []), described]
    pool = training_pool(Registry.of([own]), known.package_rows_for(Registry.of([own])))
    assert pool.rows == ()


def test_every_row_of_the_package_belongs_to_a_tool_or_to_none():
    rows = known.package_rows()
    assert len(rows) > 4000
    for row in rows:
        assert isinstance(row["request"], str)
        assert row["request"].strip()
        assert row["tool"] is None or isinstance(row["tool"], str)
        assert row["tool"] is None or "fitted_by" not in row
        assert set(row.get("fitted_by", ())) <= known._digests().keys()
    kept_out = {"atlassian", "mongodb", "hubspot"}
    assert not kept_out & {row.get("server") for row in rows}
