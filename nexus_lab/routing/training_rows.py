"""What the routing models learn from: requests with their tool, and the tools it is told from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.registry import Registry, ToolSpec, neutralise, repair_text
from nexus_lab.routing.rows import RowsError, share_of
from nexus_lab.routing.scoring import tools_by_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nexus_lab.routing.base import Message

__all__ = ["Pool", "TrainingRow", "described_tools", "share_of", "training_pool"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A request with the tools that answer it.

    Attributes
    ----------
    request, context
        What is asked, and the turns before it.
    tools
        Names of the right tools; none where no tool of the pool fits.
    near
        Tools that it is easily mistaken for.
    """

    request: str
    context: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Tools that are told from one another, and requests for them."""

    name: str
    tools: Mapping[str, ToolSpec]
    rows: tuple[TrainingRow, ...]


def training_pool(
    registry: Registry,
    rows: Iterable[Mapping[str, Any]],
    *,
    without_servers: Collection[str] = (),
    kept_apart: float = 0.0,
) -> Pool:
    """Return the requests of `rows` that belong to `registry`, and its tools.

    Parameters
    ----------
    rows
        ``request`` (or ``query``), ``context``, and ``tool`` (or ``gold_tool``, ``right``) with ``also_ok``.
        A row without a tool is one that none fits, with the tools that are ``near``.
    without_servers
        Servers whose tools and requests take no part.
    kept_apart
        Share of the tools, by a hash of their names, that takes no part.
    """
    tools = {
        key: tool
        for key, tool in tools_by_key(registry).items()
        if tool.server not in without_servers and share_of(key) >= kept_apart
    }
    found = [row for given in rows if (row := _row(given, tools)) is not None]
    return Pool(registry.name, tools, tuple(found))


def described_tools(rows: Iterable[Mapping[str, Any]]) -> Registry:
    """Return the tools that rows bring along: ``description``, and ``parameters`` by name.

    Raises
    ------
    RowsError
        When the parameters are not by name.
    """
    found: dict[str, ToolSpec] = {}
    for row in rows:
        if isinstance(row.get("description"), str) and isinstance(row.get("tool"), str):
            described = row.get("parameters") or {}
            if not isinstance(described, dict):
                raise RowsError(
                    f"the parameters of {neutralise(row['tool'], limit=80)} are not given by name",
                    next_step='write {"parameters": {"city": "Where"}}',
                )
            properties = {name: {"description": str(text)} for name, text in described.items()}
            schema = {"type": "object", "properties": properties}
            found[row["tool"]] = ToolSpec(row["tool"], row["description"], schema, server=row.get("server"))
    return Registry.of(found.values(), name="described in the rows")


def _row(given: Mapping[str, Any], tools: Mapping[str, ToolSpec]) -> TrainingRow | None:
    request = given.get("request", given.get("query"))
    if not isinstance(request, str) or not request.strip():
        return None
    request = repair_text(request)
    name = given.get("tool", given.get("gold_tool", given.get("right")))
    near = _known(given.get("near"), tools)
    context = tuple(given.get("context") or ())
    if name is None:
        return TrainingRow(request, context, (), near)
    if not isinstance(name, str) or name not in tools:
        return None
    return TrainingRow(request, context, (name, *_known(given.get("also_ok"), tools)), near)


def _known(names: Sequence[str] | None, tools: Mapping[str, ToolSpec]) -> tuple[str, ...]:
    listed = names if isinstance(names, list | tuple) else ()
    return tuple(name for name in listed if isinstance(name, str) and name in tools)
