"""OpenAPI 3 documents as tools: one for each operation, parameters and request body merged.

References are followed within the document; one that leads outside is refused and never fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolSpec
from nexus_lab.registry.checks import build_tool
from nexus_lab.registry.json_values import compact_json
from nexus_lab.registry.schema import RefFault, resolve_ref
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["is_openapi", "tools_from_openapi"]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_HEADERS_OF_HTTP = frozenset({"accept", "content-type", "authorization"})
_BODY_TYPES = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)
# Words that describe documents and wire forms, not what an argument may be.
_DROPPED = frozenset({"example", "examples", "xml", "externalDocs", "discriminator"})
_NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DEPTH_LIMIT = 40
_DEFINITIONS_LIMIT = 60
_SIZE_LIMIT = 65_536


def is_openapi(document: Any) -> bool:
    """Whether `document` says that it is OpenAPI (of any version) or Swagger."""
    return isinstance(document, dict) and ("openapi" in document or "swagger" in document)


def tools_from_openapi(
    document: Mapping[str, Any], *, server: str | None = None
) -> tuple[list[ToolSpec], list[Problem]]:
    """Make a tool of each operation.

    Parameters
    ----------
    document
        An OpenAPI 3.0 or 3.1 document.
    server
        Name given to the API; the title of the document by default.

    Returns
    -------
    The tools, named by ``operationId`` or method and path, and what is wrong with them.
    """
    info = document.get("info")
    title = info.get("title") if isinstance(info, dict) else None
    owner = server or (_slug(title) if isinstance(title, str) and title.strip() else None)
    tools: list[ToolSpec] = []
    problems: list[Problem] = []
    for operation in _operations(document):
        schema, faults = _Merger(document).schema(operation)
        tool, found = build_tool(
            name=operation.name,
            description=operation.description,
            schema=schema,
            server=owner,
            annotations=operation.annotations,
            source=f"openapi {operation.method.upper()} {operation.path}",
        )
        problems.extend(found)
        if tool is not None:
            tools.append(tool)
            problems += [Problem(kind, level, text, tool.name, owner) for kind, level, text in faults]
    return tools, problems


@dataclass(frozen=True, slots=True)
class _Operation:
    method: str
    path: str
    content: Mapping[str, Any]
    shared_parameters: tuple[Any, ...]

    @property
    def name(self) -> str:
        given = self.content.get("operationId")
        return _slug(
            given if isinstance(given, str) and given.strip() else f"{self.method}_{self.path.strip('/')}"
        )

    @property
    def description(self) -> str:
        texts = [self.content.get(key) for key in ("summary", "description")]
        said = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
        if len(said) > 1 and said[1].startswith(said[0].rstrip(".")):
            said = said[1:]
        if len(said) > 1:
            return f"{said[0].rstrip('.')}. {said[1]}"
        return said[0] if said else f"{self.method.upper()} {self.path}"

    @property
    def annotations(self) -> dict[str, Any]:
        reads = self.method in ("get", "head", "options", "trace")
        return {"readOnlyHint": reads, "destructiveHint": self.method == "delete"}


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_")[:128] or "unnamed"


def _operations(document: Mapping[str, Any]) -> Iterator[_Operation]:
    paths = document.get("paths")
    for path, entry in paths.items() if isinstance(paths, dict) else ():
        item = _local(document, entry)
        if not isinstance(item, dict):
            continue
        shared = item.get("parameters")
        for method in _METHODS:
            if isinstance(item.get(method), dict):
                yield _Operation(
                    method, path, item[method], tuple(shared) if isinstance(shared, list) else ()
                )


def _local(document: Mapping[str, Any], entry: Any) -> Any:
    """Follow a reference that stands where an object is due; ``None`` where it leads nowhere."""
    if isinstance(entry, dict) and isinstance(entry.get("$ref"), str):
        target = resolve_ref(document, entry["$ref"])
        return None if isinstance(target, RefFault) else target
    return entry


_Fault = tuple[ProblemKind, Severity, str]


@dataclass(slots=True)
class _Merger:
    """Builds the input schema of one operation; definitions it needs travel with it."""

    document: Mapping[str, Any]
    faults: list[_Fault] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[str, Any]] = field(default_factory=list)

    def schema(self, operation: _Operation) -> tuple[dict[str, Any], list[_Fault]]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for parameter in self._parameters(operation):
            properties[parameter["name"]] = self._parameter_schema(parameter)
            if parameter.get("required") is True:
                required.append(parameter["name"])
        self._add_body(operation, properties, required)
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        definitions = self._definitions(len(compact_json(schema)))
        if definitions:
            schema["$defs"] = definitions
        return schema, self.faults

    def _parameters(self, operation: _Operation) -> list[dict[str, Any]]:
        own = operation.content.get("parameters")
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for entry in (*operation.shared_parameters, *(own if isinstance(own, list) else ())):
            parameter = _local(self.document, entry)
            if parameter is None:
                self._refuse(str(entry.get("$ref")))
            elif isinstance(parameter, dict) and isinstance(parameter.get("name"), str):
                found[parameter["name"], str(parameter.get("in"))] = parameter
        return [
            parameter
            for (name, place), parameter in found.items()
            if place in ("path", "query") or (place == "header" and name.lower() not in _HEADERS_OF_HTTP)
        ]

    def _parameter_schema(self, parameter: Mapping[str, Any]) -> Any:
        schema = parameter.get("schema")
        content = parameter.get("content")
        if schema is None and isinstance(content, dict):
            schema = next(
                (entry.get("schema") for entry in content.values() if isinstance(entry, dict)), None
            )
        converted = self._convert(schema if schema is not None else {}, _DEPTH_LIMIT)
        said = parameter.get("description")
        if isinstance(converted, dict) and isinstance(said, str) and "description" not in converted:
            converted["description"] = said
        return converted

    def _add_body(self, operation: _Operation, properties: dict[str, Any], required: list[str]) -> None:
        body = _local(self.document, operation.content.get("requestBody"))
        content = body.get("content") if isinstance(body, dict) else None
        if not isinstance(content, dict) or not content:
            return
        media = next((content[kind] for kind in _BODY_TYPES if kind in content), next(iter(content.values())))
        raw = media.get("schema") if isinstance(media, dict) else None
        needed = body.get("required") is True
        shape = _local(self.document, raw)
        fields = shape.get("properties") if isinstance(shape, dict) else None
        mergeable = isinstance(fields, dict) and not {"allOf", "anyOf", "oneOf"} & set(shape)
        if isinstance(fields, dict) and mergeable and fields.keys().isdisjoint(properties):
            converted = self._convert(
                {key: value for key, value in shape.items() if key != "$ref"}, _DEPTH_LIMIT
            )
            properties.update(converted.get("properties", {}))
            if needed:
                required += [name for name in converted.get("required", []) if name in properties]
            return
        name = "body" if "body" not in properties else "request_body"
        properties[name] = self._convert(raw if raw is not None else {}, _DEPTH_LIMIT)
        if needed:
            required.append(name)

    def _convert(self, value: Any, levels: int) -> Any:
        """Return a schema in the words of JSON Schema 2020-12, its references pointing into ``$defs``."""
        if isinstance(value, list):
            return [self._convert(item, levels - 1) for item in value] if levels > 0 else []
        if not isinstance(value, dict):
            return value
        if levels <= 0:
            self._prune("nested too deeply")
            return {}
        if isinstance(value.get("$ref"), str):
            return self._reference(value["$ref"])
        converted = {
            key: self._convert_map(part, levels) if key in _NAME_MAPS else self._convert(part, levels - 1)
            for key, part in value.items()
            if key not in _DROPPED and not key.startswith("x-")
        }
        _modernise(converted)
        return converted

    def _convert_map(self, value: Any, levels: int) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: self._convert(part, levels - 1)
            for name, part in value.items()
            if not (isinstance(part, dict) and part.get("readOnly") is True)
        }

    def _reference(self, ref: str) -> dict[str, Any]:
        if ref not in self.names:
            target = resolve_ref(self.document, ref)
            if isinstance(target, RefFault):
                self._refuse(ref)
                return {}
            if len(self.names) >= _DEFINITIONS_LIMIT:
                self._prune("too many definitions")
                return {}
            base = _slug(ref.rsplit("/", 1)[-1])
            taken = set(self.names.values())
            name = next(n for i in range(len(taken) + 2) if (n := f"{base}_{i}" if i else base) not in taken)
            self.names[ref] = name
            self.waiting.append((name, target))
        return {"$ref": f"#/$defs/{self.names[ref]}"}

    def _definitions(self, size: int) -> dict[str, Any]:
        """Convert what references asked for, breadth first, until the schema is as large as it may be."""
        definitions: dict[str, Any] = {}
        while self.waiting:
            name, target = self.waiting.pop(0)
            if size > _SIZE_LIMIT:
                self._prune("too large")
                definitions[name] = {}
                continue
            definitions[name] = self._convert(target, _DEPTH_LIMIT)
            size += len(compact_json(definitions[name]))
        return definitions

    def _refuse(self, ref: str) -> None:
        shown = neutralise(ref, limit=80)
        remote = not ref.startswith("#")
        kind = ProblemKind.REMOTE_REF if remote else ProblemKind.UNRESOLVED_REF
        why = "leads outside the document and is never fetched" if remote else "leads nowhere"
        self._report((kind, Severity.ERROR, f"{shown!r} {why}; any value is accepted there"))

    def _prune(self, why: str) -> None:
        text = f"part of its schema is {why}; any value is accepted there"
        self._report((ProblemKind.PRUNED_SCHEMA, Severity.WARNING, text))

    def _report(self, fault: _Fault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)


def _modernise(schema: dict[str, Any]) -> None:
    """Turn words of OpenAPI 3.0 into those of JSON Schema 2020-12, in place."""
    if schema.pop("nullable", None) is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(strict), bool):
            flag = schema.pop(strict)
            if flag and bound in schema:
                schema[strict] = schema.pop(bound)
    required = schema.get("required")
    properties = schema.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        schema["required"] = [name for name in required if name in properties]
