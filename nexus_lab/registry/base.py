"""The records of the registry room: a tool, what is wrong with one, and what a call returned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.registry.errors import SchemaRefused, ToolFailed
from nexus_lab.registry.json_values import compact_json, copy_json
from nexus_lab.registry.text import neutralise, repair_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Problem", "ProblemKind", "Severity", "ToolResult", "ToolSpec", "schema_text"]


class Severity(StrEnum):
    """How much a problem matters.

    ``error``: the tool was left out, or cannot be called as its schema says; ``warning``: it works, but
    something is lost; ``note``: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class ProblemKind(StrEnum):
    """What is wrong."""

    NOT_A_TOOL = "not_a_tool"
    PROVIDER_TOOL = "provider_tool"
    NO_NAME = "no_name"
    LONG_NAME = "long_name"
    ODD_NAME = "odd_name"
    NON_ASCII_NAME = "non_ascii_name"
    DUPLICATE_NAME = "duplicate_name"
    NO_DESCRIPTION = "no_description"
    LONG_DESCRIPTION = "long_description"
    NO_SCHEMA = "no_schema"
    SCHEMA_NOT_OBJECT = "schema_not_object"
    SCHEMA_REFUSED = "schema_refused"
    LARGE_SCHEMA = "large_schema"
    PRUNED_SCHEMA = "pruned_schema"
    INVALID_SCHEMA = "invalid_schema"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_REQUIRED = "unknown_required"
    UNRESOLVED_REF = "unresolved_ref"
    REMOTE_REF = "remote_ref"
    RECURSIVE_REF = "recursive_ref"
    NO_TOOLS = "no_tools"
    BAD_SERVER = "bad_server"
    SERVER_FAILED = "server_failed"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a registry.

    Attributes
    ----------
    kind, severity
        What, and how much it matters.
    message
        One sentence for the reader; names of unknown origin in it are made harmless.
    tool, server
        Whom it concerns, as they name themselves.
    """

    kind: ProblemKind
    severity: Severity
    message: str
    tool: str | None = None
    server: str | None = None

    def __str__(self) -> str:
        whom = ".".join(neutralise(part, limit=80) for part in (self.server, self.tool) if part)
        return f"{self.severity}: {whom + ': ' if whom else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool, whatever form it came in.

    Attributes
    ----------
    name
        What a call names; unique within its server.
    description
        What the tool does, in its author's words (untrusted text).
    input_schema
        JSON Schema of the arguments, an object schema; copied within bounds, not to be changed.
    server
        Name of the server it belongs to, ``None`` when it came from a list.
    annotations
        MCP annotations, hints of the author: ``readOnlyHint``, ``destructiveHint``, ...
    source
        Where it was read, for people: ``tools/list``, ``openapi GET /pets``, ...

    Raises
    ------
    SchemaRefused
        When schema or annotations are no JSON objects within the bounds, or the name is empty.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    server: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SchemaRefused("a tool has no name", next_step="give it a name that is a text")
        for name in ("name", "description", "source"):
            object.__setattr__(self, name, repair_text(str(getattr(self, name))))
        for name in ("input_schema", "annotations"):
            value = copy_json(getattr(self, name))
            if not isinstance(value, dict):
                raise SchemaRefused(
                    f"the {name} of tool {neutralise(self.name, limit=80)!r} is no JSON object",
                    next_step='give an object such as {"type": "object", "properties": {}}',
                )
            object.__setattr__(self, name, value)

    @property
    def qualified_name(self) -> str:
        """``server.name``, or the name alone where there is no server."""
        return f"{self.server}.{self.name}" if self.server else self.name

    @property
    def read_only(self) -> bool:
        """Whether the author says that it changes nothing; a hint, not a promise."""
        return self.annotations.get("readOnlyHint") is True

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of its arguments by name; empty where the schema gives none."""
        properties = self.input_schema.get("properties")
        return properties if isinstance(properties, dict) else {}

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the arguments that a call must give."""
        required = self.input_schema.get("required")
        return tuple(name for name in required if isinstance(name, str)) if isinstance(required, list) else ()

    def with_server(self, server: str | None) -> ToolSpec:
        """Return the same tool under the server's name `server`."""
        return replace(self, server=server)

    def to_mcp(self) -> dict[str, Any]:
        """Return the tool as an entry of MCP ``tools/list``."""
        entry: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "inputSchema": copy_json(self.input_schema) or {"type": "object", "properties": {}},
        }
        if self.annotations:
            entry["annotations"] = copy_json(self.annotations)
        return entry


def schema_text(tool: ToolSpec) -> str:
    """Return the text that a model sees of `tool` in schema mode ``full``.

    Compact JSON of name, description and input schema, keys in the author's order; it depends on these
    three alone, so that it can address a compiled block.
    """
    entry = tool.to_mcp()
    entry.pop("annotations", None)
    return compact_json(entry)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned.

    Attributes
    ----------
    text
        Its text content (untrusted); other content is named in brackets, as in ``[image/png, 1204 bytes]``.
    is_error
        Whether the tool says that it failed.
    structured
        Its structured content, ``None`` where it gave none.
    truncated
        Whether `text` was cut to the limit of the call.
    size_bytes
        Size of the whole text in UTF-8 bytes.
    seconds
        Wall time of the call.
    """

    text: str
    is_error: bool = False
    structured: Any = field(default=None, hash=False)
    truncated: bool = False
    size_bytes: int = 0
    seconds: float = 0.0

    def raise_for_error(self) -> ToolResult:
        """Return the result itself, or raise when the tool reported an error.

        Raises
        ------
        ToolFailed
            With the first 300 characters of what the tool said.
        """
        if self.is_error:
            raise ToolFailed(
                f"the tool reported an error: {neutralise(self.text, limit=300) or 'no text'}",
                next_step="correct the arguments by what it says, and call again",
            )
        return self
