"""The session panel: runs, comparison, export, and what other programs recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from run_tools import MESSAGES, record, telling
from told_tools import ask, settle, told_desk

from nexus_lab.agent.base import EventKind
from nexus_lab.errors import NexusError
from nexus_lab.lab.compare import RunMissing, compare_runs, session_of_run
from nexus_lab.lab.desk import Desk
from nexus_lab.lab.imports import (
    TranscriptError,
)
from nexus_lab.lab.session_runs import Catalogue
from nexus_lab.lab.wire import to_json
from nexus_lab.paths import shown_path
from nexus_lab.settings import Profile
from nexus_lab.trace import SessionError, SessionRecorder, read_session

pytestmark = pytest.mark.usefixtures("nexus_home")


@pytest.fixture
def desk(tmp_path):
    """A desk without model and tools over an empty folder."""
    with Desk(session=tmp_path / "sessions" / "here", profile=Profile(threads=1)) as made:
        settle(made)
        yield made


# -- comparison ---------------------------------------------------------------------------------------------


def compared(bundle):
    session = read_session(bundle)
    return compare_runs(
        session_of_run(session, "r-001"), session_of_run(session, "r-002"), names=("r-001", "r-002")
    )


def test_equal_turns_pair_span_by_span(bundle):
    result = compared(bundle)
    both = [pair for pair in result.pairs if pair.turn <= 4]
    assert all(pair.a_ms == pair.b_ms and pair.a_ms is not None for pair in both)
    assert {pair.turn for pair in result.pairs} == {1, 2, 3, 4, 5, 6}
    only_a = [pair for pair in result.pairs if pair.turn > 4]
    assert all(pair.b_ms is None for pair in only_a)
    assert [pair.name for pair in both if pair.depth == 0] == ["turn 1", "turn 2", "turn 3", "turn 4"]
    assert "tool issue_read" in {pair.name for pair in both}
    assert "in 4 of 4 turns" in result.note


def test_measures_are_those_of_the_record(bundle):
    result = compared(bundle)
    by_name = {item.name: item for item in result.measures}
    session = read_session(bundle)
    turns = session.turns.filter(run="r-001").collect()
    first = turns.filter(turn=1)["ttft_s"].item()
    assert by_name["First token, turn 1"].a == pytest.approx(first * 1e3)
    assert by_name["First token, turn 5"].b is None
    spans = session.events.filter(pl.col("run") == "r-002", kind="turn").collect()["duration"]
    assert by_name["All spans, 6 and 4 turns"].b == pytest.approx(spans.to_physical().sum() / 1e6)
    last = session.ops.filter(run="r-002").sort("event").collect()["active_tokens"][-1]
    assert by_name["Active tokens at the end"].b == last
    fidelity = session.fidelity.filter(run="r-002").collect()
    recomputed = sum(
        row["n_tokens"] if row["path"] == "prefill" else row["repaired"]
        for row in fidelity.iter_rows(named=True)
    )
    assert by_name["Recomputed in splices"].b == recomputed
    measured = fidelity.drop_nulls("dkl")
    for turn, dkl in measured.select("turn", "dkl").iter_rows():
        assert by_name[f"D_KL, turn {turn}"].b == pytest.approx(dkl)


def test_spans_pair_by_kind_name_and_order_within_their_parent(tmp_path):
    def tell(path, names):
        with SessionRecorder(path) as recorder:
            teller = telling.Teller(recorder)
            with teller.span(EventKind.TURN, "turn 1", turn=1):
                for length, name in enumerate(names, start=1):
                    teller.step(EventKind.CACHE_OP, name, length)
        return session_of_run(read_session(recorder.path), "r-001")

    a = tell(tmp_path / "a", ["append", "append", "drop"])
    b = tell(tmp_path / "b", ["append", "splice", "append", "repos"])
    pairs = compare_runs(a, b, names=("a", "b")).pairs
    assert [(pair.name, pair.a_ms, pair.b_ms) for pair in pairs[1:]] == [
        ("append", 1, 1),
        ("splice", None, 2),
        ("append", 2, 3),
        ("repos", None, 4),
        ("drop", 3, None),
    ]


def test_a_run_that_is_not_there_is_said_with_those_that_are(bundle):
    with pytest.raises(RunMissing) as caught:
        session_of_run(read_session(bundle), "r-009")
    assert "r-001, r-002" in caught.value.next_step


# -- the panel ----------------------------------------------------------------------------------------------


def test_an_empty_folder_has_no_runs(desk):
    part = to_json(desk.panels["session"].part())
    assert part["runs"] == []
    assert part["journal"] is None
    assert part["name"] == "here"
    assert {item["target"] for item in part["targets"]} == {
        "parquet",
        "json",
        "otlp",
        "perfetto",
        "html",
        "csv",
    }
    assert "No run is recorded yet" in desk.panels["session"].to_html()


def test_bundles_beside_the_session_are_listed_with_their_state(desk, bundle):
    panel = desk.panels["session"]
    assert panel.open(str(bundle))["runs"] == ["story/r-001", "story/r-002"]
    rows = {row.run: row for row in panel.runs}
    first, second = rows["story/r-001"], rows["story/r-002"]
    assert (first.turns, second.turns) == (6, 4)
    assert (first.status, first.status_text) == ("bad", "1 turn failed: ServerTimeout")
    assert (second.status, second.status_text) == ("warn", "finished, 1 declined")
    assert second.note == "fork of r-001"
    assert first.policy == "rolling_drop_repos"
    assert first.worst_dkl == read_session(bundle).fidelity.filter(run="r-001").collect()["dkl"].max()
    assert panel.compare("story/r-001", "story/r-002").a == "story/r-001"
    assert panel.to_frame().height == 2
    with pytest.raises(RunMissing):
        panel.compare("story/r-001", "r-077")


def test_a_journal_that_a_killed_process_left_is_recovered(desk):
    script = """
import os, sys
sys.path[:0] = sys.argv[2:]
import session_story as story
from nexus_lab.trace import SessionRecorder
recorder = SessionRecorder(sys.argv[1], contents=True)
story.tell_story(recorder, through=2)
os._exit(9)
"""
    folder = desk.panels["session"].folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "killed.nexus"
    trace = str(Path(__file__).parents[1] / "trace")
    done = subprocess.run([sys.executable, "-c", script, str(path), trace], check=False, env=os.environ)
    assert done.returncode == 9
    desk.panels["session"].refresh()
    (row,) = desk.panels["session"].runs
    assert (row.run, row.turns, row.status_text) == ("killed/r-001", 2, "recovered")


def test_what_is_no_bundle_is_refused_and_leaves_the_list(desk, tmp_path):
    panel = desk.panels["session"]
    (tmp_path / "x.nexus").mkdir()
    (tmp_path / "x.nexus" / "manifest.json").write_text("{}")
    for path in (tmp_path / "x.nexus", tmp_path / "nothing", tmp_path):
        with pytest.raises(SessionError):
            panel.open(str(path))
    assert panel.runs == ()


def test_importing_by_path_and_by_text(desk, tmp_path):
    panel = desk.panels["session"]
    file = tmp_path / "chat of today.json"
    file.write_text(json.dumps(MESSAGES))
    assert panel.import_(path=str(file))["run"] == "chat-of-today/r-001"
    assert panel.import_(text=json.dumps(MESSAGES))["run"] == "imported/r-001"
    rows = {row.run: row for row in panel.runs}
    row = rows["imported/r-001"]
    assert (row.imported, row.status, row.status_text, row.turns) == (True, "ok", "imported", 2)
    assert "says no times" in row.note
    for wrong in ({}, {"path": "a", "text": "b"}, {"path": str(tmp_path / "none.json")}, {"text": "x"}):
        with pytest.raises(NexusError) as caught:
            panel.import_(**wrong)
        assert caught.value.next_step
    assert len(panel.runs) == 2


@pytest.mark.parametrize("target", ["parquet", "json", "otlp", "perfetto", "html", "csv"])
def test_each_export_is_one_run_under_a_free_name(target, desk, bundle):
    panel = desk.panels["session"]
    panel.open(str(bundle))
    written = [panel.export("story/r-002", target) for _ in range(2)]
    paths = [Path(item["path"]) for item in written]
    assert len(set(paths)) == 2
    assert all(path.parent == panel.folder and path.exists() for path in paths)
    assert written[0]["bytes"] > 0
    assert panel.estimate("story/r-002", target)["bytes"] == pytest.approx(written[0]["bytes"], rel=0.02)
    if target in ("parquet", "json"):
        back = read_session(paths[0])
        assert [run.id for run in back.manifest.runs] == ["r-002"]
        assert back.turns.collect()["request"].null_count() == 4


def test_contents_go_out_only_when_asked_for_and_redacted(desk, bundle):
    panel = desk.panels["session"]
    panel.open(str(bundle))
    mail = "mara.lind@brightloom.example"
    texts = {}
    for contents, redact in ((False, "all"), (True, "all"), (True, "secrets"), (True, "none")):
        done = panel.export("story/r-001", "json", contents=contents, redact=redact)
        texts[contents, redact] = Path(done["path"]).read_text()
    assert "ticket 482" not in texts[False, "all"]
    assert "ticket 482" in texts[True, "all"]
    assert mail not in texts[True, "all"]
    assert mail in texts[True, "secrets"]
    assert mail in texts[True, "none"]
    with pytest.raises(SessionError):
        panel.export("story/r-001", "json", contents=True, redact="some")
    for method in (panel.export, panel.estimate):
        with pytest.raises(SessionError):
            method("story/r-001", "pdf")


def test_a_journal_that_was_taken_away_is_told(desk, tmp_path):
    panel = desk.panels["session"]
    desk.crew.begin_run()
    assert panel.part()["journal"]["gone"] is False
    # In one step, since the journal is being written.
    desk.recorder.path.rename(tmp_path / "taken")
    assert panel.part()["journal"]["gone"] is True
    assert panel.runs[0].status_text == "no longer recorded: the journal is gone"
    desk.recorder.path.mkdir()
    desk.crew.end_run()
    assert "could not be finished" in desk.bar.part()["notice"]["text"]


def test_paths_are_whole_and_home_is_short(tmp_path, monkeypatch, bundle):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Desk(session="runs/mine", profile=Profile(threads=1)) as desk:
        panel = desk.panels["session"]
        assert panel.folder == tmp_path / "runs"
        assert panel.part()["folder"] == "~/runs"
        panel.open(str(bundle))
        done = panel.export("story/r-002", "json")
        assert Path(done["path"]).parent == tmp_path / "runs"
        assert done["shown"] == f"~/runs/{Path(done['path']).name}"
    assert shown_path(Path("x/y")) == "~/x/y"
    assert shown_path(Path("/elsewhere/x")) == "/elsewhere/x"


def test_replaying_needs_a_model_and_says_so(desk, bundle):
    panel = desk.panels["session"]
    panel.open(str(bundle))
    with pytest.raises(NexusError) as caught:
        panel.replay("story/r-002", {})
    assert type(caught.value).__name__ == "NotReady"


def test_a_catalogue_reads_a_bundle_again_only_when_it_has_changed(bundle, tmp_path, monkeypatch):
    catalogue = Catalogue()
    read = []
    original = read_session

    def counting(path):
        read.append(path)
        return original(path)

    monkeypatch.setattr("nexus_lab.lab.session_runs.read_session", counting)
    for _ in range(3):
        assert len(catalogue.refresh(bundle.parent, tmp_path / "own.nexus")) == 2
    assert len(read) == 1


def test_an_export_beside_the_own_session_is_no_further_run(tmp_path):
    own = record(tmp_path / "own")
    trace = read_session(own).export("json", tmp_path / "own.nexus.json")
    catalogue = Catalogue()
    assert [row.run for row in catalogue.refresh(tmp_path, own)] == ["r-001"]
    catalogue.open(trace)
    assert {row.run for row in catalogue.refresh(tmp_path, own)} == {"r-001", "own/r-001"}


@pytest.mark.model
def test_a_replay_is_a_new_run_that_asks_the_same(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path) as desk:
        panel = desk.panels["session"]
        ask(desk)
        ask(desk, "Say hello again")
        live = panel.part()
        assert live["runs"][0].run == "r-001"
        assert live["runs"][0].live
        assert live["journal"]["seconds_since_event"] >= 0
        done = panel.replay("r-001", {"policy": "rolling_drop", "keep_responses": 0, "repos": True})
        assert done == {"run": "r-002", "requests": 2}
        settle(desk)
        turns = desk.panels["agent"].turns
        assert [(card.number, card.request) for card in turns] == [(1, "Say hello"), (2, "Say hello again")]
        rows = {row.run: row for row in panel.runs}
        assert rows["r-002"].policy == "rolling_drop_repos"
        assert (rows["r-001"].status_text, rows["r-001"].turns) == ("finished", 2)
        result = panel.compare("r-001", "r-002")
        assert {pair.turn for pair in result.pairs} == {1, 2}
        only_b = {pair.name for pair in result.pairs if pair.a_ms is None}
        assert {"drop", "repos"} <= only_b
        active = next(item for item in result.measures if item.name == "Active tokens at the end")
        assert active.b < active.a
        # A run of the past can be asked again as well.
        panel.replay("r-001", {})
        settle(desk)
        assert desk.recorder.run == "r-003"


@pytest.mark.model
def test_without_contents_only_the_live_run_can_be_replayed(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, contents=False) as desk:
        panel = desk.panels["session"]
        ask(desk)
        assert panel.replay("r-001")["requests"] == 1
        settle(desk)
        with pytest.raises(TranscriptError, match="without contents"):
            panel.replay("r-001")
        assert desk.recorder.run == "r-002"
