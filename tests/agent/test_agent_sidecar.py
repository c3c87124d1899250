"""The sidecar in a turn: close decisions only, told in the record, and gone without a trace."""

from __future__ import annotations

import threading
from dataclasses import replace

import polars as pl
import pytest
from echo_tool import echo_spec

from nexus_lab.agent import EventKind, Status, TurnOutcome
from nexus_lab.agent.rows import RoutingRow
from nexus_lab.engine import ContextFull
from nexus_lab.routing import Candidate, Outcome
from nexus_lab.trace import SessionRecorder, read_session

pytestmark = pytest.mark.model


class CloseRouter:
    """Cannot tell two tools apart, and puts the wrong one first."""

    def __init__(self, told) -> None:
        self._told = told

    def route(self, request, context=()):
        names = ("shred", "echo")
        return replace(
            self._told.route(request, context),
            candidates=tuple(Candidate(tool=name, score=0.5, dense=0.5, lexical=0.0) for name in names),
            outcome=Outcome.ESCALATION_UNAVAILABLE,
            tool="shred",
            reason="Too close.",
        )


class Heard:
    def __init__(self) -> None:
        self.events = []

    def on_event(self, event):
        if event.duration_ns is not None:
            self.events.append(event)

    def named(self, name):
        return [event for event in self.events if event.name == name]

    @property
    def row(self) -> RoutingRow:
        return next(row for event in self.events for row in event.rows if isinstance(row, RoutingRow))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def close(make_agent, heard):
    def make(**settings):
        agent = make_agent("hello", observers=(heard,), **settings)
        shred = replace(
            echo_spec({"const": "hello"}), name="shred", description="Destroy a file for ever", server="raw"
        )
        agent.tools.registry = agent.tools.registry.add(shred)
        agent.router = CloseRouter(agent.router)
        return agent

    return make


def test_a_close_decision_is_tried_and_the_record_has_the_scores(close, heard):
    agent = close(sidecar="escalated")
    turn = agent.ask("Say hello again")
    (event,) = heard.named("sidecar")
    assert (event.kind, event.status) == (EventKind.RERANK, Status.OK)
    route = heard.named("route")[0]
    assert event.parent == route.id
    scores = {item.tool: item.sidecar for item in heard.row.candidates}
    assert set(scores) == {"shred", "echo"}
    assert scores == {one["tool"]: one["score"] for one in event.attributes["scores"]}
    assert scores == {one.tool: one.score for one in turn.tried.scores}
    best = max(scores, key=scores.get)
    assert (turn.tool, turn.decision.tool, heard.row.tool) == (best, best, best)
    assert heard.row.candidates[0].tool == best
    assert heard.row.times_ms["sidecar"] == turn.decision.times_ms["sidecar"] > 0


def test_a_bundle_keeps_the_scores_without_contents(close, heard, tmp_path):
    agent = close(sidecar="escalated")
    with SessionRecorder(tmp_path / "s") as recorder:
        agent.emitter.add(recorder)
        agent.ask("Say hello again")
    session = read_session(tmp_path / "s")
    (row,) = session.routing.collect().to_dicts()
    told = {item.tool: item.sidecar for item in heard.row.candidates}
    assert {item["tool"]: item["sidecar"] for item in row["candidates"]} == told
    events = session.events.filter(pl.col("name") == "sidecar").collect()
    assert events["contents"].to_list() == [None]
    assert "surrogates" in events["attributes"][0]


def test_off_is_off(close, heard):
    turn = close().ask("Say hello again")
    assert (turn.tool, turn.tried) == ("shred", None)
    assert heard.named("sidecar") == []
    assert [item.sidecar for item in heard.row.candidates] == [None, None]


def test_a_decision_that_stands_by_itself_is_not_tried(make_agent, heard):
    agent = make_agent("hello", observers=(heard,), sidecar="escalated")
    assert agent.ask("Say hello").outcome is TurnOutcome.CALLED
    assert heard.named("sidecar") == []


def test_the_conversation_goes_on_as_if_nothing_had_been_tried(close):
    agent = close(sidecar="escalated")
    for _ in range(2):
        agent.ask("Say hello")
        state = agent.conversation.runner.snapshot.state
        assert agent.engine.used_cells() == state.n_active == len(state)


def test_the_turns_before_are_the_window(close, heard):
    agent = close(sidecar="escalated")
    agent.ask("Say hello")
    agent.ask("And again")
    first, second = heard.named("sidecar")
    assert (first.attributes["window_turns"], second.attributes["window_turns"]) == (0, 1)
    said = [one["role"] for one in second.contents["window"]]
    assert said[:3] == ["user", "assistant", "tool"]
    assert "hello" not in str(second.attributes)


def test_a_compiled_block_is_spliced_in_the_trial(close, heard):
    agent = close(sidecar="escalated", schema_mode="splice(exact)")
    agent.compile_block("echo")
    agent.ask("Say hello again")
    paths = {one["tool"]: one["path"] for one in heard.named("sidecar")[0].attributes["scores"]}
    assert paths == {"shred": "prefill", "echo": "anchored"}


def test_a_stop_while_candidates_are_tried_leaves_nothing(close, heard):
    agent = close(sidecar="escalated")
    agent.conversation  # noqa: B018 - opened, so that its cells are counted before
    before = agent.engine.used_cells()
    score = agent._sidecar._score

    def stopped(*arguments):
        stopper = threading.Thread(target=agent.stop)
        stopper.start()
        stopper.join()
        return score(*arguments)

    agent._sidecar._score = stopped
    turn = agent.ask("Say hello again")
    assert turn.outcome is TurnOutcome.CANCELLED
    assert heard.named("sidecar")[0].status is Status.CANCELLED
    assert agent.engine.used_cells() == before
    assert agent.history == ()
    agent._sidecar._score = score
    assert agent.ask("Say hello again").outcome is TurnOutcome.CALLED


def test_without_room_the_turn_goes_on_in_the_order_of_the_router(close, heard, monkeypatch):
    agent = close(sidecar="escalated")

    def full(*_arguments):
        raise ContextFull(500, 3, 2048)

    monkeypatch.setattr(agent._sidecar, "_score", full)
    turn = agent.ask("Say hello again")
    assert (turn.tool, turn.outcome) == ("shred", TurnOutcome.CALLED)
    event = heard.named("sidecar")[0]
    assert (event.status, event.attributes["code"]) == (Status.DECLINED, "sidecar_no_room")
