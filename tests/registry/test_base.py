"""Tools and results."""

from __future__ import annotations

import json

import pytest

from nexus_lab.registry import SchemaRefused, ToolFailed, ToolResult, ToolSpec, schema_text

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "private": {"type": "boolean"}},
    "required": ["name"],
}


def test_a_tool_says_what_it_is():
    tool = ToolSpec("make", "Make it", SCHEMA, server="hub", annotations={"readOnlyHint": True})
    assert tool.qualified_name == "hub.make"
    assert tool.read_only
    assert tool.required == ("name",)
    assert list(tool.properties) == ["name", "private"]
    assert tool.to_mcp() == {
        "name": "make",
        "description": "Make it",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True},
    }


def test_tools_compare_by_content_and_hash():
    first, second = ToolSpec("a", "x", SCHEMA, source="file"), ToolSpec("a", "x", SCHEMA, source="live")
    assert first == second
    assert len({first, second}) == 1
    assert first != ToolSpec("a", "x", SCHEMA, server="other")


def test_a_tool_does_not_change_with_what_it_was_made_of():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = ToolSpec("a", input_schema=schema)
    schema["properties"]["b"] = {}
    assert list(tool.properties) == ["a"]


def test_the_text_of_full_mode_depends_on_name_description_and_schema_alone():
    text = schema_text(ToolSpec("a", "x", SCHEMA, server="s", annotations={"title": "A"}))
    assert text == schema_text(ToolSpec("a", "x", SCHEMA))
    assert json.loads(text) == {"name": "a", "description": "x", "inputSchema": SCHEMA}


def test_an_empty_schema_is_shown_as_an_object():
    assert json.loads(schema_text(ToolSpec("a")))["inputSchema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_tool_needs_a_name(name):
    with pytest.raises(SchemaRefused):
        ToolSpec(name)


@pytest.mark.parametrize("schema", [[], "text", 3])
def test_a_schema_is_an_object(schema):
    with pytest.raises(SchemaRefused):
        ToolSpec("a", input_schema=schema)


@pytest.mark.parametrize("required", [None, "name", {"a": 1}, [1, None, "name"]])
def test_odd_required_lists_do_no_harm(required):
    tool = ToolSpec("a", input_schema={"type": "object", "required": required})
    assert set(tool.required) <= {"name"}


def test_a_failed_result_raises_when_asked():
    assert ToolResult("fine").raise_for_error().text == "fine"
    with pytest.raises(ToolFailed, match=r"no such \\x1b\[31m file"):
        ToolResult("no such \x1b[31m file", is_error=True).raise_for_error()
