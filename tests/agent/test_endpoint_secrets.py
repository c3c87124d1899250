"""What is sent to an endpoint in confidence stands in nothing that it answers, and changes no answer."""

from __future__ import annotations

import json

import pytest
from scripted_endpoint import scripted

from nexus_lab.agent import Endpoint, EndpointError
from nexus_lab.agent.endpoint_errors import EndpointUnusable, RequestRejected, error_for
from nexus_lab.agent.endpoint_reply import Assembly, Kind
from nexus_lab.agent.endpoint_secrets import Secrets, Stream, secrets_of

SECRET = "sesame/open-up"  # noqa: S105 - made for these tests
ESCAPED = "\\u0073esame\\/open\\u002Dup"
ASK = {"messages": [{"role": "user", "content": "Hi"}]}


def delta(**said):
    return {"choices": [{"index": 0, "delta": said}]}


def arguments(text, name="f"):
    return delta(tool_calls=[{"index": 0, "function": {"name": name, "arguments": text}}])


def answered(*events, key=SECRET, headers=None):
    """The reply of a stream, and the pieces that were told of it."""
    heard = dict.fromkeys(Kind, "")

    def tell(kind, piece):
        heard[kind] += piece

    assembly = Assembly(tell, began=0.0, secrets=secrets_of(key, headers or {}))
    for event in events:
        assembly.take(json.dumps(event), "h")
    assembly.finish()
    return assembly.reply("h"), heard


@pytest.mark.parametrize("key", ["1", "x", "tool", "test", "content", "choices"])
def test_a_dummy_key_changes_no_answer(key):
    reply, heard = answered(
        delta(content=f"a {key} of 10"), arguments(json.dumps({"text": key, "n": 1}), name=key), key=key
    )
    assert (reply.text, reply.called) == (f"a {key} of 10", key)
    assert json.loads(reply.arguments) == {"text": key, "n": 1}
    assert (heard[Kind.TEXT], heard[Kind.ARGUMENTS]) == (reply.text, reply.arguments)


@pytest.mark.parametrize("size", [1, 2, 5, 13, 100])
def test_a_key_in_several_pieces_is_cut_out_of_them_and_of_the_answer(size):
    said = f"It is {SECRET}, se {SECRET[:6]} {SECRET}{SECRET} sesam"
    wanted = "It is [key], se sesame [key][key] sesam"
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    reply, heard = answered(*(delta(content=piece, reasoning=piece) for piece in pieces))
    assert (reply.text, heard[Kind.TEXT], heard[Kind.THINKING]) == (wanted, wanted, wanted)
    reply, heard = answered(*(arguments(piece) for piece in pieces))
    assert (reply.arguments, heard[Kind.ARGUMENTS]) == (wanted, wanted)


def test_a_key_that_arguments_write_with_escapes_is_cut_out():
    reply, _ = answered(arguments(f'{{"text": "{ESCAPED}"}}'), delta(content=ESCAPED))
    assert json.loads(reply.arguments) == {"text": "[key]"}
    assert reply.text == "[key]"


def test_a_key_as_name_or_reason_is_cut_out():
    event = arguments("{}", name=SECRET)
    event["choices"][0]["finish_reason"] = f"{'x' * 70}{SECRET}"
    reply, _ = answered(event)
    assert reply.called == "[key]"
    assert reply.stop_reason == f"{'x' * 70}[key]"


@pytest.mark.parametrize(
    ("headers", "said", "wanted"),
    [
        ({"X-Gateway": SECRET}, SECRET, "[key]"),
        ({"Authorization": f"Bearer {SECRET}"}, f"no {SECRET}, Bearer {SECRET}", "no [key], [key]"),
        ({"Cookie": f"a=1; sid={SECRET}"}, f"sid={SECRET}", "sid=[key]"),
        ({"X-Api-Key": "short"}, "too short", "too short"),
        ({"User-Agent": "nexus_lab/1.0", "Content-Type": "application/json"}, "application/json", None),
    ],
)
def test_what_a_header_holds_is_as_secret(headers, said, wanted):
    reply, heard = answered(delta(content=said), key="", headers=headers)
    assert (reply.text, heard[Kind.TEXT]) == (wanted or said, wanted or said)


def test_the_end_of_a_text_that_becomes_no_secret_is_told():
    assert Stream(Secrets([SECRET])).take("sesame seed") == "sesame seed"
    waits = Stream(Secrets([SECRET]))
    assert (waits.take("a sesame"), waits.rest(), waits.rest()) == ("a ", "sesame", "")


@pytest.mark.parametrize(
    "body",
    [
        f'{{"error": {{"message": "wrong: {ESCAPED}"}}}}',
        f'{{"error": {{"message": "wrong: {SECRET}"}}}}',
        f'{{"error": [{{"odd": "{SECRET}"}}]}}',
        f"wrong: {SECRET}",
        f"wrong: {ESCAPED}",
        f'{{"error": {{"message": "{"x" * 233}{SECRET}"}}}}',
    ],
)
def test_an_error_does_not_repeat_it(body):
    error = error_for(400, body, where="h", secrets=Secrets([SECRET]))
    assert "[key]" in error.said
    for told in (error.said, error.problem):
        assert "esame" not in told
        assert "pen-up" not in told


def test_what_an_error_says_is_bounded():
    error = error_for(400, json.dumps({"error": {"message": "word " * 20_000}}), where="h")
    assert len(error.said) == 4_000


def test_an_answer_of_another_form_does_not_repeat_it():
    assembly = Assembly(lambda *_piece: None, began=0.0, secrets=Secrets([SECRET]))
    for data in (f"no JSON {SECRET}", f'["{ESCAPED}"]'):
        with pytest.raises(EndpointError, match=r"\[key\]") as caught:
            assembly.take(data, "h")
        assert "esame" not in str(caught.value)


# -- over HTTP ----------------------------------------------------------------------------------------------


def test_an_endpoint_that_repeats_what_it_was_sent_shows_none_of_it(monkeypatch):
    monkeypatch.setenv("A_KEY", "long-live-the-key")
    headers = {"X-Gateway": SECRET}
    whole = {"choices": [{"message": {"content": f"{SECRET} and long-live-the-key"}}]}
    with scripted({"json": whole}, {"events": [delta(content="long-live"), delta(content="-the-key")]}) as h:
        endpoint = Endpoint(h.url, "m", key_variable="A_KEY", headers=headers)
        assert endpoint.ask(ASK).text == "[key] and [key]"
        heard = []
        assert endpoint.ask({**ASK, "stream": True}, on_text=heard.append).text == "[key]"
        assert heard == ["[key]"]
    assert h.headers[0]["Authorization"] == "Bearer long-live-the-key"
    assert h.headers[0]["X-Gateway"] == SECRET
    assert SECRET not in f"{endpoint!r} {endpoint.facts()}"


def test_half_a_key_at_the_end_of_what_is_read_of_an_error_is_not_shown(monkeypatch):
    key = "k" + "ey" * 100
    monkeypatch.setenv("A_KEY", key)
    with scripted({"status": 400, "text": key * 1000}) as h, pytest.raises(RequestRejected) as caught:
        Endpoint(h.url, "m", key_variable="A_KEY").ask(ASK)
    assert set(caught.value.said.split("[key]")) == {""}


@pytest.mark.parametrize(
    "name",
    [
        *("Api-Key", "X-Auth-Token", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Secret", "Cookie"),
        *("authorization", "X-Gateway", "OpenAI-Organization"),
    ],
)
def test_a_header_of_ones_own_does_not_go_over_plain_http(name):
    with pytest.raises(EndpointUnusable, match=f"plain http.*{name}") as caught:
        Endpoint("http://example.org/v1", "m", headers={"User-Agent": "me", name: SECRET})
    assert SECRET not in str(caught.value)
    for url in ("https://example.org/v1", "http://localhost:1/v1"):
        assert Endpoint(url, "m", headers={name: SECRET}).headers == {name: SECRET}


def test_a_header_that_says_who_asks_goes_anywhere():
    headers = {"User-Agent": "me/1.0", "X-Title": "tests"}
    assert Endpoint("http://example.org/v1", "m", headers=headers).headers == headers


@pytest.mark.parametrize(
    "headers", [{"A": f"{SECRET}\n"}, {"A": f"ü{SECRET}"}, {"A b": SECRET}, {"": SECRET}]
)
def test_a_header_that_is_none_is_told_without_showing_it(headers):
    with pytest.raises(EndpointUnusable, match="no HTTP header carries") as caught:
        Endpoint("http://localhost:1/v1", "m", headers=headers)
    assert SECRET not in str(caught.value)
