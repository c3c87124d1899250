"""Whole turns on a model behind an endpoint: real processes, real HTTP, a real model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from echo_tool import echo_spec
from remote_tools import HELLO, STYLE, Listener, styled_spec

from nexus_lab.agent import ApprovalRefused, EventKind, TurnOutcome
from nexus_lab.agent.remote import RemoteUnavailable
from nexus_lab.arguments import ArgumentsError, ArgumentsRejected, CutOff, MissingValues
from nexus_lab.registry import ServerDied
from nexus_lab.trace import SessionRecorder, Target, export, read_session

pytestmark = pytest.mark.model

RIGHT = json.dumps({"text": "hello there", "style": {"colour": "blue", "loud": False}})


# -- what is the same as with a model of this machine -------------------------------------------------------


def test_a_turn_routes_fills_calls_and_answers(make_remote, chat):
    listener = Listener()
    agent = make_remote(observers=[listener])
    pieces, calls = [], []
    turn = agent.ask(HELLO, on_token=pieces.append, on_call=calls.append)
    assert (turn.outcome, turn.problem) == (TurnOutcome.CALLED, None)
    assert turn.arguments["text"] == "hello there"
    assert turn.result.text == "hello there"
    assert turn.answer == "".join(pieces).strip()
    assert len(pieces) > 1
    assert json.loads("".join(calls)) == {"name": "echo", "arguments": turn.arguments}
    assert 0 < turn.ttft_s < turn.times_ms["total"] / 1e3
    # The kinds of span of a local turn, where there is no cache.
    spans = {event.kind for event in listener.events}
    assert {EventKind.TURN, EventKind.RETRIEVAL, EventKind.ARGUMENTS, EventKind.TOOL} <= spans
    assert [one["role"] for one in agent.history] == ["user", "assistant", "tool", "assistant"]
    assert all(body["stream"] for body in chat.bodies())


def test_the_tokens_are_those_that_the_endpoint_counts(make_remote):
    listener = Listener()
    turn = make_remote(observers=[listener]).ask(HELLO)
    spans = listener.of(EventKind.GENERATE)
    assert [span.name for span in spans] == ["arguments", "answer"]
    assert turn.prompt_tokens == sum(span.attributes["input_tokens"] for span in spans)
    assert turn.generated_tokens == sum(span.attributes["output_tokens"] for span in spans)
    assert spans[0].attributes["input_tokens"] > spans[1].attributes["input_tokens"]  # the tool is gone


def test_a_call_that_is_settled_is_not_asked_for(make_remote, chat):
    agent = make_remote(spec=echo_spec({"type": "string"}))
    turn = agent.ask(HELLO)
    assert turn.arguments == {"text": "hello there"}
    (body,) = chat.bodies()
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert "tools" not in body


def test_what_nobody_said_is_asked_of_the_user_not_of_the_model(make_remote, chat):
    spec = echo_spec({"type": "string", "pattern": "^[a-z]{3}-[0-9]{2}$"})
    turn = make_remote(spec=spec).ask("Go now")
    assert isinstance(turn.problem, MissingValues)
    assert chat.log() == []


def test_what_the_conversation_settles_stands_whatever_the_model_writes(make_remote, chat):
    other = {"text": "farewell", "style": {"colour": "blue", "loud": True}}
    chat.script({"call": "echo", "text": json.dumps(other)})
    turn = make_remote().ask(HELLO)
    assert turn.arguments == {"text": "hello there", "style": {"colour": "blue", "loud": True}}
    assert turn.result.text == "hello there"


def test_an_optional_argument_that_nothing_speaks_for_is_left_out(make_remote, chat):
    spec = styled_spec()
    schema = {**spec.input_schema, "properties": {**spec.properties, "times": {"type": "integer"}}}
    chat.script({"call": "echo", "text": RIGHT[:-1] + ', "times": 7}'})
    turn = make_remote(spec=replace(spec, input_schema=schema)).ask(HELLO)
    assert turn.arguments == json.loads(RIGHT)
    (tool,) = chat.bodies()[0]["tools"]
    assert set(tool["function"]["parameters"]["properties"]) == {"text", "style"}


def test_no_tool_means_an_answer_alone(make_remote, chat):
    agent = make_remote()
    agent.router.tool = None
    turn = agent.ask("Hello there")
    assert turn.outcome is TurnOutcome.ABSTAINED
    assert turn.answer
    assert chat.bodies()[0]["messages"][-1] == {"role": "user", "content": "Hello there"}


def test_the_next_turn_knows_the_one_before(make_remote, chat):
    agent = make_remote(spec=echo_spec({"type": "string"}))
    agent.ask(HELLO)
    agent.ask('Say "good night"')
    roles = [message["role"] for message in chat.bodies()[1]["messages"]]
    assert roles == ["system", *["user", "assistant", "tool", "assistant"], "user", "assistant", "tool"]
    agent.new_conversation()
    agent.ask(HELLO)
    assert len(chat.bodies()[2]["messages"]) == 4


def test_a_tool_that_changes_things_waits_for_approval(make_remote, chat):
    refused = make_remote(spec=styled_spec(read_only=False)).ask(HELLO)
    assert refused.outcome is TurnOutcome.REFUSED
    assert isinstance(refused.problem, ApprovalRefused)
    assert refused.result is None
    edited = make_remote(
        spec=styled_spec(read_only=False), approve=lambda _tool, arguments: {**arguments, "text": "bye"}
    )
    turn = edited.ask(HELLO)
    assert turn.result.text == "bye"
    call = chat.bodies()[-1]["messages"][2]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"])["text"] == "bye"  # what ran, not what was written


def test_a_server_that_dies_fails_the_turn_and_leaves_no_trace(make_remote):
    agent = make_remote(spec=echo_spec({"const": "die"}))
    turn = agent.ask("Say die")
    assert (turn.outcome, type(turn.problem)) == (TurnOutcome.FAILED, ServerDied)
    assert (agent.history, agent.messages) == ((), [])


def test_a_tool_s_own_error_is_read_out(make_remote):
    turn = make_remote(spec=echo_spec({"const": "fail"})).ask("Say fail")
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.result.is_error
    assert turn.answer


def test_a_long_result_is_cut_and_says_so(make_remote, chat):
    long = "word " * 700
    make_remote(spec=echo_spec({"const": long})).ask("Say it")
    content = chat.bodies()[0]["messages"][-1]["content"]
    assert content.endswith(f"[cut: {len(long) - 2048} more characters]")


# -- what the endpoint offers -------------------------------------------------------------------------------


def test_the_routed_tool_alone_is_shown_under_the_narrowed_schema(make_remote, chat):
    make_remote().ask(HELLO)
    body = chat.bodies()[0]
    (tool,) = body["tools"]
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"text": {"enum": ["hello there"]}, "style": STYLE},
        "required": ["text", "style"],
        "additionalProperties": False,
    }
    assert tool["function"]["description"].startswith("echo(")
    assert body["tool_choice"] == "required"


def test_the_signature_costs_less_than_the_full_schema(make_remote):
    signature = make_remote("smol+no_tools", schema_mode="signature").ask(HELLO)
    full = make_remote("smol+no_tools", schema_mode="full").ask(HELLO)
    assert signature.prompt_tokens < full.prompt_tokens
    assert signature.arguments == full.arguments


@pytest.mark.parametrize(
    ("model", "codes", "form"),
    [
        ("smol+no_tools", ["endpoint_refuses_tools"], "json_schema"),
        ("smol+mute_tools", ["endpoint_refuses_tools"], "json_schema"),
        ("smol+no_required", ["endpoint_refuses_tools"], "named_tool"),
        ("smol+ignores_required", ["endpoint_ignores_tools"], "named_tool"),
        ("smol+no_stream", [], "tools"),
        ("smol+no_null", [], "tools"),
        ("smol+no_tool_messages", ["endpoint_refuses_tool_messages"], "tools"),
        ("smol+no_options", ["endpoint_refuses_stream_options"], "tools"),
        ("smol+no_streaming", ["endpoint_refuses_stream"], "tools"),
        ("smol+no_seed", ["endpoint_refuses_seed"], "tools"),
        ("smol+new_limit", ["endpoint_refuses_max_tokens"], "tools"),
    ],
)
def test_what_an_endpoint_refuses_is_done_without_and_told(make_remote, chat, model, codes, form):
    listener = Listener()
    agent = make_remote(model, observers=[listener])
    turn = agent.ask(HELLO)
    assert (turn.outcome, turn.problem) == (TurnOutcome.CALLED, None)
    assert [code for code in listener.declined() if code.startswith("endpoint")] == codes
    assert agent.offers.form == form
    asked, said = len(chat.log()), "echo" if agent.offers.form.has_tools else None
    chat.script({"call": said, "text": RIGHT}, {"text": "Done."})
    assert agent.ask(HELLO).answer == "Done."
    assert len(chat.log()) == 2  # it is not tried again
    assert asked > 2 or not codes


@pytest.mark.parametrize(
    ("model", "codes", "form"),
    [
        ("smol+no_jinja", ["endpoint_refuses_tools"], "tools"),
        (
            "smol+no_tools+no_json_schema",
            ["endpoint_refuses_tools", "endpoint_refuses_json_schema"],
            "json_schema",
        ),
    ],
)
def test_what_a_failure_of_the_server_refuses_is_done_without_this_once(
    make_remote, chat, model, codes, form
):
    listener = Listener()
    agent = make_remote(model, observers=[listener])
    turn = agent.ask(HELLO)
    assert (turn.outcome, turn.problem) == (TurnOutcome.CALLED, None)
    assert [code for code in listener.declined() if code.startswith("endpoint")][: len(codes)] == codes
    assert agent.offers.form == form
    chat.script()
    agent.ask(HELLO)
    asked = chat.bodies()[0]
    assert ("tools" if form == "tools" else "response_format") in asked  # it may have passed


@pytest.mark.parametrize(
    "said",
    [
        RIGHT,
        f"```json\n{RIGHT}\n```",
        f"Sure {{really}}! Here you are: {RIGHT} I hope that helps.",
        f"<think>what {{do}} they want</think>{RIGHT}",
        json.dumps({"name": "echo", "arguments": json.loads(RIGHT)}),
    ],
)
def test_without_any_help_the_call_is_found_in_the_text(make_remote, chat, said):
    chat.script({"text": said})
    agent = make_remote("smol+no_tools+no_schema")
    turn = agent.ask(HELLO)
    assert turn.arguments == json.loads(RIGHT)
    assert agent.offers.form == "plain"
    prompt = chat.bodies()[3]["messages"][-1]["content"]
    assert prompt.startswith("Tool: echo(")
    assert 'These arguments are known: {"text":"hello there"}' in prompt
    roles = [message["role"] for message in chat.bodies()[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]  # the result as text, since it knows no tools


def test_a_result_that_the_model_does_not_see_is_shown_as_text(make_remote, chat):
    listener = Listener()
    chat.script({"text": ""})
    turn = make_remote(spec=echo_spec({"type": "string"}), observers=[listener]).ask(HELLO)
    assert turn.answer
    assert listener.declined() == ["endpoint_ignores_tool_messages"]
    assert chat.bodies()[1]["messages"][-1] == {"role": "user", "content": "Result of echo:\nhello there"}


@pytest.mark.parametrize("model", ["smol+picky", "smol+no_schema+picky"])
def test_a_schema_that_is_not_taken_says_nothing_of_another_tool_s(make_remote, chat, model):
    listener = Listener()
    chat.script({"text": RIGHT})
    agent = make_remote(model, observers=[listener])
    turn = agent.ask(HELLO)
    assert turn.arguments == json.loads(RIGHT)
    assert [code for code in listener.declined() if code.startswith("endpoint")] == [
        "endpoint_refuses_tools",
        "endpoint_refuses_json_schema",
        "endpoint_refuses_json_object",
    ]
    assert "response_format" not in chat.bodies()[3]
    assert agent.offers.form == "tools"
    assert agent.ask('Say "good night"').outcome is TurnOutcome.CALLED
    assert chat.bodies()[5]["tool_choice"] == "required"


@pytest.mark.parametrize("flaw", ["smol+ignores_tools", "smol+ignores_tools+ignores_schema"])
def test_an_endpoint_that_ignores_what_it_is_asked_is_asked_otherwise(make_remote, chat, flaw):
    listener = Listener()
    chat.script(*[{"text": "I would rather chat."}] * 2, *[{"text": "Would you?"}] * 2, {"text": RIGHT})
    agent = make_remote(flaw, observers=[listener])
    turn = agent.ask(HELLO)
    assert turn.arguments == json.loads(RIGHT)
    assert [code for code in listener.declined() if code.startswith("endpoint")] == [
        "endpoint_ignores_tools",
        "endpoint_ignores_named_tool",
        "endpoint_ignores_json_schema",
        "endpoint_ignores_json_object",
    ]
    assert agent.offers.form == "plain"


def test_a_call_that_breaks_the_schema_is_tried_once_more(make_remote, chat):
    wrong = json.dumps({"text": "hello there", "style": {"colour": "green", "loud": True}})
    chat.script({"call": "echo", "text": wrong}, {"call": "echo", "text": RIGHT})
    turn = make_remote().ask(HELLO)
    assert turn.arguments == json.loads(RIGHT)
    retry = chat.bodies()[1]["messages"]
    assert retry[-2] == {"role": "assistant", "content": wrong}
    assert '"green" is not one of' in retry[-1]["content"]
    chat.script(*[{"call": "echo", "text": wrong}] * 3)
    failed = make_remote().ask(HELLO)
    assert isinstance(failed.problem, ArgumentsRejected)
    assert failed.violations
    assert len(chat.log()) == 2


def test_a_call_of_another_tool_is_no_call(make_remote, chat):
    chat.script({"call": "rm_rf", "text": RIGHT}, {"call": "echo", "text": RIGHT})
    turn = make_remote().ask(HELLO)
    assert (turn.tool, turn.arguments) == ("echo", json.loads(RIGHT))
    assert len(chat.log()) == 3


@pytest.mark.parametrize("shown", [20, -1])
@pytest.mark.parametrize("model", ["smol", "smol+no_tools+no_schema"])
def test_a_call_that_breaks_off_is_told(make_remote, chat, model, shown):
    call = {"call": "echo"} if model == "smol" else {}
    chat.script(*[{**call, "text": RIGHT[:shown], "reason": "length"}] * 2)
    turn = make_remote(model).ask(HELLO)
    assert isinstance(turn.problem, CutOff)
    assert "cut off" in turn.problem.problem
    assert "max_tokens" in turn.problem.next_step
    assert chat.bodies()[-1]["messages"][-1]["content"].endswith("Write it again, shorter.")


def test_the_model_s_own_calls_in_plain_text_fail_typed(make_remote):
    turn = make_remote("smol+no_tools+no_schema").ask(HELLO)
    assert turn.outcome is TurnOutcome.CALLED or isinstance(turn.problem, ArgumentsError)


# -- what cannot be done over an endpoint -------------------------------------------------------------------


def test_what_needs_the_cache_is_declined_and_stands_in_the_record(make_remote, chat, tmp_path):
    with SessionRecorder(tmp_path / "s") as recorder:
        agent = make_remote(
            observers=[recorder], schema_mode="splice(paper)", shadow=True, policy="rolling_drop"
        )
        turn = agent.ask(HELLO)
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.splice.path == "prefill"
    assert turn.splice.decline.code == "remote_no_splice"
    assert chat.bodies()[0]["tools"][0]["function"]["parameters"] == {
        **styled_spec().input_schema,
        "properties": {"text": {"type": "string", "enum": ["hello there"]}, "style": STYLE},
    }
    session = read_session(tmp_path / "s.nexus")
    row = session.fidelity.collect().row(0, named=True)
    assert (row["path"], row["decline_code"]) == ("prefill", "remote_no_splice")
    events = session.events.collect()
    declined = events.filter(events["status"] == "declined")["attributes"].to_list()
    codes = {json.loads(one)["code"] for one in declined}
    assert codes == {"remote_no_splice", "remote_no_logits", "remote_no_cache_ops", "remote_no_grammar"}
    report = export(session, "html", tmp_path / "s.html").read_text()
    assert "an endpoint takes text alone" in report
    assert "KV cache is its own" in report
    with pytest.raises(RemoteUnavailable) as caught:
        agent.compile_block("echo")
    assert caught.value.decline.code == "remote_no_splice"


def test_an_endpoint_that_counts_no_tokens_is_told(make_remote):
    listener = Listener()
    turn = make_remote("smol+no_usage", observers=[listener]).ask(HELLO)
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.prompt_tokens is None
    assert "remote_no_usage" in listener.declined()


# -- the record ---------------------------------------------------------------------------------------------


def test_the_record_and_its_exports_are_those_of_any_session(make_remote, tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "sesame-open-up")
    with SessionRecorder(tmp_path / "s", contents=True) as recorder:
        agent = make_remote(observers=[recorder], key="A_KEY")
        recorder.describe(model=agent.endpoint.facts())
        turn = agent.ask(HELLO)
    session = read_session(tmp_path / "s.nexus")
    row = session.turns.collect().row(0, named=True)
    assert (row["outcome"], row["tool"]) == ("called", "echo")
    assert (row["prompt_tokens"], row["answer"]) == (turn.prompt_tokens, turn.answer)
    assert json.loads(row["settings"])["endpoint"] == agent.endpoint.url
    files = [export(session, target, tmp_path / target.value) for target in Target]
    assert len(files) == len(Target)
    otlp = (tmp_path / "otlp").read_text()
    assert '"openai_compatible"' in otlp
    assert agent.endpoint.url in otlp
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(everything) > 5
    assert not [path for path in everything if b"sesame-open-up" in path.read_bytes()]
