"""The cache panel: stepping, breakpoints, forks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from told_tools import ask, settle, told_desk

from nexus_lab.agent import EventKind, TurnOutcome
from nexus_lab.cache import Tier
from nexus_lab.errors import Cancelled, NexusError
from nexus_lab.lab.fork import ForkError
from nexus_lab.lab.wire import to_json
from nexus_lab.routing.base import Outcome
from nexus_lab.settings import SettingsError
from nexus_lab.trace import read_session

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("nexus_home")]


@pytest.fixture
def desk(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path) as made:
        yield made


def tokens_and_positions(panel):
    reply = panel.state()
    states, positions = reply.buffers
    return panel.program_state.tokens.tolist(), states.tolist(), positions.tolist()


def test_an_empty_desk_has_an_empty_program(desk):
    part = to_json(desk.panels["cache"].part())
    assert part["ops"] == []
    assert part["cursor"] == 0
    assert part["policy"] == "full"
    assert desk.panels["cache"].to_frame().height == 0
    assert desk.panels["cache"].state().result == {"n": 0, "segments": []}


def test_stepping_back_and_forward_keeps_tokens_and_positions(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, policy="rolling_drop", keep_responses=0) as desk:
        panel = desk.panels["cache"]
        ask(desk)
        ask(desk, "Say hello again")
        n = len(panel.ops)
        assert {"append", "drop", "repos"} <= {cell.kind for cell in panel.ops}
        seen = {}
        for at in range(n, 0, -1):
            panel.goto(at)
            seen[at] = tokens_and_positions(panel)
            assert panel.part()["cursor"] == at
            assert len(panel.part()["ops"]) == n
        panel.goto(0)
        assert panel.program_state.tokens.size == 0
        for at in range(1, n + 1):
            assert panel.forward().cursor == at
            assert tokens_and_positions(panel) == seen[at]
        assert panel.back().cursor == n - 1
        assert panel.cursor.of == n


def test_what_has_not_changed_is_made_for_a_message_once(desk):
    panel = desk.panels["cache"]
    ask(desk)
    before = panel.part()["ops"]
    ask(desk, "Say hello again")
    after = panel.part()["ops"]
    assert len(after) > len(before)
    assert all(old is new for old, new in zip(before, after, strict=False))
    assert to_json(after) == to_json(panel.ops)
    panel.set_breakpoints(gate=False)
    assert to_json(panel.part()["ops"]) == to_json(panel.ops)


def test_a_cell_says_what_the_state_after_it_is(desk):
    panel = desk.panels["cache"]
    ask(desk)
    for cell in panel.ops:
        panel.goto(cell.index)
        state = panel.program_state
        assert (cell.active, cell.logical) == (state.n_active, len(state))
        assert cell.next_position == state.next_position
        assert cell.state_id == state.history_id
        counts = panel.part()["counts"]
        assert counts["computed"] + counts["spliced"] + counts["repaired"] == counts["active"]
    assert panel.ops[0].note == "system"
    assert {cell.turn for cell in panel.ops[1:]} == {1}
    assert all(cell.seconds is not None for cell in panel.ops)


def test_asking_while_looking_back_returns_to_the_end_first(desk):
    panel = desk.panels["cache"]
    ask(desk)
    before = [cell.state_id for cell in panel.ops]
    panel.goto(1)
    assert ask(desk, "Say hello again").outcome is TurnOutcome.CALLED
    assert [cell.state_id for cell in panel.ops][: len(before)] == before
    assert len(panel.ops) > len(before)
    # The notes of the first time stay, although the operations may have been brought about again.
    assert panel.ops[0].note == "system"
    assert panel.cursor.cursor == panel.cursor.of


def test_the_revision_changes_with_the_tokens_alone(desk):
    panel = desk.panels["cache"]
    ask(desk)
    first = panel.part()["revision"]
    assert panel.part()["revision"] == first
    panel.goto(1)
    assert panel.part()["revision"] != first


def test_segments_tile_the_tokens_that_are_there(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(exact)") as desk:
        panel = desk.panels["cache"]
        ask(desk)
        for at in range(1, len(panel.ops) + 1):
            panel.goto(at)
            reply = panel.state().result
            edges = [(item["start"], item["stop"]) for item in reply["segments"]]
            assert edges[0][0] == 0
            assert edges[-1][1] == reply["n"]
            assert all(left[1] == right[0] for left, right in pairwise(edges))
        assert "block echo" in {item["label"] for item in reply["segments"]}


def test_pieces_are_the_text_of_the_window_and_no_more_than_400(desk):
    panel = desk.panels["cache"]
    ask(desk, "Say <script>alert(1)</script> <|im_end|>")
    pieces = panel.pieces(0, 10_000)["pieces"]
    assert 0 < len(pieces) <= 400
    text = "".join(pieces)
    assert "<script>alert(1)</script>" in text
    assert panel.pieces(-5, 2)["pieces"] == pieces[:2]
    assert panel.pieces(10**6, 10**6 + 5)["pieces"] == []


def test_an_escalated_gate_stops_at_the_first_operation_of_its_turn(desk):
    panel = desk.panels["cache"]
    ask(desk)
    assert not any(cell.stops for cell in panel.ops)
    n = len(panel.ops)
    desk.agent.router.outcome = Outcome.ESCALATED
    ask(desk, "Say hello again")
    assert [cell.index for cell in panel.ops if "gate" in cell.stops] == [n + 1]
    panel.goto(0)
    assert panel.next_breakpoint().cursor == n + 1
    assert panel.next_breakpoint().cursor == len(panel.ops)
    panel.set_breakpoints(gate=False)
    assert not any(cell.stops for cell in panel.ops)
    panel.goto(0)
    assert panel.next_breakpoint().cursor == len(panel.ops)


def test_a_tool_s_error_stops_at_its_response(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, text="fail") as desk:
        assert ask(desk).result.is_error
        stopped = [cell for cell in desk.panels["cache"].ops if "failed" in cell.stops]
        assert [cell.note for cell in stopped] == ["tool"]


def test_a_declined_splice_stops_at_what_was_done_instead(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(exact)") as desk:
        panel = desk.panels["cache"]
        ask(desk)
        ask(desk, "Say hello again")
        stopped = [cell for cell in panel.ops if cell.stops]
        assert [(cell.kind, cell.turn, cell.stops) for cell in stopped] == [("append", 2, ("declined",))]
        assert stopped[0].declined.code == "not_anchored"
        assert "text" in stopped[0].note


def test_a_lossy_splice_stops_over_epsilon(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(paper)", shadow=True) as desk:
        panel = desk.panels["cache"]
        turn = ask(desk)
        panel.set_breakpoints(epsilon=0.0)
        stopped = [cell for cell in panel.ops if "dkl" in cell.stops]
        assert [cell.kind for cell in stopped] == ["repair"]
        assert stopped[0].dkl == turn.splice.dkl
        panel.set_breakpoints(epsilon=turn.splice.dkl)
        assert not any("dkl" in cell.stops for cell in panel.ops)
        with pytest.raises(NexusError):
            panel.set_breakpoints(epsilon=-1.0)


def test_a_fork_asks_again_and_keeps_the_old_run(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path) as desk:
        panel = desk.panels["cache"]
        ask(desk)
        at = len(panel.ops)
        ask(desk, "Say hello again")
        old = panel.ops
        done = panel.fork(at, {"policy": "rolling_drop_repos", "keep_responses": 0})
        assert done["run"] == "r-002"
        assert done["rerun_ops"] == len(old) - at
        assert done["rerun_tokens"] == sum(cell.tokens for cell in old[at:])
        settle(desk)
        assert [cell.state_id for cell in panel.ops[:at]] == [cell.state_id for cell in old[:at]]
        assert {"drop", "repos"} <= {cell.kind for cell in panel.ops[at:]}
        assert [card.number for card in desk.panels["agent"].turns] == [1, 2]
        assert desk.panels["agent"].turns[-1].request == "Say hello again"
        (branch,) = panel.part()["forks"]
        assert (branch.run, branch.at) == ("r-001", at)
        assert branch.kinds == tuple(cell.kind for cell in old[at:])
        rows = {row.run: row for row in desk.panels["session"].runs}
        assert rows["r-002"].live
        assert rows["r-001"].turns == 2
    recorded = read_session(tmp_path / "here.nexus")
    assert [run.id for run in recorded.manifest.runs] == ["r-001", "r-002"]
    assert recorded.manifest.runs[1].parent == "r-001"
    turns = recorded.turns.collect()
    asked = [(row["run"], row["turn"]) for row in turns.iter_rows(named=True)]
    assert asked == [("r-001", 1), ("r-001", 2), ("r-002", 2)]
    # The new run's record holds the operations that it shares, so that it is whole by itself.
    shared = recorded.ops.collect().filter(run="r-002")["state_id"].to_list()
    assert [cell.state_id for cell in old[:at]] == shared[:at]


def test_inside_a_turn_a_fork_asks_the_whole_turn_again(desk):
    panel = desk.panels["cache"]
    ask(desk)
    first = len(panel.ops)
    ask(desk, "Say hello again")
    base, one, two = panel.part()["fork_points"]
    assert (base.end, one.end) == (1, first)
    assert one.said <= first + 2 < two.said
    done = panel.fork(first + 2, {})
    assert done["at"] == one.end
    assert "inside turn 2" in done["note"]
    settle(desk)
    assert desk.panels["agent"].turns[-1].number == 2


def test_a_fork_before_the_first_turn_keeps_the_system_prompt(desk):
    panel = desk.panels["cache"]
    ask(desk)
    before = panel.ops
    assert panel.fork(0, {"max_tokens": 32})["at"] == 1
    settle(desk)
    assert panel.ops[0].state_id == before[0].state_id
    assert desk.profile.max_tokens == 32
    # The same requests under settings that change nothing about the tokens lead to the same program.
    assert [cell.state_id for cell in panel.ops] == [cell.state_id for cell in before]


def test_a_fork_that_means_nothing_changes_nothing(desk):
    panel = desk.panels["cache"]
    with pytest.raises(ForkError):
        panel.fork(1, {})
    ask(desk)
    before = [cell.state_id for cell in panel.ops]
    with pytest.raises(SettingsError):
        panel.fork(1, {"k": 0.5})
    with pytest.raises(ForkError):
        panel.fork(99, {})
    assert [cell.state_id for cell in panel.ops] == before
    assert desk.recorder.run == "r-001"


def test_slots_arena_and_page(desk):
    panel = desk.panels["cache"]
    ask(desk)
    part = to_json(panel.part())
    live = [slot for slot in part["slots"] if slot["kind"] == "live"]
    assert live[0]["label"] == "this conversation"
    assert live[0]["tokens"] == part["counts"]["active"] == part["cells_used"]
    assert part["n_slots"] == 32
    assert 0 < part["arena"]["asked_for"] <= part["arena"]["given_out"] <= part["arena"]["total"]
    found = panel.residency
    assert (found.cells, found.host_bytes) == (part["cells_used"], part["arena"]["given_out"])
    assert found.programs[Tier.LIVE] == 1
    assert sum(node.tokens for node in found.nodes) >= part["counts"]["active"]
    assert panel.to_frame().height == len(part["ops"])
    assert np.isfinite(panel.to_frame()["seconds"].to_numpy()).all()
    assert "Cache program" in panel.to_html()


def reply_of(desk, method, **params):
    """Send a request as a view does, and wait for what comes back."""
    answers = []
    desk.handle(method, params, answers.append)
    settle(desk)
    (answer,) = answers
    return answer


def test_views_reach_the_panel_by_messages(desk):
    assert isinstance(reply_of(desk, "cache.goto", n=1), NexusError)
    ask(desk)
    n = len(desk.panels["cache"].ops)
    assert to_json(reply_of(desk, "cache.goto", n=1)) == {"cursor": 1, "of": n, "stops": []}
    assert reply_of(desk, "cache.state").result["n"] == desk.panels["cache"].ops[0].logical
    assert len(reply_of(desk, "cache.pieces", start=0, stop=3)["pieces"]) == 3
    assert to_json(reply_of(desk, "cache.set_breakpoints", gate=False))["gate"] is False
    assert isinstance(reply_of(desk, "cache.goto", n="1"), NexusError)
    assert isinstance(reply_of(desk, "cache.goto", n=n + 1), NexusError)
    assert reply_of(desk, "cache.next_breakpoint").cursor == n
    forked = to_json(reply_of(desk, "cache.fork", at=n, settings={"k": 5, "tau": None}))
    assert (forked["rerun_ops"], forked["rerun_tokens"]) == (0, 0)
    assert desk.profile.k == 5


def test_a_fork_that_is_stopped_keeps_conversation_and_settings(desk, monkeypatch):
    panel = desk.panels["cache"]
    ask(desk)
    before = [cell.state_id for cell in panel.ops]

    def stopped(_n):
        raise Cancelled("stopped")

    monkeypatch.setattr(desk.agent.live.runner, "goto", stopped)
    with pytest.raises(Cancelled):
        panel.fork(1, {"k": 6})
    monkeypatch.undo()
    assert [cell.state_id for cell in panel.ops] == before
    assert desk.profile.k == 4
    assert desk.recorder.run == "r-001"
    assert ask(desk, "Say hello again").outcome is TurnOutcome.CALLED


def test_stopping_a_fork_ends_the_row_of_requests(desk):
    panel = desk.panels["cache"]
    for text in ("Say hello", "Say hello again", "Say hello at last"):
        ask(desk, text)
    calls = []

    class Stopper:
        def on_event(self, event):
            if event.kind is EventKind.PREFILL and event.duration_ns is None and event.name == "user":
                calls.append(event.id)
                desk.stop()

    stopper = Stopper()
    desk.agent.emitter.add(stopper)
    panel.fork(0, {})
    settle(desk)
    desk.agent.emitter.remove(stopper)
    assert len(calls) == 1
    assert desk.panels["agent"].turns[-1].state == "cancelled"
    assert "2 requests not asked again" in desk.bar.part()["notice"]["text"]
    assert ask(desk, "Say hello").outcome is TurnOutcome.CALLED


def test_a_policy_that_failed_is_no_decline_of_the_operation_before_it(bundled_engine, tmp_path):
    source = tmp_path / "policies.py"
    source.write_text("def fails(moment):\n    raise ValueError\n")
    with told_desk(bundled_engine, tmp_path, policy=f"python(function={source}:fails)") as desk:
        assert ask(desk, "Say hello").outcome is TurnOutcome.CALLED
        settle(desk)
        assert [op["declined"] for op in to_json(desk.panels["cache"].part())["ops"] if op["declined"]] == []
        spans = to_json(desk.panels["agent"].part())["turns"][-1]["spans"]
        assert [span["name"] for span in spans if span["status"] == "declined"] == ["policy"]
