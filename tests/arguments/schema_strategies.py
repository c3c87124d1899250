"""JSON Schemas made by hypothesis, and values that a grammar accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

NAMES = ("owner", "repo", "count", "a/b", "flag", "über")
_BYTES = LLTokenizer("byte", slices=[])
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.sampled_from(["", "a", "open", "é"]))


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with any subset of `keywords`."""
    return st.fixed_dictionaries({}, optional=keywords)


def _with(base: dict[str, Any], **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(**keywords).map(lambda chosen: {**chosen, **base})


STRINGS = _with(
    {"type": "string"},
    minLength=st.integers(0, 4),
    maxLength=st.integers(4, 9),
    pattern=st.sampled_from(["^[a-z]+$", "x", "^a", "^(?=a)", "[", "^\\d{2,3}$"]),
    format=st.sampled_from(["date", "date-time", "email", "uri", "json", "uuid", "ipv4"]),
)
NUMBERS = st.builds(
    lambda kind, chosen: {"type": kind, **chosen},
    st.sampled_from(["integer", "number"]),
    _some(
        minimum=st.integers(-9, 0),
        maximum=st.integers(1, 900),
        exclusiveMinimum=st.integers(-9, 0),
        exclusiveMaximum=st.sampled_from([5, 7.5, True]),
        multipleOf=st.sampled_from([1, 3, 0.5, 0.1]),
    ),
)
CHOICES = st.builds(
    lambda values, beside: {"enum": values, **beside},
    st.lists(_SCALARS, min_size=1, max_size=3),
    _some(minLength=st.integers(1, 2), type=st.sampled_from(["string", ["string", "integer"]])),
) | _SCALARS.map(lambda value: {"const": value})
PLAIN = st.sampled_from(
    [{}, True, {"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {"title": "t"}]
)
ODD = st.sampled_from(
    [
        {"type": "text"},
        {"not": {"const": "a"}},
        {"type": "string", "not": {"const": ""}},
        {"$ref": "#/$defs/leaf"},
        {"$ref": "#/$defs/tree"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/nowhere"},
        {"maxLength": 3},
        {"optional": True, "type": "string"},
    ]
)
DEFINITIONS = {
    "leaf": {"type": "string", "minLength": 1, "maxLength": 3},
    "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}, "n": {"type": "integer"}}},
}


def _arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _with(
        {"type": "array"},
        items=items,
        prefixItems=st.lists(items, min_size=1, max_size=2),
        minItems=st.integers(0, 1),
        maxItems=st.integers(1, 3),
        uniqueItems=st.booleans(),
        contains=items,
    )


def _objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _with(
        {"type": "object"},
        properties=st.dictionaries(st.sampled_from(NAMES), parts, max_size=3),
        required=st.lists(st.sampled_from(NAMES[:3]), max_size=2, unique=True),
        additionalProperties=st.booleans() | parts,
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(2, 3),
        propertyNames=st.sampled_from([{"type": "string"}, {"pattern": "^[a-z]"}]),
        dependentRequired=st.just({"owner": ["repo"]}),
    )


def _compositions(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.lists(parts, min_size=1, max_size=2)
    return st.builds(
        lambda keyword, branches: {keyword: branches}, st.sampled_from(["anyOf", "oneOf", "allOf"]), lists
    )


LEAVES = STRINGS | NUMBERS | CHOICES | PLAIN | ODD
PARTS = st.recursive(
    LEAVES, lambda inner: _arrays(inner) | _objects(inner) | _compositions(inner), max_leaves=4
)


def _root(schema: dict[str, Any], branches: list[dict[str, Any]] | None) -> dict[str, Any]:
    root = {"type": "object", "$defs": DEFINITIONS, **schema}
    if branches:
        root["anyOf"] = branches
    return root


SCHEMAS = st.builds(
    _root,
    _objects(PARTS),
    st.none() | st.just([{"required": ["owner"]}, {"required": ["count"]}]),
)


def written(grammar: str, seed: int, *, most: int = 300) -> str | None:
    """Return a text that `grammar` accepts, by a random walk over bytes; `None` where the walk got stuck.

    The walk leans towards ends: quotes and closing brackets.
    """
    matcher = LLMatcher(_BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    chooser = np.random.default_rng(seed)
    text = bytearray()
    for _ in range(most):
        if matcher.is_accepting() and (matcher.is_stopped() or chooser.random() < 0.4):
            return text.decode()
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(token) for token in np.flatnonzero(bits[:256])]
        if not allowed:
            return None
        ends = [token for token in allowed if token in b'"]}']
        calm = [token for token in allowed if chr(token).isalnum()]
        pool = (
            ends if ends and chooser.random() < 0.3 else calm if calm and chooser.random() < 0.8 else allowed
        )
        token = int(chooser.choice(pool))
        assert matcher.consume_token(token)
        text.append(token)
    return None
