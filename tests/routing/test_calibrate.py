"""Calibration over files of requests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nexus_lab.cli._app import app
from nexus_lab.routing import (
    CalibrationError,
    Router,
    RowsError,
    calibrate_router,
    read_rows,
    save_calibration,
)
from nexus_lab.routing.abstain import NoTool
from nexus_lab.routing.calibrate_seen import Unknown
from nexus_lab.routing.rows import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from routing_tools import WordEmbedder

    from nexus_lab.registry import Registry


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


OWN = [{"name": "braise", "description": "Braise cabbage"}, {"name": "fry", "description": "Fry leeks"}]
PAIRS = [
    {"query": "List the open issues", "right": "list_issues", "wrong": "search"},
    {"query": "Tell the time", "right": "get_current_time", "wrong": "fetch"},
    {"query": "Search for pages", "right": "search", "wrong": "fetch"},
    {"query": "Merge the branches", "right": "merge", "wrong": "create_branch"},
    {"query": "Braise the cabbage", "right": "braise", "wrong": "fry", "tools": OWN},
]
NEGATIVES = [
    {"query": "Dismantle my bicycle", "kind": "out_of_domain", "registry_valid": [5]},
    {"query": "Dismantle my bicycle", "kind": "elsewhere", "registry_valid": [50]},
    {"query": "Wash the windows", "kind": "irrelevance", "tools": OWN},
]


def test_thresholds_and_rates_come_from_the_requests(tmp_path: Path, registry: Registry, words: WordEmbedder):
    pairs, negatives = write(tmp_path / "pairs.jsonl", PAIRS), write(tmp_path / "negatives.jsonl", NEGATIVES)
    router = Router(registry, words)
    found = calibrate_router(router, pairs, negatives=[negatives], percentile=50, target=0.4)
    margins = sorted(router.route(row["query"]).margin for row in PAIRS[:3])
    assert (found.gate.tau, found.gate.n) == (pytest.approx(margins[1]), 3)
    assert found.gate.source == "3 requests of pairs.jsonl over registry (5 tools)"
    rates = {(rate["group"], rate["over"]): rate for rate in found.abstention.rates}
    assert rates["answerable", "registry"]["n"] == 3
    assert rates["out_of_domain", "registry"] == {
        "group": "out_of_domain",
        "over": "registry",
        "n": 1,
        "refused": 1,
        "share": 1.0,
        "auroc": 1.0,
        "folds": 1,
    }
    assert ("elsewhere", "registry") not in rates
    assert rates["irrelevance", "candidates of the row"]["auroc"] == 1.0
    assert found.embedder == "words-1"
    assert len(found.settings["pairs_sha256"]) == 64
    assert found.command == (
        "nexus-lab route calibrate --pairs pairs.jsonl --registry registry --negatives negatives.jsonl "
        "--percentile 50 --target 0.4"
    )


def test_a_stored_calibration_is_used_by_the_next_router(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    found = calibrate_router(Router(registry, words), write(tmp_path / "pairs.jsonl", PAIRS))
    save_calibration(found)
    router = Router(registry, words)
    assert router.tau == found.gate.tau
    assert router.threshold == pytest.approx(found.abstention.at(6))
    assert router.route("Tell the time").settings["tau_from"] == "user"


class Oracle:
    """A cross-encoder that knows the tool of some requests, and is wrong about all others."""

    name, fingerprint = "oracle", "oracle-1"

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        self.asked: list[str] = []

    def score(self, request: str, documents: Sequence[str]) -> NDArray[np.float32]:
        self.asked.append(request)
        start = self._known.get(request)
        return np.asarray(
            [0.0 if start is None else 5.0 * document.startswith(start) for document in documents],
            np.float32,
        )


def test_reading_is_weighed_apart_over_tools_that_nobody_knows(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    rows = [
        {"query": "What needs doing", "gold_tool": "list_issues"},
        {"query": "How late is it", "gold_tool": "get_current_time"},
        {"query": "Merge it", "gold_tool": "merge"},
    ]
    reader = Oracle({"What needs doing": "list issues", "How late is it": "get current time"})
    router = Router(registry, words, cross_encoder=reader)
    pairs = write(tmp_path / "pairs.jsonl", PAIRS[:3])
    unknown = Unknown(registry, write(tmp_path / "unknown.jsonl", rows))
    found = calibrate_router(router, pairs, unknown=unknown)
    # Of the pairs the scores alone find every tool, so reading, which says nothing of them, counts least.
    assert found.reader_weight == 0.0
    assert found.reader_weight_unknown is not None
    assert found.reader_weight_unknown > 0.0
    assert found.command.endswith("--unknown unknown.jsonl --unknown-registry registry")
    assert len(found.settings["unknown_sha256"]) == 64
    assert calibrate_router(router, pairs).reader_weight_unknown is None
    save_calibration(found)
    again = Router(registry, words, cross_encoder=reader)
    assert again.reader_weights == (0.0, found.reader_weight_unknown)


def test_only_requests_for_tools_that_training_left_out_weigh_reading(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    names = ("list_issues", "get_current_time", "create_branch", "fetch", "search")
    rows = write(
        tmp_path / "unknown.jsonl",
        [{"query": f"Do {name.replace('_', ' ')}", "gold_tool": name} for name in names],
    )
    pairs = write(tmp_path / "pairs.jsonl", PAIRS[:3])
    reader = Oracle({})
    calibrate_router(
        Router(registry, words, cross_encoder=reader), pairs, unknown=Unknown(registry, rows, 0.5)
    )
    asked = {request for request in reader.asked if request.startswith("Do ")}
    apart = {f"Do {name.replace('_', ' ')}" for name in names if share_of(name) < 0.5}
    assert asked == apart
    assert 0 < len(apart) < len(names)
    with pytest.raises(CalibrationError, match="kept apart"):
        calibrate_router(
            Router(registry, words, cross_encoder=reader), pairs, unknown=Unknown(registry, rows, 1e-9)
        )


def test_unknown_requests_come_with_their_registry(tmp_path: Path, registry: Registry):
    path, pairs = registry.save(tmp_path / "tools.json"), write(tmp_path / "pairs.jsonl", PAIRS)
    told = ["route", "calibrate", "--pairs", str(pairs), "--registry", str(path), "--unknown", str(pairs)]
    run = CliRunner().invoke(app, told)
    assert run.exit_code != 0
    assert "go together" in str(run.exception)


def test_pairs_of_another_registry_do_not_calibrate(tmp_path: Path, registry: Registry, words: WordEmbedder):
    with pytest.raises(CalibrationError, match="has its right tool"):
        calibrate_router(Router(registry, words), write(tmp_path / "pairs.jsonl", PAIRS[3:]))


def test_pairs_may_be_as_training_has_them(tmp_path: Path, registry: Registry, words: WordEmbedder):
    rows = [{"request": row["query"], "tool": row["right"]} for row in PAIRS[:3]]
    found = calibrate_router(Router(registry, words), write(tmp_path / "rows.jsonl", rows))
    assert found.gate.n == 3


def test_no_request_within_the_share_says_so(tmp_path: Path, registry: Registry, words: WordEmbedder):
    path = write(tmp_path / "pairs.jsonl", PAIRS[:3])
    with pytest.raises(CalibrationError, match="within the share 1e-09"):
        calibrate_router(Router(registry, words), path, share=1e-9)


@pytest.mark.parametrize("options", [{"percentile": 0.0}, {"percentile": 100.0}, {"target": 0.0}])
def test_what_cannot_be_asked_for_is_refused_before_anything_is_read(
    registry: Registry, words: WordEmbedder, tmp_path: Path, options: dict[str, float]
):
    with pytest.raises(CalibrationError, match=next(iter(options))):
        calibrate_router(Router(registry, words), tmp_path / "none.jsonl", **options)


def test_no_tool_stays_where_it_cannot_be_fitted_anew(
    tmp_path: Path, registry: Registry, words: WordEmbedder
):
    path = write(tmp_path / "pairs.jsonl", PAIRS[:3])
    first = calibrate_router(Router(registry, words), path)
    assert first.no_tool is None
    # Nobody's scores but those of this registry pass: so low a limit would refuse them all.
    known = NoTool({"dense": 0.0}, 0.0, 0.25, 100, 50, "others")
    save_calibration(replace(first, no_tool=known))
    router = Router(registry, words)
    assert router.route("Tell the time").tool is None
    found = calibrate_router(router, path)
    assert found.no_tool is not None
    assert (found.no_tool.weights, found.no_tool.intercept) == (known.weights, known.intercept)
    assert found.no_tool.limit == pytest.approx(0.5)
    assert found.no_tool.source == "others; its limit by 3 requests of pairs.jsonl over registry (5 tools)"
    assert found.abstention.rates[0]["refused"] == 0
    save_calibration(found)
    assert Router(registry, words).route("Tell the time").tool == "get_current_time"


def test_pairs_that_name_no_tool_say_so(tmp_path: Path, registry: Registry, words: WordEmbedder):
    rows = [{"query": "What is open?"}, {"query": "And now?", "right": ["fetch"]}]
    with pytest.raises(CalibrationError, match="names its tool under 'right'") as caught:
        calibrate_router(Router(registry, words), write(tmp_path / "pairs.jsonl", rows))
    assert "list_issues" in caught.value.next_step


@pytest.mark.parametrize(
    ("option", "value"),
    [("--percentile", "101"), ("--risk", "-1"), ("--share", "2"), ("--held", "x"), ("--target", "1.5")],
)
def test_a_share_beyond_its_range_is_refused_before_anything_is_loaded(option: str, value: str):
    words = ["route", "calibrate", "--pairs", "p", "--registry", "r", option, value]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 2
    assert option in run.output
    run = CliRunner().invoke(app, ["train-gate", "--registry", "r", "--requests", "p", "--kept-apart", "3"])
    assert run.exit_code == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"query": "a"}\n{', "line 2"),
        ('{"query": 3}', "no text under"),
        ("[1]", "line 1"),
        ('{"query": "a", "context": "hi"}', "line 1 .* no list of turns"),
        ('{"query": "a", "context": ["hi"]}', "no list of turns"),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path: Path, text: str, part: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(RowsError, match=part):
        read_rows(path)
    with pytest.raises(RowsError, match="cannot be read"):
        read_rows(tmp_path / "missing.jsonl")
