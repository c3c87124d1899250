"""Reading and checking arguments."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.arguments import (
    ArgumentsRejected,
    CutOff,
    DuplicateArgument,
    NotAnObject,
    NotJson,
    SchemaUnusable,
    parse_arguments,
    require_valid,
    validate,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "state": {"type": "string", "enum": ["open", "closed"]},
        "labels": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "since": {"type": "string", "format": "date"},
        "a/b": {"type": "integer"},
    },
    "required": ["state"],
    "additionalProperties": False,
}


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


def test_an_object_is_read_as_it_is():
    assert parse_arguments(' {"a": [1, 2.5, "é", null, true]} ') == {"a": [1, 2.5, "é", None, True]}


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("", CutOff, "break off at character 0"),
        ('{"a": ', CutOff, "break off at character 6"),
        ('{"a": "x', CutOff, "break off at character 8"),
        ('{"a": "x\\u00', CutOff, "break off at character 12"),
        ('{"a": [1, -', CutOff, "break off at character 11"),
        ('{"a": 1.5e', CutOff, "break off at character 10"),
        ('{"a": fals', CutOff, "break off at character 10"),
        ('{"a": 1} n', NotJson, "Extra data at character 9"),
        ('{"a": "x\n', NotJson, "control character"),
        ('{"a": "\\q', NotJson, "character 7"),
        ('{"a": tx', NotJson, "character 6"),
        ('{"a": 1 "b', NotJson, "character 8"),
        ("{'a': 1}", NotJson, "character 1"),
        ('{"a": NaN}', NotJson, "NaN"),
        ('{"a": 1e999}', NotJson, "too large"),
        ("[" * 100_000, NotJson, "nested too deeply"),
        ("[1]", NotAnObject, "list"),
        ("null", NotAnObject, "NoneType"),
        ('{"a": 1, "a": 2}', DuplicateArgument, "'a' is given twice"),
        ('{"x": {"b": 1, "b": 1}}', DuplicateArgument, "'b' is given twice"),
    ],
)
def test_what_is_no_object_is_a_typed_error(text: str, error: type[Exception], part: str):
    with pytest.raises(error, match=part) as caught:
        parse_arguments(text)
    assert type(caught.value) is error
    if error is CutOff:
        assert caught.value.next_step == "allow more tokens"


@given(objects, st.sampled_from([{}, {"indent": 1}, {"ensure_ascii": False}]))
def test_whatever_is_cut_says_so_wherever_that_is(value: dict[str, Any], form: dict[str, Any]):
    text = json.dumps(value, **form)
    for stop in range(len(text)):
        with pytest.raises(CutOff):
            parse_arguments(text[:stop])


def test_valid_arguments_have_no_violations():
    assert validate({"state": "open", "labels": ["a", "b"], "since": "2026-02-28", "a/b": 3}, SCHEMA) == []


@pytest.mark.parametrize(
    ("arguments", "path", "keyword"),
    [
        ({}, "", "required"),
        ({"state": "ajar"}, "/state", "enum"),
        ({"state": "open", "labels": ["a", "a"]}, "/labels", "uniqueItems"),
        ({"state": "open", "labels": [1]}, "/labels/0", "type"),
        ({"state": "open", "since": "2026-02-30"}, "/since", "format"),
        ({"state": "open", "a/b": "x"}, "/a~1b", "type"),
        ({"state": "open", "other": 1}, "", "additionalProperties"),
    ],
)
def test_a_violation_says_where_and_what(arguments: dict[str, Any], path: str, keyword: str):
    (violation,) = validate(arguments, SCHEMA)
    assert (violation.path, violation.keyword) == (path, keyword)
    assert violation.message
    assert "\n" not in str(violation)


def test_all_violations_come_in_a_fixed_order():
    violations = validate({"state": 1, "labels": 2, "since": 3}, SCHEMA)
    assert [violation.path for violation in violations] == ["/labels", "/since", "/state", "/state"]


def test_rejected_arguments_carry_their_violations():
    with pytest.raises(ArgumentsRejected, match=r"list_issues.*not one of") as caught:
        require_valid({"state": "ajar"}, SCHEMA, tool="list_issues")
    assert [violation.keyword for violation in caught.value.violations] == ["enum"]
    require_valid({"state": "open"}, SCHEMA, tool="list_issues")


def test_untrusted_values_cannot_move_the_cursor():
    (violation,) = validate({"state": "\x1b[2J"}, SCHEMA)
    assert "\x1b" not in str(violation)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"$ref": "https://example.com/schema.json"}}},
        {"properties": {"a": {"pattern": "["}}},
        {"$ref": "#"},
        {"$schema": 5},
        {"$schema": ["a"]},
    ],
)
def test_a_schema_that_cannot_be_applied_is_a_typed_error(schema: Any, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(SchemaUnusable, match="cannot be applied"):
        validate({"a": "x"}, schema)


def test_the_dialect_is_the_one_that_the_schema_names():
    old = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"minimum": 0, "exclusiveMinimum": True}},
    }
    assert [violation.keyword for violation in validate({"n": 0}, old)] == ["minimum"]
    assert validate({"n": 1}, old) == []
