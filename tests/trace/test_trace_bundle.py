"""A bundle says what happened, survives what happens to it, and refuses what it is not."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import polars as pl
import pytest
import session_story as story
import session_teller as telling
from conftest import record

from nexus_lab.agent.base import Emitter, EventKind, MessageRow, OpKind, OpRow, TurnRow
from nexus_lab.trace import (
    DamagedSession,
    ForeignSession,
    NewerSession,
    SessionBusy,
    SessionError,
    SessionMissing,
    SessionRecorder,
    read_session,
    recover,
)
from nexus_lab.trace.base import JOURNAL, MANIFEST, TABLES
from nexus_lab.trace.schema import CONTENT_COLUMNS, SCHEMAS

FIXTURES = Path(__file__).parent / "fixtures"


def frames(session):
    return {name: lazy.collect() for name, lazy in session.tables.items()}


def same(left, right):
    return all(left[name].equals(right[name]) for name in TABLES)


# What is in it


def test_every_table_has_its_columns_and_rows(session):
    tables = frames(session)
    for name, frame in tables.items():
        assert dict(frame.schema) == {
            key: pl.Schema({key: dtype})[key] for key, dtype in SCHEMAS[name].items()
        }
        assert frame.height == session.manifest.rows[name] > 0
    assert tables["turns"]["outcome"].to_list() == [
        "called",
        "abstained",
        "called",
        "called",
        "failed",
        "cancelled",
    ]
    assert tables["drift"].height == 2 * 30 * 3
    assert tables["drift"]["value"].is_nan().sum() == 2


def test_the_tables_are_plain_parquet_with_the_schema_version_inside(bundle):
    events = pl.read_parquet(bundle / "events.parquet")
    assert events["start"].dtype == pl.Datetime("ns", "UTC")
    assert events["duration"].dtype == pl.Duration("ns")
    assert pl.read_parquet_metadata(bundle / "events.parquet")["nexus_schema_version"] == "1"


def test_the_manifest_names_model_settings_and_host(bundle, session):
    values = json.loads((bundle / MANIFEST).read_text())
    assert values["format"] == "nexus-session"
    assert values["model"]["sha256"] == telling.MODEL["sha256"]
    assert values["settings"] == telling.SETTINGS
    assert values["host"]["cpu"] == telling.HOST["cpu"]
    assert values["llama_cpp_build"] == "llama-cpp-python 0.3.36"
    assert values["status"] == "complete"
    assert [run.id for run in session.manifest.runs] == ["r-001"]
    assert session.manifest.latest.ended is not None


def test_spans_know_their_turn_and_form_a_tree(session):
    tree = session.tree()
    assert [root.name for root in tree] == [f"turn {n}" for n in range(1, 7)]
    for root in tree:
        assert {node.turn for _, node in root.walk()} == {root.turn}
        for _, node in root.walk():
            assert all(
                node.start_ns <= child.start_ns <= child.end_ns <= node.end_ns for child in node.children
            )
    splice = next(node for _, node in tree.walk() if node.name == "issue_write.atb")
    assert [child.kind for child in splice.children] == ["cache_op", "repair"]
    assert [root.turn for root in session.tree(turn=4)] == [4]
    text = tree.to_text(rows=5)
    assert text.splitlines()[0] == "✓ turn: turn 1  2.53 s"
    assert "showing first 5 of 66 spans" in text


def test_one_row_per_turn_joins_what_a_reader_asks_for(session):
    frame = session.to_frame()
    assert frame["turn"].to_list() == [1, 2, 3, 4, 5, 6]
    fourth = frame.row(3, named=True)
    assert (fourth["routed"], fourth["margin"], fourth["tau"], fourth["dkl"]) == (
        "issue_write",
        0.0086,
        0.0136,
        0.0082,
    )
    assert fourth["duration"].total_seconds() == pytest.approx(2.28, abs=0.01)
    assert frame["status"].to_list() == ["ok", "ok", "ok", "ok", "error", "cancelled"]


def test_the_text_form_names_session_turns_and_notes(session):
    text = repr(session)
    assert text.startswith("Session ticket-triage: complete, 1 run(s), 6 turn(s), 66 events")
    assert "issue_write  margin 0.0086, escalation_unavailable" in text


# Contents


def test_without_contents_nobodys_text_is_anywhere_in_the_bundle(quiet_session):
    tables = frames(quiet_session)
    assert tables["messages"].is_empty()
    for name, columns in CONTENT_COLUMNS.items():
        assert all(tables[name][column].null_count() == tables[name].height for column in columns)
    everything = b"".join(path.read_bytes() for path in quiet_session.path.iterdir())
    text = everything + "".join(str(frame.rows()) for frame in tables.values()).encode()
    for word in ("brightloom", "postcode", "duplicate of 467", telling.LEAKED, "script"):
        assert word.encode() not in text
    assert quiet_session.manifest.contents is False


def test_contents_are_recorded_on_demand_and_secrets_removed_before_the_disk(tmp_path):
    path = record(tmp_path / "said", contents=True)
    session = read_session(path)
    assert session.manifest.redacted == ("key", "token", "password")
    texts = str([frame.rows() for frame in frames(session).values()])
    assert telling.LEAKED not in texts
    assert "[redacted: key]" in texts
    assert "Close 482 as a duplicate of 467." in texts
    assert session.ops.collect()["token_ids"].null_count() == session.ops.collect().height


def test_unredacted_contents_come_back_as_they_were(session):
    turns = session.turns.collect()
    assert telling.LEAKED in turns["result"][2]
    assert json.loads(turns["arguments"][2])["note"] == telling.HOSTILE
    assert session.ops.collect()["token_ids"][0].to_list() == list(range(100, 296))


def test_the_journal_holds_no_contents_either(tmp_path):
    recorder = SessionRecorder(tmp_path / "live")
    Emitter(recorder).point(
        EventKind.MESSAGE, "user", MessageRow(role="user", text="hush"), contents={"text": "hush"}
    )
    assert b"hush" not in (recorder.path / JOURNAL).read_bytes()
    recorder.close()


# Recording


def test_a_folder_in_use_is_refused_with_a_next_step(tmp_path):
    with SessionRecorder(tmp_path / "a"):
        with pytest.raises(SessionBusy) as caught:
            SessionRecorder(tmp_path / "a")
        assert caught.value.next_step
    with pytest.raises(SessionError, match="holds a session already"):
        SessionRecorder(tmp_path / "a")
    (tmp_path / "file.nexus").write_text("mine")
    with pytest.raises(SessionError, match="is a file"):
        SessionRecorder(tmp_path / "file")
    (tmp_path / "photos.nexus").mkdir()
    (tmp_path / "photos.nexus" / "cat.jpg").write_text("mine")
    with pytest.raises(SessionError, match="other files"):
        SessionRecorder(tmp_path / "photos")
    with pytest.raises(ForeignSession):
        SessionRecorder(tmp_path / "photos", append=True)
    assert (tmp_path / "photos.nexus" / "cat.jpg").read_text() == "mine"


def test_a_second_run_is_added_and_ids_go_on(tmp_path):
    path = record(tmp_path / "two", contents=True)
    first = frames(read_session(path))
    with SessionRecorder(path, append=True, contents=True, parent="r-001", note="tau 0.02") as recorder:
        assert recorder.run == "r-002"
        emitter = Emitter(recorder)
        with emitter.span(EventKind.TURN, "turn 1", turn=1) as span:
            span.add(TurnRow(turn=1, outcome="answered"))
    session = read_session(path)
    second = frames(session)
    assert [(run.id, run.parent, run.note) for run in session.manifest.runs] == [
        ("r-001", None, ""),
        ("r-002", "r-001", "tau 0.02"),
    ]
    for name in TABLES:
        assert second[name].filter(run="r-001").equals(first[name])
    added = second["events"].filter(run="r-002")
    assert added["id"].min() > first["events"]["id"].max()
    assert session.manifest.rows["events"] == first["events"].height + 1
    assert [root.run for root in session.tree(run="r-002")] == ["r-002"]


def test_facts_can_be_told_later(tmp_path):
    with SessionRecorder(tmp_path / "late") as recorder:
        recorder.describe(model={"name": "m"}, note="second thoughts")
        with pytest.raises(SessionError, match="colour"):
            recorder.describe(colour="red")
    run = read_session(recorder.path).manifest.latest
    assert (run.model, run.note) == ({"name": "m"}, "second thoughts")


def test_values_that_json_cannot_say_cost_themselves_only(tmp_path, caplog):
    loop: list = []
    loop.append(loop)
    with caplog.at_level(logging.WARNING), SessionRecorder(tmp_path / "odd") as recorder:
        emitter = Emitter(recorder)
        emitter.point(EventKind.MESSAGE, "loop", loop=loop)
        emitter.point(EventKind.MESSAGE, "object", value=object(), path=Path("x"), some={1, 2})
        emitter.point(EventKind.MESSAGE, "text", text="\ud800 lone")
    events = read_session(recorder.path).events.collect()
    assert events["name"].to_list() == ["loop", "object", "text"]
    assert json.loads(events["attributes"][0]) == {"unrecorded": "ValueError"}
    assert json.loads(events["attributes"][1])["path"] == "x"
    assert "JSON cannot say" in caplog.text


def test_a_row_of_the_wrong_type_costs_itself_only(tmp_path):
    good = {
        "op": OpKind.APPEND,
        "state_id": "s",
        "parent_state_id": None,
        "active_tokens": 1,
        "logical_tokens": 1,
        "next_position": 1,
    }
    with SessionRecorder(tmp_path / "wrong") as recorder:
        emitter = Emitter(recorder)
        emitter.point(EventKind.CACHE_OP, "good", OpRow(tokens=1, **good))
        emitter.point(EventKind.CACHE_OP, "odd", OpRow(tokens="many", **good))
        emitter.point(EventKind.CACHE_OP, "bad", OpRow(tokens=2, ranges=(3,), **good))
    session = read_session(recorder.path)
    assert session.ops.collect()["tokens"].to_list() == [1, None]
    assert session.events.collect().height == 3
    assert any("dropped" in note for note in session.manifest.notes)


def test_a_full_disk_ends_the_record_and_not_the_turn(tmp_path, monkeypatch, caplog):
    recorder = SessionRecorder(tmp_path / "full")
    emitter = Emitter(recorder)
    emitter.point(EventKind.MESSAGE, "before")

    def full(_record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._journal, "append", full)
    with caplog.at_level(logging.ERROR), emitter.span(EventKind.TURN, "turn"):
        emitter.point(EventKind.MESSAGE, "lost")
    assert recorder.failure.errno == 28
    assert len([r for r in caplog.records if "recorded no further" in r.getMessage()]) == 1
    recorder.close()
    session = read_session(recorder.path)
    assert session.events.collect()["name"].to_list() == ["before"]
    assert session.manifest.status == "recovered"


def test_an_event_costs_a_fraction_of_a_token(tmp_path):
    """Processor time in the thread that works; a token takes milliseconds."""
    with SessionRecorder(tmp_path / "fast", contents=True) as recorder:
        emitter = Emitter(recorder)
        start = time.thread_time()
        for number in range(1000):
            emitter.point(EventKind.MESSAGE, "said", MessageRow(role="user", text=f"a token, {number}"))
        assert (time.thread_time() - start) / 1000 < 0.001


def test_closing_twice_and_events_after_it_are_harmless(tmp_path):
    recorder = SessionRecorder(tmp_path / "closed")
    assert recorder.close().status == "complete"
    assert recorder.close() is None
    Emitter(recorder).point(EventKind.MESSAGE, "late")
    assert read_session(recorder.path).events.collect().is_empty()


def test_a_turn_that_never_ended_is_still_a_turn(tmp_path):
    recorder = SessionRecorder(tmp_path / "open", contents=True)
    teller = telling.Teller(recorder)
    with teller.span(EventKind.TURN, "turn 1", turn=1, contents={"request": "hello"}, end=False):
        teller.step(EventKind.PREFILL, "user", 5)
    recorder.close()
    session = read_session(recorder.path)
    assert session.events.collect()["status"].to_list() == ["interrupted", "ok"]
    assert session.to_frame()["duration"].to_list() == [None]
    assert session.tree().roots[0].end_ns == teller.now
    assert session.tree().roots[0].contents == {"request": "hello"}


# Compaction


def _abandoned(tmp_path, name="abandoned"):
    """Return a bundle whose process ended without closing, journal and all."""
    recorder = SessionRecorder(tmp_path / name, contents=True, redactor=None)
    story.tell_story(recorder, through=4)
    recorder._journal.close()
    recorder._lock.release()
    return recorder.path


KILLER = """
    import os, signal, sys
    from pathlib import Path
    from nexus_lab.trace import recover
    step, left = sys.argv[2], int(sys.argv[3])
    original = getattr(Path, step)
    def dying(self, *arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return original(self, *arguments, **options)
    setattr(Path, step, dying)
    recover(sys.argv[1])
"""


@pytest.mark.parametrize(("step", "left"), [("replace", 0), ("replace", 3), ("replace", 7), ("unlink", 0)])
def test_a_kill_during_compaction_loses_nothing(tmp_path, step, left):
    """The steps are each table's rename, the manifest's, and the removal of the journal."""
    path = _abandoned(tmp_path)
    expected = frames(read_session(shutil.copytree(path, tmp_path / "copy.nexus")))
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLER), str(path), step, str(left)], check=False
    )
    assert child.returncode == -9
    assert (path / JOURNAL).exists()
    session = read_session(path)
    assert session.manifest.status == "recovered"
    assert same(frames(session), expected)
    assert not [item.name for item in path.iterdir() if item.name.startswith(".") and item.name != ".lock"]


def test_an_error_at_any_step_of_compaction_loses_nothing(tmp_path, monkeypatch):
    path = _abandoned(tmp_path)
    expected = frames(read_session(shutil.copytree(path, tmp_path / "copy.nexus")))
    original = Path.replace
    for failing in range(8):
        count = iter(range(100))

        def replace(self, target, *, count=count, failing=failing):
            if next(count) == failing:
                raise OSError(5, "Input/output error")
            return original(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="Input/output"):
            recover(path)
        monkeypatch.undo()
        assert (path / JOURNAL).exists()
    assert same(frames(read_session(path)), expected)


def test_a_torn_journal_is_recovered_with_a_note(tmp_path):
    path = _abandoned(tmp_path)
    size = (path / JOURNAL).stat().st_size
    os.truncate(path / JOURNAL, size - 10)
    session = read_session(path)
    assert any("torn" in note for note in session.manifest.notes)
    assert any("torn" in note for note in read_session(path).manifest.notes)
    assert session.manifest.rows["events"] == 54


def test_a_process_that_died_before_its_first_record_leaves_an_empty_session(tmp_path):
    path = _abandoned(tmp_path)
    os.truncate(path / JOURNAL, 30)
    session = read_session(path)
    assert session.manifest.status == "recovered"
    assert session.events.collect().is_empty()


def test_a_lost_journal_leaves_a_session_that_nobody_records(tmp_path):
    path = _abandoned(tmp_path)
    (path / JOURNAL).unlink()
    assert read_session(path).manifest.status == "recovered"


def test_a_lost_manifest_is_made_again_from_the_journal(tmp_path):
    path = _abandoned(tmp_path)
    (path / MANIFEST).unlink()
    session = read_session(path)
    assert session.manifest.name == "abandoned"
    assert len(session.tree()) == 4


def test_a_journal_whose_first_record_is_damaged_keeps_the_others(tmp_path):
    path = _abandoned(tmp_path)
    whole = path.with_name("whole.nexus")
    shutil.copytree(path, whole)
    data = bytearray((path / JOURNAL).read_bytes())
    data[40] ^= 1
    (path / JOURNAL).write_bytes(data)
    session = read_session(path)
    assert session.manifest.status == "recovered"
    assert any("damaged" in note for note in session.manifest.notes)
    assert same(frames(session), frames(read_session(whole)))


def test_a_folder_that_cannot_be_written_is_read_as_it_stands(tmp_path, monkeypatch):
    path = _abandoned(tmp_path)

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nexus_lab.trace.journal.SessionLock.__init__", refuse)
    session = read_session(path)
    assert len(session.tree()) == 4
    assert (path / JOURNAL).exists()


# Old, odd, broken


def test_a_bundle_of_an_earlier_version_stays_readable():
    """Written once and kept: it lacks columns that came later and has one that no version knows."""
    session = read_session(FIXTURES / "schema-1.nexus")
    tables = frames(session)
    assert session.manifest.name == "kept"
    assert len(session.tree()) == 4
    assert tables["turns"]["tool"].to_list() == ["issue_read", None, "find_duplicate", "issue_write"]
    assert tables["turns"]["reused_tokens"].null_count() == 4
    assert tables["events"].columns == [*SCHEMAS["events"], "weather"]
    assert tables["fidelity"]["dkl"].to_list() == [0.0, None, 0.0082]
    assert "issue_write" in repr(session)
    assert not (FIXTURES / "schema-1.nexus" / ".lock").exists()


@pytest.mark.parametrize("name", ["nothing.nexus", "deep/nothing"])
def test_a_missing_session_says_so(tmp_path, name):
    with pytest.raises(SessionMissing) as caught:
        read_session(tmp_path / name)
    assert caught.value.next_step


def test_the_suffix_can_be_left_out(bundle):
    assert read_session(str(bundle).removesuffix(".nexus")).path == bundle


@pytest.mark.parametrize("text", ['{"format": "other"}', "[]", '"text"'])
def test_a_foreign_folder_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ForeignSession):
        read_session(tmp_path)


def test_an_empty_folder_and_a_foreign_file_are_refused(tmp_path):
    with pytest.raises(ForeignSession):
        read_session(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ForeignSession):
        read_session(tmp_path / "notes.txt")


@pytest.fixture
def copy(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "copy.nexus")


def _edit_manifest(path, **changes):
    values = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**values, **changes}))


def test_a_later_schema_is_refused_by_name(copy):
    _edit_manifest(copy, schema_version=2)
    with pytest.raises(NewerSession, match="schema 2; this version reads up to 1") as caught:
        read_session(copy)
    assert "update" in caught.value.next_step


@pytest.mark.parametrize(
    "changes", [{"schema_version": "1"}, {"runs": 3}, {"status": "asleep"}, {"name": None}]
)
def test_a_damaged_manifest_is_refused(copy, changes):
    _edit_manifest(copy, **changes)
    with pytest.raises(DamagedSession):
        read_session(copy)


@pytest.mark.parametrize("table", TABLES)
def test_a_truncated_table_is_refused_by_name(copy, table):
    path = copy / f"{table}.parquet"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DamagedSession, match=table) as caught:
        read_session(copy)
    assert f"{table}.parquet" in caught.value.next_step


def test_a_manifest_cut_short_is_refused(copy):
    os.truncate(copy / MANIFEST, 100)
    with pytest.raises(DamagedSession):
        read_session(copy)


def test_a_missing_table_is_empty_and_a_mistyped_one_is_refused(copy):
    (copy / "drift.parquet").unlink()
    assert read_session(copy).drift.collect().is_empty()
    pl.DataFrame({"run": ["r-001"], "turn": ["first"]}).write_parquet(copy / "turns.parquet")
    with pytest.raises(DamagedSession, match="turns"):
        read_session(copy)


def test_parents_in_a_circle_do_not_hang_the_tree(copy):
    events = pl.read_parquet(copy / "events.parquet")
    circle = events.with_columns(
        parent=pl.when(pl.col("parent").is_null()).then(pl.col("id") + 1).otherwise("parent")
    )
    circle.write_parquet(copy / "events.parquet")
    assert sum(1 for _ in read_session(copy).tree().walk()) == events.height
