"""Training the gate: what is learned from, and that a break leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console
from routing_tools import WordEmbedder, tool
from typer.testing import CliRunner

from nexus_lab.cli._app import app
from nexus_lab.cli.train_gate import _next
from nexus_lab.registry import Registry
from nexus_lab.routing import RoutingError, RowsError
from nexus_lab.routing.reading import request_text, tool_text
from nexus_lab.routing.train_gate import Lesson, Trained, train_reader
from nexus_lab.routing.training_rows import described_tools, share_of, training_pool
from nexus_lab.routing.tune_reader import ReaderRecipe, tune_reader
from nexus_lab.routing.tuning_lists import candidate_lists
from nexus_lab.routing.weights import read_card, weights_folder

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {"tool": "list_issues", "request": "What is open in acme/docs?"},
    {"tool": "list_issues", "request": "Show me the tickets of globex/infra"},
    {"tool": "create_branch", "request": "Start a line of work called x in acme/docs"},
    {"tool": "get_current_time", "request": "How late is it in Oslo?"},
    {"tool": "fetch", "request": "Get me the text of https://example.org"},
    {"tool": None, "near": ["create_branch"], "request": "Delete the branch x"},
    {"tool": "merge", "request": "Merge it"},
]


def test_rows_that_no_tool_of_the_registry_answers_are_left_out(registry: Registry):
    pool = training_pool(registry, ROWS, without_servers=["time"])
    assert [row.tools for row in pool.rows] == [
        ("list_issues",),
        ("list_issues",),
        ("create_branch",),
        ("fetch",),
        (),
    ]
    assert "get_current_time" not in pool.tools
    assert pool.rows[-1].near == ("create_branch",)


def test_a_share_of_the_tools_is_kept_apart_by_their_names(registry: Registry):
    pool = training_pool(registry, ROWS, kept_apart=0.5)
    assert set(pool.tools) == {name for name in registry.names if share_of(name) >= 0.5} | {
        key for key in pool.tools if "." in key
    }
    assert all(set(row.tools) <= set(pool.tools) for row in pool.rows)


def test_a_list_has_the_right_tool_and_the_likeliest_mistakes(registry: Registry, words: WordEmbedder):
    lists = candidate_lists(training_pool(registry, ROWS), words, wrong=3)
    first, without = lists[0], lists[-1]
    assert [one.tool.name for one in first.right] == ["list_issues"]
    assert first.right[0].example == "Show me the tickets of"
    assert len(first.wrong) == 3
    assert "list_issues" not in {one.tool.name for one in first.wrong}
    assert without.right == ()
    assert without.wrong[0].tool.name == "create_branch"


def test_a_near_copy_on_another_server_is_no_mistake(words: WordEmbedder):
    same = "Read the whole content of one file from disk"
    twins = [tool("read_file", same, server=server) for server in ("a", "b")]
    other = tool("write_file", "Write text into one file on disk", server="b")
    pool = training_pool(
        Registry.of([*twins, other]), [{"tool": "read_file", "request": "Read the file from disk"}]
    )
    (found,) = candidate_lists(pool, words)
    assert [one.tool.name for one in found.wrong] == ["write_file"]


def test_a_cross_encoder_reads_kinds_in_place_of_names():
    assert (
        request_text("What does ticket 482 in acme/webshop say?") == "What does ticket 7 in a repository say?"
    )
    context = [{"role": "user", "content": "Look at acme/webshop."}]
    assert request_text("And the open ones?", context) == "Look at a repository | And the open ones?"
    spec = tool("issue_read", "Get an issue.", method={"enum": ["get", "get_comments"]}, owner={})
    assert tool_text(spec, example="Read it") == (
        "issue read (get, get comments) as in: Read it. Get an issue. with method, owner"
    )


@pytest.mark.model
def test_training_writes_weights_that_the_next_router_reads(nexus_home: Path, registry: Registry):
    told: list[float] = []
    so_far = nexus_home / "so_far"
    trained = train_reader(
        [Lesson(registry, ROWS)],
        recipe=ReaderRecipe(requests=3, candidates=3, epochs=1.0, checkpoint_seconds=0.0),
        without_servers=["time"],
        held=0.0,
        checkpoints=so_far,
        command="test",
        on_progress=lambda _what, done: told.append(done),
    )
    card = read_card(weights_folder("reader"), "reader")
    assert trained.path == nexus_home / "data" / "gate" / card["file"]
    assert card["learned_from"][0]["requests"] == 5
    assert (card["servers_kept_apart"], card["requests_held"]) == (["time"], 0.0)
    assert read_card(so_far, "reader")["done"]["finished"] is False
    assert card["learned_from"][0]["without_tool"] == 1
    asked = "\n".join(row["request"] for row in ROWS if row["tool"] not in ("get_current_time", "merge"))
    assert card["requests_sha256"] == hashlib.sha256(asked.encode()).hexdigest()
    assert card["done"]["note"].startswith(f"{card['done']['requests'] / 5:.2f} passes over 5 requests, on ")
    shipped = read_card(files("nexus_lab.routing").joinpath("weights"), "reader")
    assert shipped.keys() <= card.keys()
    for part in ("done", "recipe"):
        assert shipped[part].keys() <= card[part].keys()
    assert shipped["learned_from"][0].keys() <= card["learned_from"][0].keys()
    assert told == sorted(told)
    from nexus_lab.routing.reader import load_reader

    reader = load_reader()
    assert reader.fingerprint == card["sha256"]
    scores = reader.score(
        "How late is it?", ["get current time Tell the time.", "fetch Download a web page."]
    )
    assert np.isfinite(scores).all()
    assert scores[0] > scores[1]


@pytest.mark.model
def test_a_break_leaves_the_old_weights(nexus_home: Path, registry: Registry, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:4]))
    path = registry.save(tmp_path / "tools.json")

    def stop(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nexus_lab.routing.train_gate.tune_reader", stop)
        run = CliRunner().invoke(app, ["train-gate", "--registry", str(path), "--requests", str(rows)])
    assert run.exit_code != 0
    assert "the weights are as they were" in str(run.exception)
    assert not (nexus_home / "data" / "gate").exists()


def test_the_name_of_a_registry_is_no_markup(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:4]))
    path = registry.save(tmp_path / "tools.json")
    card = {"learned_from": [], "done": {"note": "one pass", "seconds": 7}, "requests_held": 0.1}

    def trained(_lessons: object, **options: Any) -> Trained:
        options["on_progress"]("finding what 4 requests of [/x]\x1b[2J are mistaken for", 0.5)
        return Trained(tmp_path / "reader", card)

    shown = StringIO()
    monkeypatch.setattr("nexus_lab.routing.train_gate.train_reader", trained)
    terminal = Console(file=shown, width=200, force_terminal=True)
    for module in ("train_gate", "_progress"):
        monkeypatch.setattr(f"nexus_lab.cli.{module}.console", terminal)
    run = CliRunner().invoke(app, ["train-gate", "--registry", str(path), "--requests", str(rows)])
    assert run.exit_code == 0, run.exception
    assert "requests of [/x]" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()
    told = " ".join(shown.getvalue().split())
    assert "one pass, in 7 s" in told
    assert f"nexus-lab route calibrate --registry {path} --pairs {rows}" in told
    held = sum(share_of(row["request"]) < 0.1 for row in ROWS[:4])
    assert f"of these 4 requests {held} took no part in training" in told


def test_the_next_step_takes_what_was_held_where_that_is_enough(registry: Registry, tmp_path: Path):
    rows = [{"query": f"Request {number}", "tool": "fetch"} for number in range(400)]
    held = sum(share_of(row["query"]) < 0.1 for row in rows)
    assert held >= 20
    path, lesson = tmp_path / "my tools.json", Lesson(registry, rows)
    lines = list(_next([path], ["package,rows.jsonl"], [lesson], 0.1))
    assert lines[0] == f"calibrate the gate next, on the {held} requests that were held back from training:"
    assert lines[1].endswith(f"--registry '{path}' --pairs rows.jsonl --share 0.1")
    assert "FILE" in next(_next([path], ["package"], [lesson], 0.1))


def test_requests_as_calibrations_have_them_are_learned_from_too(registry: Registry):
    rows = [{"query": "What is open?", "right": "list_issues"}, {"query": "And now?", "right": ["odd"]}]
    found = training_pool(registry, rows).rows
    assert [(row.request, row.tools) for row in found] == [("What is open?", ("list_issues",))]


@pytest.mark.parametrize(
    ("epochs", "count", "why"), [(3.0, 5, "5 requests are too few"), (0.1, 6, "less than one request")]
)
def test_training_on_too_little_is_refused(
    registry: Registry, words: WordEmbedder, epochs: float, count: int, why: str
):
    lists = candidate_lists(training_pool(registry, ROWS), words)[:count]
    with pytest.raises(RoutingError, match=why):
        tune_reader(None, None, lists, ReaderRecipe(requests=6, epochs=epochs), lambda _what, _done: None)


def test_parameters_of_described_tools_are_by_name():
    row = {"tool": "braise", "request": "Braise it", "description": "Braise", "parameters": {"dish": "What"}}
    assert described_tools([row])["braise"].properties == {"dish": {"description": "What"}}
    with pytest.raises(RowsError, match="of braise are not given by name"):
        described_tools([{**row, "parameters": ["dish"]}])


def test_there_must_be_something_to_learn_from(registry: Registry):
    with pytest.raises(RoutingError, match="no request has its tool"):
        train_reader([Lesson(registry, ROWS[-1:])], held=0.0)


@pytest.mark.model
@pytest.mark.parametrize(("kernel", "off"), [("float32", 1e-4), ("int8", 0.1)])
def test_pairs_score_the_same_however_they_are_read_together(kernel: str, off: float):
    from nexus_lab.routing.pair_model import pair_scores
    from nexus_lab.routing.reader import load_reader

    # In INT8 a last bit that differs may round to another level.
    reader = load_reader(kernel)
    texts = ["fetch Download a web page.", "get current time", "list issues " + "of a repository " * 12]
    one_by_one = np.concatenate([reader.score("How late is it?", [text]) for text in texts])
    pairs = [("How late is it?", text) for text in texts]
    for together in (2, 3):
        found = pair_scores(reader._model, reader._tokenizer, pairs, together=together)
        np.testing.assert_allclose(found.detach().numpy(), one_by_one, atol=off)


@pytest.mark.model
def test_int8_reads_nearly_as_float32_does():
    from nexus_lab.routing.reader import load_reader

    texts = ["fetch Download a web page.", "get current time Tell the time.", "list issues of a repository"]
    exact, fast = (load_reader(kernel) for kernel in ("float32", "int8"))
    assert (exact.kernel, fast.kernel) == ("float32", "int8")
    assert exact.fingerprint == fast.fingerprint
    for request in ("How late is it?", "What does this page say?", "What is open?"):
        wanted, found = exact.score(request, texts), fast.score(request, texts)
        assert found.argmax() == wanted.argmax()
        np.testing.assert_allclose(found, wanted, atol=0.5)
    with pytest.raises(RoutingError, match="no kernel 'int4'"):
        load_reader("int4")


def test_an_int8_layer_keeps_packed_weights_and_scales_each_token_by_itself():
    import torch

    from nexus_lab.routing.int8_layers import Int8Linear, with_int8_layers
    from nexus_lab.routing.weights import pack, unpack

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 32)
    packed = pack({"weight": layer.weight.detach().numpy()})
    with torch.inference_mode():
        layer.weight.copy_(torch.from_numpy(unpack(packed)["weight"]))
        fast = Int8Linear(layer)
        assert np.array_equal(fast.rows.numpy(), packed["weight"])
        hidden = torch.randn(2, 5, 64)
        hidden[0, 0] *= 1000  # one token's size is no other's business
        found, wanted = fast(hidden), layer(hidden)
        assert found.shape == (2, 5, 32)
        error = (found - wanted).abs().amax(-1) / wanted.abs().amax(-1)
        assert float(error.max()) < 0.03
        torch.testing.assert_close(fast(hidden[1:]), found[1:])
        assert torch.equal(fast(torch.zeros(1, 64)), layer.bias[None])
    whole = with_int8_layers(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 2)))
    )
    assert [type(one).__name__ for one in whole.modules()].count("Int8Linear") == 2
