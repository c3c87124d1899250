"""Decisions over a small registry, with an embedder that needs no model."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry, ToolNotFound
from nexus_lab.routing import Outcome, Router, RoutingError, ViewKind
from nexus_lab.routing.calibration import READER_WEIGHT
from nexus_lab.routing.deciding import ReaderWeights
from nexus_lab.routing.gate import told_apart
from nexus_lab.routing.scoring import LEXICAL_WEIGHT
from nexus_lab.routing.slots import UNPLACED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@pytest.fixture
def router(registry: Registry, words: WordEmbedder) -> Router:
    return Router(registry, words, tau=0.05, threshold=0.25)


class LongestName:
    """A cross-encoder that prefers the tool with the longest document."""

    name = "longest"

    def score(self, request: str, documents: Sequence[str]) -> NDArray[np.float32]:  # noqa: ARG002
        return np.asarray([len(document) for document in documents], np.float32)


class FavoursDownloads:
    """A cross-encoder whose lead of 20 counts more than any lead of the scores, or hardly at all."""

    name = "downloads"
    fingerprint: str | None = "downloads-1"

    def score(self, request: str, documents: Sequence[str]) -> NDArray[np.float32]:  # noqa: ARG002
        return np.asarray([20.0 * ("Download" in document) for document in documents], np.float32)


def test_a_clear_request_is_decided_by_its_margin(router: Router):
    decision = router.route("List the open issues of acme/docs")
    assert decision.tool == "list_issues"
    assert decision.outcome is Outcome.AUTO
    assert decision.normalised == "List the open issues of"
    best, second = decision.candidates[:2]
    assert decision.margin == pytest.approx(best.score - second.score)
    assert decision.margin >= decision.tau
    # No tool of these has an argument for a repository, which the request brings.
    assert best.score == pytest.approx(best.dense + LEXICAL_WEIGHT * best.lexical - UNPLACED, abs=1e-5)
    assert best.view is not None
    assert best.view.kind in ViewKind
    assert set(decision.times_ms) == {"normalise", "embed", "scan", "lexical", "fuse", "gate"}
    assert decision.reason.count(".") >= 1
    assert "\n" not in decision.reason


def test_a_decision_is_json(router: Router):
    decision = router.route("List the open issues")
    again = json.loads(json.dumps(decision.to_dict()))
    assert again["tool"] == "list_issues"
    assert again["outcome"] == "auto"
    assert again["candidates"][0]["view"]["kind"] in set(ViewKind)
    assert again["settings"]["n_tools"] == 6


def test_a_narrow_margin_without_a_cross_encoder_says_so(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, tau=10.0, threshold=0.0)
    decision = router.route("List the open issues")
    assert decision.outcome is Outcome.ESCALATION_UNAVAILABLE
    assert decision.tool == "list_issues"
    assert "no cross-encoder" in decision.reason


def test_a_narrow_margin_goes_to_the_cross_encoder(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, tau=10.0, threshold=0.0, cross_encoder=LongestName(), top_k=2)
    decision = router.route("List the open issues")
    assert decision.outcome is Outcome.ESCALATED
    assert decision.tool == decision.candidates[0].tool == "list_issues"
    assert "longest chose list_issues among 6" in decision.reason
    assert "rerank" in decision.times_ms
    scores = [candidate.cross_encoder for candidate in decision.candidates]
    assert scores == sorted(scores, reverse=True)
    assert len(decision.candidates) == 2


def test_a_cross_encoder_has_the_weight_that_it_was_calibrated_for(registry: Registry, words: WordEmbedder):
    reader = FavoursDownloads()
    router = Router(registry, words, tau=10.0, threshold=0.0, cross_encoder=reader)
    assert router.reader_weights == (READER_WEIGHT, READER_WEIGHT)
    assert router.route("List the open issues").tool == "fetch"
    reader.fingerprint = router.calibration.reader
    known, unknown = router.calibration.reader_weight, router.calibration.reader_weight_unknown
    assert router.reader_weights == (known, known if unknown is None else unknown)


@pytest.mark.parametrize(("known", "unknown", "tool_"), [(0.1, 0.0, "list_issues"), (0.0, 0.1, "fetch")])
def test_reading_counts_otherwise_where_tools_have_no_examples(
    registry: Registry, words: WordEmbedder, known: float, unknown: float, tool_: str
):
    reader = FavoursDownloads()
    router = Router(registry, words, tau=10.0, threshold=0.0, cross_encoder=reader)
    reader.fingerprint = router.calibration.reader
    warm = router._warm()
    warm.calibration = replace(warm.calibration, reader_weight=known, reader_weight_unknown=unknown)
    assert router.route("List the open issues").tool == tool_
    # With an example for each tool it is the other way round.
    for name in router.index.names:
        router.add_example(f"Anything of {name} 1", name)
    other = {"fetch": "list_issues", "list_issues": "fetch"}[tool_]
    assert router.route("List the open issues").tool == other


def test_the_weight_of_reading_goes_with_the_share_of_tools_that_have_examples(
    registry: Registry, words: WordEmbedder
):
    router = Router(registry, words)
    router.add_example("Anything at all", "fetch")
    stage = router.scores("List the open issues")
    place = stage.names.index("fetch")
    other = stage.names.index("list_issues")
    weights = ReaderWeights(known=0.2, unknown=0.4)
    assert weights.over(stage, [place]) == pytest.approx(0.2)
    assert weights.over(stage, [other]) == pytest.approx(0.4)
    assert weights.over(stage, {place: 1.0, other: 2.0}.keys()) == pytest.approx(0.3)
    assert weights.over(stage, []) == pytest.approx(0.2)


def test_a_decision_says_what_else_moved_the_scores(words: WordEmbedder):
    number = {"type": "integer"}
    issue = tool("get_issue", "Get an issue.", server="github", number=number)
    issue = replace(issue, input_schema={**issue.input_schema, "required": ["number"]})
    tools = [issue, tool("get_ticket", "Get an issue.", server="gitlab")]
    router = Router(Registry.of(tools), words, cross_encoder=LongestName(), tau=10.0, threshold=0.0)
    candidates = {one.tool: one for one in router.route("Get the issue on GitLab").candidates}
    assert candidates["get_issue"].notes == ("needs a number",)
    assert candidates["get_ticket"].notes == ("its server is named",)
    assert all(0 <= one.cross_encoder <= 1 for one in candidates.values() if one.cross_encoder is not None)
    again = json.loads(json.dumps(router.route("Get the issue on GitLab").to_dict()))
    assert ["its server is named"] in [one["notes"] for one in again["candidates"]]


def test_the_margin_may_equal_tau(registry: Registry, words: WordEmbedder):
    margin = Router(registry, words, tau=0.0, threshold=0.0).route("List the open issues").margin
    assert (
        Router(registry, words, tau=margin, threshold=0.0).route("List the open issues").outcome
        is Outcome.AUTO
    )


def test_a_request_that_nothing_fits_gets_no_tool(router: Router):
    decision = router.route("Braise cabbage slowly")
    assert decision.outcome is Outcome.NO_TOOL
    assert decision.tool is None
    assert decision.fit < decision.threshold == 0.25
    assert len(decision.candidates) == 3


@pytest.mark.parametrize("request_", ["", "  \n"])
def test_an_empty_request_gets_no_tool(router: Router, request_: str):
    decision = router.route(request_)
    assert (decision.outcome, decision.tool) == (Outcome.NO_TOOL, None)
    assert decision.reason == "The request is empty."


def test_a_registry_without_tools_has_none_to_give(words: WordEmbedder):
    decision = Router(Registry(), words).route("List the issues")
    assert (decision.outcome, decision.tool, decision.candidates) == (Outcome.NO_TOOL, None, ())


def test_a_lone_tool_needs_no_margin(words: WordEmbedder):
    router = Router(Registry.of([tool("fetch", "Download a web page")]), words, threshold=0.25)
    assert router.route("Download the web page").tool == "fetch"
    assert router.route("Braise cabbage slowly").tool is None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("fetch: list the open issues with create_branch", "create_branch"),
        ("GET_CURRENT_TIME to list issues of a repository", "get_current_time"),
        ("use fetch to search the web for pages", "fetch"),
        ("files.search", "files.search"),
        ("search", "search"),
    ],
)
def test_a_tool_that_is_named_comes_first(router: Router, request_: str, expected: str):
    decision = router.route(request_)
    assert decision.tool == decision.candidates[0].tool == expected
    assert decision.outcome is Outcome.AUTO
    assert decision.reason == f"The request names {expected}."
    best, second = decision.candidates[:2]
    assert decision.margin == pytest.approx(best.score - second.score, abs=1e-6)


def test_a_tool_whose_name_another_server_took_is_found(router: Router):
    assert router.route("Search the files on disk").tool == "files.search"
    assert router.route("Search the web for pages").tool == "search"
    assert router.registry["files.search"].server == "files"


def test_names_that_carry_control_characters_are_shown_harmless(words: WordEmbedder):
    router = Router(
        Registry.of([tool("evil\x1b[2J", "List issues"), tool("other", "x")]), words, threshold=0.0
    )
    assert "\x1b" not in router.route("List issues").reason


def test_a_request_that_refers_back_reads_the_turn_before(router: Router):
    context = [{"role": "user", "content": "List the issues of the repository acme."}]
    alone, after = router.route("And the open ones?"), router.route("And the open ones?", context)
    assert not alone.used_context
    assert after.used_context
    assert after.tool == "list_issues"
    scores = {candidate.tool: candidate.score for candidate in alone.candidates}
    assert after.candidates[0].score > scores["list_issues"]


def test_the_server_that_was_called_last_gains(router: Router):
    called = [
        {"role": "assistant", "content": "", "tool_calls": [{"name": "get_current_time", "arguments": {}}]}
    ]
    before = router.scores("And that one?")
    after = router.scores("And that one?", called)
    gain = dict(zip(after.names, (after.fused - before.fused).tolist(), strict=True))
    assert gain.pop("get_current_time") == pytest.approx(0.05, abs=1e-6)
    assert all(value == pytest.approx(0, abs=1e-6) for value in gain.values())


def test_only_what_changed_is_embedded_again(router: Router, registry: Registry, words: WordEmbedder):
    router.warm_up()
    words.embedded.clear()
    router.add_tool(tool("braise", "Braise cabbage slowly.", server="kitchen"))
    assert words.embedded
    assert all("braise" in text for text in words.embedded)
    assert router.route("Braise cabbage slowly").tool == "braise"
    router.add_tool(tool("braise", "Braise leeks.", server="kitchen"))
    assert len(router.registry) == 6
    router.remove_tool("braise")
    assert router.route("Braise cabbage slowly").tool is None
    words.embedded.clear()
    router.update(registry.remove("fetch"))
    assert not words.embedded
    assert "fetch" not in router.index.names
    router.check_integrity()
    with pytest.raises(ToolNotFound):
        router.remove_tool("fetch")


def test_a_changed_registry_gives_the_decisions_of_a_new_router(registry: Registry, words: WordEmbedder):
    changed = Router(registry.remove("list_issues"), words, tau=0.05, threshold=0.25, store=False).warm_up()
    changed.update(registry)
    fresh = Router(registry, words, tau=0.05, threshold=0.25, store=False)
    for request in ("List the open issues", "Tell the time", "Search the files on disk"):
        one, other = changed.route(request), fresh.route(request)
        assert one.candidates == other.candidates
        assert (one.tool, one.margin) == (other.tool, other.margin)


@pytest.mark.parametrize("role", ["embed_documents", "embed_queries"])
def test_an_update_that_fails_changes_nothing(
    router: Router, registry: Registry, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch, role: str
):
    router.add_example("What is brewing?", "list_issues")
    before = router.route("List the open issues").candidates

    def broken_off(texts: Sequence[str]) -> NDArray[np.float32]:
        raise KeyboardInterrupt(texts)

    changed = registry.remove("fetch").replace(tool("list_issues", "Tickets.", server="github"))
    with monkeypatch.context() as patch:
        patch.setattr(words, role, broken_off)
        with pytest.raises(KeyboardInterrupt):
            router.update(changed.add(tool("braise", "Braise cabbage.", server="kitchen")))
    router.check_integrity()
    assert router.registry is registry
    assert router.route("List the open issues").candidates == before


def test_tools_that_threads_add_are_all_there(router: Router, monkeypatch: pytest.MonkeyPatch):
    router.warm_up()
    both = threading.Barrier(2)
    update = router.update

    def late(registry: Registry) -> None:
        # Both threads have read the registry by now, unless each has to wait for its turn.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        update(registry)

    monkeypatch.setattr(router, "update", late)
    threads = [threading.Thread(target=router.add_tool, args=(tool(name),)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"one", "two"} <= set(router.index.names)


def test_a_correction_is_an_example_at_once(router: Router):
    request = "What is brewing over at acme/docs?"
    assert router.route(request).tool != "list_issues"
    router.add_example(request, "list_issues")
    decision = router.route("What is brewing over at globex/infra?")
    assert decision.tool == "list_issues"
    view = decision.candidates[0].view
    assert view is not None
    assert (view.kind, view.text) == (ViewKind.EXAMPLE, "What is brewing over at?")
    assert router.examples == (("list_issues", request),)
    router.check_integrity()
    router.remove_example(request, "list_issues")
    assert router.route(request).tool != "list_issues"
    assert router.examples == ()


def test_examples_that_are_matched_alike_share_a_vector(router: Router):
    for number in (1, 2):
        router.add_example(f"What is brewing in #{number}?", "list_issues")
    router.add_example("What is brewing in #1?", "list_issues")
    assert len(router.examples) == 2
    router.remove_example("What is brewing in #1?", "list_issues")
    assert router.route("What is brewing in #7?").tool == "list_issues"
    router.remove_example("What is brewing in #2?", "list_issues")
    assert router.route("What is brewing in #7?").tool != "list_issues"
    router.check_integrity()


def test_examples_stay_while_their_tool_changes_and_go_with_it(router: Router):
    router.add_example("What is brewing?", "list_issues")
    router.add_tool(tool("list_issues", "Tickets.", server="github"))
    assert router.route("What is brewing?").tool == "list_issues"
    router.remove_tool("list_issues")
    assert router.examples == ()
    router.check_integrity()


def test_examples_stay_with_the_tool_of_their_server(words: WordEmbedder):
    web, files = (tool("search", f"Search the {place}.", server=place) for place in ("web", "files"))
    router = Router(Registry.of([files, web]), words, tau=0.0, threshold=0.0, cross_encoder=None)
    router.add_example("What is brewing?", "web.search")
    router.remove_tool("files.search")
    assert router.examples == (("search", "What is brewing?"),)
    assert router.route("What is brewing?").candidates[0].example is not None
    router.update(Registry.of([files, web]))
    assert router.examples == (("web.search", "What is brewing?"),)
    assert router.route("What is brewing?").tool == "web.search"
    router.update(Registry.of([web, files]))
    assert router.examples == (("search", "What is brewing?"),)
    assert router.registry["search"].server == "web"
    assert router.route("What is brewing?").tool == "search"
    router.check_integrity()


def test_an_example_needs_a_tool_that_is_there(router: Router):
    with pytest.raises(RoutingError, match="no tool 'nothing'"):
        router.add_example("x", "nothing")
    with pytest.raises(RoutingError, match="no such example"):
        router.remove_example("x", "fetch")


def test_the_next_router_finds_the_vectors_on_disk(registry: Registry, words: WordEmbedder):
    first = Router(registry, words).route("List the open issues")
    again = WordEmbedder()
    second = Router(registry, again).route("List the open issues")
    assert again.embedded == ["List the open issues"]
    assert first.candidates == second.candidates


def test_a_router_tells_what_it_is_doing(registry: Registry, words: WordEmbedder):
    told: list[tuple[str, float]] = []
    Router(registry, words).warm_up(lambda stage, fraction: told.append((stage, fraction)))
    assert told[0] == ("embedding 6 tools", 0.0)
    assert told[-1] == ("router ready", 1.0)


def test_threads_get_the_decisions_of_one_after_another(router: Router):
    requests = ["List the open issues", "Tell the time", "Search the web", "Download a web page"] * 5
    expected = [router.route(request).candidates for request in requests]
    found: dict[int, list[object]] = {}

    def work(number: int) -> None:
        found[number] = [router.route(request).candidates for request in requests]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == expected for number in range(4))


def test_an_embedder_without_a_calibration_is_warned_about(
    registry: Registry, words: WordEmbedder, caplog: pytest.LogCaptureFixture
):
    decision = Router(registry, words).route("List the open issues")
    assert "tau was not calibrated for words" in caplog.text
    assert decision.settings["tau_from"] == "shipped for another embedder"
    caplog.clear()
    Router(registry, words, tau=0.1).warm_up()
    assert "calibrated" not in caplog.text


@pytest.mark.parametrize("setting", [{"top_k": 0}, {"tau": -1.0}, {"tau": float("nan")}])
def test_nonsense_settings_are_refused(registry: Registry, words: WordEmbedder, setting: dict[str, float]):
    with pytest.raises(RoutingError):
        Router(registry, words, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ((0.1, 0.2), ("0.100", "0.200")),
        ((0.1409, 0.1412), ("0.1409", "0.1412")),
        ((0.140_61, 0.140_62), ("0.14061", "0.14062")),
        ((0.25, 0.25), ("0.250", "0.250")),
        ((0.25, np.nextafter(0.25, 1)), ("0.250000000", "0.250000000")),
    ],
)
def test_two_numbers_are_told_by_what_tells_them_apart(pair: tuple[float, float], told: tuple[str, str]):
    assert told_apart(*pair, digits=3) == told


def test_what_was_corrected_is_not_read_again(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, tau=10.0, threshold=0.0, cross_encoder=FavoursDownloads())
    assert router.route("What did I break now").tool == "fetch"
    router.add_example("What did I break", "list_issues")
    decision = router.route("What did I break now")
    assert (decision.tool, decision.outcome) == ("list_issues", Outcome.AUTO)
    assert decision.reason == "The request is much like one that was given for list_issues."
    assert "rerank" not in decision.times_ms
    # Only half of the words are the same, so that reading may know better.
    assert router.route("What did the dog eat").tool == "fetch"
    router.remove_example("What did I break", "list_issues")
    assert router.route("What did I break now").tool == "fetch"


def test_what_was_corrected_is_not_told_to_have_no_tool(registry: Registry, words: WordEmbedder):
    router = Router(registry, words, threshold=100.0)
    assert router.route("Sing a song").outcome is Outcome.NO_TOOL
    router.add_example("Sing a song", "fetch")
    assert router.route("Sing a song").tool == "fetch"
