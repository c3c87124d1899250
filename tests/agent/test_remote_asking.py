"""What is asked again, in which form, and what is learned from a refusal."""

from __future__ import annotations

import re

import pytest
from remote_tools import Listener
from scripted_endpoint import scripted

from nexus_lab.agent import Endpoint, endpoint_errors, remote_asking
from nexus_lab.agent.base import Emitter
from nexus_lab.agent.endpoint_errors import EndpointFailed, RequestRejected
from nexus_lab.agent.remote_asking import _SCHEMA_FAULT, Asker
from nexus_lab.settings import Profile

RIGHT = {"events": [{"choices": [{"index": 0, "delta": {"content": "right"}, "finish_reason": "stop"}]}]}


def refusal(status, said):
    return {"status": status, "json": {"error": {"message": said}}}


def breaks(status, said, **delta):
    """Half an answer, and an error behind it."""
    failure = {"error": {"message": said, "code": status}}
    return {"events": [{"choices": [{"index": 0, "delta": delta}]}, failure]}


HALF_CALL = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"x":'}}]}


def compose(offers):
    """A request that shows a tool or a schema, as far as it is offered."""
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    if offers.form.has_tools:
        body["tools"] = []
    elif offers.form.has_schema:
        body["response_format"] = {"type": offers.form.value}
    return body


def ask(asker, **listeners):
    return asker.ask(compose, note="test", profile=Profile(), max_tokens=4, **listeners).text


@pytest.mark.parametrize(
    ("status", "said"),
    [(400, "tools are not supported"), (500, "the tool template failed"), (400, "unknown field seed")],
)
@pytest.mark.parametrize(("piece", "told"), [({"content": "half a"}, "half a"), (HALF_CALL, '{"x":')])
def test_once_a_piece_was_told_nothing_is_asked_again(status, said, piece, told):
    heard, listener = [], Listener()
    with scripted(breaks(status, said, **piece), RIGHT) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter(listener))
        with pytest.raises((RequestRejected, EndpointFailed), match=said):
            ask(asker, on_text=heard.append, on_arguments=heard.append)
        assert (heard, len(h.bodies), listener.declined()) == ([told], 1, [])
        assert (asker.offers.form, asker.offers.refused) == ("tools", frozenset())
        assert ask(asker, on_text=heard.append) == "right"


def test_half_an_answer_that_nobody_heard_is_asked_for_again():
    with scripted(breaks(400, "tools are not supported", content="half a"), RIGHT) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter())
        assert ask(asker) == "right"
        assert (len(h.bodies), asker.offers.form) == (2, "json_schema")


@pytest.mark.parametrize(
    ("status", "said", "form"),
    [
        (400, "tools are not supported", "json_schema"),
        (422, "tools are not supported", "json_schema"),
        (404, "no such tool function", "json_schema"),
        (500, "tools param requires --jinja flag", "tools"),
        (500, "the function failed", "tools"),
        (502, "tool proxy: bad gateway", "tools"),
        (400, "Invalid schema for function 'f'", "tools"),
    ],
)
def test_only_a_refusal_lowers_the_form_of_what_is_asked_later(status, said, form):
    listener = Listener()
    with scripted(refusal(status, said), RIGHT, RIGHT) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter(listener))
        assert ask(asker) == "right"
        assert asker.form == "json_schema"
        assert (asker.offers.form, listener.declined()) == (form, ["endpoint_refuses_tools"])
        asker.begin()
        assert ask(asker) == "right"
        assert ("tools" in h.bodies[2]) == (form == "tools")


def test_what_a_failure_refused_is_not_asked_for_again_in_the_same_turn():
    with scripted(refusal(500, "tools param requires --jinja flag"), RIGHT, RIGHT, RIGHT) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter())
        asker.begin()
        assert (ask(asker), ask(asker)) == ("right", "right")
        asker.begin()
        assert ask(asker) == "right"
        assert ["tools" in body for body in h.bodies] == [True, False, False, True]


def test_a_refusal_behind_a_failure_says_nothing_of_the_form_that_failed():
    answers = (
        refusal(500, "tool parser"),
        refusal(400, "no seed"),
        refusal(400, "no response_format"),
        RIGHT,
    )
    with scripted(*answers) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter())
        assert ask(asker) == "right"
        assert (asker.offers.form, asker.offers.refused) == ("tools", {"seed"})
        assert asker.form == "json_object"


def test_messages_of_tools_that_a_failure_speaks_of_are_tried_again():
    def shown(_offers):
        return {"messages": [{"role": "tool", "content": "x"}]}

    with scripted(refusal(500, "template error"), RIGHT) as h:
        asker = Asker(Endpoint(h.url, "m"), Emitter())
        asker.ask(shown, note="test", profile=Profile(), max_tokens=4)
        assert (asker.offers.tool_messages, asker.now.tool_messages) == (True, False)


@pytest.mark.parametrize(
    ("said", "is_fault"),
    [
        ("Invalid schema for function 'f': enum is not supported", True),
        ("failed while compiling the JSON grammar", True),
        ("compilation of this pattern failed", True),
        ("could not be parsed as a grammar", True),
        ("failed to convert the schema", True),
        ("schema is not permitted here", True),
        ("tools are not supported by this model", False),
        ("invalid tool choice. A schema was given", False),
        ("compil" + "x" * 60 + "schema", False),
    ],
)
def test_a_fault_of_one_schema_is_told_from_a_refusal_of_all(said, is_fault):
    assert bool(_SCHEMA_FAULT.search(said)) is is_fault


@pytest.mark.parametrize("module", [endpoint_errors, remote_asking])
def test_no_pattern_reads_the_words_of_an_endpoint_without_a_bound(module):
    found = [value for value in vars(module).values() if isinstance(value, dict)]
    patterns = [*vars(module).values(), *(one for group in found for one in group.values())]
    read = [one.pattern for one in patterns if isinstance(one, re.Pattern)]
    assert read
    assert not [pattern for pattern in read if re.search(r"[*+]|\{\d*,\}", pattern)]
