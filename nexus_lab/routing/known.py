"""Requests for tools of public servers that come with the package, so that those tools have examples at once.

They are ours: written for this project, and what the models of this room were tuned on. A tool gets them only
where its name and its whole description are the ones that they were written for.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.registry import ToolSpec

__all__ = ["description_digest", "digests_of", "known_requests", "package_rows"]

_FOLDER = "requests"
_TOOLS = "tools.json"


def known_requests(tool: ToolSpec) -> tuple[str, ...]:
    """Return requests that are known to belong to `tool`; none where it is another one, or a newer one."""
    if description_digest(tool) not in _digests().get(tool.name, ()):
        return ()
    return _by_tool().get(tool.name, ())


def description_digest(tool: ToolSpec) -> str:
    """Return what a tool's description is recognised by."""
    return hashlib.sha256(tool.description.encode()).hexdigest()[:16]


@cache
def package_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows that come with the package: ``tool``, ``server``, ``request``, and what else they say."""
    return tuple(
        json.loads(line)
        for file in sorted(files(__package__).joinpath(_FOLDER).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )


def digests_of(tools: Iterable[ToolSpec]) -> str:
    """Return the text of the file that says which tools the rows were written for."""
    found: dict[str, list[str]] = {}
    for tool in tools:
        found.setdefault(tool.name, []).append(description_digest(tool))
    return json.dumps(dict(sorted(found.items())), indent=0) + "\n"


@cache
def _digests() -> dict[str, tuple[str, ...]]:
    file = files(__package__).joinpath(_FOLDER, _TOOLS)
    return {name: tuple(digests) for name, digests in json.loads(file.read_text(encoding="utf-8")).items()}


@cache
def _by_tool() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for row in package_rows():
        # A request that leans on what was said before is no example: by itself it may mean any tool.
        if row.get("tool") and not row.get("context"):
            found.setdefault(row["tool"], []).append(row["request"])
    return {name: tuple(dict.fromkeys(requests)) for name, requests in found.items()}
