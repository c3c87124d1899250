"""The compressed signature: its form, its bounds, and what it saves."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.registry import (
    SignatureDetail,
    ToolSpec,
    estimate_tokens,
    first_sentence,
    load_registry,
    schema_text,
    signature,
)

LINE = SignatureDetail.LINE


def line(schema: dict, **options) -> str:
    return signature(ToolSpec("f", "", schema), detail=LINE, **options)


def argument(schema: object, *, required: bool = True, **rest) -> str:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"] if required else [], **rest}
    return line(whole).removeprefix("f(a").removesuffix(")").removeprefix("?").removeprefix(": ")


def test_the_form_of_the_papers_example():
    schema = {
        "type": "object",
        "properties": {"private": {"type": "boolean"}, "name": {"type": "string"}},
        "required": ["name"],
    }
    tool = ToolSpec("create_repository", "Create a repository. It is empty at first.", schema)
    assert signature(tool, detail="line") == "create_repository(name: string, private?: boolean)"
    assert signature(tool) == "create_repository(name: string, private?: boolean) - Create a repository"


def test_without_arguments():
    assert line({}) == "f()"
    assert signature(ToolSpec("f", "Do it!")) == "f() - Do it!"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "integer"}, "integer"),
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ({"type": "dict"}, "any"),
        ({"const": "x"}, "x"),
        ({"enum": ["open", "closed"]}, "open|closed"),
        ({"enum": ["two words", "+1", "string", 3, True, None]}, '"two words"|"+1"|"string"|3|true|null'),
        ({"enum": list("abcdefgh")}, "a|b|c|d|e|f|…"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "(a|b)[]"),
        ({"type": "array"}, "any[]"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string|integer"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "format": "uri"}]}, "string"),
        ({"type": "object"}, "object"),
        (
            {"type": "object", "properties": {"x": {"type": "number"}, "y": {}}, "required": ["x"]},
            "{x: number, y?: any}",
        ),
        ({"allOf": [{"properties": {"x": {"type": "number"}}}, {"required": ["x"]}]}, "{x: number}"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, "number[][]"),
    ],
)
def test_types(schema, shown):
    assert argument(schema) == shown


def test_null_is_dropped_where_the_argument_may_be_left_out():
    assert argument({"anyOf": [{"type": "string"}, {"type": "null"}]}, required=False) == "string"
    assert argument({"type": ["integer", "null"]}, required=False) == "integer"


def test_references_are_resolved_and_recursion_is_named():
    defs = {
        "Mode": {"enum": ["r", "w"]},
        "Node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "string"}},
        },
    }
    assert argument({"$ref": "#/$defs/Mode"}, **{"$defs": defs}) == "r|w"
    assert argument({"$ref": "#/$defs/Node"}, **{"$defs": defs}) == "{next?: Node, value?: string}"
    assert argument({"$ref": "#/$defs/Gone"}) == "any"
    assert argument({"$ref": "https://example.org/x"}) == "any"


def test_nesting_is_bounded():
    schema: dict = {"type": "string"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"x": schema}}
    assert argument(schema) == "{x?: {x?: object}}"


def test_neighbours_share_their_type_when_dense():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer"}},
        "required": ["a", "b"],
    }
    assert signature(ToolSpec("f", "", schema), detail="dense") == "f(a, b: string, c?: integer)"


def test_hints_stand_where_the_name_does_not_say_it():
    schema = {
        "type": "object",
        "properties": {
            "owner": {"type": "string", "description": "The owner"},
            "when": {"type": "string", "description": "Start date (ISO 8601). Otherwise today."},
        },
    }
    shown = signature(ToolSpec("f", "", schema), detail="inline")
    assert shown == 'f(owner?: string, when?: string "Start date (ISO 8601)")'


def _wide(count: int, *, required: int = 0) -> ToolSpec:
    names = [f"argument_{index}" for index in range(count)]
    kinds = {name: {"enum": [f"choice_{index}" for index in range(12)]} for name in names}
    return ToolSpec("wide", "Wide", {"type": "object", "properties": kinds, "required": names[:required]})


@pytest.mark.parametrize("count", [1, 5, 20, 500])
def test_wide_tools_lose_detail_until_they_fit(count):
    shown = signature(_wide(count), detail=LINE, max_tokens=60)
    assert estimate_tokens(shown) <= 60
    assert ("more" in shown) == (count > 19)


def test_required_arguments_are_never_dropped():
    shown = signature(_wide(60, required=50), detail=LINE, max_tokens=60)
    assert all(f"argument_{index}" in shown for index in range(50))
    assert shown.endswith("+10 more)")


@pytest.mark.parametrize(
    ("text", "limit", "said"),
    [
        ("Create it. Then stop.", 50, "Create it"),
        ("Read a file, e.g. a text file, from disk. More.", 60, "Read a file, e.g. a text file, from disk"),
        ("  one\n  two\n\nthree", 50, "one two"),
        ("Travel mode (driving, walking, cycling)", 20, "Travel mode"),
        ("a" * 100, 10, "a" * 9 + "…"),
        ("", 10, ""),
        ("\x1b[31mred", 20, "\\x1b[31mred"),
    ],
)
def test_first_sentences(text, limit, said):
    assert first_sentence(text, limit=limit) == said


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "enum",
                    "anyOf",
                    "allOf",
                    "$ref",
                    "required",
                    "const",
                    "$defs",
                    "description",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=8), HOSTILE, max_size=6), st.sampled_from(list(SignatureDetail)))
def test_any_schema_gives_one_printable_line(properties, detail):
    tool = ToolSpec("f", "x", {"properties": properties, "required": list(properties)[:2]})
    shown = signature(tool, detail=detail)
    assert shown.isprintable()
    assert shown.startswith("f(")


def test_a_tokenizer_can_be_given():
    assert signature(_wide(20), detail=LINE, max_tokens=200, count=len) == signature(
        _wide(20), detail=LINE, max_tokens=200, count=lambda text: len(text.encode())
    )
    assert len(signature(_wide(20), detail=LINE, max_tokens=200, count=len)) <= 200


@pytest.mark.parametrize(
    ("detail", "median", "p99"),
    [("dense", 24, 100), ("line", 26, 100), ("brief", 40, 115), ("inline", 60, 160)],
)
def test_real_tools_shrink_by_four_fifths(data_dir, detail, median, p99):
    registry = load_registry(data_dir / "registries" / "n250.json")
    full = [estimate_tokens(schema_text(tool)) for tool in registry]
    short = [estimate_tokens(signature(tool, detail=detail)) for tool in registry]
    assert sum(short) <= 0.2 * sum(full)
    assert statistics.median(short) <= median
    assert sorted(short)[247] <= p99
