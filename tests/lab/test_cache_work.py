"""What the Cache panel draws and does over a live conversation, and the exact costs of policies."""

from __future__ import annotations

import json

import pytest
from told_tools import ask, settle, told_desk

from nexus_lab.bench.base import Result, ResultFile
from nexus_lab.bench.cache_replay import count
from nexus_lab.bench.trajectories import Trajectory
from nexus_lab.cache import Append, CacheProgram, Drop, Repos, StartKind
from nexus_lab.cache.costs import Costs
from nexus_lab.errors import NexusError
from nexus_lab.lab import TreeDrawing
from nexus_lab.lab.cache_work import NoProgram
from nexus_lab.lab.drawing import html_of
from nexus_lab.lab.dry_session import dry_cost, forgetting_tokens, of_trajectory
from nexus_lab.lab.wire import BadRequest, to_json

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("nexus_home")]

DROPPING = {"policy": "rolling_drop", "keep_responses": 0, "repos": True}


def called(text):
    return {"role": "assistant", "content": None, "tool_calls": [{"name": "find", "arguments": {"to": text}}]}


TALK = Trajectory(
    "to the south",
    (
        {"role": "system", "content": "You find trains."},
        {"role": "user", "content": "To Milan, please."},
        called("Milan"),
        {"role": "tool", "content": "EC 317 leaves 09:33, 67.50; EC 319 leaves 11:33, 49.00; " * 6},
        {"role": "assistant", "content": "The EC 319 at 11:33."},
        {"role": "user", "content": "And to Genoa?"},
        called("Genoa"),
        {"role": "tool", "content": "EC 329 leaves 07:33, 89.00; IC 661 leaves 10:10, 72.00; " * 6},
        {"role": "assistant", "content": "The IC 661 at 10:10."},
        {"role": "user", "content": "When does the first one leave?"},
        {"role": "assistant", "content": "At 11:33."},
    ),
)
COUNTED = (
    "full",
    "rolling_drop(keep_last=0)",
    "rolling_drop_repos(keep_last=1)",
    "rolling_drop_repos(keep_last=0,repos_every=2,keep_head=4)",
    "drop_reasoning(keep_reasoning=0)",
    "drop_both(keep_last=0,keep_reasoning=0,repos=no)",
    "trim(keep_last=0)",
)


@pytest.fixture
def desk(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, **DROPPING) as made:
        yield made


def asked(desk, *texts):
    for text in texts or ("Say hello", "Say hello again", "Say hello at last"):
        ask(desk, text)
    return desk.panels["cache"]


def request(desk, method, **params):
    answers = []
    desk.handle(method, params, answers.append)
    settle(desk)
    (answer,) = answers
    return answer


# -- exact costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", COUNTED)
def test_a_trajectory_costs_what_a_replay_would_count(bundled_engine, policy):
    """The evaluation counts with the conversation's own code; here the tokens are taken as they are."""
    wanted = count(bundled_engine, TALK, policy)
    found = dry_cost(bundled_engine, of_trajectory(bundled_engine, TALK), policy)
    assert found.declined is None
    assert found.costs == Costs(**{name: wanted[name] for name in found.costs.to_dict()})
    assert found.again == wanted["tokens_prefilled"] - wanted["input_tokens"]
    assert found.active == wanted["active"][-1]


def test_under_its_own_policy_a_session_goes_through_what_it_did(desk):
    panel = asked(desk)
    live = desk.agent.live.runner.timeline
    view = panel.cost()
    full, own, forgotten = view.cost.costs
    assert {"drop", "repos"} <= {op.kind.value for op in live.ops}
    assert own.program == live
    assert own.active == live.layout.n_active
    assert own.costs.tokens_prefilled == full.costs.tokens_prefilled
    assert own.costs.cells_attended < full.costs.cells_attended
    assert not any(isinstance(op, Drop | Repos) for op in full.program.ops)
    assert len(full.program.layout) == len(live.layout)
    assert forgotten.costs.tokens_prefilled > own.costs.tokens_prefilled
    assert forgotten.active == own.active
    assert forgotten.program.layout.active.all()


def test_the_model_s_words_are_counted_as_decoded(desk):
    panel = asked(desk, "Say hello")
    (full, *_) = panel.cost("full").cost.costs
    notes = ("call", "answer", "assistant")  # what opens a reply stands in the message before it
    said = [cell.tokens for cell in panel.ops if cell.kind == "append" and cell.note.startswith(notes)]
    assert full.costs.tokens_decoded == sum(said)
    assert full.costs.tokens_prefilled + full.costs.tokens_decoded == len(full.program.layout)


def test_true_forgetting_is_a_prefill_of_what_is_left(bundled_engine):
    recorded = of_trajectory(bundled_engine, TALK)
    dropped = dry_cost(bundled_engine, recorded, "rolling_drop(keep_last=0)")
    forgotten = dry_cost(bundled_engine, recorded, "rolling_drop(keep_last=0)", forget=True)
    full = dry_cost(bundled_engine, recorded, "full")
    assert full.again == dropped.again == 0
    assert forgotten.again > 0
    assert forgotten.active == dropped.active < full.active
    assert forgotten.dropped == dropped.dropped > 0
    assert all(isinstance(op, Append) for op in forgotten.program.ops)


def test_what_asks_the_model_is_declined_with_a_reason(bundled_engine):
    recorded = of_trajectory(bundled_engine, TALK)
    for policy in ("summarise", "agent(every=1)"):
        declined = dry_cost(bundled_engine, recorded, policy).declined
        assert declined.code == "asks_the_model"
        assert policy.split("(")[0] in declined.reason


def test_tokens_from_the_first_other_one_on_are_prefilled_to_forget():
    program = CacheProgram().append([1, 2, 3, 4, 3, 5, 6])
    assert forgetting_tokens(program.layout) == 0
    # 3, 4 are gone, and 3 follows: the rows of 1, 2, 3 are there already.
    assert forgetting_tokens(program.drop((2, 4)).layout) == 2
    assert forgetting_tokens(program.drop((0, 1)).layout) == 6
    assert forgetting_tokens(program.drop((6, 7)).layout) == 1  # for the logits
    spliced = CacheProgram().append([1, 2]).splice("block", [3, 4], anchor=2).append([5, 6]).drop((5, 6))
    assert forgetting_tokens(spliced.layout) == 3


# -- drawings of a live conversation -------------------------------------------------------------------------


def test_an_empty_desk_has_empty_drawings(desk):
    panel = desk.panels["cache"]
    for name in ("tree", "residency", "restore"):
        assert panel.view(name, {})[0] == "p"
    assert "restore" not in json.dumps(request(desk, "cache.study", name="policy", values={}))
    with pytest.raises(NoProgram):
        panel.cost()
    with pytest.raises(NoProgram):
        panel.plan_restore()
    with pytest.raises(BadRequest):
        panel.view("nothing", {})


def test_the_tree_follows_cursor_and_program(desk):
    panel = asked(desk, "Say hello", "Say hello again")
    n = len(panel.ops)
    frame = panel.tree().to_frame()
    assert frame.filter(here=True)["index"].to_list() == [n]
    assert frame.filter(own=True)["tokens"].sum() >= panel.program_state.n_active
    dropped = {cell.index: cell.tokens for cell in panel.ops if cell.kind == "drop"}
    told = {row["index"]: row["tokens"] for row in frame.iter_rows(named=True) if row["op"] == "drop"}
    assert {index: told[index] for index in dropped} == dropped
    panel.goto(1)
    assert panel.tree().to_frame().filter(here=True)["index"].to_list() == [1]
    assert "live" in panel.tree().to_frame().filter(index=1)["places"].to_list()[0]


def test_the_panel_s_tree_is_that_of_its_runner(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(paper)", **DROPPING) as desk:
        panel = asked(desk, "Say hello", "Say hello again")
        assert {"splice", "repair"} <= {cell.kind for cell in panel.ops}
        own = panel.tree().to_frame()
        assert own.drop("name").equals(TreeDrawing.of(desk.agent.live.runner).to_frame().drop("name"))
        assert own.filter(op="splice")["tokens"].sum() > 0


def test_a_fork_leaves_its_program_in_the_tree(desk):
    panel = asked(desk, "Say hello", "Say hello again")
    panel.fork(panel.part()["fork_points"][1].end, {"policy": "full"})
    settle(desk)
    tree = panel.tree()
    ends = {row["name"]: row for row in tree.to_frame().iter_rows(named=True) if row["name"]}
    assert {"this conversation", "r-001"} <= set(ends)
    # The old run went through the same tokens and dropped some: its program goes on where the new one ends.
    assert ends["r-001"]["op"] == "repos"
    assert ends["this conversation"]["index"] == len(panel.ops)
    assert not ends["r-001"]["own"]
    assert html_of(tree.element()).count(">this conversation</text>") == 1


def test_evicted_states_are_drawn_as_gone(desk):
    panel = asked(desk, "Say hello", "Say hello again")
    panel.fork(0, {"policy": "full"})
    settle(desk)
    assert "gone" not in panel.tree().to_text().split("\n")[0]
    runner = desk.agent.live.runner
    desk.driver.submit("forgetting", runner.store.clear).get()
    panel.goto(len(panel.ops))
    text = panel.tree().to_text()
    gone = panel.tree().to_frame().filter(name="r-001")
    assert gone["places"].to_list() == [["gone"]]
    assert "are gone" in text


def test_every_drawing_has_all_its_forms(desk):
    panel = asked(desk, "Say hello")
    panel.plan_restore(2)
    for drawing in (panel.tree(), panel.memories(), panel.restores(), panel.cost("trim")):
        assert drawing.to_text()
        assert drawing.to_frame().height > 0
        assert drawing.title in drawing.to_html()
    page = panel.to_html()
    for title in ("Op tree", "Where the rows are", "Restore", "Policy"):
        assert page.count(f"<h3>{title}</h3>") == 1
    desk.change_profile(policy="summarise")  # cannot be counted ahead, and is said all the same
    assert "what summarise costs depends on what the model says" in panel.to_html()


# -- restore -------------------------------------------------------------------------------------------------


def test_a_plan_says_what_going_there_then_does(desk):
    panel = asked(desk)
    cut = next(cell.index for cell in panel.ops if cell.kind == "repos")
    plan = panel.plan_restore(cut)
    assert plan.start is StartKind.SNAPSHOT
    assert plan.places == ("host",)
    assert (plan.tokens, plan.steps) == (0, ())
    done = panel.bring_back(cut)
    assert (done.start, done.computed, done.there) == (plan.start, 0, plan.there)
    assert panel.cursor.cursor == cut
    assert panel.cursor.of == len(panel.ops)
    assert str(cut) in panel.restores().to_text()


def test_from_nothing_a_plan_has_the_passes_that_a_trial_needs(desk):
    panel = asked(desk)
    n = len(panel.ops)
    panel.plan_restore(n)
    cold = panel.restores().cold
    kinds = [op.kind.value for op in desk.agent.live.runner.timeline.ops]
    assert cold.start is StartKind.EMPTY
    assert cold.tokens == len(desk.agent.live.runner.timeline.layout)
    assert cold.epochs == kinds.count("repos") + 1
    trial = panel.try_from_nothing(n)
    assert trial.at_once.computed == trial.stepwise.computed == cold.tokens
    if cold.declined is None:
        assert trial.at_once.passes == cold.joined
    else:
        assert cold.joined == 0 or trial.at_once.declined is not None
    assert trial.stepwise.passes == 0
    assert panel.cursor.cursor == n
    assert ask(desk, "Say hello").answer is not None


def test_without_repos_the_drops_lie_between_the_appends_of_one_pass(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, policy="rolling_drop", keep_responses=0, repos=False) as desk:
        panel = asked(desk)
        n = len(panel.ops)
        panel.plan_restore(n)
        cold = panel.restores().cold
        if cold.declined is None:
            assert cold.joined >= 1
            assert max(step.hidden for step in cold.steps) > 0
            assert panel.try_from_nothing(n).at_once.passes == cold.joined


def test_a_state_that_is_not_there_is_a_typed_error(desk):
    panel = asked(desk, "Say hello")
    with pytest.raises(NexusError):
        panel.plan_restore(999)
    assert isinstance(request(desk, "cache.plan", values={"op": "999"}), NexusError)
    assert isinstance(request(desk, "cache.restore", values={"op": "999"}), NexusError)


# -- forgetting ----------------------------------------------------------------------------------------------


def test_forgetting_for_good_prefills_what_follows_the_first_drop(desk):
    panel = asked(desk)
    state = panel.program_state
    wanted = panel.cost().forgetting
    assert wanted.dropped == len(state) - state.n_active > 0
    kept = state.tokens[state.active].tolist()
    assert panel.forget_for_good() == wanted.prefilled
    after = panel.program_state
    assert after.active.all()
    assert after.tokens.tolist() == kept
    assert after.plain_length() == len(after)
    assert panel.cost().forgetting.dropped == 0
    assert panel.forget_for_good() == 0
    assert ask(desk, "Say hello again").result is not None


# -- what views ask for --------------------------------------------------------------------------------------


def test_views_ask_by_message(desk):
    asked(desk)
    for name in ("tree", "residency", "restore"):
        answer = to_json(request(desk, "cache.view", name=name, values={"op": "2"}))
        assert answer[0] == "div"
    before = desk.panels["cache"].part()["drawn"]
    assert to_json(request(desk, "cache.plan", values={"op": "2"}))["op"] == 2
    assert desk.panels["cache"].part()["drawn"] > before
    told = json.dumps(to_json(request(desk, "cache.view", name="restore", values={"op": "2"})))
    assert "Op 2 of" in told
    assert to_json(request(desk, "cache.restore", values={"op": "2"})) == {"op": 2, "computed": 0}
    assert desk.panels["cache"].cursor.cursor == 2


def test_knobs_are_counted_and_taken_over_from_the_next_turn(desk):
    asked(desk)
    values = {"policy": "trim", "knob.trim.keep_last": "1"}
    told = json.dumps(to_json(request(desk, "cache.study", name="policy", values=values)))
    assert "trim(keep_last=1)" in told
    assert "tokens prefilled" in told
    assert to_json(request(desk, "cache.use_policy", values=values)) == {"policy": "trim(keep_last=1)"}
    assert desk.profile.policy == "trim(keep_last=1)"
    ask(desk, "Say hello again")
    assert desk.agent.live.policy.name == "trim"
    assert desk.agent.live.policy.keep_last == 1


def test_a_rolling_drop_without_repos_stays_one(desk):
    assert desk.profile.repos
    values = {"policy": "rolling_drop", "knob.rolling_drop.keep_last": "0"}
    request(desk, "cache.use_policy", values=values)
    assert not desk.profile.repos
    asked(desk, "Say hello", "Say hello again")
    assert "repos" not in {cell.kind for cell in desk.panels["cache"].ops}
    assert "drop" in {cell.kind for cell in desk.panels["cache"].ops}


def test_a_file_is_read_again_only_when_it_has_changed(desk, tmp_path, monkeypatch):
    panel, path = desk.panels["cache"], tmp_path / "front.json"
    assert "dr-bad" in json.dumps(panel.study("front", {"front": str(path)}))
    case = {"policy": "full"}
    results = [Result(case=case, metric=metric, value=1.0, n=3) for metric in ("nll_per_token", "cost")]
    file = ResultFile(
        name="eval cache", created="", versions={}, machine={}, settings={}, results=tuple(results)
    )
    file.write(path)
    assert "1 of 1 policy on the front" in json.dumps(panel.study("front", {"front": str(path)}))
    monkeypatch.setattr(ResultFile, "read", None)
    assert "1 of 1 policy on the front" in json.dumps(panel.study("front", {"front": str(path)}))
    assert [drawing.title for drawing in panel.drawings] == ["Pareto front"]


def test_files_of_a_view_are_read_and_their_faults_told(desk, tmp_path):
    rows = {"id": TALK.name, "messages": list(TALK.messages)}
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(rows) + "\n" + json.dumps({**rows, "id": "<b>other</b>"}))
    values = {"source": "file", "path": str(path), "policy": "rolling_drop", "talk": "<b>other</b>"}
    told = json.dumps(to_json(request(desk, "cache.study", name="policy", values=values)))
    assert "<b>other</b>, " in told
    for name, field in (("policy", "path"), ("front", "front"), ("attention", "attention")):
        wrong = {"source": "file", field: str(tmp_path / "missing")}
        answer = json.dumps(to_json(request(desk, "cache.study", name=name, values=wrong)))
        assert "dr-bad" in answer
        assert "Next:" in answer


def test_what_a_replay_or_a_study_found_can_be_shown(desk):
    from nexus_lab.bench.attention import AttentionStudy
    from nexus_lab.bench.cache_report import CacheSweep

    panel = desk.panels["cache"]
    row = {
        "policy": "full",
        "trajectory": "a",
        "nll": 10.0,
        "scored": 10,
        "declined": None,
        "declined_code": None,
        "tokens_prefilled": 9,
        "tokens_decoded": 1,
        "cells_attended": 0,
        "cells_scanned": 0,
        "peak_cells": 1,
        "wall_s": 1.0,
        "ttft_s": [0.1],
        "turn_s": [0.2],
        "input_tokens": 1,
        "dry": False,
    }
    front = panel.front(CacheSweep({"dry": False}, [row, {**row, "policy": "trim", "nll": 9.0}]))
    assert [point.policy for point in front.front] == ["trim"]
    common = {"trajectory": "a", "turn": 1, "layer": 0, "seen": 10}
    study = AttentionStudy(
        {"layers": [0], "model": "Smol", "policy": "full"},
        [
            {**common, "role": "user", "age": 0, "tokens": 5, "mass": 0.25},
            {**common, "role": "tool", "age": 1, "tokens": 5, "mass": 0.75},
        ],
    )
    figure = panel.attention(study)
    assert [(item.role, item.share, item.lift) for item in figure.looked] == [
        ("user", 0.25, 0.5),
        ("tool", 0.75, 1.5),
    ]
    assert "Smol" in html_of(figure.element())
