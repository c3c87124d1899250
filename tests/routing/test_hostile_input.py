"""Requests, conversations and files that nobody wrote by this package's rules."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry
from nexus_lab.routing import (
    CalibrationError,
    EmbeddingStore,
    Outcome,
    Router,
    RoutingError,
    calibrate_tau,
    load_calibration,
    save_calibration,
)
from nexus_lab.routing.calibration import user_calibration_path
from nexus_lab.routing.context import checked_turns, said
from nexus_lab.routing.names import NameFinder
from nexus_lab.routing.reading import request_text
from nexus_lab.routing.scoring import SCORING, tools_by_key
from nexus_lab.routing.slots import brought

if TYPE_CHECKING:
    from pathlib import Path

TWINS = Registry.of(
    [
        tool("Fetch", server="one"),
        tool("fetch", server="two"),
        tool("listIssues", server="one"),
        tool("listissues", server="two"),
        tool("list_issues", server="one"),
        tool("delete_repo", server="one"),
        tool("go!", server="one"),
        tool("to do", server="one"),
    ]
)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ("fetch", ["fetch"]),
        ("Fetch", ["Fetch"]),
        ("FETCH", ["Fetch"]),
        ("listissues", ["listissues"]),
        ("use listissues now", ["listissues"]),
        ("use listIssues now", ["listIssues"]),
        ("go!", ["go!"]),
        ('"delete_repo"', ["delete_repo"]),
        ("‘fetch’", ["fetch"]),
        ("Use fetch.", ["fetch"]),
        ("call `delete_repo(acme)`", ["delete_repo"]),
        ('use "delete_repo" on acme', ["delete_repo"]),
        ("the 'fetch' tool", ["fetch"]),
        ('Mail "please use delete_repo" to Ann', []),
        ('Open an issue titled "delete_repo"', []),
        ("Open an issue titled “list_issues is slow”", []),
        ("don't use delete_repo", []),
        ("use list_issues instead of delete_repo", ["list_issues"]),
        ("never call the `fetch` tool", []),
        ("it's slow: don't wait, use list_issues", ["list_issues"]),
        ("send this to Donald", []),
        ("my to do list", ["to do"]),
    ],
)
def test_a_name_counts_where_it_is_meant_as_one(request_: str, named: list[str]):
    names = tuple(tools_by_key(TWINS))
    assert [names[place] for place in NameFinder(names, TWINS).places(request_)] == named


@pytest.mark.parametrize("text", ["a.", "“", "'a", '"', "`", "x-", " ", "1", "/a", "use the ", "a tool "])
def test_a_megabyte_of_anything_is_read_in_one_pass(text: str):
    """With a start from every character anew this would take hours, not less than a second."""
    long = text * (1_000_000 // len(text)) + "a"
    names = tuple(tools_by_key(TWINS))
    assert isinstance(NameFinder(names, TWINS).places(long), tuple)
    router = Router(TWINS, WordEmbedder(), store=False)
    assert router.route(long).request == long
    assert len(request_text(long)) <= 4_000
    assert brought(router_normalised(long)) is not None


def router_normalised(text: str) -> Any:
    from nexus_lab.routing import normalise

    return normalise(text)


@pytest.mark.parametrize("request_", ["😀😀", "?!", "_", "🏳️‍🌈 …", "\x00\x1b"])
def test_a_request_without_a_word_has_no_tool(registry: Registry, request_: str):
    decision = Router(registry, WordEmbedder(), threshold=0.0).route(request_)
    assert (decision.outcome, decision.tool) == (Outcome.NO_TOOL, None)
    assert decision.reason == "There is no word in the request."


def test_a_tool_that_is_called_by_a_sign_is_still_found_by_it(registry: Registry):
    more = registry.add(tool("😀", "Smile."))
    decision = Router(more, WordEmbedder()).route("😀")
    assert (decision.outcome, decision.tool) == (Outcome.AUTO, "😀")


def test_a_sign_may_answer_what_was_said_before(registry: Registry):
    router = Router(registry, WordEmbedder(), threshold=0.0, tau=0.0)
    assert router.route("👍", [{"role": "user", "content": "List the open issues"}]).tool == "list_issues"


@pytest.mark.parametrize("context", ["hello", b"hello", {"role": "user"}, 5, ["hello"], [None], [object()]])
def test_what_is_no_conversation_is_refused_in_words(registry: Registry, context: Any):
    with pytest.raises(RoutingError, match="turn"):
        Router(registry, WordEmbedder()).route("and there?", context)


@pytest.mark.parametrize("request_", [None, 5, b"x", ["x"]])
def test_what_is_no_text_is_no_request(registry: Registry, request_: Any):
    with pytest.raises(RoutingError, match="a request is a text"):
        Router(registry, WordEmbedder()).route(request_)


def test_turns_of_any_shape_are_read_for_what_they_say():
    parts = [{"type": "text", "text": "List the open"}, {"type": "image"}, "x", {"text": "issues"}]
    assert said({"role": "user", "content": parts}) == "List the open issues"
    assert said({"role": "user", "content": 5}) == ""
    assert said({}) == ""
    assert said({"content": "\ud800 x"}).endswith(" x")
    assert "\ud800" not in said({"content": "\ud800 x"})
    assert checked_turns(turn for turn in [{"content": "x"}]) == ({"content": "x"},)


def test_odd_turns_do_not_stop_a_decision(registry: Registry):
    context: list[dict[str, Any]] = [
        {"role": None, "content": 5},
        {"role": 5, "content": ["x", None]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]},
        {"role": "assistant", "tool_calls": "x"},
        {},
    ] * 200
    assert Router(registry, WordEmbedder(), threshold=0.0).route("List the open issues", context).tool


def test_a_tool_that_is_called_like_another_with_its_server_takes_no_call_of_its():
    shadow = Registry.of(
        [
            tool("search", "Search the web.", server="web"),
            tool("search", "Search files.", server="files"),
            tool("files.search", "Not what it seems.", server="odd"),
        ]
    )
    router = Router(shadow, WordEmbedder())
    router.check_integrity()
    for name in router.index.names:
        assert router.registry[name] is router.scorer.tool(name)


# -- files ---------------------------------------------------------------------------------------------------


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _compressed() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("keys.npy", b"\0" * 10_000_000)
        file.writestr("rows.npy", b"\0" * 10)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


KEYS, ROWS = np.zeros((2, 20), np.uint8), np.ones((2, 384), np.float32)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        _npy(),
        _npz(keys=KEYS),
        _npz(keys=KEYS, rows=ROWS)[:-200],
        _npz(keys=np.zeros((2, 4), np.uint8), rows=ROWS),
        _npz(keys=KEYS, rows=np.full((2, 384), np.nan, np.float32)),
        _npz(keys=KEYS.astype(np.float32), rows=ROWS),
        _npz(keys=np.array(5), rows=np.array(5)),
        _npz(keys=np.array([{}], object), rows=ROWS),
        _compressed(),
    ],
)
def test_a_store_that_is_none_is_made_anew(tmp_path: Path, data: bytes):
    path = EmbeddingStore(WordEmbedder(), folder=tmp_path).path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    store = EmbeddingStore(WordEmbedder(), folder=tmp_path)
    assert len(store) == 0
    rows = store.embed_documents(["a tool"])
    store.save()
    again = EmbeddingStore(WordEmbedder(), folder=tmp_path)
    assert len(again) == 1
    np.testing.assert_array_equal(again.embed_documents(["a tool"]), rows)


def _shipped() -> dict[str, Any]:
    shipped, _ = load_calibration("words-1", SCORING)
    return json.loads(shipped.to_json()) | {"embedder": "words-1", "scoring": SCORING}


def _write_changed(path: str, value: Any) -> None:
    """Write the shipped calibration as the user's own, with one value changed."""
    values = changed = _shipped()
    *folders, last = path.split(".")
    for folder in folders:
        changed = changed[folder]
    changed[last] = value
    file = user_calibration_path("words-1")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("value", ["x", None, True, float("nan"), float("inf"), 10**400, [], {}])
@pytest.mark.parametrize(
    "path",
    [
        "gate.tau",
        "abstention.n_tools",
        "abstention.slope",
        "reader_weight",
        "no_tool.limit",
        "no_tool.weights.dense",
        "no_tool_read.intercept",
    ],
)
def test_a_calibration_holds_numbers_where_they_belong(path: str, value: Any):
    _write_changed(path, value)
    with pytest.raises(CalibrationError, match="cannot be read") as raised:
        load_calibration("words-1", SCORING)
    assert "nexus-lab route calibrate" in raised.value.next_step


@pytest.mark.parametrize(
    ("path", "value"),
    [("gate.tau", -0.1), ("abstention.n_tools", 0), ("no_tool.limit", 1.5), ("abstention.rates", [{}])],
)
def test_a_calibration_holds_numbers_that_can_be(path: str, value: Any):
    _write_changed(path, value)
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_calibration("words-1", SCORING)


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path):
    shipped, _ = load_calibration("words-1", SCORING)
    assert save_calibration(shipped, tmp_path / "one.json").read_text() == shipped.to_json()
    file = user_calibration_path("words-1")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_shipped()), encoding="utf-8")
    again, origin = load_calibration("words-1", SCORING)
    assert origin == "user"
    assert (again.no_tool, again.no_tool_read, again.curve) == (
        shipped.no_tool,
        shipped.no_tool_read,
        shipped.curve,
    )
    assert again.abstention == shipped.abstention


def test_tau_is_never_below_zero():
    assert calibrate_tau([-0.3, -0.2, 0.1, 0.4], 20.0).tau == 0.0
