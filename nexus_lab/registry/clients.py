"""Servers that a client's configuration lists. Reading it starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.registry.base import Problem, ProblemKind, Severity
from nexus_lab.registry.config import ServerConfig
from nexus_lab.registry.errors import RegistryFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["server_entries", "servers_from_entries"]

_KEYS = ("mcpServers", "context_servers", "servers")
_MEANS_SERVER = frozenset({"command", "url", "serverUrl", "httpUrl"})


def server_entries(document: Any) -> Mapping[str, Any] | None:
    """Return the servers of a client's configuration by name, ``None`` when `document` is none.

    Accepted are ``mcpServers`` (most clients), ``servers`` and ``mcp.servers`` (VS Code) and
    ``context_servers`` (Zed).
    """
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("mcpServers"), dict):
        servers: Mapping[str, Any] = document["mcpServers"]
        return servers
    for key in _KEYS:
        entries = document.get(key)
        if isinstance(entries, dict) and any(_is_server(entry) for entry in entries.values()):
            return entries
    return server_entries(document["mcp"]) if isinstance(document.get("mcp"), dict) else None


def _is_server(entry: Any) -> bool:
    return isinstance(entry, dict) and not _MEANS_SERVER.isdisjoint(entry)


def servers_from_entries(entries: Mapping[str, Any]) -> tuple[list[ServerConfig], list[Problem]]:
    """Read server configurations; an entry that is none becomes a problem."""
    servers: list[ServerConfig] = []
    problems: list[Problem] = []
    for name, entry in entries.items():
        try:
            if not isinstance(entry, dict):
                raise RegistryFormatError("its entry is no object")  # noqa: TRY301 - one place turns it into a problem
            servers.append(ServerConfig.from_dict(name, entry))
        except RegistryFormatError as error:
            problems.append(
                Problem(ProblemKind.BAD_SERVER, Severity.ERROR, f"left out: {error.problem}", server=name)
            )
    return servers, problems
