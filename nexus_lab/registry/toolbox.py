"""Running servers and the registry of their tools, together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Self

from nexus_lab.registry.base import Problem, ProblemKind, Severity, ToolResult, ToolSpec
from nexus_lab.registry.collection import Registry
from nexus_lab.registry.errors import RegistryFormatError, ServerError, ServerNotRunning
from nexus_lab.registry.server import McpServer
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from nexus_lab.registry.config import ServerConfig

__all__ = ["Toolbox", "connect"]

_Read = tuple[tuple[ToolSpec, ...], tuple[Problem, ...]]


class Toolbox:
    """Servers that run, and the registry of their tools; closing it ends them.

    Parameters
    ----------
    servers
        Servers, started already.
    registry
        Their tools.
    """

    def __init__(self, servers: Iterable[McpServer], registry: Registry) -> None:
        self.servers: dict[str, McpServer] = {server.name: server for server in servers}
        self.registry = registry

    def __repr__(self) -> str:
        return f"Toolbox({len(self.servers)} servers, {len(self.registry)} tools)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        tool: str | ToolSpec,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        max_bytes: int | None = None,
    ) -> ToolResult:
        """Call a tool, by record, name or qualified name, on the server that it belongs to.

        Raises
        ------
        ToolNotFound
            When the registry has no such tool.
        ServerError
            What `McpServer.call` raises; `ServerNotRunning` when the tool's server is none of these.
        """
        spec = tool if isinstance(tool, ToolSpec) else self.registry[tool]
        server = self.servers.get(spec.server or "")
        if server is None:
            raise ServerNotRunning(
                f"tool {neutralise(spec.name, limit=80)!r} was read from a list, and no server runs it",
                server=spec.server or "none",
                next_step="connect its server",
            )
        return server.call(spec.name, arguments, timeout=timeout, max_bytes=max_bytes)

    def cancel(self) -> None:
        """Cancel every call that is waiting now."""
        for server in self.servers.values():
            server.cancel()

    def refresh(self) -> Registry:
        """Ask the servers for their tools again, and return the new registry."""
        self.registry = _registry(
            self.registry.name, [(server, server.read_tools()) for server in self.servers.values()]
        )
        return self.registry

    def close(self) -> None:
        """End all servers, side by side; never raises."""
        with ThreadPoolExecutor(max_workers=max(len(self.servers), 1)) as pool:
            list(pool.map(McpServer.close, self.servers.values()))


def connect(
    *servers: ServerConfig | McpServer,
    name: str = "live",
    timeout: float | None = None,
    on_failure: Literal["raise", "record"] = "raise",
    progress: Callable[[str], None] | None = None,
) -> Toolbox:
    """Start servers side by side and build a registry from their ``tools/list``.

    This runs the commands that the configurations name: give only ones that you mean to run.

    Parameters
    ----------
    servers
        Configurations, or servers made with other limits.
    name
        Name of the registry.
    timeout
        Seconds that each gets to start.
    on_failure
        ``raise`` closes all and raises the first failure; ``record`` goes on with the others and records a
        problem in the registry.
    progress
        Called with one line when a server is ready or has failed, from that server's thread; not of the
        failure that is raised.

    Raises
    ------
    ServerError
        When a server does not start and `on_failure` is ``raise``.
    RegistryFormatError
        When two servers have one name.
    """
    made = [server if isinstance(server, McpServer) else McpServer(server) for server in servers]
    _check_names(made)
    tell = progress or (lambda _line: None)

    def start(server: McpServer) -> _Read | ServerError:
        try:
            tools, problems = server.start(timeout).read_tools()
        except ServerError as error:
            server.close()
            if on_failure == "record":
                tell(error.problem)
            return error
        tell(f"{neutralise(server.name)}: {len(tools)} tool{'s' * (len(tools) != 1)}")
        return tools, problems

    try:
        with ThreadPoolExecutor(max_workers=max(len(made), 1)) as pool:
            outcomes = list(zip(made, pool.map(start, made), strict=True))
    except BaseException:
        for server in made:
            server.close()
        raise
    failures = [outcome for _, outcome in outcomes if isinstance(outcome, ServerError)]
    if failures and on_failure == "raise":
        for server in made:
            server.close()
        for other in failures[1:]:  # the first is told by whoever catches it
            tell(other.problem)
        raise failures[0]
    return Toolbox([server for server in made if server.running], _registry(name, outcomes))


def _check_names(servers: list[McpServer]) -> None:
    names = [server.name for server in servers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RegistryFormatError(f"two servers are called {twice[0]!r}", next_step="give each its own name")


def _registry(name: str, outcomes: Iterable[tuple[McpServer, _Read | ServerError]]) -> Registry:
    tools: list[ToolSpec] = []
    problems: list[Problem] = []
    configs = []
    for server, outcome in outcomes:
        configs.append(server.config)
        if isinstance(outcome, ServerError):
            problems.append(
                Problem(ProblemKind.SERVER_FAILED, Severity.ERROR, outcome.problem, server=server.name)
            )
        else:
            tools += outcome[0]
            problems += outcome[1]
    return Registry.of(tools, name=name, problems=problems, servers=configs)
