"""Vectors kept on disk, and thresholds with their provenance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.routing import (
    Calibration,
    CalibrationError,
    EmbeddingStore,
    RouterCalibration,
    auroc,
    calibrate_abstention,
    calibrate_tau,
    load_calibration,
    save_calibration,
)
from nexus_lab.routing.calibrate import _WORTH_READING
from nexus_lab.routing.calibrate_fitting import FOLDS
from nexus_lab.routing.calibration import user_calibration_path
from nexus_lab.routing.scoring import SCORING
from nexus_lab.routing.weights import read_card, weights_folder

if TYPE_CHECKING:
    from pathlib import Path

    from routing_tools import WordEmbedder


def test_vectors_of_tools_are_computed_once(words: WordEmbedder, tmp_path: Path):
    store = EmbeddingStore(words, folder=tmp_path)
    first = store.embed_documents(["list issues", "fetch a page", "list issues"])
    store.save()
    assert words.embedded == ["list issues", "fetch a page"]
    again = EmbeddingStore(words, folder=tmp_path)
    assert np.array_equal(again.embed_documents(["fetch a page", "list issues"]), first[[1, 0]])
    assert len(words.embedded) == 2


def test_requests_are_remembered_only_when_asked(words: WordEmbedder, tmp_path: Path):
    plain, keeping = (
        EmbeddingStore(words, folder=tmp_path),
        EmbeddingStore(words, folder=tmp_path, queries=True),
    )
    for store, embedded in ((plain, 2), (keeping, 3)):
        store.embed_queries(["hello"])
        store.embed_queries(["hello"])
        assert len(words.embedded) == embedded


def test_no_text_is_written_to_disk(words: WordEmbedder, tmp_path: Path):
    store = EmbeddingStore(words, folder=tmp_path)
    store.embed_documents(["a very private description"])
    store.save()
    assert b"private" not in store.path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half"])
def test_a_broken_file_is_made_anew(words: WordEmbedder, tmp_path: Path, content: bytes):
    store = EmbeddingStore(words, folder=tmp_path)
    store.path.write_bytes(content)
    again = EmbeddingStore(words, folder=tmp_path)
    assert len(again) == 0
    again.embed_documents(["x"])
    again.save()
    assert len(EmbeddingStore(words, folder=tmp_path)) == 1


def test_vectors_of_another_size_are_not_taken(words: WordEmbedder, tmp_path: Path):
    store = EmbeddingStore(words, folder=tmp_path)
    np.savez(store.path, keys=np.zeros((1, 20), np.uint8), rows=np.zeros((1, 7), np.float32))
    assert len(EmbeddingStore(words, folder=tmp_path)) == 0


def test_tau_is_the_percentile_of_the_margins():
    found = calibrate_tau([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 20, source="six")
    assert found == Calibration(tau=pytest.approx(0.1), percentile=20, n=6, source="six")


@pytest.mark.parametrize(
    ("margins", "percentile"), [([], 20), ([float("nan")], 20), ([0.1], 0), ([0.1], 100)]
)
def test_nonsense_does_not_calibrate(margins: list[float], percentile: float):
    with pytest.raises(CalibrationError):
        calibrate_tau(margins, percentile)


def test_the_threshold_grows_with_the_number_of_tools():
    found = calibrate_abstention(
        {10: [0.2, 0.3, 0.4], 100: [0.3, 0.4, 0.5], 1000: [0.4, 0.5, 0.6]}, target=0.5
    )
    assert found.at(10) == pytest.approx(0.3)
    assert found.at(1000) == pytest.approx(found.threshold) == pytest.approx(0.5)
    assert found.at(1) == pytest.approx(0.2)
    assert found.n_tools == 1000


def test_one_size_alone_gives_a_flat_threshold():
    found = calibrate_abstention({50: [0.1, 0.2, 0.3]}, target=0.5)
    assert found.at(1) == found.at(10_000) == pytest.approx(0.2)
    with pytest.raises(CalibrationError):
        calibrate_abstention({50: []})
    with pytest.raises(CalibrationError):
        calibrate_abstention({50: [0.1]}, target=1)


VALUES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=12)


@given(higher=VALUES, lower=VALUES)
def test_the_auroc_is_the_share_of_won_pairs(higher: list[float], lower: list[float]):
    won = sum((a > b) + 0.5 * (a == b) for a in higher for b in lower)
    assert auroc(higher, lower) == pytest.approx(won / (len(higher) * len(lower)))


def calibration(embedder: str, tau: float = 0.25) -> RouterCalibration:
    return RouterCalibration(
        gate=Calibration(tau, 20, 5, "five"),
        abstention=calibrate_abstention({5: [0.1, 0.2]}, source="two"),
        embedder=embedder,
        scoring=SCORING,
        command="nexus-lab route calibrate",
    )


def test_the_shipped_calibration_says_where_it_comes_from():
    shipped, origin = load_calibration("some embedder", SCORING)
    assert origin == "shipped for another embedder"
    own, origin = load_calibration(shipped.embedder, SCORING)
    assert origin == "shipped"
    assert own.gate.n > 100
    assert 0 <= own.gate.percentile <= 100
    assert own.reader == read_card(weights_folder("reader"), "reader")["sha256"]
    assert [row["share"] for row in own.curve] == sorted(row["share"] for row in own.curve)
    assert own.no_tool is not None
    # A cross-encoder that counts for next to nothing is not heard on whether any tool fits.
    assert (own.no_tool_read is not None) == (own.reader_weight >= _WORTH_READING)
    assert own.command.startswith("nexus-lab route calibrate --pairs")
    assert {rate["group"] for rate in own.abstention.rates} >= {"answerable", "near_miss"}
    assert {rate["folds"] for rate in own.abstention.rates} == {FOLDS}
    assert own.scoring == SCORING


def test_a_calibration_of_the_user_comes_first():
    mine = calibration("words-1")
    path = save_calibration(mine)
    assert path == user_calibration_path("words-1")
    assert load_calibration("words-1", SCORING) == (mine, "user")
    assert load_calibration("words-1", "another scoring")[1] == "shipped for another embedder"


def signals(*names: str) -> dict[str, Any]:
    return {"weights": dict.fromkeys(names, 1.0), "intercept": 0.0, "limit": 0.5, "n": 9, "n_none": 4}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 1}, "version 1, not 2"),
        ({"no_tool": signals("dense", "lead")}, "no signal 'lead'"),
        ({"no_tool": signals("dense", "reader_best")}, "no signal 'reader_best'"),
        ({"no_tool_read": signals("reader_worst")}, "no signal 'reader_worst'"),
        ({"no_tool": {**signals(), "weights": ["dense"]}}, "cannot be read"),
        ({"gate": 3}, "cannot be read"),
    ],
)
def test_a_calibration_of_another_make_is_a_typed_error(change: dict[str, Any], why: str):
    path = save_calibration(calibration("words-1"))
    known = json.loads(path.read_text()) | {
        "no_tool": signals("dense"),
        "no_tool_read": signals("reader_best"),
    }
    path.write_text(json.dumps(known))
    assert load_calibration("words-1", SCORING)[1] == "user"
    path.write_text(json.dumps(known | change))
    with pytest.raises(CalibrationError, match=why):
        load_calibration("words-1", SCORING)


def test_a_calibration_that_is_no_text_is_a_typed_error():
    path = save_calibration(calibration("words-1"))
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_calibration("words-1", SCORING)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"gate": {"tau": 1}})])
def test_a_calibration_that_cannot_be_read_is_a_typed_error(text: str):
    path = save_calibration(calibration("words-1"))
    path.write_text(text)
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_calibration("words-1", SCORING)
