"""Where tools come from: files that were read and servers that are listed, starting, running or gone."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from nexus_lab.registry import ProblemKind, Registry, RegistryError, ServerError, Transport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.registry import McpServer, Problem, ServerConfig, Toolbox, ToolSpec

    ServerState = Literal["ready", "starting", "failed", "stopped", "listed"]

__all__ = ["Sources", "ToolSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSource:
    """One file or server.

    Attributes
    ----------
    state
        A file is always ``ready``; a server that was only read from a configuration is ``listed``.
    tools, problems
        What it brings; a stopped server brings none.
    config, server
        Of a server: how it is started, and the process or connection itself once there is one.
    error
        Why it does not run.
    """

    name: str
    state: ServerState
    tools: tuple[ToolSpec, ...] = ()
    problems: tuple[Problem, ...] = ()
    config: ServerConfig | None = None
    server: McpServer | None = None
    error: Exception | None = None
    owned: bool = field(default=True)

    @property
    def transport(self) -> Literal["stdio", "http", "file"]:
        """How it is reached."""
        if self.config is None:
            return "file"
        return "stdio" if self.config.transport is Transport.STDIO else "http"

    @property
    def last_line(self) -> str | None:
        """The last line that the server wrote to its standard error."""
        if isinstance(self.error, ServerError) and self.error.stderr:
            return self.error.stderr[-1]
        lines = self.server.stderr if self.server is not None else ()
        return lines[-1] if lines else None


class Sources:
    """The sources of a desk, in the order they came; every change is one assignment."""

    def __init__(self, name: str = "registry") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._by_name: dict[str, ToolSource] = {}

    @property
    def all(self) -> tuple[ToolSource, ...]:
        """The sources now."""
        with self._lock:
            return tuple(self._by_name.values())

    def get(self, name: str) -> ToolSource | None:
        """Return the source called `name`."""
        with self._lock:
            return self._by_name.get(name)

    def put(self, source: ToolSource) -> None:
        """Add a source, or put it in the place of the one of its name."""
        with self._lock:
            self._by_name[source.name] = source

    def update(self, name: str, **changes: object) -> ToolSource:
        """Change a source, and return it as it is now."""
        with self._lock:
            changed = replace(self._by_name[name], **changes)  # type: ignore[arg-type]
            self._by_name[name] = changed
            return changed

    def add_registry(self, registry: Registry) -> None:
        """Take over the tools of a registry that was read, and list the servers it knows of.

        Tools that say which server they belong to stand under that name; one that runs is left as it is.
        """
        for server in (*registry.server_names, None):
            tools = registry.of_server(server)
            if tools:
                self._add_tools(server or registry.name, tools, registry.problems)
        for config in registry.servers:
            known = self.get(config.name)
            if known is None:
                self.put(ToolSource(name=config.name, state="listed", config=config))
            elif known.config is None:
                self.update(config.name, config=config)
        left = tuple(item for item in registry.problems if not self._belongs(item, registry))
        if left:
            known = self.get(registry.name) or ToolSource(name=registry.name, state="ready")
            self.put(replace(known, problems=(*known.problems, *left)))

    def add_toolbox(self, toolbox: Toolbox) -> None:
        """Take over servers that run already, and what else their registry holds."""
        for name, server in toolbox.servers.items():
            self.put(
                ToolSource(
                    name=name,
                    state="ready" if server.running else "stopped",
                    tools=toolbox.registry.of_server(name),
                    problems=tuple(item for item in toolbox.registry.problems if item.server == name),
                    config=server.config,
                    server=server,
                    owned=False,
                )
            )
        others = [
            tool
            for tool in (*toolbox.registry.tools, *toolbox.registry.shadowed)
            if tool.server not in toolbox.servers
        ]
        configs = [config for config in toolbox.registry.servers if config.name not in toolbox.servers]
        problems = [item for item in toolbox.registry.problems if item.server not in toolbox.servers]
        if others or configs or problems:
            self.add_registry(
                Registry.of(others, name=toolbox.registry.name, servers=configs, problems=problems)
            )
        for item in problems:
            if item.kind is ProblemKind.SERVER_FAILED and item.server is not None:
                known = self.get(item.server) or ToolSource(name=item.server, state="failed")
                self.put(replace(known, state="failed", error=RegistryError(item.message)))

    def registry(self) -> Registry:
        """Return the registry of all tools; where two sources use a name, the first keeps it."""
        sources = self.all
        return Registry.of(
            (tool for source in sources for tool in source.tools),
            name=self.name,
            problems=_once(problem for source in sources for problem in source.problems),
            servers=[source.config for source in sources if source.config is not None],
        )

    def running(self) -> tuple[McpServer, ...]:
        """Servers that run now."""
        return tuple(
            source.server for source in self.all if source.state == "ready" and source.server is not None
        )

    def _add_tools(self, name: str, tools: tuple[ToolSpec, ...], problems: Iterable[Problem]) -> None:
        known = self.get(name)
        if known is not None and known.server is not None:
            return
        names = {tool.name for tool in tools}
        kept = tuple(item for item in problems if item.tool in names and item.server in (name, None))
        config = known.config if known is not None else None
        self.put(ToolSource(name=name, state="ready", tools=tools, problems=kept, config=config))

    @staticmethod
    def _belongs(problem: Problem, registry: Registry) -> bool:
        return problem.tool is not None and problem.tool in registry


def _once(problems: Iterable[Problem]) -> list[Problem]:
    """Leave out what building a registry finds anew, and what is said twice."""
    return [item for item in dict.fromkeys(problems) if item.kind is not ProblemKind.NO_TOOLS]
