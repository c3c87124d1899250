"""The bundled embedder, and routing with it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from nexus_lab.cli.route import app
from nexus_lab.paths import cache_dir
from nexus_lab.registry import load_registry
from nexus_lab.routing import (
    EmbedderError,
    Outcome,
    Router,
    SentenceEmbedder,
    check_bundled_embedder,
    load_embedder,
    read_rows,
)
from nexus_lab.routing import embedder as room

if TYPE_CHECKING:
    from nexus_lab.registry import Registry


def test_the_bundled_weights_are_checked_once(monkeypatch: pytest.MonkeyPatch):
    path = check_bundled_embedder()
    assert path.name == "model.safetensors"
    record = json.loads((cache_dir() / "weights.json").read_text())
    assert record[str(path.resolve())]["sha256"] == room.BUNDLED_SHA256

    def refuse(*_: object) -> None:
        raise AssertionError("the weights were read again")

    monkeypatch.setattr(room.hashlib, "file_digest", refuse)
    assert check_bundled_embedder() == path


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "BUNDLED_SHA256", "0" * 64)
    with pytest.raises(EmbedderError, match="have SHA-256 53aa51172d142c89") as caught:
        check_bundled_embedder()
    assert "reinstall" in caught.value.next_step


def test_changed_weights_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    first = room._weights_digest(folder)
    (folder / "model.safetensors").write_bytes(b"other")
    assert room._weights_digest(folder) != first
    monkeypatch.setattr(room, "_bundled_folder", lambda: folder)
    with pytest.raises(EmbedderError, match="have SHA-256"):
        load_embedder()


@pytest.mark.parametrize("spec", ["no/such/folder", "bundle"])
def test_an_embedder_that_is_not_there_is_a_typed_error(spec: str):
    with pytest.raises(EmbedderError, match="there is no embedder"):
        load_embedder(spec)


def test_a_folder_without_a_model_is_a_typed_error(tmp_path: Path):
    with pytest.raises(EmbedderError, match="holds no weights"):
        load_embedder(tmp_path)


@pytest.mark.model
def test_a_folder_with_a_broken_model_is_a_typed_error(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EmbedderError, match="can be loaded"):
        load_embedder(tmp_path)


@pytest.mark.parametrize(
    ("name", "prompts", "prefixes"),
    [
        ("all-MiniLM-L6-v2", {}, ("", "")),
        ("all-MiniLM-L6-v2", {"query": "", "document": ""}, ("", "")),
        ("nomic-ai/nomic-embed-text-v1.5", None, ("search_query: ", "search_document: ")),
        ("intfloat/e5-small-v2", {}, ("query: ", "passage: ")),
        ("any", {"query": "q: ", "passage": "p: "}, ("q: ", "p: ")),
    ],
)
def test_prefixes_are_the_embedders_own(name: str, prompts: dict[str, str] | None, prefixes: tuple[str, str]):
    assert room._prefixes(name, prompts) == prefixes


@pytest.mark.model
def test_the_bundled_embedder_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    told: list[tuple[str, float]] = []
    embedder = load_embedder(on_progress=lambda stage, fraction: told.append((stage, fraction)))
    assert embedder.dim == 384
    assert told[-1] == ("embedder ready", 1.0)
    assert [fraction for _, fraction in told] == sorted(fraction for _, fraction in told)
    assert capfd.readouterr() == ("", "")


@pytest.mark.model
def test_vectors_have_unit_norm_and_mean_something(minilm: SentenceEmbedder):
    rows = minilm.embed_queries(["List the open issues", "Show me all open issues", "Bake a cake"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.6
    assert rows[0] @ rows[2] < 0.3
    assert minilm.embed_documents([]).shape == (0, 384)


@pytest.mark.model
def test_text_that_no_encoding_carries_is_routed(minilm: SentenceEmbedder, registry: Registry):
    router = Router(registry, minilm, store=False)
    router.add_example("\udcff wide", registry.names[0])
    decision = router.route("List issues \ud800")
    assert json.dumps(decision.to_dict(), ensure_ascii=False).encode()


def test_routing_with_the_bundled_embedder(minilm: SentenceEmbedder, registry: Registry):
    router = Router(registry, minilm)
    assert router.calibration.embedder == minilm.fingerprint
    assert router.route("Which tickets are still unresolved in acme/webshop?").tool == "list_issues"
    assert router.route("What time is it in Oslo?").tool == "get_current_time"
    assert router.route("How do I get red wine out of a carpet?").outcome is Outcome.NO_TOOL


@pytest.mark.model
def test_the_dev_queries_over_ten_tools_do_not_get_worse(minilm: SentenceEmbedder, data_dir: Path):
    router = Router(load_registry(data_dir / "registries" / "n10.json"), minilm, store=False)
    rows = [row for row in read_rows(data_dir / "github_routing.dev.jsonl") if 10 in row["gold_in"]]
    places = []
    for row in rows:
        stage = router.scores(row["query"], row["context"])
        gold = stage.fused[stage.names.index(row["gold_tool"])]
        places.append(int((stage.fused > gold).sum()))
    found = np.asarray(places)
    assert len(found) == 138
    # Measured on the half that takes no part in calibrating: 89 % first, 99 % in three.
    assert (found < 1).mean() >= 0.84
    assert (found < 3).mean() >= 0.95


@pytest.mark.model
def test_the_command_prints_a_table_or_json(tmp_path: Path, registry: Registry):
    path = registry.save(tmp_path / "tools.json")
    run = CliRunner().invoke(app, [str(path), "What time is it in Oslo?", "--top-k", "2"])
    assert run.exit_code == 0, run.output
    assert "get_current_time" in run.output
    assert "(shipped)" in run.output
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": "List the open issues"}\n{"query": "use fetch"}\n')
    run = CliRunner().invoke(app, ["request", str(path), "--rows", str(rows), "--json", "-"])
    decisions = [json.loads(line) for line in run.output.splitlines()]
    assert [decision["tool"] for decision in decisions] == ["list_issues", "fetch"]
    out = tmp_path / "decisions.jsonl"
    run = CliRunner().invoke(app, ["request", str(path), "--rows", str(rows), "--json", str(out)])
    assert "list_issues" in run.output  # the tables stand beside a file
    assert [row["tool"] for row in read_rows(out)] == ["list_issues", "fetch"]
