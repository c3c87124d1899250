"""Values and texts of unknown origin are copied and shown within bounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.registry import RegistryFormatError, SchemaRefused, neutralise
from nexus_lab.registry.json_values import canonical_json, copy_json, parse_json
from nexus_lab.registry.text import repair_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_a_json_value_survives_the_copy(value):
    copied = copy_json(value)
    assert json.loads(json.dumps(copied)) == json.loads(json.dumps(value))


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_canonical_text_does_not_depend_on_key_order(value):
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical_json(copy_json(value)) == canonical_json(copy_json(shuffled))


def test_the_copy_is_independent():
    value = {"a": [1, {"b": 2}]}
    copied = copy_json(value)
    value["a"][1]["b"] = 3
    assert copied == {"a": [1, {"b": 2}]}


def _nested(levels: int):
    value: object = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize("levels", [100, 100_000])
def test_deep_values_are_refused_without_recursion_errors(levels):
    with pytest.raises(SchemaRefused, match="nested too deeply"):
        copy_json(_nested(levels))


def test_a_value_that_holds_itself_is_refused():
    value: dict = {}
    value["self"] = value
    with pytest.raises(SchemaRefused):
        copy_json(value)


def test_a_value_that_explodes_is_refused():
    value: object = "lol"
    for _ in range(40):
        value = [value] * 10
    with pytest.raises(SchemaRefused, match="too many parts"):
        copy_json(value)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, [float("nan")], float("inf"), b"bytes", object()])
def test_what_is_no_json_is_refused(value):
    with pytest.raises(SchemaRefused):
        copy_json(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1, column 2"),
        ('{"a": NaN}', "NaN"),
        ("[" * 200_000, "deeply"),
        ("1" * 10_000, "not JSON"),
    ],
)
def test_text_that_is_no_json_gives_a_typed_error(text, said):
    with pytest.raises(RegistryFormatError, match=said):
        parse_json(text, origin="file.json")


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_what_is_shown_holds_no_control_characters(text):
    shown = neutralise(text)
    assert all(character.isprintable() for character in shown)
    assert neutralise(shown) == shown
    assert neutralise("x\u00a0y") == "x y"
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb", "a\\u200bb"),
        ("line\nline", "line\\x0aline"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 名前 🙂", "naïve 名前 🙂"),
    ],
)
def test_hidden_characters_become_visible(text, shown):
    assert neutralise(text) == shown


def test_newlines_stay_where_they_are_wanted():
    assert neutralise("a\n\tb\r", keep_newlines=True) == "a\n\tb\\x0d"


def test_long_text_is_cut():
    assert neutralise("x" * 50, limit=10) == "x" * 9 + "…"


def test_lone_surrogates_are_replaced():
    assert repair_text("a\ud800b").encode()
    assert repair_text("plain 名") == "plain 名"
    assert copy_json({"k\udfff": "\ud800"})
