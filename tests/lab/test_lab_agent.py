"""Whole turns through the desk, on the real model and a real server: what shows, waits, stops and is kept."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
from desk_tools import View, eventually

from nexus_lab.agent import Event, EventKind, Status, TurnOutcome
from nexus_lab.agent.rows import MessageRow
from nexus_lab.arguments import ArgumentsRejected
from nexus_lab.engine import EngineError
from nexus_lab.errors import Cancelled
from nexus_lab.lab.approval import Approval
from nexus_lab.lab.provenance import Said, sources_of
from nexus_lab.lab.turn_cards import TurnLog
from nexus_lab.lab.views import ViewLink
from nexus_lab.lab.wire import BadRequest
from nexus_lab.trace import read_session

pytestmark = pytest.mark.model
LONG = "echo hello " * 300


def _card(desk):
    return desk.parts(["agent"])["agent"]["turns"][-1]


def _pending(desk):
    return desk.parts(["agent"])["agent"]["approval"]


def test_a_turn_shows_its_call_its_spans_and_its_decision(make_desk):
    desk = make_desk("hello")
    turn = desk.ask("echo hello").get()
    assert turn.outcome is TurnOutcome.CALLED
    card = _card(desk)
    assert (card["state"], card["tool"], card["arguments"], card["result"]) == (
        "called",
        "echo",
        {"text": "hello"},
        "hello",
    )
    assert card["answer"] == turn.answer
    kinds = {span["kind"] for span in card["spans"]}
    assert {"retrieval", "prefill", "arguments", "tool", "generate", "cache_op"} <= kinds
    assert all(span["status"] == "ok" and span["ms"] is not None for span in card["spans"])
    ids = {span["id"] for span in card["spans"]}
    assert sum(span["parent"] not in ids for span in card["spans"]) < len(ids)
    row = desk.parts(["routing"])["routing"]["decisions"][0]
    assert (row["source"], row["turn"], row["tool"]) == ("turn", 1, "echo")
    assert row["fit"] is not None
    assert row["threshold"] is not None
    # The text that was nearest is told of a turn as of a request that was only routed.
    nearest = row["candidates"][0]
    assert nearest["tool"] == "echo"
    assert nearest["view"]
    assert nearest["matched"]
    bar = desk.parts(["bar"])["bar"]
    assert (bar["engine"], bar["run"], bar["holder"]) == ("idle", "r-001", None)
    assert 0 < bar["context_used"] <= bar["context_total"]
    assert desk.panels["agent"].to_frame()["outcome"].to_list() == ["called"]
    detail = make_desk.ask(desk)("registry.tool", name="echo")
    assert detail["used"] == {"count": 1, "of": 1}
    eventually(lambda: make_desk.ask(desk)("registry.tool", name="echo")["schema_tokens"])


def test_the_running_turn_streams_to_a_view_and_never_ahead_of_it(make_desk):
    desk, view = make_desk("hello", answer_tokens=24), View()
    view.link = ViewLink(desk, view.send)
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    desk.ask("echo hello").get()
    assert len(view.parts) == 1  # nothing more before it has acknowledged
    view.ack()
    eventually(lambda: len(view.parts) == 2)
    assert view.parts[1]["parts"]["agent"]["turns"][-1]["state"] == "called"

    seen = []
    send = view.link._send

    def acknowledged(message, buffers):
        send(message, buffers)
        if message["kind"] == "parts":
            cards = message["parts"].get("agent", {}).get("turns", [])
            seen.extend(card["state"] for card in cards if card["number"] == 2)
            view.ack()

    view.link._send = acknowledged
    view.ack()
    desk.ask("echo hello again").get()
    eventually(lambda: seen[-1:] == ["called"])
    assert "running" in seen


def test_the_call_shows_as_it_is_written(make_desk):
    # An object is left to the model; a text would be settled by the request, and come in one piece.
    said = {"what": "<b>hello</b>"}
    desk = make_desk(
        {"type": "object", "required": ["what"], "properties": {"what": {"const": said["what"]}}}
    )
    texts, cards = [], []
    panel = desk.panels["agent"]

    def on_change(names):
        if "agent" in names and panel.turns:
            cards.append(panel.turns[-1])
            texts.append(cards[-1].call)

    end = desk.subscribe(on_change)
    turn = desk.ask("echo hello").get()
    end()
    seen = list(dict.fromkeys(texts))
    assert turn.arguments == {"text": said}
    written = max(seen, key=len)
    assert json.loads(written) == {"name": "echo", "arguments": turn.arguments}
    assert len(seen) > 3
    assert all(written.startswith(text) for text in seen)
    assert not any(card.call and card.arguments for card in cards)
    assert cards[-1].call == ""


def test_a_call_that_is_no_good_stays_to_be_seen_and_the_second_attempt_replaces_the_first(make_desk):
    what = {"type": "object", "required": ["what"], "properties": {"what": {"type": "string"}}}
    desk = make_desk(what, max_tokens=4)
    texts = []
    desk.agent.emitter.add(
        SimpleNamespace(
            on_event=lambda event: (
                texts.append(_card(desk)["call"]) if event.kind.value == "arguments" else None
            )
        )
    )
    turn = desk.ask("echo something that is far longer than four tokens").get()
    assert turn.outcome is TurnOutcome.FAILED
    assert turn.arguments is None
    card = _card(desk)
    assert card["call"].startswith('{"name": "echo", "arguments": ')
    assert card["call"].count("arguments") == 1
    assert texts.count("") == 2  # both attempts began with nothing


def test_a_turn_that_fails_after_its_tool_ran_has_failed_and_shows_what_came_back(make_desk):
    desk = make_desk("hello")

    def broken(*_arguments, **_options):
        raise EngineError("no room for the answer", next_step="ask for less")

    desk.agent._reply = broken
    turn = desk.ask("echo hello").get()
    assert turn.outcome is TurnOutcome.FAILED
    card = _card(desk)
    assert (card["state"], card["result"]) == ("failed", "hello")
    assert card["problem"]["message"] == "no room for the answer"
    assert "had run before" in desk.panels["agent"].to_html()
    assert desk.agent.history == ()


def test_an_answer_that_reached_its_limit_says_so(make_desk):
    desk = make_desk("hello", answer_tokens=2)
    desk.ask("echo hello").get()
    assert _card(desk)["cut_at"] == 2
    assert "cut at 2 tokens" in desk.panels["agent"].to_html()


def test_the_bar_names_the_tool_that_runs_and_forgets_the_prefill(make_desk):
    desk = make_desk("hang")
    ticket = desk.ask("echo hang")
    eventually(lambda: desk.parts(["bar"])["bar"]["holder"] == "turn 1, tool call echo")
    assert desk.parts(["bar"])["bar"]["progress"] is None
    desk.stop()
    ticket.get()


def test_a_server_that_dies_in_a_turn_shows_as_failed_in_views(make_desk):
    desk, view = make_desk("hello"), View()
    desk.ask("echo hello").get()
    view.link = ViewLink(desk, view.send)
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    view.ack()
    told = len(view.parts)
    desk.sources.get("raw").server.close()
    desk.panels["registry"].on_turn(None)
    # The last words of the turn may still be on their way, and go first.
    eventually(lambda: any("registry" in part["parts"] for part in view.parts[told:]) or view.ack())
    rows = {row["name"]: row["status"] for row in desk.parts(["registry"])["registry"]["servers"]}
    assert rows["raw"] == "failed"


def test_stop_in_prefill_ends_the_turn_and_keeps_the_queue(make_desk):
    desk = make_desk("hello")
    ask = make_desk.ask(desk)
    began = threading.Event()

    class Ear:
        def on_event(self, event):
            if event.kind.value == "prefill" and event.name == "user":
                began.set()

    desk.agent.emitter.add(Ear())
    first, second = desk.ask(LONG), desk.ask("echo hello")
    assert began.wait(60)
    assert desk.parts(["agent"])["agent"]["queue"] == ["echo hello"]
    assert ask("stop") == {"stopped": True}
    stopped = first.get()
    assert stopped.outcome is TurnOutcome.CANCELLED
    assert "arguments" not in stopped.times_ms
    assert second.get().outcome is TurnOutcome.CALLED
    assert [card["state"] for card in desk.parts(["agent"])["agent"]["turns"]] == ["cancelled", "called"]
    assert ask("stop") == {"stopped": False}


def test_stop_during_a_tool_call_ends_it(make_desk):
    desk = make_desk("hang")
    ticket = desk.ask("echo hang")
    eventually(lambda: (desk.parts(["bar"])["bar"]["holder"] or "").endswith("tool call echo"))
    desk.stop()
    assert ticket.get().outcome is TurnOutcome.CANCELLED


@pytest.mark.parametrize("stage", ["turn", "retrieval", "prefill", "arguments", "tool"])
def test_a_stop_in_the_moment_a_stage_begins_is_not_lost(make_desk, stage):
    desk = make_desk("hang")

    class Ear:
        def on_event(self, event):
            if event.kind.value == stage and event.status is Status.RUNNING:
                desk.stop()

    desk.agent.emitter.add(Ear())
    turn = desk.ask("echo hang").get()
    assert turn.outcome is TurnOutcome.CANCELLED
    assert isinstance(turn.problem, Cancelled)
    assert desk.agent.history == ()


def test_stop_while_an_approval_waits_withdraws_it(make_desk):
    desk = make_desk("hello", read_only=False)
    ticket = desk.ask("echo hello")
    eventually(lambda: _pending(desk))
    assert desk.parts(["bar"])["bar"]["engine"] == "waiting"
    assert _card(desk)["state"] == "waiting"
    assert _waits(desk) == [("running", True, "echo waits for approval")]
    desk.stop()
    turn = ticket.get()
    assert turn.outcome is TurnOutcome.CANCELLED
    assert turn.result is None
    assert _pending(desk) is None
    assert _waits(desk) == [("ok", False, "waited for approval")]
    with pytest.raises(BadRequest):
        make_desk.ask(desk)("agent.approve", allow=True, remember=False)


def _waits(desk):
    spans = [span for span in _card(desk)["spans"] if span["kind"] == "approval"]
    return [(span["status"], span["ms"] is None, span["detail"]) for span in spans]


def test_a_result_that_was_cut_for_the_model_says_so_at_its_call():
    log = TurnLog(1, "say it", 1, 0)
    facts = {"parent": None, "start_ns": 0, "duration_ns": 10, "status": Status.OK}

    def hear(number, kind, **rest):
        log.hear(Event(id=number, kind=kind, name="echo", **facts, **rest))

    hear(4, EventKind.TOOL, attributes={"bytes": 5_200_000})
    hear(5, EventKind.MESSAGE, rows=(MessageRow(role="tool", text="a"),))
    assert log.card().spans[0].detail == "5,200,000 bytes"
    hear(6, EventKind.MESSAGE, rows=(MessageRow(role="tool", text="a\n[cut: 1234567 more tokens]"),))
    assert log.card().spans[0].detail == "5,200,000 bytes, the last 1,234,567 tokens not shown to the model"


def test_a_stop_that_comes_before_the_question_is_not_missed():
    stopping = threading.Event()
    stopping.set()
    approval = Approval(on_change=lambda: None, stopping=stopping.is_set)
    from echo_tool import echo_spec

    with pytest.raises(Cancelled):
        approval(echo_spec({"type": "string"}), {"text": "a"})
    assert approval.pending is None


def test_refusing_allowing_and_remembering(make_desk):
    desk = make_desk("hello", read_only=False)
    ask = make_desk.ask(desk)
    refused = desk.ask("echo hello")
    eventually(lambda: _pending(desk))
    assert _pending(desk)["sources"] == {"text": "copied from turn 1"}
    with pytest.raises(BadRequest):
        ask("agent.approve", allow=True, remember=False, id=_pending(desk)["id"] + 1)
    ask("agent.approve", allow=False, remember=False, id=_pending(desk)["id"])
    assert refused.get().outcome is TurnOutcome.REFUSED
    assert _card(desk)["problem"]["type"] == "ApprovalRefused"
    allowed = desk.ask("echo hello")
    eventually(lambda: _pending(desk))
    ask("agent.approve", allow=True, remember=True)
    assert allowed.get().outcome is TurnOutcome.CALLED
    assert desk.ask("echo hello").get().outcome is TurnOutcome.CALLED


def test_edited_arguments_are_checked_and_then_used(make_desk):
    desk = make_desk({"enum": ["one", "two"]}, read_only=False)
    ask = make_desk.ask(desk)
    ticket = desk.ask("echo one")
    eventually(lambda: _pending(desk))
    with pytest.raises(ArgumentsRejected):
        ask("agent.approve", allow=True, remember=False, arguments={"text": "three"})
    assert _pending(desk) is not None
    ask("agent.approve", allow=True, remember=False, arguments={"text": "two"})
    turn = ticket.get()
    assert (turn.outcome, turn.arguments, turn.result.text) == (TurnOutcome.CALLED, {"text": "two"}, "two")
    assert desk.agent.history[1]["tool_calls"][0]["arguments"] == {"text": "two"}
    assert _card(desk)["arguments"] == {"text": "two"}


@pytest.mark.parametrize(
    ("ask_before", "read_only", "waits"), [("every", True, True), ("never", False, False)]
)
def test_who_is_asked_before_what(make_desk, ask_before, read_only, waits):
    desk = make_desk("hello", read_only=read_only)
    ask = make_desk.ask(desk)
    ask("agent.apply", settings={"ask_before": ask_before})
    ticket = desk.ask("echo hello")
    if waits:
        eventually(lambda: _pending(desk))
        ask("agent.approve", allow=True, remember=False)
    turn = ticket.get()
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.settings["ask_before"] == ask_before


def test_what_is_applied_is_used_by_the_next_turn_and_recorded_in_it(make_desk, tmp_path):
    desk = make_desk("hello", session=tmp_path / "applied")
    ask = make_desk.ask(desk)
    first = desk.ask("echo hello").get()
    ask("routing.apply", tau=0.25, top_k=1)
    ask("agent.apply", settings={"policy": "rolling_drop", "keep_responses": 0, "answer_tokens": 4})
    second = desk.ask("echo hello").get()
    assert (first.decision.tau, second.decision.tau) != (0.25, first.decision.tau)
    assert second.decision.tau == 0.25
    assert (second.settings["tau"], second.settings["top_k"]) == (0.25, 1)
    assert first.settings["tau"] is None
    ops = [cell["kind"] for cell in desk.parts(["cache"])["cache"]["ops"]]
    assert "drop" in ops
    desk.close()
    turns = read_session(tmp_path / "applied.nexus").turns.collect()
    kept = [json.loads(text) if isinstance(text, str) else text for text in turns["settings"].to_list()]
    assert [settings["tau"] for settings in kept] == [None, 0.25]
    assert turns["request"].to_list() == [None, None]  # contents stay out unless asked for


def test_margins_of_turns_are_there_after_a_restart(make_desk):
    desk = make_desk("hello")
    turn = desk.ask("echo hello").get()
    desk.close()
    later = make_desk("hello")
    margins = later.parts(["routing"])["routing"]["margins"]
    assert [item["margin"] for item in margins] == [pytest.approx(turn.decision.margin)]


def test_a_box_during_a_turn_does_not_wait_for_it(make_desk):
    desk = make_desk("hang")
    ask = make_desk.ask(desk)
    running = desk.ask("echo hang")
    eventually(lambda: (desk.parts(["bar"])["bar"]["holder"] or "").endswith("tool call echo"))
    row = ask("routing.route", request="echo it", with_conversation=True, top_k=1)
    assert row.tool == "echo"
    assert not running.done
    ask("agent.ask", text="echo later")
    assert desk.parts(["agent"])["agent"]["queue"] == ["echo later"]
    assert ask("agent.unqueue", index=0) == {"withdrawn": True}
    with pytest.raises(BadRequest):
        ask("agent.unqueue", index=0)
    desk.stop()
    running.get()
    assert len(desk.panels["agent"].turns) == 1


def test_a_new_conversation_forgets_what_was_said(make_desk):
    desk = make_desk("hello")
    ask = make_desk.ask(desk)
    desk.ask("echo hello").get()
    assert desk.agent.history
    ask("agent.new_conversation")
    assert desk.agent.history == ()
    assert desk.ask("echo hello").get().number == 2


def test_texts_of_a_turn_are_escaped_in_the_page(make_desk):
    hostile = "<script>alert(1)</script>"
    desk = make_desk(hostile, max_tokens=64)
    desk.ask(f"echo {hostile}").get()
    assert "<script" not in desk.panels["agent"].to_html()
    assert "<script" not in desk.panels["routing"].to_html()
    assert _card(desk)["result"] == hostile


def test_speed_is_measured_beside_the_conversation(make_desk):
    desk = make_desk("hello")
    ask = make_desk.ask(desk)
    desk.ask("echo hello").get()
    used = desk.engine.used_cells()
    speed = ask("models.measure")
    assert speed.prefill_tps > 0
    assert speed.decode_tps > 0
    assert (speed.n_decoded, speed.n_runs) == (32, 3)
    assert desk.engine.used_cells() == used
    assert desk.parts(["models"])["models"]["speed"]["n_tokens"] == speed.n_tokens


def test_an_engine_of_the_caller_outlives_the_desk(make_desk):
    desk = make_desk("hello")
    desk.ask("echo hello").get()
    engine = desk.engine
    rows = desk.parts(["models"])["models"]["rows"]
    assert [row["loaded"] for row in rows if row["name"] == "bundled"] == [True]
    make_desk.ask(desk)("models.unload")
    part = desk.parts(["bar", "agent"])
    assert (part["bar"]["model"], part["agent"]["ready"]) == (None, False)
    assert engine.tokenize("still here")
    assert engine.used_cells() == 0


def test_a_model_that_is_none_is_a_typed_error_and_the_old_one_stays(make_desk, tmp_path):
    from nexus_lab.engine import EngineError

    desk = make_desk("hello")
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF but not really")
    for path in (str(wrong), str(tmp_path / "absent.gguf")):
        with pytest.raises(EngineError):
            make_desk.ask(desk)("models.load", path=path)
    assert desk.ask("echo hello").get().outcome is TurnOutcome.CALLED
    make_desk.ask(desk)("models.add_folder", path=str(tmp_path))
    rows = desk.parts(["models"])["models"]["rows"]
    assert next(row for row in rows if row["name"] == "wrong.gguf")["error"]["message"]


def test_where_values_come_from():
    from desk_tools import tool

    spec = tool(
        "act",
        method={"enum": ["get", "put"]},
        n={"type": "integer"},
        owner={},
        size={"default": 10},
        kind={"const": "x1"},
        flag={"type": "boolean"},
        names={"type": "array"},
    )
    said = [
        Said(1, "work on Bright/loom", "done", "issue 482 is open"),
        Said(2, "close it for ann and  Bob", "", ""),
    ]
    arguments = {
        "method": "put",
        "n": 482,
        "owner": "bright",
        "size": 10,
        "kind": "x1",
        "flag": True,
        "names": ["Ann", "bob"],
        "odd": "never said",
    }
    assert sources_of(arguments, spec, said) == {
        "method": "enum of the schema",
        "n": "copied from the result of turn 1",
        "owner": "copied from turn 1",
        "size": "default of the schema",
        "kind": "constant of the schema",
        "names": "copied from turn 2",
    }
    assert sources_of({"n": 48}, spec, said) == {}
    assert sources_of({"owner": "a.b*("}, spec, [Said(3, "see A.B*( now")]) == {"owner": "copied from turn 3"}
