"""What is wrong with a tool is found in bounded time, and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexus_lab.registry import (
    ProblemKind,
    RefFault,
    Severity,
    ToolSpec,
    check_registry_schemas,
    check_tool,
    load_registry,
    resolve_ref,
    signature,
)
from nexus_lab.registry.schema import inspect_refs, resolve_pointer, walk


def kinds(tool: ToolSpec) -> dict[ProblemKind, Severity]:
    return {problem.kind: problem.severity for problem in check_tool(tool)}


def properties(**schemas) -> dict:
    return {"type": "object", "properties": schemas}


def test_a_good_tool_has_no_problems():
    assert kinds(ToolSpec("make_it", "Make it", properties(name={"type": "string"}))) == {}


@pytest.mark.parametrize(
    ("tool", "kind", "severity"),
    [
        (ToolSpec("名前", "x", properties(a={})), ProblemKind.NON_ASCII_NAME, Severity.WARNING),
        (ToolSpec("two words", "x", properties(a={})), ProblemKind.ODD_NAME, Severity.WARNING),
        (ToolSpec("a\x1b[31m", "x", properties(a={})), ProblemKind.ODD_NAME, Severity.WARNING),
        (ToolSpec("a", " ", properties(a={})), ProblemKind.NO_DESCRIPTION, Severity.WARNING),
        (ToolSpec("a", "x" * 5000, properties(a={})), ProblemKind.LONG_DESCRIPTION, Severity.WARNING),
        (ToolSpec("a", "x"), ProblemKind.NO_SCHEMA, Severity.NOTE),
        (
            ToolSpec("a", "x", properties(a={"description": "y" * 40_000})),
            ProblemKind.LARGE_SCHEMA,
            Severity.WARNING,
        ),
        (
            ToolSpec("a", "x", {"type": "object", "properties": ["a"]}),
            ProblemKind.INVALID_SCHEMA,
            Severity.ERROR,
        ),
        (ToolSpec("a", "x", properties(a={"type": "dict"})), ProblemKind.UNKNOWN_TYPE, Severity.WARNING),
        (
            ToolSpec("a", "x", {**properties(a={}), "required": ["b"]}),
            ProblemKind.UNKNOWN_REQUIRED,
            Severity.WARNING,
        ),
        (
            ToolSpec("a", "x", properties(a={"$ref": "#/$defs/gone"})),
            ProblemKind.UNRESOLVED_REF,
            Severity.ERROR,
        ),
        (
            ToolSpec("a", "x", properties(a={"$ref": "https://example.org/s.json"})),
            ProblemKind.REMOTE_REF,
            Severity.ERROR,
        ),
        (ToolSpec("a", "x", properties(a={"$ref": "#"})), ProblemKind.RECURSIVE_REF, Severity.NOTE),
    ],
)
def test_each_problem_is_named(tool, kind, severity):
    assert kinds(tool) == {kind: severity}


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"name": "", "inputSchema": {}}, ProblemKind.NO_NAME),
        ({"name": None, "inputSchema": {}}, ProblemKind.NO_NAME),
        ({"name": "n" * 300, "inputSchema": {}}, ProblemKind.LONG_NAME),
        ({"name": "a", "inputSchema": []}, ProblemKind.SCHEMA_NOT_OBJECT),
        ({"name": "a", "inputSchema": True}, ProblemKind.SCHEMA_NOT_OBJECT),
        ({"name": "a", "inputSchema": {"type": "string"}}, ProblemKind.SCHEMA_NOT_OBJECT),
        ({"name": "a", "inputSchema": {"description": "x" * 1_100_000}}, ProblemKind.SCHEMA_REFUSED),
    ],
)
def test_unusable_tools_are_left_out(entry, kind):
    registry = load_registry([entry, {"name": "good", "description": "x", "inputSchema": {"type": "object"}}])
    assert registry.names == ("good",)
    assert [problem.kind for problem in registry.errors] == [kind]


def test_very_deep_schemas_are_left_out_without_recursion_errors():
    schema: dict = {"type": "object"}
    for _ in range(90):
        schema = {"type": "object", "properties": {"x": schema}}
    registry = load_registry([{"name": "deep", "inputSchema": schema}])
    assert [problem.kind for problem in registry.errors] == [ProblemKind.SCHEMA_REFUSED]


def test_pointers_follow_rfc_6901():
    root = {"a/b": {"m~n": [10, {"x": 20}]}, "c d": 1}
    assert resolve_pointer(root, "#/a~1b/m~0n/1/x") == 20
    assert resolve_pointer(root, "#/c%20d") == 1
    assert resolve_pointer(root, "#") is root
    for missing in ("#/nope", "#/a~1b/m~0n/7", "#/a~1b/m~0n/-1", "#/c d/x"):
        with pytest.raises(KeyError):
            resolve_pointer(root, missing)


def test_references_are_followed_through_references_and_anchors():
    root = {
        "$defs": {
            "a": {"$ref": "#/$defs/b"},
            "b": {"$ref": "#word"},
            "c": {"$anchor": "word", "type": "string"},
            "x": {"$ref": "#/$defs/y"},
            "y": {"$ref": "#/$defs/x"},
        }
    }
    assert resolve_ref(root, "#/$defs/a") == {"$anchor": "word", "type": "string"}
    assert resolve_ref(root, "#/$defs/x") is RefFault.ENDLESS
    assert resolve_ref(root, "#/$defs/z") is RefFault.MISSING
    assert resolve_ref(root, "other.json#/a") is RefFault.REMOTE


def test_recursion_is_found_through_several_definitions():
    schema = {
        "properties": {"tree": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#/$defs/leaf"}},
        "$defs": {
            "node": {"properties": {"children": {"items": {"$ref": "#/$defs/branch"}}}},
            "branch": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/leaf"}]},
            "leaf": {"type": "string"},
        },
    }
    assert set(inspect_refs(schema).recursive) == {"#/$defs/node", "#/$defs/branch"}


def test_data_that_looks_like_a_reference_is_none():
    schema = properties(
        a={"default": {"$ref": "#/nowhere"}, "enum": [{"$ref": "#/x"}]}, default={"$ref": "#/no"}
    )
    assert inspect_refs(schema).missing == ["#/no"]
    assert len(list(walk(schema))) == 3


def _tangle(count: int) -> dict:
    """Definitions that each refer to all others: naive expansion never ends."""
    names = [f"d{index}" for index in range(count)]
    every = [{"$ref": f"#/$defs/{name}"} for name in names]
    definition = {
        "type": "object",
        "properties": {f"p{i}": ref for i, ref in enumerate(every)},
        "anyOf": every,
    }
    return {**properties(a=every[0]), "$defs": dict.fromkeys(names, definition)}


@pytest.mark.parametrize("count", [20, 70])
def test_tangled_schemas_take_bounded_time(count):
    tool = ToolSpec("tangle", "x", _tangle(count))
    problems = list(check_tool(tool))
    line = signature(tool)
    assert problems
    assert len(line) < 1000


def test_a_thousand_references_are_too_many():
    refs = {f"p{index}": {"$ref": f"#/$defs/d{index}"} for index in range(1000)}
    schema = {
        "type": "object",
        "properties": refs,
        "$defs": {f"d{i}": {"type": "string"} for i in range(1000)},
    }
    found = {problem.kind for problem in check_tool(ToolSpec("many", "x", schema))}
    assert ProblemKind.UNRESOLVED_REF in found


def test_the_metaschema_check_names_the_place():
    tools = [
        ToolSpec("good", "x", properties(a={"type": "string"})),
        ToolSpec("bad", "x", properties(a={"type": 5})),
    ]
    (problem,) = check_registry_schemas(tools)
    assert problem.tool == "bad"
    assert "properties/a/type" in problem.message


def test_jsonschema_is_imported_without_its_slow_grammar():
    code = (
        "import sys; from nexus_lab.registry import load_jsonschema\n"
        "module = load_jsonschema(); assert load_jsonschema() is module\n"
        "module.validate({'a': 1}, {'type': 'object'}); print('rfc3987_syntax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_problem_is_shown_without_control_characters():
    registry = load_registry([{"name": "a\x1b[31m", "description": "x", "inputSchema": {"type": "object"}}])
    assert all(str(problem).isprintable() for problem in registry.problems)
    assert len(registry.problems) == 1
