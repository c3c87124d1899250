"""Grammars: what they accept satisfies the schema, or the plan names what they do not hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from schema_strategies import SCHEMAS, written

from nexus_lab.arguments import (
    GrammarPlan,
    ProjectionKind,
    SchemaUnusable,
    Violation,
    build_grammar,
    parse_arguments,
    validate,
)
from nexus_lab.arguments.base import DuplicateArgument

BYTES = LLTokenizer("byte", slices=[])


def accepts(plan: GrammarPlan, text: str) -> bool:
    matcher = LLMatcher(BYTES, plan.grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def named(plan: GrammarPlan, violation: Violation) -> bool:
    """Whether the plan says that the grammar does not hold what `violation` breaks."""
    full = f"{violation.schema_path}/{violation.keyword}"
    composed = violation.keyword in ("anyOf", "oneOf", "allOf")
    for part in plan.unchecked:
        held = part.path if part.keyword == "*" else f"{part.path}/{part.keyword}"
        if full == held or full.startswith(held + "/"):
            return True
        if composed and part.path.startswith(full + "/"):
            return True
        # Behind a reference, the paths of violations go through it, those of plans start anew.
        behind = "/$ref/" in full or (composed and "$ref" in json.dumps(violation.expected))
        if behind and (composed or part.keyword in ("*", violation.keyword)):
            return True
    return False


def without_decimal_steps(schema: Any) -> Any:
    """Leave out the steps that binary fractions cannot be checked against."""
    if isinstance(schema, list):
        return [without_decimal_steps(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_decimal_steps(part)
        for key, part in schema.items()
        if not (key == "multipleOf" and isinstance(part, float))
    }


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32 - 1))
def test_what_a_grammar_accepts_is_valid_or_named(schema: dict[str, Any], seed: int):
    try:
        plan = build_grammar(schema)
    except SchemaUnusable:
        return
    text = written(plan.grammar, seed)
    if text is None:
        return
    try:
        arguments = parse_arguments(text)
    except DuplicateArgument:
        return
    assert not validate(arguments, without_decimal_steps(plan.schema_used))
    try:
        violations = validate(arguments, schema)
    except SchemaUnusable:
        return
    unnamed = [violation for violation in violations if not named(plan, violation)]
    assert not unnamed, (text, plan.report())


@pytest.mark.parametrize(
    "schema", [{}, True, {"type": "object"}, {"properties": {}}, {"type": ["object", "null"]}]
)
def test_a_schema_without_arguments_accepts_the_empty_object_only(schema: Any):
    plan = build_grammar(schema)
    assert accepts(plan, "{}")
    assert not accepts(plan, '{"a":1}')


@pytest.mark.parametrize("schema", [False, {"type": "string"}, {"type": "array"}])
def test_a_schema_that_no_object_satisfies_is_refused(schema: Any):
    with pytest.raises(SchemaUnusable, match="cannot be satisfied"):
        build_grammar(schema, tool="broken")


def test_required_arguments_must_come_and_unknown_ones_may_not():
    plan = build_grammar(
        {"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]}
    )
    assert accepts(plan, '{"b":true}')
    assert accepts(plan, '{"a":3,"b":false}')
    assert not accepts(plan, '{"a":3}')
    assert not accepts(plan, '{"b":true,"c":1}')
    assert not accepts(plan, '{"b": true}'), "the compact form is the only one"


def test_an_argument_without_a_type_is_a_scalar():
    plan = build_grammar({"properties": {"any": {"description": "whatever"}, "more": True}})
    for value in ('"x"', "1.5", "true", "null"):
        assert accepts(plan, f'{{"any":{value},"more":{value}}}')
    assert not accepts(plan, '{"any":{}}')
    assert {part.path for part in plan.projected if part.keyword == "type"} == {
        "/properties/any",
        "/properties/more",
    }


def test_open_strings_numbers_and_arrays_come_to_an_end():
    plan = build_grammar(
        {
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "number"},
                "l": {"type": "array"},
                "i": {"type": "integer"},
            }
        }
    )
    assert accepts(plan, '{"s":"' + "x" * 256 + '"}')
    assert not accepts(plan, '{"s":"' + "x" * 257 + '"}')
    assert accepts(plan, '{"n":-0.333333}')
    assert not accepts(plan, '{"n":0.3333333}')
    assert not accepts(plan, '{"n":1e9}')
    assert not accepts(plan, '{"i":12345678901234567890}')
    assert not accepts(plan, '{"l":[' + ",".join("1" * 17) + "]}")
    assert {part.kind for part in plan.projected} == {ProjectionKind.NARROWED}
    assert ("/properties/s", "maxLength") in {(part.path, part.keyword) for part in plan.projected}


def test_bounds_of_the_schema_stay_its_own():
    plan = build_grammar(
        {
            "properties": {
                "s": {"type": "string", "maxLength": 300},
                "n": {"type": "integer", "minimum": 1, "maximum": 100},
            }
        }
    )
    assert accepts(plan, '{"s":"' + "x" * 300 + '","n":100}')
    assert not accepts(plan, '{"n":101}')
    assert not accepts(plan, '{"n":0}')


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("uniqueItems", True),
        ("contains", {"const": "a"}),
        ("not", {"const": ["a"]}),
        ("unevaluatedItems", False),
        ("minContains", 2),
    ],
)
def test_what_no_grammar_holds_is_named_with_tool_and_path(keyword: str, value: Any):
    part = {"type": "array", "items": {"type": "string"}, keyword: value}
    plan = build_grammar({"properties": {"labels": part}}, tool="create_issue")
    assert accepts(plan, '{"labels":["a","a"]}')
    line = next(line for line in plan.report() if "dropped" in line)
    assert line.startswith(f"create_issue /properties/labels {keyword} dropped")
    assert [(part.path, part.keyword) for part in plan.unchecked] == [("/properties/labels", keyword)]


@pytest.mark.parametrize(
    "keyword", ["if", "then", "else", "dependentRequired", "dependentSchemas", "propertyNames"]
)
def test_what_no_grammar_holds_of_an_object_is_named(keyword: str):
    schema = {
        "properties": {"a": {"type": "integer"}},
        keyword: {"a": ["b"]} if "dependent" in keyword else {"minLength": 2},
    }
    assert (("", keyword)) in {(part.path, part.keyword) for part in build_grammar(schema).unchecked}


def test_a_trivial_property_names_is_not_reported():
    plan = build_grammar({"properties": {"m": {"type": "object", "propertyNames": {"type": "string"}}}})
    assert not plan.unchecked


def test_a_pattern_is_held_or_named():
    schema = {
        "properties": {
            "a": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
            "b": {"type": "string", "pattern": "^(?!x)"},
        }
    }
    plan = build_grammar(schema)
    assert accepts(plan, '{"a":"AB-12"}')
    assert not accepts(plan, '{"a":"ab-12"}')
    assert [(part.path, part.keyword) for part in plan.unchecked] == [("/properties/b", "pattern")]


def test_listed_values_are_the_ones_that_satisfy_their_neighbours():
    plan = build_grammar(
        {"properties": {"s": {"enum": ["open", "closed", 3], "type": "string", "minLength": 5}}}
    )
    assert accepts(plan, '{"s":"closed"}')
    assert not accepts(plan, '{"s":"open"}')
    assert not accepts(plan, '{"s":3}')


def test_a_listed_control_character_can_be_written():
    plan = build_grammar({"properties": {"s": {"const": "a\x01b"}}, "required": ["s"]})
    assert accepts(plan, json.dumps({"s": "a\x01b"}, separators=(",", ":")))


def test_recursion_stays_recursion():
    tree = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}}}
    plan = build_grammar({"properties": {"tree": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}})
    assert accepts(plan, '{"tree":{"value":1,"next":{"value":2,"next":{"next":{}}}}}')
    assert not accepts(plan, '{"tree":{"value":1,"next":{"other":2}}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"$ref": "#/definitions/id"}}, "definitions": {"id": {"type": "integer"}}},
        {"properties": {"x": {"$ref": "#here"}}, "$defs": {"id": {"$anchor": "here", "type": "integer"}}},
        {"properties": {"x": {"$ref": "#/properties/y"}, "y": {"type": "integer"}}},
        {"properties": {"x": {"$ref": "#/$defs/a%2Fb~1c"}}, "$defs": {"a/b/c": {"type": "integer"}}},
    ],
)
def test_references_lead_where_they_point(schema: dict[str, Any]):
    plan = build_grammar(schema)
    assert accepts(plan, '{"x":7}')
    assert not accepts(plan, '{"x":"7"}')


@pytest.mark.parametrize("ref", ["https://example.com/x.json", "#/nowhere", 3])
def test_a_reference_that_leads_nowhere_is_named(ref: Any):
    plan = build_grammar({"properties": {"x": {"$ref": ref}}})
    assert [(part.path, part.keyword) for part in plan.unchecked] == [("/properties/x", "$ref")]
    assert accepts(plan, '{"x":1}')


def test_one_of_is_exclusive_only_where_that_can_be_held():
    apart = build_grammar({"properties": {"x": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}})
    assert not apart.unchecked
    both = build_grammar({"properties": {"x": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}})
    assert [(part.path, part.keyword) for part in both.unchecked] == [("/properties/x", "oneOf")]
    assert accepts(both, '{"x":1}')


def test_alternatives_of_required_arguments_are_held():
    schema = {
        "properties": {"a": {"type": "array", "items": {"type": "object"}}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    plan = build_grammar(schema)
    assert accepts(plan, '{"a":[{}]}')
    assert accepts(plan, '{"b":"x"}')
    assert not accepts(plan, "{}")
    assert not accepts(plan, '{"b":"x","c":1}')


def test_an_intersection_keeps_the_arguments_of_all_its_parts():
    schema = {
        "allOf": [
            {"properties": {"a": {"type": "array", "items": {"type": "object"}}}, "required": ["a"]},
            {"properties": {"a": {"type": "array", "minItems": 1}, "b": {"type": "integer"}}},
        ]
    }
    plan = build_grammar(schema)
    assert accepts(plan, '{"a":[{}],"b":1}')
    assert not accepts(plan, '{"a":[],"b":1}')


def test_optional_arguments_can_be_kept_out():
    schema = {
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
        "required": ["a"],
    }
    plan = build_grammar(schema, optional={"c"})
    assert accepts(plan, '{"a":1,"c":2}')
    assert accepts(plan, '{"a":1}')
    assert not accepts(plan, '{"a":1,"b":2}')
    assert ("/properties/b", "*") in {(part.path, part.keyword) for part in plan.projected}


def test_given_values_are_the_only_ones_left():
    schema = {
        "properties": {"owner": {"type": "string"}, "n": {"type": "integer", "maximum": 9}},
        "required": ["owner"],
    }
    plan = build_grammar(schema, values={"owner": ["acme", "globex"], "n": [5, 50, "x"], "other": [1]})
    assert accepts(plan, '{"owner":"acme","n":5}')
    assert not accepts(plan, '{"owner":"acmes"}')
    assert not accepts(plan, '{"owner":"acme","n":50}')


def test_an_argument_that_defeats_the_grammar_gives_way_alone():
    # Two patterns whose intersection llguidance cannot decide.
    hard = {"type": "object", "patternProperties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    plan = build_grammar({"properties": {"hard": hard, "easy": {"type": "integer"}}, "required": ["easy"]})
    assert accepts(plan, '{"easy":1}')
    assert not accepts(plan, '{"easy":"1"}')
    assert [part.path for part in plan.unchecked] == ["/properties/hard"]


def test_a_whole_number_beyond_64_bits_is_named_where_it_matters():
    part = {"type": "integer", "minimum": 10**80, "maximum": 2**64 - 1, "multipleOf": 10**20}
    plan = build_grammar({"properties": {"n": part}, "required": ["n"]})
    assert accepts(plan, '{"n":7}')
    assert not accepts(plan, '{"n":"7"}')
    assert [(one.path, one.keyword) for one in plan.unchecked] == [
        ("/properties/n", "minimum"),
        ("/properties/n", "multipleOf"),
    ]


def test_names_are_escaped_in_pointers():
    plan = build_grammar({"properties": {"a/b~c": {"type": "array", "uniqueItems": True}}})
    assert plan.unchecked[0].path == "/properties/a~1b~0c"


def test_every_tool_of_the_evaluation_data_has_a_grammar(data_dir: Any):
    tools = json.loads((data_dir / "registries" / "n250.json").read_text())["tools"]
    dropped = {}
    for tool in tools:
        plan = build_grammar(tool["inputSchema"], tool=tool["name"])
        dropped[tool["name"]] = [
            part.keyword for part in plan.projected if part.kind is ProjectionKind.DROPPED
        ]
    assert len(tools) == 250
    lossy = {name: sorted(set(keywords)) for name, keywords in dropped.items() if keywords}
    assert lossy == {"API-post-page": ["format", "oneOf"]}
