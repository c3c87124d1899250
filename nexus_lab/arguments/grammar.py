"""The grammar of a tool's arguments, from its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import GrammarPlan, ProjectionKind, SchemaUnusable
from nexus_lab.arguments.compiler import grammar_fault, grammar_text
from nexus_lab.arguments.project import Projector, pointer, satisfies
from nexus_lab.registry import neutralise
from nexus_lab.registry.schema import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["build_grammar"]


def build_grammar(
    schema: Mapping[str, Any] | bool,  # noqa: FBT001 - a JSON Schema may be one
    *,
    tool: str = "",
    optional: Collection[str] | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
) -> GrammarPlan:
    """Return a grammar that accepts JSON objects for `schema`, and every departure from it.

    Whatever the grammar accepts satisfies the schema, or breaks a keyword that the plan names as dropped
    or held in shape only; so `validate` must follow. Arguments come in the schema's order, written without
    spaces.

    Parameters
    ----------
    schema
        JSON Schema of the arguments; empty and ``True`` stand for no arguments.
    tool
        Whose arguments, for the report.
    optional
        Names of the optional arguments that may be given; ``None`` allows all.
    values
        For arguments by name, the only values to choose from, for example spans of the conversation; of
        an array, whole lists or its items. Where none of them satisfies the schema, the argument is left as
        it was.

    Raises
    ------
    SchemaUnusable
        When nothing at all can satisfy the schema.
    """
    root = _as_object(schema, tool)
    projector = Projector(root)
    used = projector.schema(root, "")
    _keep_optional(used, optional, projector)
    _restrict(used, values or {}, projector)
    if projector.definitions:
        used["$defs"] = projector.definitions
    _settle(root, used, projector, tool)
    return GrammarPlan(grammar_text(used), projector.projected, used, tool)


def _as_object(schema: Any, tool: str) -> dict[str, Any]:
    """Return the schema as one of objects: arguments always are one."""
    if schema is False:
        raise _unusable("it is false, which nothing satisfies", tool)
    root = dict(schema) if schema is not True else {}
    declared = root.get("type")
    if declared is None or (isinstance(declared, list) and "object" in declared):
        return {**root, "type": "object"}
    if declared != "object":
        raise _unusable(f"it is of type {neutralise(str(declared), limit=40)}, not object", tool)
    return root


def _unusable(why: str, tool: str) -> SchemaUnusable:
    whom = f" of {neutralise(tool, limit=80)}" if tool else ""
    return SchemaUnusable(
        f"the schema{whom} cannot be satisfied: {why}",
        next_step="mend the tool's inputSchema, or leave it out",
    )


def _keep_optional(used: dict[str, Any], optional: Collection[str] | None, projector: Projector) -> None:
    if optional is None:
        return
    required = set(used.get("required", ()))
    properties = used.get("properties", {})
    for name in [name for name in properties if name not in required and name not in optional]:
        # Left as unsatisfiable, so that an object that is open does not let it in again.
        properties[name] = False
        reason = "the optional argument was not asked for"
        projector.note(f"/properties/{pointer(name)}", "*", ProjectionKind.NARROWED, reason)


def _restrict(used: dict[str, Any], values: Mapping[str, Sequence[Any]], projector: Projector) -> None:
    properties = used.get("properties", {})
    for name, choices in values.items():
        if name not in properties or not choices:
            continue
        schema = properties[name]
        whole = any(isinstance(choice, list) for choice in choices)
        is_array = isinstance(schema, dict) and schema.get("type") == "array"
        inner = schema.get("items") if is_array and not whole else schema
        kept = [choice for choice in choices if _fits(inner, choice, projector)]
        if kept and inner is schema:
            properties[name] = {"enum": kept}
        elif kept:
            properties[name] = {**schema, "items": {"enum": kept}}
        if kept:
            projector.note(
                f"/properties/{pointer(name)}", "enum", ProjectionKind.NARROWED, f"{len(kept)} given values"
            )


def _fits(schema: Any, value: Any, projector: Projector) -> bool:
    whole = {**schema, "$defs": projector.definitions} if isinstance(schema, dict) else schema
    return satisfies(value, whole)


def _settle(root: Mapping[str, Any], used: dict[str, Any], projector: Projector, tool: str) -> None:
    """Make `used` a schema that llguidance holds, giving up as little as will do."""
    fault = grammar_fault(used)
    if fault and _merge_one_of(used):
        _note_one_of(root, projector)
        fault = grammar_fault(used)
    if not fault:
        return
    for name, part in list(used.get("properties", {}).items()):
        alone = {
            "type": "object",
            "properties": {name: part},
            "required": [name],
            "additionalProperties": False,
        }
        why = grammar_fault({**alone, "$defs": used.get("$defs", {})})
        if why and part is not False:
            used["properties"][name] = projector.bare(root["properties"][name])
            projector.note(f"/properties/{pointer(name)}", "*", ProjectionKind.DROPPED, why)
    fault = grammar_fault(used)
    for keyword in ("allOf", "anyOf", "oneOf", "$ref", "patternProperties"):
        if fault and keyword in used:
            del used[keyword]
            projector.note("", keyword, ProjectionKind.DROPPED, fault)
            fault = grammar_fault(used)
    if fault:
        raise _unusable(fault, tool)


def _merge_one_of(used: Mapping[str, Any]) -> bool:
    """Let several branches of a ``oneOf`` match; return whether there was one."""
    parts = [part for part in walk(used) if "oneOf" in part]
    for part in parts:
        branches = part.pop("oneOf")
        part.setdefault("anyOf", branches)
    return bool(parts)


def _note_one_of(schema: Any, projector: Projector, path: str = "") -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("oneOf"), list):
            projector.note(path, "oneOf", ProjectionKind.DROPPED, "more than one of its branches may match")
        for key, part in schema.items():
            if key not in ("enum", "const", "default", "examples"):
                _note_one_of(part, projector, f"{path}/{pointer(key)}")
    elif isinstance(schema, list):
        for place, part in enumerate(schema):
            _note_one_of(part, projector, f"{path}/{place}")
