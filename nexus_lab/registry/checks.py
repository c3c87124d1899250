"""What may be wrong with a tool: cheap checks at loading, and the metaschema on request."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolSpec
from nexus_lab.registry.errors import SchemaRefused
from nexus_lab.registry.json_values import compact_json, kind_of
from nexus_lab.registry.schema import inspect_refs, walk
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

__all__ = ["build_tool", "check_registry_schemas", "check_tool", "load_jsonschema"]

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_NAME_LIMIT = 256
_DESCRIPTION_LIMIT = 4_000
_SCHEMA_LIMIT = 32_768
_IRI_GRAMMAR = "rfc3987_syntax"
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def build_tool(
    *,
    name: Any,
    description: Any = "",
    schema: Any = None,
    server: str | None = None,
    annotations: Any = None,
    source: str = "",
) -> tuple[ToolSpec | None, tuple[Problem, ...]]:
    """Make a tool of parts of unknown origin.

    Returns
    -------
    The tool, or ``None`` when it has to be left out, and what is wrong with it.
    """
    if not isinstance(name, str) or not name.strip():
        return None, (
            _problem(ProblemKind.NO_NAME, Severity.ERROR, "a tool without a name was left out", server),
        )
    if len(name) > _NAME_LIMIT:
        message = f"left out: its name has {len(name)} characters, {_NAME_LIMIT} are accepted"
        return None, (_problem(ProblemKind.LONG_NAME, Severity.ERROR, message, server, name[:80]),)
    fault = _schema_fault(schema)
    if fault is not None:
        return None, (_problem(ProblemKind.SCHEMA_NOT_OBJECT, Severity.ERROR, fault, server, name),)
    try:
        tool = ToolSpec(
            name,
            description if isinstance(description, str) else "",
            schema if schema is not None else {},
            server=server,
            annotations=annotations if isinstance(annotations, dict) else {},
            source=source,
        )
    except SchemaRefused as error:
        message = f"left out: {error.problem}"
        return None, (_problem(ProblemKind.SCHEMA_REFUSED, Severity.ERROR, message, server, name),)
    return tool, tuple(check_tool(tool))


def _problem(
    kind: ProblemKind, severity: Severity, message: str, server: str | None, tool: str | None = None
) -> Problem:
    return Problem(kind, severity, message, tool=tool, server=server)


def _schema_fault(schema: Any) -> str | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        return f"left out: its input schema is {kind_of(schema)}, not an object"
    kind = schema.get("type", "object")
    if kind != "object":
        shown = neutralise(str(kind), limit=40)
        return f"left out: its input schema has type {shown!r}; arguments are always an object"
    return None


def check_tool(tool: ToolSpec) -> Iterator[Problem]:
    """Yield what is wrong with `tool`, by checks that cost microseconds."""
    for kind, severity, message in (*_name_faults(tool), *_text_faults(tool), *_schema_faults(tool)):
        yield Problem(kind, severity, message, tool=tool.name, server=tool.server)


_Fault = tuple[ProblemKind, Severity, str]


def _name_faults(tool: ToolSpec) -> Iterator[_Fault]:
    if not tool.name.isascii():
        yield ProblemKind.NON_ASCII_NAME, Severity.WARNING, "its name is not ASCII; some models misspell it"
    elif not _PLAIN_NAME.fullmatch(tool.name):
        yield (
            ProblemKind.ODD_NAME,
            Severity.WARNING,
            "its name holds more than letters, digits, '_', '-', '.' and '/'",
        )


def _text_faults(tool: ToolSpec) -> Iterator[_Fault]:
    if not tool.description.strip():
        yield ProblemKind.NO_DESCRIPTION, Severity.WARNING, "no description: it is found by its name alone"
    elif len(tool.description) > _DESCRIPTION_LIMIT:
        message = f"its description has {len(tool.description):,} characters"
        yield ProblemKind.LONG_DESCRIPTION, Severity.WARNING, message


def _schema_faults(tool: ToolSpec) -> Iterator[_Fault]:
    schema = tool.input_schema
    if not schema:
        yield ProblemKind.NO_SCHEMA, Severity.NOTE, "no input schema: any arguments are accepted"
        return
    size = len(compact_json(schema))
    if size > _SCHEMA_LIMIT:
        message = f"its schema has {size:,} characters; only its signature fits a small context"
        yield ProblemKind.LARGE_SCHEMA, Severity.WARNING, message
    yield from _part_faults(tool)
    yield from _ref_faults(schema)


def _part_faults(tool: ToolSpec) -> Iterator[_Fault]:
    properties = tool.input_schema.get("properties", {})
    if not isinstance(properties, dict):
        yield ProblemKind.INVALID_SCHEMA, Severity.ERROR, "`properties` of its schema is no object"
        return
    lost = [name for name in tool.required if name not in properties]
    if lost:
        message = f"required but not described: {_names(lost)}"
        yield ProblemKind.UNKNOWN_REQUIRED, Severity.WARNING, message
    unknown = {
        str(kind)
        for part in walk(tool.input_schema)
        for kind in _as_list(part.get("type"))
        if isinstance(kind, str) and kind not in _TYPES
    }
    if unknown:
        message = f"no JSON Schema type: {_names(sorted(unknown))}; read as any value"
        yield ProblemKind.UNKNOWN_TYPE, Severity.WARNING, message


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(names: Iterable[str], *, limit: int = 5) -> str:
    shown = [neutralise(name, limit=60) for name in names]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more


def _ref_faults(schema: Mapping[str, Any]) -> Iterator[_Fault]:
    report = inspect_refs(schema)
    if report.tangled:
        message = "its schema holds too many references to follow"
        yield ProblemKind.UNRESOLVED_REF, Severity.ERROR, message
    if report.remote:
        message = f"references outside the schema are never fetched: {_names(report.remote)}"
        yield ProblemKind.REMOTE_REF, Severity.ERROR, message
    if report.missing:
        message = f"references lead nowhere: {_names(report.missing)}"
        yield ProblemKind.UNRESOLVED_REF, Severity.ERROR, message
    if report.endless:
        message = f"references lead only to references: {_names(report.endless)}"
        yield ProblemKind.UNRESOLVED_REF, Severity.ERROR, message
    if report.recursive:
        message = f"recursive: {_names(report.recursive)}; followed a few levels deep"
        yield ProblemKind.RECURSIVE_REF, Severity.NOTE, message


def load_jsonschema() -> ModuleType:
    """Import and return ``jsonschema``, without the grammar of IRIs that it takes along where it finds one.

    That grammar (``rfc3987_syntax``, which Jupyter brings) takes seconds to import and serves one string
    format that schemas of tools hardly use; an ``iri`` is then not checked.
    """
    if "jsonschema" in sys.modules or _IRI_GRAMMAR in sys.modules:
        return import_module("jsonschema")
    sys.modules[_IRI_GRAMMAR] = None  # type: ignore[assignment]  # makes its import fail, as documented
    try:
        return import_module("jsonschema")
    finally:
        del sys.modules[_IRI_GRAMMAR]


def check_registry_schemas(tools: Iterable[ToolSpec]) -> Iterator[Problem]:
    """Yield tools whose schema breaks the JSON Schema metaschema (draft 2020-12, or the one it names).

    This takes some milliseconds a tool, so that loading leaves it out.
    """
    jsonschema = load_jsonschema()
    for tool in tools:
        try:
            schema = dict(tool.input_schema)
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            where = "/".join(str(part) for part in error.absolute_path)
            message = neutralise(f"at {where or 'the top'}: {error.message}", limit=200)
            yield Problem(ProblemKind.INVALID_SCHEMA, Severity.WARNING, message, tool.name, tool.server)
        except RecursionError:
            message = "too deep to check against the metaschema"
            yield Problem(ProblemKind.INVALID_SCHEMA, Severity.WARNING, message, tool.name, tool.server)
