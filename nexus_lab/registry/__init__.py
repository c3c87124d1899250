"""The registry room: which tools exist?

Tools come from lists and documents (`load_registry`, which starts nothing) or from running MCP servers
(`connect`, `McpServer`: the user's explicit command). Live servers load the MCP SDK on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolResult, ToolSpec, schema_text
from nexus_lab.registry.checks import check_registry_schemas, check_tool, load_jsonschema
from nexus_lab.registry.collection import Registry
from nexus_lab.registry.config import ServerConfig, Transport
from nexus_lab.registry.errors import (
    RegistryError,
    RegistryFormatError,
    SchemaRefused,
    ServerDied,
    ServerError,
    ServerFlooded,
    ServerInstallFailed,
    ServerNotRunning,
    ServerStartFailed,
    ServerTimeout,
    ToolCallRejected,
    ToolFailed,
    ToolNotFound,
    ToolOutputTooLarge,
)
from nexus_lab.registry.loading import SourceFormat, load_registry, load_registry_text
from nexus_lab.registry.schema import RefFault, resolve_ref
from nexus_lab.registry.signature import SignatureDetail, estimate_tokens, first_sentence, signature
from nexus_lab.registry.text import neutralise, repair_text

if TYPE_CHECKING:
    from nexus_lab.registry.server import McpServer
    from nexus_lab.registry.toolbox import Toolbox, connect

__all__ = [
    "McpServer",
    "Problem",
    "ProblemKind",
    "RefFault",
    "Registry",
    "RegistryError",
    "RegistryFormatError",
    "SchemaRefused",
    "ServerConfig",
    "ServerDied",
    "ServerError",
    "ServerFlooded",
    "ServerInstallFailed",
    "ServerNotRunning",
    "ServerStartFailed",
    "ServerTimeout",
    "Severity",
    "SignatureDetail",
    "SourceFormat",
    "ToolCallRejected",
    "ToolFailed",
    "ToolNotFound",
    "ToolOutputTooLarge",
    "ToolResult",
    "ToolSpec",
    "Toolbox",
    "Transport",
    "check_registry_schemas",
    "check_tool",
    "connect",
    "estimate_tokens",
    "first_sentence",
    "load_jsonschema",
    "load_registry",
    "load_registry_text",
    "neutralise",
    "repair_text",
    "resolve_ref",
    "schema_text",
    "signature",
]

_LIVE = {
    "McpServer": "server",
    "Toolbox": "toolbox",
    "connect": "toolbox",
}

__getattr__, __dir__ = lazy_names(__name__, _LIVE)
