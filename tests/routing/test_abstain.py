"""The probability that no tool fits, and what it does to a decision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nexus_lab.routing import CalibrationError, Outcome, Router, load_calibration
from nexus_lab.routing.abstain import NoTool, fit_no_tool, reading_signals
from nexus_lab.routing.calibration import save_calibration
from nexus_lab.routing.scoring import SCORING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from routing_tools import WordEmbedder

    from nexus_lab.registry import Registry


def test_the_model_tells_two_kinds_of_requests_apart():
    rng = np.random.default_rng(0)
    none = [True] * 60 + [False] * 300
    signals = [{"dense": rng.normal(0.3 if no else 0.6, 0.1), "noise": rng.normal()} for no in none]
    model = fit_no_tool(signals, none, target=0.05)
    chances = np.asarray([model.chance(one) for one in signals])
    assert model.weights["dense"] < 0
    assert abs(model.weights["noise"]) * 1.0 < abs(model.weights["dense"]) * 0.1
    assert (chances[60:] > model.limit).mean() == pytest.approx(0.05, abs=0.01)
    assert (chances[:60] >= model.limit).mean() > 0.6
    assert (model.n, model.n_none) == (360, 60)


def test_the_share_that_may_be_refused_holds_in_each_group_that_can_tell():
    rng = np.random.default_rng(0)
    drawn = (("none", 0.2, 100), ("known", 0.8, 900), ("unknown", 0.4, 100), ("few", 0.1, 5))
    groups = [group for group, _, count in drawn for _ in range(count)]
    signals = [{"dense": rng.normal(mean, 0.1)} for _, mean, count in drawn for _ in range(count)]
    none = [group == "none" for group in groups]

    def refused(model: NoTool, group: str) -> float:
        chances = [model.chance(one) for one, of in zip(signals, groups, strict=True) if of == group]
        return float((np.asarray(chances) >= model.limit).mean())

    pooled = fit_no_tool(signals, none, target=0.05)
    held = fit_no_tool(signals, none, target=0.05, groups=groups)
    assert refused(pooled, "unknown") > 0.3
    assert refused(held, "unknown") == pytest.approx(0.05, abs=0.011)
    assert refused(held, "known") == 0.0


def test_a_model_needs_requests_of_both_kinds():
    with pytest.raises(CalibrationError, match="too few"):
        fit_no_tool([{"dense": 0.5}] * 20, [False] * 18 + [True] * 2, target=0.05)


def test_what_a_reading_says_holds_for_any_number_of_tools():
    one, two = (reading_signals(np.asarray(scores, np.float32)) for scores in ([2.0], [0.0, 2.0]))
    assert one["reader_best"] == two["reader_best"] == 2.0
    assert two["reader_any"] == pytest.approx(math.log(math.exp(2) + 1))


class Doubter:
    """A cross-encoder to which no tool fits, the last one least badly."""

    name, fingerprint = "doubter", "doubter-1"

    def score(self, request: str, documents: Sequence[str]) -> NDArray[np.float32]:  # noqa: ARG002
        return np.linspace(-6, -5, len(documents)).astype(np.float32)


@pytest.fixture
def doubting(words: WordEmbedder) -> None:
    shipped, _ = load_calibration("any", SCORING)
    before = NoTool({"dense": -10.0}, 4.0, 0.9, 20, 10)
    after = NoTool({"reader_any": -2.0}, -4.0, 0.5, 20, 10)
    own = replace(
        shipped,
        embedder=words.fingerprint,
        scoring=SCORING,
        reader="doubter-1",
        no_tool=before,
        no_tool_read=after,
    )
    save_calibration(own)


@pytest.mark.usefixtures("doubting")
def test_a_doubtful_request_is_read_whatever_tau_is(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, tau=0.0, cross_encoder=Doubter())
    sure = router.route("List the issues of a repository newest first")
    assert sure.outcome is Outcome.AUTO
    assert sure.no_tool_chance is not None
    assert sure.fit == pytest.approx(1 - sure.no_tool_chance)
    assert "rerank" not in sure.times_ms
    doubtful = router.route("List cabbage")
    assert doubtful.outcome is Outcome.NO_TOOL
    assert doubtful.no_tool_chance is not None
    assert doubtful.no_tool_chance > 0.5
    assert "doubter read 6 tools" in doubtful.reason
    assert doubtful.candidates[0].cross_encoder is not None


@pytest.mark.usefixtures("doubting")
def test_a_cross_encoder_that_is_not_heard_on_the_doubt_is_not_asked(registry: Registry, words: WordEmbedder):
    calibration, _ = load_calibration(words.fingerprint, SCORING)
    save_calibration(replace(calibration, no_tool_read=None))
    router = Router(registry, words, tau=0.0, cross_encoder=Doubter())
    # Doubted, not enough to be refused; and by another limit refused.
    assert router.route("List cabbage").no_tool_chance > 0.5  # type: ignore[operator]
    assert "rerank" not in router.route("List cabbage").times_ms
    refusing = replace(calibration, no_tool_read=None, no_tool=NoTool({"dense": -10.0}, 4.0, 0.5, 20, 10))
    save_calibration(refusing)
    refused = Router(registry, words, tau=0.0, cross_encoder=Doubter()).route("List cabbage")
    assert (refused.outcome, "rerank" in refused.times_ms) == (Outcome.NO_TOOL, False)
    # Below tau it is asked as ever.
    assert (
        "rerank"
        in Router(registry, words, tau=9.0, cross_encoder=Doubter())
        .route("List the issues of a repository newest first")
        .times_ms
    )


@pytest.mark.usefixtures("doubting")
def test_a_given_threshold_takes_the_place_of_the_calibrated_doubt(registry: Registry, words: WordEmbedder):
    decision = Router(registry, words, tau=0.0, threshold=0.0, cross_encoder=Doubter()).route("List cabbage")
    assert (decision.outcome, decision.no_tool_chance) == (Outcome.AUTO, None)
    other = Router(registry, words, tau=0.0, cross_encoder=None).route("List cabbage")
    assert other.no_tool_chance is not None


def test_a_decision_does_not_depend_on_how_long_the_conversation_is(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, tau=0.05, threshold=0.25)
    last = [{"role": "user", "content": "List the issues of the repository acme."}]
    long = [{"role": "assistant", "content": "So it goes. " * 40}] * 2000 + last
    for request in ("Tell the time in Oslo, please", "And the open ones?"):
        short, behind = router.route(request, last), router.route(request, long)
        assert behind.candidates == short.candidates
        assert (behind.tool, behind.margin) == (short.tool, short.margin)
