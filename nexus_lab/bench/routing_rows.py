"""The requests that routing is measured on: read, without those that were learned from, and what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import ResultsError
from nexus_lab.registry import Registry, neutralise
from nexus_lab.routing import read_rows
from nexus_lab.routing.known import package_rows
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.scoring import tools_by_key
from nexus_lab.routing.training_rows import share_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = ["asked_for", "asked_rows", "of_servers", "right_tools", "unlearned"]


def asked_rows(path: Path, apart: float) -> list[dict[str, Any]]:
    """Return the requests of a file but for the share `apart`, by a hash of their text."""
    rows = ({"gold_tool": row.get("tool"), **row} for row in read_rows(path))
    return [row for row in rows if share_of(row["query"]) >= apart]


def asked_for(rows: list[dict[str, Any]], tools_apart: float) -> list[dict[str, Any]]:
    """Return the rows that have a tool: of this share of the tools, by a hash of their names; 0 takes all."""
    named = [row for row in rows if isinstance(row.get("gold_tool"), str)]
    return [row for row in named if not tools_apart or share_of(row["gold_tool"]) < tools_apart]


def of_servers(registry: Registry, servers: Collection[str]) -> Registry:
    """Return the tools of these servers, as they stand in the registry; all where none is named.

    Raises
    ------
    ResultsError
        When the registry has no tool of one of them.
    """
    if not servers:
        return registry
    every = (*registry.tools, *registry.shadowed)
    missing = sorted(set(servers) - {str(tool.server) for tool in every})
    if missing:
        raise ResultsError(
            f"{registry.name} has no tool of a server {neutralise(missing[0], limit=80)!r}",
            next_step="name servers of the registry",
        )
    return Registry.of([tool for tool in every if tool.server in servers], name=registry.name)


def unlearned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows whose request is none of the package's, whatever repository or number each names."""
    learned = {_core_of(row["request"]) for row in package_rows()}
    return [row for row in rows if _core_of(row["query"]) not in learned]


def _core_of(request: str) -> str:
    """Return `request` as it is matched, without case and last mark, which hardly move a vector."""
    return normalise(request).text.casefold().rstrip(" .?!")


def right_tools(row: dict[str, Any], registry: Registry) -> set[str]:
    """Return the tools of the registry that are right for a request; none when its gold tool is not there."""
    known = tools_by_key(registry)
    if row["gold_tool"] not in known:
        return set()
    return {row["gold_tool"], *(name for name in row.get("also_ok") or () if name in known)}
