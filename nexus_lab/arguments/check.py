"""Reading and checking the arguments that a model wrote, against the full schema."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import (
    ArgumentsRejected,
    CutOff,
    DuplicateArgument,
    NotAnObject,
    NotJson,
    SchemaUnusable,
    Violation,
)
from nexus_lab.registry import load_jsonschema, neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema.exceptions import ValidationError

__all__ = ["breaks_off", "parse_arguments", "require_valid", "validate"]

_SHOWN = 80
_MOST = 20
# What stands from where the reader stopped to the end, by what it says, in a text that only lacks its end:
# the beginning of a word or a number, of an escape, of a number's next part; or nothing.
_BEGUN = {
    "Unterminated string": r"(?s:.*)",
    "Invalid \\uXXXX escape": r"\\?u[0-9A-Fa-f]{0,4}",
    "Expecting value": r"\s*|t|tr|tru|f|fa|fal|fals|n|nu|nul|-",
    "Expecting ',' delimiter": r"\s*|(?<=\d)(?:\.|[eE][+-]?)",
    "Expecting": r"\s*",
}


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that `text` gives.

    Raises
    ------
    CutOff
        When it breaks off.
    NotJson
        When it is not JSON; with the position.
    NotAnObject
        When it is another JSON value.
    DuplicateArgument
        When a name is given twice in one object.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        if breaks_off(error):
            raise CutOff(
                f"the arguments break off at character {len(text)}", next_step="allow more tokens"
            ) from error
        raise NotJson(
            f"the arguments are not JSON: {error.msg} at character {error.pos}",
            next_step="write one JSON object",
        ) from error
    except RecursionError:
        raise NotJson("the arguments are nested too deeply", next_step="write one JSON object") from None
    except ValueError as error:
        raise NotJson(f"the arguments are not JSON: {error}", next_step="write one JSON object") from error
    if not isinstance(value, dict):
        raise NotAnObject(
            f"the arguments are a {type(value).__name__}, not an object", next_step="write one JSON object"
        )
    return value


def breaks_off(error: json.JSONDecodeError) -> bool:
    """Whether the text that could not be read is JSON as far as it goes, and only lacks its end."""
    rest = next((rest for said, rest in _BEGUN.items() if error.msg.startswith(said)), None)
    return rest is not None and re.compile(rest).fullmatch(error.doc, error.pos) is not None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise DuplicateArgument(
                f"the argument {neutralise(name, limit=_SHOWN)!r} is given twice", next_step="give it once"
            )
        members[name] = value
    return members


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:_SHOWN]} is too large a number")
    return value


def validate(arguments: Mapping[str, Any], schema: Mapping[str, Any] | bool) -> list[Violation]:  # noqa: FBT001
    """Return what is wrong with `arguments`; empty when they satisfy the full schema.

    The dialect is the one that ``$schema`` names, else draft 2020-12; formats are checked. References are
    followed within the schema only, never over the network.

    Raises
    ------
    SchemaUnusable
        When the schema itself cannot be applied.
    """
    jsonschema = load_jsonschema()
    import referencing
    import referencing.exceptions

    try:
        dialect = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        checker = dialect(schema, registry=referencing.Registry(), format_checker=dialect.FORMAT_CHECKER)
        errors = sorted(
            checker.iter_errors(arguments), key=lambda error: [str(part) for part in error.absolute_path]
        )
    except (
        jsonschema.exceptions.UnknownType,
        referencing.exceptions.Unresolvable,
        re.error,
        RecursionError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        why = neutralise(" ".join(str(error).split()), limit=160)
        raise SchemaUnusable(
            f"the schema cannot be applied: {type(error).__name__}: {why}",
            next_step="mend the tool's inputSchema",
        ) from error
    return [_violation(error) for error in errors[:_MOST]]


def require_valid(arguments: Mapping[str, Any], schema: Mapping[str, Any], *, tool: str = "") -> None:
    """Raise `ArgumentsRejected`, with all violations, when `arguments` do not satisfy `schema`."""
    violations = validate(arguments, schema)
    if violations:
        raise ArgumentsRejected(tuple(violations), tool=tool)


def _violation(error: ValidationError) -> Violation:
    keyword = str(error.validator)
    return Violation(
        path=_pointer(error.absolute_path),
        keyword=keyword,
        message=_sentence(keyword, error),
        expected=error.validator_value,
        found=error.instance,
        schema_path=_pointer(list(error.absolute_schema_path)[:-1]),
    )


def _sentence(keyword: str, error: ValidationError) -> str:
    wanted, found = error.validator_value, _show(error.instance)
    if keyword == "required":
        return neutralise(error.message, limit=2 * _SHOWN).replace("property", "argument")
    sentences = {
        "enum": lambda: f"{found} is not one of {_show(wanted)}",
        "const": lambda: f"{found} is not {_show(wanted)}",
        "type": lambda: f"{found} is not of type {_show(wanted)}",
        "pattern": lambda: f"{found} does not match {_show(wanted)}",
        "format": lambda: f"{found} is not a {_show(wanted)}",
        "additionalProperties": lambda: neutralise(error.message, limit=2 * _SHOWN),
    }
    if keyword in sentences:
        return sentences[keyword]()
    return f"{found} does not satisfy {keyword} {_show(wanted)}"


def _show(value: Any) -> str:
    return neutralise(json.dumps(value, ensure_ascii=False, default=str), limit=_SHOWN)


def _pointer(parts: Iterable[Any]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
