"""Strings and numbers: what a grammar holds of them, and the bounds that make a small model stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import ProjectionKind
from nexus_lab.arguments.compiler import grammar_fault
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Note = Callable[[str, ProjectionKind, str], None]

__all__ = [
    "MAX_INTEGER",
    "MAX_NUMBER",
    "MAX_STRING",
    "counts",
    "longest_text",
    "project_number",
    "project_string",
]

MAX_STRING = 256
MAX_INTEGER = 2**53 - 1
MAX_NUMBER = 1e15
_LONGEST = 2**63 - 1
NUMBER_STEP = 1e-6
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_TEXT = ("minLength", "maxLength", "pattern", "format")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DROPPED, _SHAPE, _NARROWED = ProjectionKind.DROPPED, ProjectionKind.SHAPE_ONLY, ProjectionKind.NARROWED


def counts(schema: Mapping[str, Any], note: Note, *keywords: str) -> dict[str, int]:
    """Return those of `keywords` that `schema` gives as whole numbers of at least 0."""
    found = {}
    for keyword in keywords:
        value = schema.get(keyword)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            found[keyword] = value
        elif keyword in schema:
            note(keyword, _DROPPED, "it is no count")
    return found


def project_string(schema: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Return what a grammar holds of a string schema, with a greatest length where there is none."""
    text: dict[str, Any] = counts(schema, note, "minLength", "maxLength")
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        _try(text, "pattern", pattern, note)
    elif "pattern" in schema:
        note("pattern", _DROPPED, "it is no text")
    if isinstance(form, str):
        if form not in _FORMATS:
            note("format", _DROPPED, f"no grammar for {neutralise(form, limit=40)}")
        elif _try(text, "format", form, note):
            note("format", _SHAPE, "the grammar holds its shape only")
    if "maxLength" not in text:
        bound = longest_text(text)
        if not _fault_of({**text, "maxLength": bound}):
            text["maxLength"] = bound
            note("maxLength", _NARROWED, f"at most {bound} characters")
    return text


def longest_text(counted: Mapping[str, int]) -> int:
    """Return the greatest length of a text: its ``maxLength``, else the bound that stands in for one."""
    given = counted.get("maxLength")
    return max(MAX_STRING, 2 * counted.get("minLength", 0)) if given is None else given


def _try(text: dict[str, Any], keyword: str, value: str, note: Note) -> bool:
    """Add a keyword to a string schema if a grammar holds the sum, else record that it is dropped."""
    fault = _fault_of({**text, keyword: value})
    if fault:
        note(keyword, _DROPPED, fault)
        return False
    text[keyword] = value
    return True


def _fault_of(text: dict[str, Any]) -> str:
    return grammar_fault({"type": "string", **text})


def project_number(schema: Mapping[str, Any], note: Note, *, whole: bool) -> dict[str, Any]:
    """Return what a grammar holds of a number schema, within bounds that end its digits.

    Parameters
    ----------
    whole
        Only whole numbers are allowed.
    """
    bounds: dict[str, Any] = {}
    for keyword in _BOUNDS:
        value = schema.get(keyword)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not whole or abs(value) <= _LONGEST:
                bounds[keyword] = value
            elif (value > 0) is not ("max" in keyword.lower()):  # a bound farther out gives way to ours
                note(keyword, _DROPPED, "no grammar holds a whole number of more than 64 bits")
        elif keyword in schema:
            note(keyword, _DROPPED, "it is no number")
    step = bounds.get("multipleOf")
    if isinstance(step, float) and not step.is_integer():
        note("multipleOf", _SHAPE, "decimal fractions are not exact in binary")
    limit: float = MAX_INTEGER if whole else MAX_NUMBER
    if bounds.keys().isdisjoint({"minimum", "exclusiveMinimum"}):
        bounds["minimum"] = min(-limit, 2 * bounds.get("maximum", bounds.get("exclusiveMaximum", 0)))
        note("minimum", _NARROWED, f"at least {bounds['minimum']:g}, without an exponent")
    if bounds.keys().isdisjoint({"maximum", "exclusiveMaximum"}):
        bounds["maximum"] = max(limit, 2 * bounds.get("minimum", bounds.get("exclusiveMinimum", 0)))
        note("maximum", _NARROWED, f"at most {bounds['maximum']:g}, without an exponent")
    stepped = {**bounds, "multipleOf": NUMBER_STEP}
    if not whole and step is None and not grammar_fault({"type": "number", **stepped}):
        note("multipleOf", _NARROWED, "at most six decimals")
        return stepped
    return bounds
