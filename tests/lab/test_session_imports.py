"""What other programs recorded: OpenAI-style messages and OTLP, read as sessions."""

from __future__ import annotations

import json

import polars as pl
import pytest
from otlp_spans_tools import attribute, document, span
from run_tools import CALL, MESSAGES, telling

from nexus_lab.lab.compare import compare_runs, session_of_run
from nexus_lab.lab.imports import (
    BrokenTranscript,
    NotATranscript,
    TranscriptError,
    free_path,
    import_transcript,
    read_transcript,
)
from nexus_lab.trace import export, read_session

pytestmark = pytest.mark.usefixtures("nexus_home")


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
