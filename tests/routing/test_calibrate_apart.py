"""Calibration that is judged on requests kept apart, and fitted to the package's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry
from nexus_lab.routing import CalibrationError, Router, calibrate_package, calibrate_router, known
from nexus_lab.routing.abstain import STAGE_SIGNALS, stage_signals
from nexus_lab.routing.calibrate_fitting import FOLDS, Fitting, fold_of
from nexus_lab.routing.calibrate_package import package_observations
from nexus_lab.routing.calibrate_seen import of_part, see
from nexus_lab.routing.coverage import Vocabulary, stems
from nexus_lab.routing.gate import rank
from nexus_lab.routing.rows import share_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

DISHES = ["leek", "cod", "kale", "plum", "rye", "oat", "beet", "fig", "pear", "sorrel"]
VERBS = ["braise", "salt", "toast", "grate"]


@pytest.fixture
def kitchen() -> Registry:
    return Registry.of(
        [
            *(tool(f"{verb}_it", f"{verb.title()} a dish slowly.", server="kitchen") for verb in VERBS),
            tool("sweep", "Sweep the floor.", server="house"),
            tool("wash", "Wash the windows.", server="house"),
        ]
    )


def pairs() -> list[dict[str, Any]]:
    return [
        {"query": f"{verb} the {dish} for me", "right": f"{verb}_it"} for verb in VERBS for dish in DISHES
    ]


def negatives() -> list[dict[str, Any]]:
    return [
        {"query": f"mail the {dish} to Oslo {n}", "kind": "far"} for dish in DISHES for n in ("now", "later")
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_request_is_judged_by_what_was_fitted_without_it(kitchen: Registry, words: WordEmbedder):
    router = Router(kitchen, words)
    seen = [see(router, row, "registry") for row in [*pairs(), *negatives()]]
    fitting = Fitting([], "files", 0.05, "registry", "test")
    doubts, folds = fitting.doubts(seen)
    assert folds == FOLDS
    assert {fold_of(one) for one in seen} == set(range(FOLDS))
    for one, doubt in list(zip(seen, doubts, strict=True))[::9]:
        others = [other for other in seen if fold_of(other) != fold_of(one)]
        assert doubt == fitting.judge(others).doubt(one)
    # Too few for parts of them.
    assert fitting.doubts(seen[:30])[1] == 1


def test_requests_without_a_tool_need_not_say_so_twice(
    tmp_path: Path, kitchen: Registry, words: WordEmbedder
):
    bare = [{"query": row["query"]} for row in negatives()]
    found = calibrate_router(
        Router(kitchen, words),
        write(tmp_path / "pairs.jsonl", pairs()),
        negatives=[write(tmp_path / "negatives.jsonl", bare)],
    )
    assert {rate["group"]: rate["n"] for rate in found.abstention.rates} == {"answerable": 40, "no tool": 20}


def test_rates_say_of_how_many_parts_they_are(tmp_path: Path, kitchen: Registry, words: WordEmbedder):
    found = calibrate_router(
        Router(kitchen, words),
        write(tmp_path / "pairs.jsonl", pairs()),
        negatives=[write(tmp_path / "negatives.jsonl", negatives())],
    )
    rates = {rate["group"]: rate for rate in found.abstention.rates}
    assert {rate["folds"] for rate in rates.values()} == {FOLDS}
    assert (rates["answerable"]["n"], rates["far"]["n"]) == (40, 20)
    assert rates["far"]["auroc"] > 0.9
    assert found.no_tool is not None
    assert set(found.no_tool.weights) == set(STAGE_SIGNALS)
    assert (found.no_tool.n, found.no_tool.n_none) == (60, 20)


def test_a_part_of_the_scores_is_that_of_fewer_tools(kitchen: Registry, words: WordEmbedder):
    stage = Router(kitchen, words).scores("braise the cod")
    part = of_part(stage, ["wash", "salt_it"])
    assert part.names == ("salt_it", "wash")
    place = stage.names.index("wash")
    assert part.fused[1] == stage.fused[place]
    np.testing.assert_array_equal(part.dense, stage.dense[[stage.names.index("salt_it"), place]])


@pytest.fixture
def learned(kitchen: Registry, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"tool": f"{verb}_it", "request": f"{verb} some {dish}, please"} for verb in VERBS for dish in DISHES
    ]
    rows += [{"tool": None, "near": ["salt_it"], "request": f"sell {dish} at the market"} for dish in DISHES]
    by_tool = {
        f"{verb}_it": tuple(row["request"] for row in rows if row["tool"] == f"{verb}_it") for verb in VERBS
    }
    digests = json.loads(known.digests_of(kitchen.tools))
    monkeypatch.setattr(known, "_digests", lambda: digests)
    monkeypatch.setattr(known, "_by_tool", lambda: by_tool)
    monkeypatch.setattr(known, "package_rows", lambda: tuple(rows))
    return rows


def test_held_requests_of_the_package_are_no_examples_where_they_are_asked(
    learned: list[dict[str, Any]], kitchen: Registry, words: WordEmbedder
):
    held = 0.5
    router = Router(kitchen, words, held=lambda request: share_of(request) < held)
    shown = {text for name in kitchen.names for text in router.scorer.example_index.texts(name)}
    kept = [row["request"] for row in learned if row["tool"] and share_of(row["request"]) >= held]
    assert shown == set(kept)
    seen = [
        one for _, _, some in package_observations(Router(kitchen, words), held, read=True) for one in some
    ]
    asked = {row["request"] for row in learned if not row["tool"] or share_of(row["request"]) < held}
    assert {one.text for one in seen} == asked
    answerable = [row for row in learned if row["tool"] and row["request"] in asked]
    none = len(asked) - len(answerable)
    # Each is asked over all tools and over some.
    assert len(seen) == 2 * (len(answerable) + none)
    assert sum(bool(one.right) for one in seen) == 2 * len(answerable)
    for one in seen:
        if one.right:
            (right,) = (one.stage.names[place] for place in one.right)
            assert right in {row["tool"] for row in answerable if row["request"] == one.text}
            assert one.before["example"] < 1 - 1e-3 or one.over != calibrate_package._HELD


def test_what_is_asked_in_vain_is_known_of_known_servers(
    learned: list[dict[str, Any]], kitchen: Registry, words: WordEmbedder
):
    router = Router(kitchen, words)
    request = next(row["request"] for row in learned if row["tool"] is None)
    assert router.scores(request).in_vain == pytest.approx(1, abs=0.02)
    assert router.scores("braise the cod").in_vain < 0.5
    held = Router(kitchen, words, held=lambda text: text == request)
    assert held.scores(request).in_vain < 0.99
    assert Router(kitchen, words, known=False).scores(request).in_vain == -1
    other = Registry.of([tool("salt_it", "Salt anything.", server="kitchen")])
    assert Router(other, words).scores(request).in_vain == -1
    stage = router.scores(request)
    signals = stage_signals(stage, rank(stage), router.scorer)
    assert signals["in_vain"] == pytest.approx(stage.in_vain - float(stage.dense[rank(stage).order[0]]))
    assert signals["knows"] == 1.0


def test_the_doubt_is_fitted_to_the_package_alone_where_that_is_asked(
    tmp_path: Path, learned: list[dict[str, Any]], kitchen: Registry, words: WordEmbedder
):
    found = calibrate_router(
        Router(kitchen, words),
        write(tmp_path / "pairs.jsonl", pairs()),
        negatives=[write(tmp_path / "negatives.jsonl", negatives())],
        held=1.0,
        learn_from="package",
    )
    assert found.no_tool is not None
    assert found.no_tool.source == f"{found.no_tool.n} observations of the package's held requests"
    assert found.no_tool.n == 2 * len(learned)
    assert "--held 1 --learn-from package" in found.command
    with pytest.raises(CalibrationError, match="learn_from = 'stars'"):
        calibrate_router(Router(kitchen, words), tmp_path / "pairs.jsonl", learn_from="stars")


def test_the_word_that_a_tool_lacks_is_seen():
    documents = [["create", "branch"], ["list", "branch"], ["close", "issue"], ["delete", "file"]]
    vocabulary = Vocabulary(documents)
    near = vocabulary.covered("Delete the branches now", stems(["create branch"]))
    assert near == pytest.approx(np.log(1 + 4 / 3) / (np.log(1 + 4 / 3) + np.log(1 + 4 / 2)))
    assert vocabulary.covered("Create two branches", stems(["create branch"])) == 1.0
    assert vocabulary.covered("Thanks", stems(["create branch"])) == 0.0
    assert stems(["closing closed closes"]) == stems(["close"])


class Flat(WordEmbedder):
    """Finds all texts alike, so that only words tell."""

    fingerprint = "flat-1"

    def _vector(self, _text: str) -> NDArray[np.float32]:
        return np.full(self.dim, self.dim**-0.5, np.float32)


def test_the_lead_among_the_tools_of_a_server_is_a_signal(kitchen: Registry):
    router = Router(kitchen, Flat(), known=False)
    stage = router.scores("sweep the floor")
    ranking = rank(stage)
    signals = stage_signals(stage, ranking, router.scorer)
    second = stage.fused[stage.names.index("wash")]
    assert stage.names[ranking.order[0]] == "sweep"
    assert signals["lead_of_server"] == pytest.approx(float(stage.fused[ranking.order[0]] - second))
    alone = of_part(stage, ["sweep", "salt_it"])
    assert stage_signals(alone, rank(alone), router.scorer)["lead_of_server"] == 0.3


def test_an_embedder_that_fails_at_what_is_asked_in_vain_leaves_all_as_it_was(
    learned: list[dict[str, Any]], kitchen: Registry, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
):
    router = Router(Registry(), words).warm_up()
    request = next(row["request"] for row in learned if row["tool"] is None)
    whole = words.embed_queries

    def failing(texts: list[str]) -> NDArray[np.float32]:
        if request in texts:
            raise RuntimeError("out of memory")
        return whole(texts)

    monkeypatch.setattr(words, "embed_queries", failing)
    with pytest.raises(RuntimeError):
        router.update(kitchen)
    assert len(router.registry) == 0
    router.check_integrity()
    assert router.scores("salt the cod").names == ()
