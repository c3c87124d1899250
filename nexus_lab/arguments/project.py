"""From a JSON Schema to the one that a grammar can hold, with every departure named.

llguidance refuses a schema that has a keyword it does not know. What it refuses is dropped here and
recorded, and so is every bound that is added: open strings, arrays, numbers and objects are where a small
model loops. References are gathered under ``$defs`` of our own naming, so that recursion stays recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import Projection, ProjectionKind
from nexus_lab.arguments.leaves import counts, project_number, project_string
from nexus_lab.registry import RefFault, load_jsonschema, neutralise, resolve_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MAX_EXTRA", "MAX_ITEMS", "Projector", "pointer", "satisfies"]

MAX_ITEMS = 16
MAX_EXTRA = 8

_ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "example",
        "examples",
        "id",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_REFUSED = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
_BY_TYPE = {
    "string": ("maxLength", "minLength", "pattern", "format"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_LISTS = ("allOf", "anyOf", "oneOf")
_ABOUT_TYPES = frozenset(keyword for group in _BY_TYPE.values() for keyword in group)
_KNOWN = _ANNOTATIONS | _REFUSED | _ABOUT_TYPES | {*_LISTS, "$ref", "enum", "const", "type"}
# What a branch may hold without saying anything about which arguments there are.
_LIGHT = _ANNOTATIONS | {"required", "not", "if", "then", "else", "dependentRequired"}
_DROPPED, _SHAPE, _NARROWED = ProjectionKind.DROPPED, ProjectionKind.SHAPE_ONLY, ProjectionKind.NARROWED
_SCALARS = ("string", "number", "boolean", "null")


class Projector:
    """Projects one schema; `projected` lists the departures afterwards.

    Parameters
    ----------
    root
        The whole schema, in which references are resolved.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[tuple[str, bool], str] = {}
        self._found: dict[tuple[str, str, ProjectionKind], Projection] = {}
        self.definitions: dict[str, Any] = {}

    @property
    def projected(self) -> tuple[Projection, ...]:
        """The departures so far, in the order they were met."""
        return tuple(self._found.values())

    def note(self, path: str, keyword: str, kind: ProjectionKind, reason: str) -> None:
        """Record a departure, once."""
        self._found.setdefault((path, keyword, kind), Projection(path, keyword, kind, reason))

    def schema(self, schema: Any, path: str, *, loose: bool = False) -> Any:
        """Return the projection of the subschema at the JSON pointer `path`.

        Parameters
        ----------
        loose
            It is intersected with others: it may not be closed or bounded for what it does not name.
        """
        if schema is False:
            return False
        if not isinstance(schema, dict):
            if schema is not True:
                self.note(path, "*", _DROPPED, "it is no schema")
            return {} if loose else self._anything(path)
        self._refuse(schema, path)
        if "enum" in schema or "const" in schema:
            return self._choice(schema, path)
        composers = [keyword for keyword in (*_LISTS, "$ref") if keyword in schema]
        used, kinds = self._type(schema, path, loose=loose or bool(composers))
        note = self._at(path)
        if "string" in kinds:
            used.update(project_string(schema, note))
        if kinds & {"number", "integer"}:
            used.update(project_number(schema, note, whole="number" not in kinds))
        if "array" in kinds:
            self._array(schema, used, path, loose=loose)
        if "object" in kinds:
            self._object(schema, used, path, loose=loose)
        several = loose or len(composers) > 1 or bool(kinds)
        for keyword in composers:
            self._compose(schema, keyword, used, path, loose=several or keyword == "allOf")
        return used

    def bare(self, schema: Any) -> dict[str, Any]:
        """Return what is left of a subschema that no grammar holds: its type, bounded."""
        declared = schema.get("type") if isinstance(schema, dict) else None
        kinds = _types(declared) or list(_SCALARS)
        quiet = Projector({})
        parts = [quiet.schema({"type": kind}, "/") for kind in kinds]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _at(self, path: str) -> Callable[[str, ProjectionKind, str], None]:
        return lambda keyword, kind, reason: self.note(path, keyword, kind, reason)

    def _refuse(self, schema: Mapping[str, Any], path: str) -> None:
        for keyword, value in schema.items():
            if keyword in _REFUSED and not _says_nothing(keyword, value):
                self.note(path, keyword, _DROPPED, "no grammar holds it")
            elif keyword not in _KNOWN and not keyword.startswith("x-"):
                shown = neutralise(keyword, limit=60)
                self.note(path, shown, _DROPPED, "it is no keyword of JSON Schema, which ignores it")

    def _choice(self, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the listed values that satisfy the other keywords beside the list."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list):
            self.note(path, "enum", _DROPPED, "it is no list")
            rest: dict[str, Any] = self.schema({key: schema[key] for key in schema if key != "enum"}, path)
            return rest
        beside = {key: value for key, value in schema.items() if key in _ABOUT_TYPES | {"type", "enum"}}
        for keyword in (*_LISTS, "$ref"):
            if keyword in schema:
                self.note(path, keyword, _DROPPED, "the listed values stand alone")
        return {"enum": [value for value in values if satisfies(value, beside)]}

    def _type(self, schema: Mapping[str, Any], path: str, *, loose: bool) -> tuple[dict[str, Any], set[str]]:
        """Return the type as used, and the types whose keywords are to be read."""
        declared = schema.get("type")
        known = _types(declared)
        if known:
            return {"type": known[0] if len(known) == 1 else known}, set(known)
        if declared is not None:
            self.note(path, "type", _DROPPED, f"{neutralise(str(declared), limit=40)} is no type")
        implied = [kind for kind, keywords in _BY_TYPE.items() if any(word in schema for word in keywords)]
        if loose:
            return {}, set(implied)
        if not implied:
            return self._anything(path), set()
        self.note(path, "type", _NARROWED, f"only {' and '.join(implied)}, which its keywords are about")
        return {"type": implied[0] if len(implied) == 1 else implied}, set(implied)

    def _anything(self, path: str) -> dict[str, Any]:
        self.note(path, "type", _NARROWED, "any value becomes text, number, boolean or null")
        return {"anyOf": [self.bare({"type": kind}) for kind in _SCALARS]}

    def _compose(
        self, schema: Mapping[str, Any], keyword: str, used: dict[str, Any], path: str, *, loose: bool
    ) -> None:
        if keyword == "$ref":
            self._reference(schema["$ref"], used, path, loose=loose)
            return
        parts = schema[keyword]
        if isinstance(parts, list) and parts:
            used[keyword] = [
                self.schema(part, f"{path}/{keyword}/{place}", loose=loose)
                for place, part in enumerate(parts)
            ]
        else:
            self.note(path, keyword, _DROPPED, "it is no list of schemas")

    def _reference(self, ref: Any, used: dict[str, Any], path: str, *, loose: bool) -> None:
        target = resolve_ref(self._root, ref) if isinstance(ref, str) else RefFault.MISSING
        if isinstance(target, RefFault):
            self.note(path, "$ref", _DROPPED, f"the reference is {target.value}")
            if not used and not loose:
                used.update(self._anything(path))
            return
        name = self._names.get((ref, loose))
        if name is None:
            name = self._names[ref, loose] = f"d{len(self._names)}"
            # Named before it is projected, so that a reference to itself ends here.
            self.definitions[name] = self.schema(target, ref.removeprefix("#"), loose=loose)
        used["$ref"] = f"#/$defs/{name}"

    def _names_all(self, schema: Mapping[str, Any]) -> bool:
        """Whether an object schema names its arguments alone, so that it may be closed."""
        if "$ref" in schema:
            return False
        branches = [part for keyword in _LISTS for part in _listed(schema.get(keyword))]
        return all(isinstance(part, dict) and part.keys() <= _LIGHT for part in branches)

    def _array(self, schema: Mapping[str, Any], used: dict[str, Any], path: str, *, loose: bool) -> None:
        used.update(counts(schema, self._at(path), "minItems", "maxItems"))
        items, prefix, at = schema.get("items"), schema.get("prefixItems"), "prefixItems"
        rest_at = f"{path}/items"
        if isinstance(items, list):  # a tuple, up to draft 2019-09
            prefix, at = items, "items"
            items, rest_at = schema.get("additionalItems"), f"{path}/additionalItems"
        if isinstance(prefix, list):
            used["prefixItems"] = [
                self.schema(part, f"{path}/{at}/{place}", loose=loose) for place, part in enumerate(prefix)
            ]
        if items is not None or not loose:
            used["items"] = self.schema(True if items is None else items, rest_at, loose=loose)
        if "maxItems" not in used and not loose:
            used["maxItems"] = max(MAX_ITEMS, used.get("minItems", 0), len(used.get("prefixItems", ())))
            self.note(path, "maxItems", _NARROWED, f"at most {used['maxItems']} items")

    def _object(self, schema: Mapping[str, Any], used: dict[str, Any], path: str, *, loose: bool) -> None:
        closed = not loose and self._names_all(schema)
        for keyword in ("properties", "patternProperties"):
            members = schema.get(keyword)
            if isinstance(members, dict) and members:
                used[keyword] = {
                    name: self.schema(part, f"{path}/{keyword}/{pointer(name)}", loose=loose)
                    for name, part in members.items()
                }
        wanted = [name for name in _listed(schema.get("required")) if isinstance(name, str)]
        if wanted:
            used["required"] = wanted
        extra = schema.get("additionalProperties")
        if extra is False:
            used["additionalProperties"] = False
        elif isinstance(extra, dict) and extra:
            used["additionalProperties"] = self.schema(extra, f"{path}/additionalProperties", loose=loose)
        elif closed:
            self._close(used, path)
        self._size(schema, used, path, closed=closed)

    def _close(self, used: dict[str, Any], path: str) -> None:
        """Decide about arguments that have no name in the schema."""
        named = path == "" or bool(used.keys() & {"properties", "patternProperties"})
        if named and set(used.get("required", ())) <= set(used.get("properties", ())):
            used["additionalProperties"] = False
            self.note(path, "additionalProperties", _NARROWED, "no arguments beside the named ones")
        else:
            used["additionalProperties"] = {"anyOf": [self.bare({"type": kind}) for kind in _SCALARS]}
            self.note(path, "additionalProperties", _NARROWED, "values become text, number, boolean or null")

    def _size(self, schema: Mapping[str, Any], used: dict[str, Any], path: str, *, closed: bool) -> None:
        """Hold the number of members where llguidance can count: when all named ones are required."""
        named, extra = used.get("properties", {}), used.get("additionalProperties")
        if extra is False or not set(named) <= set(used.get("required", ())):
            for keyword in ("minProperties", "maxProperties"):
                if keyword in schema:
                    self.note(path, keyword, _DROPPED, "no grammar counts optional arguments")
            return
        found = counts(schema, self._at(path), "minProperties", "maxProperties")
        if closed and "maxProperties" not in found:
            found["maxProperties"] = max(MAX_EXTRA + len(named), found.get("minProperties", 0))
            self.note(path, "maxProperties", _NARROWED, f"at most {found['maxProperties']} members")
        if "minProperties" in found:
            self.note(path, "minProperties", _SHAPE, "a name that is given twice counts twice")
        used.update(found)


def pointer(name: str) -> str:
    """Return `name` as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _types(declared: Any) -> list[str]:
    return [kind for kind in _listed(declared) if isinstance(kind, str) and kind in _TYPES]


def _says_nothing(keyword: str, value: Any) -> bool:
    """Whether a keyword holds for every value, so that leaving it out loses nothing."""
    if keyword == "propertyNames":
        return value in ({}, True, {"type": "string"})
    if keyword == "uniqueItems":
        return value is False
    return keyword in ("unevaluatedItems", "unevaluatedProperties") and value is True


def satisfies(value: Any, schema: Mapping[str, Any] | bool) -> bool:  # noqa: FBT001
    """Whether `schema` admits `value`; one that cannot be applied admits all."""
    try:
        return bool(load_jsonschema().Draft202012Validator(schema).is_valid(value))
    except Exception:  # noqa: BLE001 - a schema that cannot be applied is told of when the call is checked
        return True
