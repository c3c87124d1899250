"""The registry: an immutable list of tools, found by name or qualified name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.paths import atomic_write
from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolSpec
from nexus_lab.registry.errors import ToolNotFound
from nexus_lab.registry.json_values import canonical_json
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nexus_lab.registry.config import ServerConfig

__all__ = ["FORMAT", "Registry"]

FORMAT = "nexus-lab registry"
_VERSION = 1


@dataclass(frozen=True)
class Registry:
    """Tools that a request can be routed to.

    Where two servers use a name, the first keeps it; the other tool is kept aside in `shadowed` and found
    by its qualified name ``server.tool``. Where one server uses a name twice, the second is left out.

    Attributes
    ----------
    name
        Name of the registry.
    tools
        The tools, names unique.
    problems
        What is wrong with them, and what was left out.
    servers
        Servers that a client's configuration lists; none of them was started.
    shadowed
        Tools whose name another server's tool has.
    """

    name: str = "registry"
    tools: tuple[ToolSpec, ...] = ()
    problems: tuple[Problem, ...] = field(default=(), compare=False)
    servers: tuple[ServerConfig, ...] = ()
    shadowed: tuple[ToolSpec, ...] = ()

    @classmethod
    def of(
        cls,
        tools: Iterable[ToolSpec],
        *,
        name: str = "registry",
        problems: Iterable[Problem] = (),
        servers: Iterable[ServerConfig] = (),
    ) -> Registry:
        """Build a registry, settling duplicate names.

        Parameters
        ----------
        tools
            Tools in order of preference.
        problems
            What was found wrong with them before.
        """
        kept: dict[str, ToolSpec] = {}
        shadowed: dict[str, ToolSpec] = {}
        found = list(problems)
        for tool in tools:
            first = kept.setdefault(tool.name, tool)
            if first is tool:
                continue
            aside = tool.server != first.server and tool.qualified_name not in shadowed
            if aside:
                shadowed[tool.qualified_name] = tool
            found.append(_duplicate(tool, first, aside=aside))
        if not kept and not tuple(servers):
            found.append(Problem(ProblemKind.NO_TOOLS, Severity.WARNING, "there are no tools in it"))
        return cls(name, tuple(kept.values()), tuple(found), tuple(servers), tuple(shadowed.values()))

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self.tools)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ToolSpec:
        """Return the tool called `name` (plain or qualified).

        Raises
        ------
        ToolNotFound
            With the names that come nearest.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise ToolNotFound(
                f"no tool {neutralise(str(name), limit=80)!r} in {self.name!r} ({len(self)} tools)",
                next_step=_nearest(str(name), [tool.name for tool in self.tools]),
            ) from None

    def __repr__(self) -> str:
        return f"Registry({self.name!r}, {len(self)} tools, {len(self.problems)} problems)"

    def get(self, name: str) -> ToolSpec | None:
        """Return the tool called `name` (plain or qualified), or ``None``."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, ToolSpec]:
        qualified = {tool.qualified_name: tool for tool in (*self.shadowed, *self.tools)}
        return qualified | {tool.name: tool for tool in self.tools}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in order."""
        return tuple(tool.name for tool in self.tools)

    @cached_property
    def server_names(self) -> tuple[str, ...]:
        """Names of the servers that have tools here, in order."""
        owners = (tool.server for tool in (*self.tools, *self.shadowed))
        return tuple(dict.fromkeys(owner for owner in owners if owner))

    def of_server(self, server: str | None) -> tuple[ToolSpec, ...]:
        """Return the tools of one server, shadowed ones included."""
        return tuple(tool for tool in (*self.tools, *self.shadowed) if tool.server == server)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the tools' content in order: name, description, schema, annotations, server.

        What an index was built from: equal fingerprints mean equal tools. Problems, servers and sources
        do not take part.
        """
        digest = hashlib.sha256()
        for tool in self.tools:
            digest.update(canonical_json([tool.server, tool.to_mcp()]).encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def add(self, tools: ToolSpec | Iterable[ToolSpec], *, problems: Iterable[Problem] = ()) -> Registry:
        """Return a registry with `tools` after these; names already used are kept aside."""
        more = (tools,) if isinstance(tools, ToolSpec) else tuple(tools)
        return self._rebuilt((*self.tools, *self.shadowed, *more), (*self.problems, *problems))

    def remove(self, name: str) -> Registry:
        """Return a registry without the tool called `name`; a tool that it shadowed takes its place.

        Raises
        ------
        ToolNotFound
            When there is none.
        """
        gone = self[name]
        return self._rebuilt(tool for tool in (*self.tools, *self.shadowed) if tool is not gone)

    def replace(self, tool: ToolSpec) -> Registry:
        """Return a registry in which `tool` stands in the place of the one of its server and name.

        Raises
        ------
        ToolNotFound
            When there is none.
        """
        old = self[tool.qualified_name]
        return self._rebuilt(tool if known is old else known for known in (*self.tools, *self.shadowed))

    def remove_server(self, server: str) -> Registry:
        """Return a registry without the tools, problems and configuration of `server`."""
        kept = [tool for tool in (*self.tools, *self.shadowed) if tool.server != server]
        problems = [problem for problem in self.problems if problem.server != server]
        servers = [config for config in self.servers if config.name != server]
        return Registry.of(kept, name=self.name, problems=_without_duplicates(problems), servers=servers)

    def merge(self, other: Registry) -> Registry:
        """Return a registry of these tools and, after them, those of `other`."""
        known = {config.name for config in self.servers}
        servers = (*self.servers, *(config for config in other.servers if config.name not in known))
        tools = (*self.tools, *self.shadowed, *other.tools, *other.shadowed)
        problems = _without_duplicates((*self.problems, *other.problems))
        return Registry.of(tools, name=self.name, problems=problems, servers=servers)

    def _rebuilt(self, tools: Iterable[ToolSpec], problems: Iterable[Problem] | None = None) -> Registry:
        found = self.problems if problems is None else problems
        return Registry.of(tools, name=self.name, problems=_without_duplicates(found), servers=self.servers)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that are errors."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """Return the registry as JSON; secrets of servers are left out."""
        return {
            "format": FORMAT,
            "version": _VERSION,
            "name": self.name,
            "tools": [_entry(tool) for tool in (*self.tools, *self.shadowed)],
            "servers": [config.to_dict() for config in self.servers],
        }

    def save(self, path: Path | str) -> Path:
        """Write the registry to `path` as JSON, whole or not at all; ``load_registry`` reads it.

        Raises
        ------
        OSError
            When the folder cannot be written.
        """
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        target = Path(path)
        atomic_write(target, (text + "\n").encode())
        return target


def _entry(tool: ToolSpec) -> dict[str, Any]:
    entry = tool.to_mcp()
    entry["inputSchema"] = dict(tool.input_schema)
    return {**entry, "server": tool.server, "source": tool.source}


def _duplicate(tool: ToolSpec, first: ToolSpec, *, aside: bool) -> Problem:
    owner = neutralise(first.server or "the list", limit=60)
    if aside:
        message = f"the name is already used by {owner}; call it {neutralise(tool.qualified_name, limit=120)}"
    else:
        message = f"the name is given twice by {owner}; the first was kept"
    return Problem(ProblemKind.DUPLICATE_NAME, Severity.WARNING, message, tool=tool.name, server=tool.server)


def _without_duplicates(problems: Iterable[Problem]) -> list[Problem]:
    """Leave out the problems that building a registry finds anew."""
    found_anew = (ProblemKind.DUPLICATE_NAME, ProblemKind.NO_TOOLS)
    return [problem for problem in problems if problem.kind not in found_anew]


def _nearest(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name[:80], names[:5000], n=3, cutoff=0.5)
    shown = [neutralise(candidate, limit=60) for candidate in close or names[:3]]
    return f"nearest names: {', '.join(shown)}" if shown else "load a registry that has tools"
