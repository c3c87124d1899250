"""Addresses, keys, and the command: what is looked at before anything is sent, and what is never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from echo_tool import RAW_SERVER
from remote_tools import HELLO
from waiting import eventually

from nexus_lab.agent import Endpoint, EndpointError
from nexus_lab.agent.endpoint import Exchange
from nexus_lab.agent.endpoint_errors import (
    EndpointBusy,
    EndpointFailed,
    EndpointUnreachable,
    EndpointUnusable,
    KeyRefused,
    RequestRejected,
    error_for,
)
from nexus_lab.agent.endpoint_reply import Assembly
from nexus_lab.errors import Cancelled
from nexus_lab.trace import read_session

SECRET = "sesame-open-up"  # noqa: S105 - made for these tests
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/v1",
        "localhost:8080",
        "http://",
        "http://host:port/v1",
        "http://a b/v1",
    ],
)
def test_only_http_addresses_are_taken(url):
    with pytest.raises(EndpointUnusable, match="no HTTP address") as caught:
        Endpoint(url, "m")
    assert caught.value.next_step


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/v1",
        f"https://host/v1?key={SECRET}",
        f"https://host/v1#{SECRET}",
        f"ssh://user:{SECRET}@host",
    ],
)
def test_an_address_with_a_secret_in_it_is_refused_and_not_repeated(url):
    with pytest.raises(EndpointUnusable) as caught:
        Endpoint(url, "m")
    assert SECRET not in str(caught.value)


def test_a_path_that_is_too_long_is_cut_to_the_address():
    assert Endpoint(" http://localhost:1/v1/chat/completions/ ", "m").url == "http://localhost:1/v1"


def test_a_key_goes_over_https_or_to_this_machine_only(monkeypatch):
    monkeypatch.setenv("A_KEY", SECRET)
    with pytest.raises(EndpointUnusable, match="plain http") as caught:
        Endpoint("http://example.org/v1", "m", key_variable="A_KEY")
    assert "https" in caught.value.next_step
    for url in (
        "https://example.org/v1",
        "http://localhost:1/v1",
        "http://127.0.0.1:1/v1",
        "http://[::1]:1/v1",
    ):
        endpoint = Endpoint(url, "m", key_variable="A_KEY")
        assert SECRET not in f"{endpoint!r} {endpoint.facts()}"
    assert Endpoint("http://example.org/v1", "m").url  # without a key there is nothing to read on the way


@pytest.mark.parametrize("key", [None, "", "  ", "two words", "line\nbreak", "schlüssel"])
def test_a_key_that_is_none_is_told_without_showing_it(monkeypatch, key):
    monkeypatch.delenv("A_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("A_KEY", key)
    with pytest.raises(EndpointUnusable, match="A_KEY") as caught:
        Endpoint("http://localhost:1/v1", "m", key_variable="A_KEY")
    assert not (key or "").strip() or key not in str(caught.value)


def test_nobody_at_the_address_is_told():
    with pytest.raises(EndpointUnreachable, match="no connection") as caught:
        Endpoint("http://127.0.0.1:9/v1", "m").ask(ASK)
    assert "running" in caught.value.next_step


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (400, '{"error": {"message": "no"}}', RequestRejected, "no"),
        (422, '{"detail": [{"loc": ["body"]}]}', RequestRejected, "loc"),
        (400, '{"object": "error", "message": "no"}', RequestRejected, "no"),
        (500, "plain words", EndpointFailed, "plain words"),
        (500, "[" * 100_000, EndpointFailed, "[[["),
        (503, "", EndpointBusy, "503"),
        (403, "null", KeyRefused, "null"),
    ],
)
def test_errors_are_told_in_the_endpoint_s_words(status, body, kind, said):
    error = error_for(status, body, where="http://h/v1")
    assert type(error) is kind
    assert said in error.problem
    assert len(error.problem) < 400
    assert (error.status, bool(error.next_step)) == (status, True)


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("Wed, 21 Oct 2015", None), ("nan", None), ("-1", 0)]
)
def test_how_long_to_wait_is_read_where_it_is_a_number(header, seconds):
    assert error_for(429, "", where="h", retry_after=header).retry_after_s == seconds


@pytest.mark.parametrize(
    "data",
    [
        "[]",
        "3",
        "null",
        '"text"',
        "{",
        '{"choices": 3}',
        '{"choices": [3]}',
        '{"choices": [{"delta": {"content": 3}}]}',
        '{"choices": [{"delta": {"tool_calls": [3]}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": 3}}]}}]}',
        '{"choices": [{"message": "hi"}]}',
        "[" * 100_000,
    ],
)
def test_an_answer_of_another_form_is_typed(data):
    with pytest.raises(EndpointError, match="no chat completion"):
        Assembly(lambda *_piece: None, began=0.0).take(data, "h")


def test_a_call_may_come_as_an_object_and_a_text_in_parts():
    assembly = Assembly(lambda *_piece: None, began=0.0)
    assembly.take(
        '{"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"text": "b\\ud800"}],'
        '"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}}],'
        '"usage": {"prompt_tokens": -1, "completion_tokens": 2, "prompt_tokens_details": null}}',
        "h",
    )
    assembly.finish()
    reply = assembly.reply("h")
    assert (reply.text.rstrip("\ufffd"), reply.called, reply.arguments) == ("ab", "f", '{"x": 1}')
    assert (reply.usage.prompt, reply.usage.generated) == (None, 2)


PARALLEL = [
    # By index, as OpenAI does it; by id alone; the name with each piece.
    [(0, "a", "f", '{"x"'), (0, None, None, ": 1}"), (1, "b", "g", '{"y": 2}'), (1, None, None, "")],
    [(None, "a", "f", '{"x": 1}'), (None, "b", "g", '{"y": 2}')],
    [(0, "a", "f", '{"x"'), (0, "a", "f", ": 1}")],
    [(None, None, "f", '{"x"'), (None, None, None, ": 1}")],
]


@pytest.mark.parametrize("pieces", PARALLEL)
def test_of_several_calls_the_first_counts(pieces):
    assembly = Assembly(lambda *_piece: None, began=0.0)
    for index, name, function, arguments in pieces:
        call = {"id": name, "function": {"name": function, "arguments": arguments}}
        call |= {} if index is None else {"index": index}
        assembly.take(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}), "h")
    assembly.finish()
    assert (assembly.reply("h").called, assembly.reply("h").arguments) == ("f", '{"x": 1}')


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_wait_that_is_none_is_refused(seconds):
    with pytest.raises(EndpointUnusable, match="timeout_s"):
        Endpoint("http://localhost:1/v1", "m", timeout_s=seconds)


def test_a_key_in_a_header_is_no_less_secret():
    with pytest.raises(EndpointUnusable, match="plain http"):
        Endpoint("http://example.org/v1", "m", headers={"Api-Key": SECRET})
    assert SECRET not in repr(Endpoint("https://example.org/v1", "m", headers={"Api-Key": SECRET}))


@pytest.mark.model
def test_a_key_that_the_endpoint_repeats_is_not_shown(chat, monkeypatch):
    monkeypatch.setenv("A_KEY", SECRET)
    with pytest.raises(KeyRefused, match=r"Incorrect API key provided: Bearer \[key\]") as caught:
        Endpoint(chat.url, "repeats_the_key", key_variable="A_KEY").ask(ASK)
    assert SECRET not in f"{caught.value} {caught.value.said}"
    assert chat.log()[0]["key"] == f"Bearer {SECRET}"


@pytest.mark.model
def test_what_was_given_up_before_is_not_waited_for(chat):
    exchange = Exchange()
    exchange.give_up()
    with pytest.raises(Cancelled):
        Endpoint(chat.url, "hangs").ask(ASK, exchange=exchange)


@pytest.mark.model
def test_a_listener_that_fails_closes_the_connection(chat):
    def fails(_piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Endpoint(chat.url, "hangs_in_the_middle").ask(ASK, on_text=fails)
    eventually(lambda: chat.log()[0]["ended"] == "closed")


@pytest.mark.model
def test_a_listener_may_give_the_request_up(chat):
    exchange, heard = Exchange(), []

    def enough(piece):
        heard.append(piece)
        exchange.give_up()

    with pytest.raises(Cancelled):
        Endpoint(chat.url, "hangs_in_the_middle").ask(ASK, on_text=enough, exchange=exchange)
    assert heard == ["half a"]


# -- the command --------------------------------------------------------------------------------------------


def run(*words, **env):
    code = "from nexus_lab.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "run", HELLO, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **env},
        check=False,
        stdin=subprocess.DEVNULL,
    )


SERVER = f"{sys.executable} {RAW_SERVER}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--endpoint-model", "m"), "--endpoint"),
        (("--key-env", "A_KEY"), "--endpoint"),
        (("--endpoint", "http://localhost:1/v1"), "--endpoint-model"),
        (("--endpoint", "http://localhost:1/v1", "--endpoint-model", "m", "--model", "x.gguf"), "--model"),
        (("--endpoint", "file:///etc", "--endpoint-model", "m"), "no HTTP address"),
        (
            ("--endpoint", "http://example.org/v1", "--endpoint-model", "m", "--key-env", "A_KEY"),
            "plain http",
        ),
    ],
)
def test_options_that_do_not_fit_are_told_before_a_server_is_started(words, told):
    done = run("--command", SERVER, *words, A_KEY=SECRET)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert told in " ".join(said.split())
    assert "tools" not in said  # no server told what it has
    assert SECRET not in said


@pytest.mark.model
def test_the_command_asks_the_endpoint_and_records(chat, tmp_path):
    done = run(
        *("--command", SERVER, "--endpoint", chat.url, "--endpoint-model", "smol", "--key-env", "A_KEY"),
        *("--session", str(tmp_path / "s"), "--contents"),
        A_KEY=SECRET,
    )
    assert done.returncode == 0, done.stderr
    assert '{"text": "hello there"}' in done.stdout
    assert "→ hello there" in done.stdout
    assert "prompt tokens" in done.stdout
    assert chat.log()[0]["key"] == f"Bearer {SECRET}"
    session = read_session(tmp_path / "s.nexus")
    assert session.turns.collect()["outcome"].to_list() == ["called"]
    assert session.manifest.latest.model["endpoint"] == chat.url
    kept = b"".join(path.read_bytes() for path in (tmp_path / "s.nexus").iterdir())
    assert SECRET.encode() not in kept
    assert SECRET not in done.stdout + done.stderr
