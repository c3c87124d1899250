"""Exports open where they should, agree with the bundle, and hold contents only when asked."""

from __future__ import annotations

import json
import zipfile

import polars as pl
import pytest
import session_teller as telling
from conftest import record

from nexus_lab.agent.base import EventKind
from nexus_lab.bench.lab_session import record_long_session
from nexus_lab.trace import (
    DamagedSession,
    ForeignSession,
    Redactor,
    SessionError,
    SessionRecorder,
    estimate_size,
    read_session,
)
from nexus_lab.trace.base import TABLES
from nexus_lab.trace.exporters import Target
from nexus_lab.trace.exporters.estimate import size_on_disk
from nexus_lab.trace.exporters.otlp import otlp_document
from nexus_lab.trace.exporters.perfetto import perfetto_document
from nexus_lab.trace.selection import select

WORDS = ("brightloom", "postcode", "duplicate of 467", telling.LEAKED)


def _strict(text):
    """Parse JSON as other tools do: NaN and the infinities are no JSON."""

    def refuse(name):
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


# All of them


@pytest.mark.parametrize("target", Target)
def test_the_size_of_a_long_session_is_reckoned_from_parts_of_it(tmp_path, target):
    session = read_session(record_long_session(tmp_path / "long", events=4000))
    written = session.export(target, tmp_path / "out")
    assert estimate_size(session, target) == pytest.approx(size_on_disk(written), rel=0.1)


def test_a_reckoned_size_knows_of_contents(session):
    assert estimate_size(session, "json", contents=True) > 1.1 * estimate_size(session, "json")


@pytest.mark.parametrize("target", Target)
def test_no_export_holds_contents_unless_asked(session, tmp_path, target):
    path = session.export(target, tmp_path / f"out{'.zip' if target in ('csv', 'parquet') else ''}")
    data = _bytes(path)
    for word in WORDS:
        assert word.encode() not in data
    assert b"issue_write" in data


@pytest.mark.parametrize("target", Target)
def test_with_contents_known_secrets_still_go(session, tmp_path, target):
    path = session.export(
        target, tmp_path / f"out{'.zip' if target in ('csv', 'parquet') else ''}", contents=True
    )
    data = _bytes(path)
    assert b"duplicate of 467" in data
    for word in (telling.LEAKED, "mara.lind@", "/home/mara"):
        assert word.encode() not in data


@pytest.mark.parametrize("target", Target)
def test_a_readers_own_pattern_is_removed_from_every_text(session, tmp_path, target):
    redactor = Redactor.of((), ["issue_write", "orchard", "SmolLM2"])
    path = session.export(
        target,
        tmp_path / f"out{'.zip' if target in ('csv', 'parquet') else ''}",
        contents=True,
        redactor=redactor,
    )
    data = _bytes(path)
    assert b"orchard" not in data
    assert b"issue_write.atb" not in data
    assert b"SmolLM2" not in data


def _bytes(path):
    """Return everything that `path` holds, unpacked, so that compression hides nothing."""
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        parts = []
        for name in archive.namelist():
            with archive.open(name) as stream:
                frame = pl.read_parquet(stream.read()) if name.endswith(".parquet") else None
            parts.append(archive.read(name) if frame is None else str(frame.to_dicts()).encode())
    return b"".join(parts)


def test_an_unknown_form_and_an_unwritable_place_are_refused(session, tmp_path):
    with pytest.raises(SessionError, match="poem") as caught:
        session.export("poem")
    assert "otlp" in caught.value.next_step
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SessionError, match="cannot be written"):
        session.export("html", tmp_path / "file" / "out.html")


def test_an_export_lands_beside_the_session_by_default(tmp_path):
    session = read_session(record(tmp_path / "here", through=1))
    names = {session.export(target).name for target in Target}
    assert names == {
        "here.html",
        "here.otlp.json",
        "here.perfetto.json",
        "here.csv.zip",
        "here.export.nexus",
        "here.nexus.json",
    }
    assert {path.parent for path in tmp_path.iterdir()} == {tmp_path}


def test_a_session_without_a_single_event_exports_everywhere(tmp_path):
    with SessionRecorder(tmp_path / "empty"):
        pass
    session = read_session(tmp_path / "empty")
    for target in Target:
        assert session.export(target).exists()
    assert read_session(tmp_path / "empty.nexus.json").events.collect().is_empty()


# OTLP


@pytest.fixture(scope="module")
def otlp(session):
    document = _strict(json.dumps(otlp_document(select(session, contents=True))))
    (resource,) = document["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return resource, scope["spans"]


def _attributes(span):
    return {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}


def test_otlp_ids_are_hex_unique_and_resolve(otlp):
    _, spans = otlp
    ids = {span["spanId"] for span in spans}
    assert len(ids) == len(spans)
    by_id = {span["spanId"]: span for span in spans}
    for span in spans:
        assert len(span["traceId"]) == 32
        assert len(span["spanId"]) == 16
        int(span["traceId"], 16)
        int(span["spanId"], 16)
        if "parentSpanId" in span:
            parent = by_id[span["parentSpanId"]]
            assert parent["traceId"] == span["traceId"]
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"])
    assert len({span["traceId"] for span in spans}) == 6
    assert sum("parentSpanId" not in span for span in spans) == 6


def test_otlp_states_the_version_of_its_conventions(otlp):
    resource, _ = otlp
    facts = _attributes(resource["resource"])
    assert facts["nexus.semconv.name"] == "opentelemetry semantic-conventions-genai"
    assert facts["nexus.semconv.version"] == "0.1.0"
    assert facts["service.name"] == "nexus_lab"
    assert facts["nexus.model.sha256"] == telling.MODEL["sha256"]


def test_otlp_spans_have_a_standard_operation_or_an_openinference_kind(otlp):
    _, spans = otlp
    operations = {"invoke_agent", "embeddings", "retrieval", "chat", "execute_tool"}
    for span in spans:
        facts = _attributes(span)
        if "gen_ai.operation.name" in facts:
            assert facts["gen_ai.operation.name"] in operations
            assert span["name"].split()[0] == facts["gen_ai.operation.name"]
        else:
            assert facts["openinference.span.kind"] in {"CHAIN", "RERANKER", "EVALUATOR"}
            assert span["name"].startswith("nexus.")
    assert {span["name"] for span in spans} >= {
        "invoke_agent tickets",
        "embeddings all-MiniLM-L6-v2",
        "retrieval tickets",
        f"chat {telling.MODEL['name']}",
        "execute_tool issue_write",
        "nexus.splice",
        "nexus.redecode",
    }


def test_otlp_numbers_are_those_of_the_tables(otlp):
    _, spans = otlp
    turn = next(span for span in spans if _attributes(span).get("nexus.turn.turn") == "4")
    gate = next(event for event in turn["events"] if event["name"] == "nexus.gate")
    facts = _attributes(gate)
    assert (facts["nexus.gate.margin"], facts["nexus.gate.tau"]) == (0.0086, 0.0136)
    documents = json.loads(facts["gen_ai.retrieval.documents"])
    assert documents[0] == {"id": "issue_write", "score": 0.6024}
    splice = next(
        _attributes(span)
        for span in spans
        if _attributes(span).get("nexus.splice.block") == "issue_write.atb"
    )
    assert splice["nexus.fidelity.dkl"] == 0.0082
    chat = next(_attributes(span) for span in spans if span["name"].startswith("chat"))
    assert chat["gen_ai.usage.cache_read.input_tokens"] == "211"
    assert chat["gen_ai.response.time_to_first_chunk"] == 0.011
    tool = next(span for span in spans if span["name"] == "execute_tool on_call")
    assert tool["status"] == {"code": 2, "message": "ServerTimeout"}
    assert _attributes(tool)["error.type"] == "ServerTimeout"
    assert _attributes(tool)["gen_ai.tool.call.arguments"] == '{"date":"2025-11-24","team":"tills"}'


def test_otlp_messages_follow_the_conventions_form(otlp):
    _, spans = otlp
    turn = _attributes(next(span for span in spans if "parentSpanId" not in span))
    (asked,) = json.loads(turn["gen_ai.input.messages"])
    assert asked == {
        "role": "user",
        "parts": [{"type": "text", "content": "What does ticket 482 in brightloom/orchard say?"}],
    }
    (said,) = json.loads(turn["gen_ai.output.messages"])
    assert said["role"] == "assistant"
    assert said["finish_reason"] == "stop"


def test_otlp_exports_of_one_session_have_the_same_ids(session):
    assert otlp_document(select(session)) == otlp_document(select(session))


# Perfetto


@pytest.fixture(scope="module")
def perfetto(session):
    return _strict(json.dumps(perfetto_document(select(session))))


def _nests(events):
    """Tell whether the slices of each track lie inside one another or apart."""
    tracks: dict = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"])
            )
    for slices in tracks.values():
        stack: list = []
        for start, end in sorted(slices, key=lambda item: (item[0], -item[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            if stack and end > stack[-1]:
                return False
            stack.append(end)
    return True


def test_perfetto_slices_nest_and_keep_sub_microseconds(perfetto):
    events = perfetto["traceEvents"]
    assert _nests(events)
    scan = next(event for event in events if event["name"] == "scan 71 tools")
    assert scan["dur"] == pytest.approx(17.6)
    assert events[0] == {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "tid": 0,
        "args": {"name": "ticket-triage r-001"},
    }
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert {event["ph"] for event in events} == {"M", "X", "i", "C"}
    counts = [event["args"]["tokens"] for event in events if event["ph"] == "C"]
    assert counts[:3] == [196, 407, 887]


def test_perfetto_moves_what_overlaps_to_another_track(tmp_path):
    with SessionRecorder(tmp_path / "overlap") as recorder:
        teller = telling.Teller(recorder)
        with teller.span(EventKind.TURN, "one"):
            teller.wait(5)
            start = teller.now
            teller.wait(5)
        teller.now = start
        with teller.span(EventKind.TURN, "two"):
            teller.wait(20)
    events = perfetto_document(select(read_session(tmp_path / "overlap")))["traceEvents"]
    assert {event["name"]: event["tid"] for event in events if event["ph"] == "X"} == {"one": 1, "two": 2}
    assert _nests(events)


# Tables


def test_csv_files_hold_every_row_and_nested_values_as_json(session, tmp_path):
    folder = session.export("csv", tmp_path / "csv", contents=True, redactor=Redactor.of(()))
    for name in TABLES:
        assert pl.read_csv(folder / f"{name}.csv").height == session.manifest.rows[name]
    ops = pl.read_csv(folder / "ops.csv")
    assert json.loads(ops["ranges"][0]) == [{"start": 0, "stop": 196}]
    events = pl.read_csv(folder / "events.csv")
    assert events["start"][0] == "2025-11-30T10:38:00.000000000Z"
    assert events["duration"][0] == session.events.collect()["duration"].to_physical()[0]
    assert telling.HOSTILE in json.loads(pl.read_csv(folder / "turns.csv")["arguments"][2])["note"]


def test_a_parquet_export_is_a_bundle_again(session, tmp_path):
    for out in (tmp_path / "again.nexus", tmp_path / "again.nexus.zip"):
        copy = read_session(session.export("parquet", out, contents=True, redactor=Redactor.of(())))
        for name in TABLES:
            assert copy.tables[name].collect().equals(session.tables[name].collect())
        assert copy.manifest.id == session.manifest.id


def test_an_export_replaces_an_earlier_one_and_nothing_else(session, tmp_path):
    folder = session.export("csv", tmp_path / "csv")
    (folder / "events.csv").write_text("old")
    session.export("csv", folder)
    assert (folder / "events.csv").read_text() != "old"
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SessionError, match="no earlier export"):
        session.export("csv", folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "home.nexus").mkdir()
    (tmp_path / "home.nexus" / "thesis.tex").write_text("mine")
    with pytest.raises(SessionError):
        session.export("parquet", tmp_path / "home.nexus")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# Single file


def test_a_single_file_trace_reads_back_equal(session, tmp_path):
    path = session.export("json", tmp_path / "one.nexus.json", contents=True, redactor=Redactor.of(()))
    _strict(path.read_text())
    back = read_session(path)
    for name in TABLES:
        left, right = back.tables[name].collect(), session.tables[name].collect()
        if name == "drift":
            right = right.with_columns(pl.col("value").fill_nan(None))
        assert left.equals(right), name
    assert back.manifest.runs == session.manifest.runs
    assert repr(back) == repr(session)


def test_a_single_file_trace_is_safe_for_javascript_numbers(session, tmp_path):
    document = _strict(session.export("json", tmp_path / "one.nexus.json").read_text())
    assert document["origin_ns"] == str(telling.EPOCH_NS)
    events = document["tables"]["events"]
    assert events["start"][0] == 0
    assert all(value is None or value < 2**53 for key in ("start", "duration", "id") for value in events[key])
    assert isinstance(events["attributes"][0], dict)
    assert len({len(column) for column in events.values()}) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", DamagedSession),
        ('{"format": "other"}', ForeignSession),
        ('{"format": "nexus-session", "kind": "single-file trace", "schema_version": 1}', DamagedSession),
    ],
)
def test_json_that_is_no_trace_is_refused(tmp_path, text, error):
    (tmp_path / "x.nexus.json").write_text(text)
    with pytest.raises(error):
        read_session(tmp_path / "x.nexus.json")


def test_a_trace_whose_columns_disagree_is_refused(session, tmp_path):
    path = session.export("json", tmp_path / "one.nexus.json")
    document = json.loads(path.read_text())
    document["tables"]["events"]["kind"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedSession, match="hold together"):
        read_session(path)


# Command line


def test_the_command_exports_and_says_where(bundle, tmp_path, capsys):
    from nexus_lab.cli.export import export

    out = tmp_path / "report.html"
    export(bundle, "html", out, contents=True, redact=["orchard"])
    assert "report.html" in capsys.readouterr().out.replace("\n", "")
    text = out.read_text()
    assert "Close 482 as a duplicate" in text
    assert "orchard" not in text
    assert telling.LEAKED not in text
    export(bundle, "otlp", tmp_path / "trace.json")
    data = (tmp_path / "trace.json").read_bytes()
    assert b"brightloom" not in data
    assert b"/home/mara" not in data


def test_the_command_says_when_there_are_no_contents_to_include(quiet_session, tmp_path, capsys):
    from nexus_lab.cli.export import export

    export(quiet_session.path, "json", tmp_path / "x.nexus.json", contents=True)
    assert "contents were not recorded" in " ".join(capsys.readouterr().out.split())
