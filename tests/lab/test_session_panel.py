"""The session panel: runs, comparison, export, and what other programs recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from otlp_spans_tools import attribute, document, span
from told_tools import ask, settle, told_desk

from nexus_lab.agent.base import EventKind
from nexus_lab.errors import NexusError
from nexus_lab.lab.compare import RunMissing, compare_runs, session_of_run
from nexus_lab.lab.desk import Desk
from nexus_lab.lab.imports import (
    BrokenTranscript,
    NotATranscript,
    TranscriptError,
    free_path,
    import_transcript,
    read_transcript,
)
from nexus_lab.lab.session_runs import Catalogue
from nexus_lab.lab.wire import to_json
from nexus_lab.paths import shown_path
from nexus_lab.settings import Profile
from nexus_lab.trace import SessionError, SessionRecorder, export, read_session

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))
import session_story as story
import session_teller as telling

pytestmark = pytest.mark.usefixtures("nexus_home")

CALL = {"id": "c1", "type": "function", "function": {"name": "read_issue", "arguments": '{"number": 482}'}}
MESSAGES = [
    {"role": "system", "content": "You help."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Read 482."}, {"type": "image_url", "image_url": {}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": telling.HOSTILE},
    {"role": "assistant", "content": "It says so."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Gladly."},
]


def record(path, *, through=6, contents=True, **options):
    facts = {"model": telling.MODEL, "settings": telling.SETTINGS, "host": telling.HOST}
    with SessionRecorder(path, contents=contents, **{**facts, **options}) as recorder:
        story.tell_story(Later(recorder), through=through)
    return recorder.path


class Later:
    """Passes events on under ids that no earlier run has."""

    def __init__(self, observer):
        self.observer = observer
        self.first = max(10_000 * int(observer.run.removeprefix("r-")), 0)

    def on_event(self, event):
        parent = None if event.parent is None else event.parent + self.first
        self.observer.on_event(replace(event, id=event.id + self.first, parent=parent))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Two runs: the whole story, and its first four turns again."""
    path = record(tmp_path_factory.mktemp("runs") / "story")
    return record(path, through=4, append=True, parent="r-001", note="fork of r-001")


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


# -- messages -----------------------------------------------------------------------------------------------


def imported(text, folder, **options):
    return read_session(import_transcript(text, folder, **options))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(MESSAGES),
        json.dumps({"model": "m", "messages": MESSAGES}),
        "\n".join(json.dumps(message) for message in MESSAGES),
        json.dumps({"messages": MESSAGES}) + "\n\n" + json.dumps({"messages": MESSAGES[:1]}),
    ],
    ids=["list", "request", "lines of messages", "lines of conversations"],
)
def test_messages_become_turns_with_their_calls(text, tmp_path):
    session = imported(text, tmp_path)
    turns = session.turns.collect()
    assert turns["request"].to_list() == ["Read 482.\n[image_url]", "Thanks."]
    assert turns["answer"].to_list() == ["It says so.", "Gladly."]
    assert turns["tool"].to_list() == ["read_issue", None]
    assert turns["outcome"].to_list() == ["called", "answered"]
    assert json.loads(turns["arguments"][0]) == {"number": 482}
    assert turns["result"][0] == telling.HOSTILE
    tools = session.events.filter(kind="tool").collect()
    assert tools["name"].to_list() == ["read_issue"]
    assert tools["turn"].to_list() == [1]
    assert session.manifest.runs[0].settings == {"imported_from": "openai_messages", "timed": False}
    assert session.manifest.contents


def test_results_find_their_calls_by_id_else_by_order(tmp_path):
    calls = [{**CALL, "id": name, "function": {"name": name, "arguments": "no json"}} for name in ("a", "b")]
    messages = [
        {"role": "user", "content": "Both."},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "of b"},
        {"role": "tool", "content": "of a"},
    ]
    session = imported(json.dumps(messages), tmp_path)
    rows = session.events.filter(kind="tool").collect().iter_rows(named=True)
    found = {row["name"]: json.loads(row["contents"]) for row in rows}
    assert found["a"] == {"arguments": "no json", "result": "of a"}
    assert found["b"]["result"] == "of b"


def test_legacy_calls_and_roles_are_understood(tmp_path):
    messages = [
        {"role": "developer", "content": "You help."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "function_call": {"name": "go", "arguments": "{}"}},
        {"role": "function", "name": "go", "content": "gone"},
    ]
    turns = imported(json.dumps(messages), tmp_path).turns.collect()
    assert turns.select("tool", "result").rows() == [("go", "gone")]


def test_secrets_do_not_reach_the_disk(tmp_path):
    path = import_transcript(json.dumps([{"role": "user", "content": f"key {telling.LEAKED}"}]), tmp_path)
    assert "redacted" in read_session(path).turns.collect()["request"][0]
    assert not any(telling.LEAKED.encode() in file.read_bytes() for file in path.iterdir())


def test_an_untimed_run_compares_without_times(tmp_path):
    session = imported(json.dumps(MESSAGES), tmp_path)
    one = session_of_run(session, "r-001")
    result = compare_runs(one, one, names=("a", "b"))
    assert {pair.a_ms for pair in result.pairs} == {None}
    assert next(item for item in result.measures if item.name.startswith("All spans")).a is None


BROKEN = {
    "no role": ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role"),
    "unknown role": ([{"role": "user", "content": "a"}, {"role": "ghost"}], "messages[1].role"),
    "number for contents": ([{"role": "user", "content": 3}], "messages[0].content"),
    "number for a part": ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
    "no object": ([{"role": "user", "content": "a"}, 7], "messages[1]"),
    "call without a name": (
        [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {}}]}],
        "messages[1].tool_calls[0]",
    ),
    "calls no list": (
        [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": {}}],
        "messages[1].tool_calls",
    ),
    "nobody asks": ([{"role": "assistant", "content": "a"}], "messages"),
}


@pytest.mark.parametrize(("messages", "where"), BROKEN.values(), ids=BROKEN)
def test_broken_messages_name_the_part(messages, where, tmp_path):
    with pytest.raises(BrokenTranscript) as caught:
        import_transcript(json.dumps(messages), tmp_path)
    assert caught.value.where == where
    assert caught.value.next_step
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "3",
        "{}",
        "[]",
        '{"messages": []}',
        '{"messages": "a"}',
        "[3]",
        '{"a": 1}\n{"b": 2}',
        "{\n{",
    ],
)
def test_other_texts_are_refused(text, tmp_path):
    with pytest.raises(NotATranscript) as caught:
        import_transcript(text, tmp_path)
    assert caught.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_nesting_without_end_is_refused(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(TranscriptError):
        import_transcript(deep, tmp_path)
    levels = 20_000
    value = '{"arrayValue":{"values":[' * levels + '{"stringValue":"a"}' + "]}}" * levels
    text = document(span("a", attributes=[{"key": "k", "value": "HERE"}])).replace('"HERE"', value)
    with pytest.raises(TranscriptError):
        import_transcript(text, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    paths = [import_transcript(json.dumps(MESSAGES), tmp_path, name="../a b") for _ in range(3)]
    assert [path.name for path in paths] == ["a-b.nexus", "a-b-2.nexus", "a-b-3.nexus"]
    assert all(path.parent == tmp_path for path in paths)
    assert free_path(tmp_path / "a-b.nexus").name == "a-b-4.nexus"
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]


# -- OTLP ---------------------------------------------------------------------------------------------------


def test_our_own_export_comes_back(bundle, tmp_path):
    session = session_of_run(read_session(bundle), "r-001")
    out = export(session, "otlp", tmp_path / "out.otlp.json", contents=True)
    back = imported(out.read_text(), tmp_path, name="back")
    for frames in (session.to_frame(), back.to_frame()):
        assert frames.height == 6
    mine, theirs = session.to_frame(), back.to_frame()
    assert theirs["tool"].to_list() == mine["tool"].to_list()
    assert theirs["outcome"].to_list() == mine["outcome"].to_list()
    assert theirs["duration"].to_list() == mine["duration"].to_list()
    assert theirs["start"].to_list() == mine["start"].to_list()
    assert theirs["answer"].to_list() == mine["answer"].to_list()
    assert theirs["ttft_s"].to_list() == mine["ttft_s"].to_list()
    kinds = back.events.collect()["kind"].value_counts().sort("kind").rows()
    expected = (
        session.events.filter(pl.col("kind") != "message").collect()["kind"].value_counts().sort("kind")
    )
    assert [row for row in kinds if row[0] != "message"] == expected.rows()
    assert back.manifest.runs[0].model == {"name": telling.MODEL["name"]}


def test_a_trace_of_another_program_is_one_turn(tmp_path):
    tool = [attribute("gen_ai.operation.name", "execute_tool")]
    said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Go."}]}])
    text = document(
        span("chain", attributes=[attribute("openinference.span.kind", "CHAIN")]),
        span(
            "llm",
            parent="chain",
            start=11,
            end=15,
            attributes=[
                attribute("gen_ai.operation.name", "chat"),
                attribute("gen_ai.request.model", "m-1"),
                attribute("gen_ai.usage.input_tokens", 12),
                attribute("gen_ai.input.messages", said),
                attribute("output.value", "Gone."),
                attribute("user.password", "hunter2hunter2"),
            ],
        ),
        span("tool", parent="chain", start=16, attributes=tool),
        span("lost", parent="nowhere", trace="t2", start=30, end=31),
    )
    session = imported(text, tmp_path)
    turns = session.turns.collect()
    assert turns.select("request", "answer", "tool", "outcome").row(0) == ("Go.", "Gone.", "tool", "called")
    events = session.events.collect()
    assert events["kind"].to_list() == ["turn", "generate", "tool", "turn"]
    assert events["turn"].to_list() == [1, 1, 1, 2]
    generate = events.row(1, named=True)
    assert json.loads(generate["attributes"]) == {"model": "m-1", "input_tokens": 12}
    assert "hunter2" not in json.dumps(events.to_dicts(), default=str)
    assert events["duration"].to_physical().to_list() == [10, 4, 4, 1]


def test_nested_agents_are_steps_of_the_outermost_turn(tmp_path):
    agent = [attribute("gen_ai.operation.name", "invoke_agent")]
    text = document(
        span("outer", attributes=agent),
        span("inner", parent="outer", attributes=agent),
        span("lone", trace="t2", attributes=[attribute("gen_ai.operation.name", "chat")]),
    )
    events = imported(text, tmp_path).events.collect()
    assert events["kind"].to_list() == ["turn", "step", "turn", "generate"]


def test_spans_in_a_circle_end(tmp_path):
    ring = [span(f"s{i}", parent=f"s{(i + 1) % 500}") for i in range(500)]
    events = imported(document(*ring, span("self", parent="self")), tmp_path).events.collect()
    assert events.height == 501


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"spanId": ""}, ""),
        ({"startTimeUnixNano": "soon"}, ".startTimeUnixNano"),
        ({"endTimeUnixNano": -1}, ".endTimeUnixNano"),
        ({"attributes": {}}, ".attributes"),
        ({"attributes": [{"value": {}}]}, ".attributes[0]"),
        ({"attributes": [{"key": "a", "value": {"intValue": "x"}}]}, ".attributes[0].value"),
        ({"attributes": [{"key": "a", "value": {"oddValue": 1}}]}, ".attributes[0].value"),
        ({"events": [{"timeUnixNano": []}]}, ".events[0].timeUnixNano"),
    ],
)
def test_broken_spans_name_the_part(changes, where, tmp_path):
    text = document(span("good"), {**span("bad"), **changes})
    with pytest.raises(BrokenTranscript) as caught:
        import_transcript(text, tmp_path)
    assert caught.value.where == f"resourceSpans[0].scopeSpans[0].spans[1]{where}"
    assert list(tmp_path.iterdir()) == []


def test_a_trace_without_spans_is_refused():
    with pytest.raises(BrokenTranscript):
        read_transcript('{"resourceSpans": []}')


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
