"""Tools out of lists: MCP ``tools/list``, OpenAI's two forms, Anthropic's, and our own saved registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolSpec
from nexus_lab.registry.checks import build_tool
from nexus_lab.registry.json_values import kind_of
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["tool_entries", "tools_from_entries"]

_MEANS_TOOL = ("inputSchema", "input_schema", "parameters", "function", "description")


def tool_entries(document: Any) -> list[Any] | None:
    """Return the entries of the tool list that `document` is or holds, ``None`` when it holds none.

    Accepted are a bare list, ``{"tools": [...]}``, ``{"functions": [...]}`` (OpenAI's older form) and a
    JSON-RPC answer ``{"result": {"tools": [...]}}``.
    """
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("result"), dict):
        return tool_entries(document["result"])
    for key in ("tools", "functions"):
        if isinstance(document.get(key), list):
            entries: list[Any] = document[key]
            return entries
    return None


def tools_from_entries(
    entries: Iterable[Any], *, server: str | None = None, source: str = ""
) -> tuple[list[ToolSpec], list[Problem]]:
    """Read tools from list entries, each by its own form.

    Parameters
    ----------
    entries
        Entries of any of the forms.
    server
        Name of the server, for entries that name none.
    source
        Where they came from; the form by default.

    Returns
    -------
    The tools, and what is wrong with them or with entries that are none.
    """
    tools: list[ToolSpec] = []
    problems: list[Problem] = []
    for index, entry in enumerate(entries):
        parts = _parts(entry)
        if isinstance(parts, str):
            kind = ProblemKind.PROVIDER_TOOL if parts.startswith("provider") else ProblemKind.NOT_A_TOOL
            severity = Severity.NOTE if kind is ProblemKind.PROVIDER_TOOL else Severity.ERROR
            problems.append(Problem(kind, severity, f"entry {index}: {parts}", server=server))
            continue
        owner = entry.get("server") if isinstance(entry.get("server"), str) else server
        tool, found = build_tool(**{"source": source, **parts}, server=owner)
        problems.extend(found)
        if tool is not None:
            tools.append(tool)
    return tools, problems


def _parts(entry: Any) -> dict[str, Any] | str:
    """Return the parts of a tool, or why `entry` is none."""
    if not isinstance(entry, dict):
        return f"{kind_of(entry)} is no tool"
    has_parts = any(key in entry for key in _MEANS_TOOL)
    if isinstance(entry.get("function"), dict):
        parts: dict[str, Any] | str = _function(entry["function"], "openai chat completions")
    elif "input_schema" in entry:
        parts = _named(entry, entry["input_schema"], "anthropic")
    elif entry.get("type") == "function" or ("parameters" in entry and "inputSchema" not in entry):
        parts = _function(entry, "openai responses" if "type" in entry else "functions")
    elif "type" in entry and not has_parts:
        parts = f"provider tool {neutralise(str(entry['type']), limit=60)!r} runs at the provider; left out"
    elif "inputSchema" in entry or ("name" in entry and has_parts):
        parts = _mcp(entry)
    else:
        shown = ", ".join(neutralise(str(key), limit=30) for key in list(entry)[:5]) or "nothing"
        parts = f"no tool: it has {shown}"
    return parts


def _named(entry: Mapping[str, Any], schema: Any, source: str) -> dict[str, Any]:
    return {
        "name": entry.get("name"),
        "description": entry.get("description", ""),
        "schema": schema,
        "annotations": entry.get("annotations"),
        "source": source,
    }


def _mcp(entry: Mapping[str, Any]) -> dict[str, Any]:
    source = entry.get("source")
    return _named(entry, entry.get("inputSchema"), source if isinstance(source, str) else "tools/list")


def _function(entry: Mapping[str, Any], source: str) -> dict[str, Any]:
    return _named(entry, entry.get("parameters"), source)
