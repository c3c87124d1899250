"""The splice panel: trials step by step on the real engine, their frames, and what is declined."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from told_tools import ask, settle, told_desk

from nexus_lab.engine import ContextFull
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.lab import splice_parts, splice_trial
from nexus_lab.lab.splice_parts import TrialError, block_tokens, trial_parts
from nexus_lab.lab.splice_records import SpliceSettings
from nexus_lab.lab.wire import to_json
from nexus_lab.splice import Calibration, CalibrationCell, context_hash, save_calibration, typical_context
from nexus_lab.trace import export, read_session

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("nexus_home")]

LONG = "Say it again. " + " ".join(f"Part {n} of the text comes back as it was given." for n in range(4))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEXUS_LAB_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module", autouse=True)
def short_conversations():
    """Two short ones stand for the typical conversations, whose prefill takes half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            splice_parts,
            "typical_context",
            lambda engine, *, system: typical_context(engine, system=system, n_tokens=160, n_contexts=2),
        )
        yield


@pytest.fixture(scope="module")
def desk(bundled_engine, tmp_path_factory, home, short_conversations):  # noqa: ARG001 - blocks go there, and are of these
    with told_desk(bundled_engine, tmp_path_factory.mktemp("desk"), description=LONG) as made:
        yield made


@pytest.fixture(scope="module")
def panel(desk):
    return desk.panels["splice"]


def n_context(desk):
    context, _, _ = block_tokens(desk.engine, desk.registry["echo"], system=desk.agent.system)
    return len(context)


def settings(**changes):
    return SpliceSettings(**{"tool": "echo", "n_past": 80, "repair": "leading", "budget": 0.25, **changes})


@pytest.fixture(scope="module")
def repaired(panel):
    """A leading repair behind a sample conversation, with attention."""
    return panel.run(settings(attention=True))


@pytest.fixture(scope="module")
def anchored(desk, panel):
    """No repair, behind the very tokens that the block was compiled behind."""
    return panel.run(settings(n_past=n_context(desk), repair="none"))


@pytest.fixture(scope="module")
def full(panel):
    """Everything computed in its true context: what two exact computations differ by."""
    return panel.run(settings(repair="full"))


def test_a_trial_has_the_steps_of_its_repair(repaired, anchored):
    assert [step.name for step in repaired.steps] == ["header", "rotate", "write", "invalidate"] + [
        "redecode"
    ] * 4
    assert [step.name for step in anchored.steps] == ["header", "rotate", "write"]
    assert all(step.ms > 0 for step in repaired.steps)
    assert repaired.repaired == -(-repaired.n_tokens // 4)


def test_frames_have_a_value_for_every_layer_and_head(repaired, desk):
    info = desk.engine.info
    for tensor in ("k", "v"):
        for measure in ("relative", "absolute", "signed"):
            frames = repaired.frames(tensor, measure)
            assert frames.shape == (8, info.n_layer, info.n_head_kv)
            assert frames.dtype == np.float32
            assert np.isfinite(frames).all()
    relative = repaired.frames("k", "relative")
    # Rotating is what brings the keys near the reference; each repaired piece brings them nearer.
    means = relative.mean(axis=(1, 2))
    assert means[1] < means[0] / 2
    assert means[-1] < means[2]
    assert (repaired.frames("v", "relative")[0] == repaired.frames("v", "relative")[1]).all()
    with pytest.raises(ValueError, match="read-only"):
        relative[0, 0, 0] = 1


def test_behind_its_own_context_an_unrepaired_splice_is_at_the_floor(anchored, full, repaired):
    assert anchored.anchored
    assert anchored.repaired == 0
    floor = full.frames("k", "relative")[-1]
    written = anchored.frames("k", "relative")[-1]
    assert written.max() <= 3 * floor.max()
    assert anchored.measured.dkl <= 3 * anchored.measured.noise_floor
    assert anchored.measured.same_first
    elsewhere = repaired.frames("k", "relative")[2]
    assert elsewhere.mean() > 3 * written.mean()


def test_each_cell_has_a_noise_floor_that_exact_work_keeps_to(repaired, full, desk):
    info = desk.engine.info
    for tensor in ("k", "v"):
        floor = full.floor(tensor, "relative")
        assert floor.shape == (info.n_layer, info.n_head_kv)
        # The first layer's rows depend on nothing before them; from then on sums run in another order.
        assert not floor[0].any()
        assert (floor[1:] > 0).mean() > 0.9
        exact = full.frames(tensor, "relative")[-1]
        assert exact.mean() < 3 * floor.mean()
        unrepaired = repaired.frames(tensor, "relative")[2]
        assert unrepaired.mean() > 3 * repaired.floor(tensor, "relative").mean()
        assert (repaired.floor(tensor, "signed") >= 0).all()
    assert repaired.floor("attention", "absolute").shape == (info.n_layer, info.n_head)
    assert full.floor("attention", "absolute") is None
    with pytest.raises(TrialError):
        full.floor("q", "signed")


def test_without_cells_for_the_floor_the_drift_is_shown_alone(panel, monkeypatch):
    def no_room(*_arguments):
        raise ContextFull(350, 100, 2048)

    monkeypatch.setattr(splice_trial, "_floor", no_room)
    trial = panel.run(settings(repair="none"))
    assert trial.floor("k", "relative") is None
    assert trial.measured is not None
    assert len(panel.frame(trial.id, 0).buffers) == 1
    assert (
        panel.to_frame().filter(trial=trial.id)["floor"].null_count() == trial.frames("k", "signed").size * 6
    )


def test_all_rows_out_of_the_cache_is_no_value(full):
    at = [step.name for step in full.steps].index("invalidate")
    assert np.isnan(full.frames("k", "relative")[at]).all()
    assert full.measured.dkl <= 3 * full.measured.noise_floor


def test_the_measure_stands_beside_the_floor(repaired):
    measured = repaired.measured
    assert measured.n_positions >= 32
    assert measured.dkl > 0
    assert 0 < measured.noise_floor < 0.1
    assert 0 <= measured.top1 <= 1
    assert len(measured.next) == 9
    assert measured.next[-1].text == "all others"
    for path in ("prefill", "spliced"):
        assert sum(getattr(row, path) for row in measured.next) == pytest.approx(1, abs=1e-6)
    assert repaired.ttft_ms > 0
    assert measured.prefill_ms > 0


def test_attention_is_compared_where_the_block_is_whole(repaired, anchored, desk):
    info = desk.engine.info
    frames = repaired.frames("attention", "absolute")
    assert frames.shape == (8, info.n_layer, info.n_head)
    whole = [index for index in range(8) if np.isfinite(frames[index]).all()]
    assert whole == [2, 7]
    assert np.isnan(frames[[0, 1, 3, 4, 5, 6]]).all()
    relative = repaired.frames("attention", "relative")
    assert relative[7].mean() < relative[2].mean()
    assert anchored.frames("attention", "absolute") is None
    assert not anchored.has_attention


def test_without_the_measure_no_reference_runs(panel, monkeypatch):
    def refuse(*_arguments):
        raise AssertionError("a reference was run")

    monkeypatch.setattr(splice_trial, "_refer", refuse)
    monkeypatch.setattr(splice_trial, "noise_floor", refuse)
    trial = panel.run(settings(measure=False, attention=True))
    assert trial.measured is None
    assert trial.drift is None
    assert trial.ttft_ms > 0
    assert len(trial.steps) == 8
    assert trial.attention_declined.code == "not_measured"
    with pytest.raises(TrialError, match="no frame"):
        panel.frame(trial.id, 0)


def test_a_frame_comes_as_a_buffer_with_its_ranges(repaired, panel):
    reply = panel.frame(repaired.id, 7, "v", "signed")
    values, floor = reply.buffers
    assert (floor == repaired.floor("v", "signed")).all()
    assert (values == repaired.frames("v", "signed")[7]).all()
    assert values.flags.c_contiguous
    assert (reply.result["rows"], reply.result["cols"]) == values.shape
    low, high = reply.result["step_range"]
    assert (low, high) == (values.min(), values.max())
    assert reply.result["run_range"][0] <= low
    cached = repaired.frames("v", "signed")[2:]
    assert reply.result["cached_range"] == (np.nanmin(cached), np.nanmax(cached))
    assert panel.frame(repaired.id, 7, "attention", "absolute").result["col_label"] == "query head"
    for wrong in (
        (repaired.id, 8, "k", "signed"),
        (repaired.id, 0, "q", "signed"),
        ("s-999", 0, "k", "signed"),
    ):
        with pytest.raises(TrialError):
            panel.frame(*wrong)


def test_the_part_can_be_sent_and_holds_no_array(repaired, panel):
    part = to_json(panel.part())
    assert part["constants"] == {"k": 4.0, "m": 256, "r_base": 0.05}
    assert part["unavailable"] is None
    assert "drift" not in part["run"]
    assert len(str(part["run"])) < 10_000
    assert part["run"]["n_layer"] == repaired.n_layer


def test_trials_leave_the_live_conversation_alone(panel, desk):
    turn = ask(desk)
    assert turn.problem is None
    before = desk.agent.live.runner.snapshot
    used = desk.engine.used_cells()
    panel.run(settings(n_past=40, repair="trailing", budget=None))
    assert desk.agent.live.runner.snapshot is before
    assert desk.engine.used_cells() == used


def test_stop_ends_a_trial_at_once_and_leaves_nothing(panel, desk):
    used, kept = desk.engine.used_cells(), panel.trials
    ended = []

    def stop_in_reference(_names):
        progress = desk.driver.state.progress
        if progress is not None and progress.label.endswith("reference") and not ended:
            ended.append(progress.label)
            desk.stop()

    end = desk.subscribe(stop_in_reference)
    try:
        with pytest.raises(Cancelled):
            panel.run(settings())
    finally:
        end()
    settle(desk)
    assert len(ended) == 1
    assert desk.engine.used_cells() == used
    assert panel.trials == kept
    assert panel.run(settings(repair="none", measure=False)).steps


def test_the_live_conversation_is_the_context_when_it_is_long_enough(desk):
    ask(desk, "Say hello once more")
    tokens = desk.agent.conversation.tokens
    spec = desk.registry["echo"]
    parts = trial_parts(desk.engine, spec, system=desk.agent.system, n_past=60, live=tokens)
    assert parts.before == tokens[:60]
    assert parts.source == "this conversation"
    sample = trial_parts(desk.engine, spec, system=desk.agent.system, n_past=60)
    assert sample.source == "a sample conversation"
    assert len(sample.before) == 60
    assert sample.before[: len(sample.context)] == sample.context


def test_compiled_blocks_and_tokens_are_listed(panel, desk, repaired):
    settle(desk)
    (row,) = panel.part()["tools"]
    assert (row.tool, row.tokens) == ("echo", repaired.n_tokens)
    assert "system" in row.compiled


def test_settings_that_mean_nothing_are_refused_with_a_next_step(panel):
    for wrong in (
        {"tool": "nothing", "n_past": 10},
        {"tool": "echo", "n_past": -1},
        {"tool": "echo", "n_past": 10**6},
        {"tool": "echo", "n_past": 10.5},
        {"tool": "echo", "n_past": "10"},
        {"tool": "echo", "n_past": 10, "budget": "0.25"},
        {"tool": "echo", "n_past": 10, "k": None},
        {"tool": "echo", "n_past": 10, "repair": "some"},
        {"tool": "echo", "n_past": 10, "context": "some"},
        {"tool": "echo", "n_past": 10, "contract": "some"},
        {"tool": "echo", "n_past": 10, "contract": "bounded", "epsilon": 0.0},
        {"tool": "echo", "n_past": 10, "k": 1.0},
        {"tool": "echo", "n_past": 10, "budget": 2.0},
        {"tool": "echo", "n_past": 10, "depth": 3},
    ):
        with pytest.raises(NexusError) as caught:
            panel.run(wrong)
        assert caught.value.next_step


@pytest.fixture(scope="module")
def profiled(panel):
    """The most sensitive quarter computed again, of a block compiled behind typical conversations."""
    return panel.run(settings(repair="profile", context="typical"))


def test_a_profile_repairs_the_most_sensitive_tokens_in_one_pass(profiled, panel, desk):
    assert (profiled.declined, profiled.plan, profiled.repair_path) == (None, "profile", "one_pass")
    assert profiled.repaired == len(profiled.recomputed) == -(-profiled.n_tokens // 4)
    spliced = np.delete(profiled.sensitivity, profiled.recomputed)
    assert profiled.sensitivity[list(profiled.recomputed)].min() >= spliced.max()
    # The rows stay in the cache while they are computed again, and each piece brings them nearer.
    assert [step.name for step in profiled.steps] == ["header", "rotate", "write"] + ["redecode"] * 4
    means = profiled.frames("k", "relative").mean(axis=(1, 2))
    assert means[-1] < means[2]
    assert profiled.led[1].startswith("Block compiled behind typical conversations, at ")
    assert profiled.led[2].endswith("in one pass.")
    part = to_json(panel.part())
    assert part["run"]["profile"]["n"] == profiled.n_tokens
    assert "largest" in part["run"]["profile"]["words"]
    settle(desk)
    assert "typical" in panel.part()["tools"][0].compiled


def test_a_carried_repair_ends_with_the_shift_of_the_rest(panel):
    trial = panel.run(settings(repair="carried", budget=0.5))
    assert (trial.declined, trial.plan) == (None, "carried")
    assert [step.name for step in trial.steps[-2:]] == ["redecode", "carry"]
    assert "carried repair" in trial.led[2]
    before, after = trial.frames("k", "relative")[-2:].mean(axis=(1, 2))
    assert after != before
    values = trial.frames("v", "relative")[-2:]
    assert np.array_equal(*values)


def test_a_film_without_one_pass_ends_where_it_ends_with_it(profiled, panel, desk, monkeypatch):
    declined = {**desk.engine.declines, "input_patches": Decline("off", "patches are off")}
    monkeypatch.setattr(desk.engine, "declines", MappingProxyType(declined))
    runs = panel.run(settings(repair="profile", context="typical"))
    assert runs.repair_path == "runs"
    assert "One pass declined: patches are off" in runs.led[3]
    assert runs.steps[3].name == "invalidate"
    last, other = (trial.frames("k", "relative")[-1] for trial in (runs, profiled))
    assert last == pytest.approx(other, rel=0.05, abs=3 * float(profiled.floor("k", "relative").max()))


def test_a_profile_needs_a_block_of_several_contexts(panel):
    for context in ("system", "none"):
        trial = panel.run(settings(repair="profile", context=context, measure=False))
        assert trial.declined.code == "no_profile"
        assert trial.repaired == trial.n_tokens
        assert "(no_profile)" in trial.led[2]
        assert trial.profile is None


def test_contracts_say_what_they_led_to(panel, desk):
    def contract(name, **changes):
        return panel.run(settings(contract=name, measure=False, **changes))

    exact = contract("exact")
    assert (exact.declined.code, exact.plan) == ("not_anchored", "full")
    here = contract("exact", n_past=n_context(desk))
    assert (here.declined, here.plan, here.anchored) == (None, "none", True)
    assert here.led[1].endswith("anchored here.")
    paper = contract("paper")
    assert (paper.declined, paper.plan) == (None, "trailing")
    assert paper.repaired == paper.curve_tokens
    bounded = contract("bounded", epsilon=0.5, context="none")
    assert bounded.declined.code == "not_calibrated"
    assert "(not_calibrated)" in bounded.led[-1]
    save_calibration(
        Calibration(
            fingerprint=desk.engine.info.fingerprint,
            context_hash=context_hash(here_context(desk)).hex(),
            flash_attention=desk.engine.schedule.flash_attention,
            strategy="leading",
            quantile=0.95,
            noise_floor=1e-4,
            n_tokens_min=1,
            n_tokens_max=4_000,
            cells=tuple(CalibrationCell(depth, 0.5, 0.3, 0.1, 20) for depth in (0, 1_000)),
        )
    )
    bounded = contract("bounded", epsilon=0.5)
    assert (bounded.declined, bounded.plan) == (None, "leading")
    assert bounded.repaired == -(-bounded.n_tokens // 2)
    assert bounded.led[-1] == "Its coverage was not measured."
    frame = panel.trials_frame()
    assert frame["contract"].to_list()[-1] == "bounded(0.5)"
    assert frame.filter(declined="not_anchored")["path"].to_list() == ["prefill"]
    assert "Calibration: leading repair" in repr(panel)


def here_context(desk):
    return block_tokens(desk.engine, desk.registry["echo"], system=desk.agent.system)[0]


def test_only_the_last_trials_are_kept(panel):
    for _ in range(9):
        panel.run(settings(n_past=0, repair="none", measure=False))
    assert len(panel.trials) == 8
    assert panel.newest is panel.trials[-1]


def test_a_model_that_cannot_be_spliced_prefills_and_says_why(panel, desk, monkeypatch):
    declined = Decline("m_rope", "the model gives each token three positions", "full prefill")
    monkeypatch.setattr(desk.engine, "declines", MappingProxyType({"splice": declined}))
    trial = panel.run(settings())
    assert trial.declined == declined
    assert trial.steps == ()
    assert trial.measured is None
    assert trial.ttft_ms > 0
    assert panel.part()["unavailable"] == declined
    assert "three positions" in panel.to_html()


def test_without_room_for_the_comparison_the_splice_is_still_tried(panel, monkeypatch):
    def full(_engine):
        raise ContextFull(350, 100, 2048)

    monkeypatch.setattr(splice_trial, "noise_floor", full)
    trial = panel.run(settings(repair="none"))
    assert trial.measured is None
    assert trial.measure_declined.code == "shadow_no_room"
    assert len(trial.steps) == 3
    assert trial.drift is None


def test_splices_of_turns_are_listed_and_trials_recorded(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, schema_mode="splice(exact)", shadow=True) as desk:
        panel = desk.panels["splice"]
        assert panel.part()["last"] == ()
        ask(desk)
        ask(desk, "Say hello again")
        trial = panel.run(settings(n_past=30))
        last = panel.part()["last"]
        assert [(row["turn"], row["path"]) for row in last] == [(2, "prefill"), (1, "anchored")]
        assert last[0]["declined"].code == "not_anchored"
        assert last[1]["dkl"] is not None
    session = read_session(tmp_path / "here.nexus")
    drift = session.drift.collect()
    assert set(drift["tensor"]) == {"k", "v"}
    assert drift["step"].max() == len(trial.steps)
    assert session.fidelity.collect()["contract"].to_list()[-1] == "trial"
    assert export(session, "html", tmp_path / "report.html").stat().st_size > 0


def test_the_table_has_a_row_for_every_value(panel):
    panel.run(settings(n_past=30, repair="none"))
    frame = panel.to_frame()
    trial = panel.newest
    own = frame.filter(trial=trial.id)
    assert own.height == 3 * 2 * 3 * trial.n_layer * trial.n_head_kv
    assert set(own["measure"]) == {"relative", "absolute", "signed"}
