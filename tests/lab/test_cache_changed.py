"""The Cache panel over conversations that were spliced, rewritten, forked, left or torn."""

from __future__ import annotations

import json
import shutil

import pytest
from told_tools import ask, settle, told_desk

from nexus_lab.cache import CacheProgram, MessageSpan, StartKind
from nexus_lab.engine.errors import ContextFull
from nexus_lab.errors import Cancelled
from nexus_lab.lab.dry_session import is_rewritten
from nexus_lab.lab.wire import to_json

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("nexus_home")]

DROPPING = {"policy": "rolling_drop", "keep_responses": 0, "repos": True}


@pytest.fixture
def desk(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, **DROPPING) as made:
        yield made


@pytest.fixture
def spliced(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(paper)", **DROPPING) as made:
        yield made


def asked(desk, *texts):
    for text in texts or ("Say hello", "Say hello again"):
        ask(desk, text)
    return desk.panels["cache"]


def problem_of(desk):
    answers = []
    desk.handle("cache.study", {"name": "policy", "values": {}}, answers.append)
    settle(desk)
    return json.dumps(to_json(answers[0]))


# -- splices -------------------------------------------------------------------------------------------------


def test_a_spliced_conversation_is_tried_from_nothing_with_its_blocks(spliced):
    panel = asked(spliced, "Say hello")
    n = len(panel.ops)
    n_spliced = sum(cell.tokens for cell in panel.ops if cell.kind == "splice")
    panel.plan_restore(n)
    cold = panel.restores().cold
    trial = panel.try_from_nothing(n)
    assert trial.declined is None
    assert n_spliced > 0
    assert cold.loaded == n_spliced
    assert trial.at_once.computed == trial.stepwise.computed == cold.tokens
    assert trial.at_once.ops == trial.stepwise.ops == n
    assert trial.at_once.start is StartKind.EMPTY
    assert panel.restores().trial is trial


def test_a_block_that_is_gone_is_planned_as_computed_and_declined_in_a_trial(spliced):
    panel = asked(spliced, "Say hello")
    n_spliced = sum(cell.tokens for cell in panel.ops if cell.kind == "splice")
    at = next(cell.index for cell in panel.ops if cell.kind == "splice")
    panel.plan_restore(at)
    before = panel.restores().cold
    library = spliced.agent.library
    library._warm.clear()
    library._recipes.clear()  # as for a block that another session compiled
    for path in library.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    panel.plan_restore(at)
    cold = panel.restores().cold
    assert (before.loaded, cold.loaded) == (n_spliced, 0)
    assert cold.tokens == before.tokens + n_spliced
    trial = panel.try_from_nothing(at)
    assert trial.declined.code in {"block_refused", "block_unreadable"}
    assert trial.difference is None
    assert trial.stepwise.computed == cold.tokens
    assert "Another state came about" in panel.restores().to_text()


# -- rewritten texts -----------------------------------------------------------------------------------------


def test_a_first_append_of_several_messages_is_a_rewritten_text():
    messages = (MessageSpan("system", 0, 3, "a"), MessageSpan("user", 3, 5, "b"))
    assert is_rewritten(CacheProgram().append(range(5)), messages)
    assert is_rewritten(CacheProgram().append(range(9)), messages)
    assert not is_rewritten(CacheProgram().append(range(3)).append(range(6)), messages)
    assert not is_rewritten(CacheProgram().append(range(3)), messages[:1])
    assert not is_rewritten(CacheProgram(), ())


def test_what_full_would_cost_is_not_told_of_a_text_that_was_forgotten_for_good(desk):
    panel = asked(desk)
    assert panel.cost().cost is not None
    assert panel.forget_for_good() > 0
    view = panel.cost()
    assert view.cost is None
    assert "what full would cost is not known" in view.problem
    assert "what full would cost is not known" in problem_of(desk)
    ask(desk, "Say hello at last")
    assert panel.cost().cost is None
    desk.driver.submit("new", desk.agent.new_conversation).get()
    ask(desk)
    assert panel.cost().cost is not None


def test_what_full_would_cost_is_not_told_of_a_text_that_a_policy_rewrites(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, policy="trim(keep_last=0)") as desk:
        panel = asked(desk)
        assert panel.cost("full").cost is None
        assert "trim" in panel.cost("full").problem
        assert "what full would cost is not known" in problem_of(desk)
        assert "Exact costs" not in panel.to_html()


# -- what was planned before ---------------------------------------------------------------------------------


def test_plans_and_trials_of_states_that_are_gone_are_not_shown(desk):
    panel = asked(desk)
    n, kept = len(panel.ops), panel.part()["fork_points"][1]
    panel.try_from_nothing(n)
    panel.plan_restore(n)
    view = panel.restores()
    assert view.plan.op == view.cold.op == view.trial.at_once.op == n
    panel.fork(kept.end, {"policy": "full"})
    settle(desk)
    view = panel.restores()
    assert (view.plan, view.cold, view.done, view.trial, view.chosen_op) == (None,) * 5
    panel.plan_restore(1)  # both programs have this state
    panel.fork(panel.part()["fork_points"][1].end, {"policy": "rolling_drop"})
    settle(desk)
    assert panel.restores().plan.op == 1


def test_nothing_of_a_conversation_is_shown_of_the_next(desk):
    panel = asked(desk)
    panel.fork(panel.part()["fork_points"][1].end, {"policy": "full"})
    settle(desk)
    panel.plan_restore(1)
    assert len(panel.part()["forks"]) == 1
    assert "r-001" in panel.tree().to_text()
    assert panel.restores().plan is not None
    desk.driver.submit("new", desk.agent.new_conversation).get()
    ask(desk)
    # The system prompt is the same, and so is the state behind it.
    assert panel.restores().plan is None
    assert panel.part()["forks"] == ()
    assert "r-001" not in panel.tree().to_text()


def test_an_eviction_behind_a_plan_is_told(desk):
    asked(desk, "Say hello")
    desk.driver.submit("new", desk.agent.new_conversation).get()  # the sequence stays warm
    panel = asked(desk, "Say hello")
    panel.plan_restore(1)
    assert "since this was planned" not in panel.restores().to_text()
    assert desk.driver.submit("evicting", desk.agent.live.runner.pool.evict_one).get()
    ask(desk, "Say hello again")
    assert "1 eviction since this was planned" in panel.restores().to_text()


def test_behind_a_rewritten_text_no_branch_begins_and_no_plan_holds(desk):
    panel = asked(desk)
    panel.fork(panel.part()["fork_points"][1].end, {"keep_responses": 0})
    settle(desk)
    assert len(panel.part()["forks"]) == 1
    panel.plan_restore(3)
    panel.forget_for_good()
    assert panel.part()["forks"] == ()
    assert panel.restores().plan is None


# -- stopped on the way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Cancelled("stopped"), ContextFull(9, 1, 9), KeyboardInterrupt()])
def test_a_forgetting_that_is_stopped_leaves_the_conversation_whole(desk, monkeypatch, error):
    panel = asked(desk)
    conversation = desk.agent.live
    runner, engine = conversation.runner, desk.engine
    before = runner.timeline, list(conversation.messages), conversation.transcript
    state = runner.snapshot.state
    prefill = engine.prefill

    def stop(*_arguments, **_options):
        monkeypatch.setattr(engine, "prefill", prefill)
        raise error

    monkeypatch.setattr(engine, "prefill", stop)
    with pytest.raises(type(error)):
        panel.forget_for_good()
    assert desk.agent.live is conversation
    assert (runner.timeline, conversation.messages, conversation.transcript) == before
    assert runner.snapshot.state.same_layout(state)
    assert panel.cost().cost is not None
    assert ask(desk, "Say hello at last").result is not None
    assert panel.forget_for_good() > 0
