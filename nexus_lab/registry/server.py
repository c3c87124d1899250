"""The synchronous face of an MCP server."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nexus_lab.errors import Cancelled
from nexus_lab.registry.config import ServerConfig
from nexus_lab.registry.errors import ServerError, ServerNotRunning, ServerTimeout
from nexus_lab.registry.json_values import copy_json
from nexus_lab.registry.lists import tools_from_entries
from nexus_lab.registry.loop import background_loop
from nexus_lab.registry.session import Connection
from nexus_lab.registry.stdio import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import TracebackType

    from nexus_lab.registry.base import Problem, ToolResult, ToolSpec

__all__ = ["Limits", "McpServer"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

_SLACK_S = 12.0  # ending a process, and the SDK's own bounded farewells
_PROBE_S = 2.0
_RESTARTS = 3
_SILENT = logging.NullHandler()


class McpServer:
    """An MCP server over stdio or streamable HTTP, usable from any thread.

    Nothing runs until `start` (or ``with``): starting a process is the user's explicit command. A server
    that hung or died is started again before its next call, three times at most without a call that worked.

    Parameters
    ----------
    config
        What to start or to reach.
    start_timeout, call_timeout
        Seconds to wait for the handshake, and for a call that names no other limit.
    max_bytes
        Longest text of a result, in bytes; longer ones are cut and marked.
    auto_restart
        Whether a server that hung or died is started again by the next call.
    limits
        What is accepted from the server at all.

    Examples
    --------
    >>> server = McpServer.stdio("time", "mcp-server-time", "--local-timezone", "UTC")
    >>> with server:  # doctest: +SKIP
    ...     print(server.call("get_current_time", {"timezone": "UTC"}).text)
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        start_timeout: float = 30.0,
        call_timeout: float = 60.0,
        max_bytes: int = 262_144,
        auto_restart: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self.config = config
        self._start_timeout = start_timeout
        self._call_timeout = call_timeout
        self._max_bytes = max_bytes
        self._auto_restart = auto_restart
        self._limits = limits or Limits()
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._suspect = False
        self._restarts = 0
        self._failures = 0
        self._owner = os.getpid()

    @classmethod
    def stdio(
        cls,
        name: str,
        command: str,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
    ) -> McpServer:
        """Return a server that is the process ``command args``, not started yet."""
        return cls(ServerConfig(name, command=command, args=args, env=dict(env or {}), cwd=cwd))

    @classmethod
    def http(cls, name: str, url: str, *, headers: Mapping[str, str] | None = None) -> McpServer:
        """Return a server that is reached at `url`, not connected yet."""
        return cls(ServerConfig(name, url=url, headers=dict(headers or {})))

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.config.name

    @property
    def running(self) -> bool:
        """Whether it was started and its connection stands."""
        connection = self._connection
        return connection is not None and connection.alive

    @property
    def pid(self) -> int | None:
        """Process id, and id of its process group; ``None`` over HTTP or when it was not started."""
        return self._connection.link.pid if self._connection else None

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._restarts

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines it wrote to standard error, harmless to show."""
        return self._connection.link.stderr if self._connection else ()

    def __repr__(self) -> str:
        return (
            f"McpServer({self.name!r}, {self.config.shown()!r}, {'running' if self.running else 'stopped'})"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, timeout: float | None = None) -> Self:
        """Start the server (again, if it has ended); a running one is left as it is.

        Parameters
        ----------
        timeout
            Seconds to wait for the handshake; the server's own limit by default.

        Raises
        ------
        ServerStartFailed
            When the command is not found, ends at once, or does not speak MCP.
        ServerTimeout
            When it is silent; its process has been ended.
        """
        with self._lock:
            if not self.running:
                self._failures = 0
                self._open(self._start_timeout if timeout is None else timeout)
        return self

    def _open(self, timeout: float) -> None:
        self._end()
        _load_sdk()
        connection = Connection(self.config, self._limits)
        self._connection = connection
        self._owner = os.getpid()
        _running.add(self)
        try:
            self._wait(connection.open(timeout), seconds=timeout, phase="start")
        except BaseException:
            connection.link.kill()
            raise
        self._suspect = False

    def list_tools(self, timeout: float | None = None) -> tuple[ToolSpec, ...]:
        """Return the server's tools, each with this server's name."""
        return self.read_tools(timeout)[0]

    def read_tools(self, timeout: float | None = None) -> tuple[tuple[ToolSpec, ...], tuple[Problem, ...]]:
        """Return the server's tools, and what is wrong with them or with those left out."""
        seconds = self._start_timeout if timeout is None else timeout
        entries = self._request("list", seconds, lambda connection: connection.list_tools(seconds))
        tools, problems = tools_from_entries(entries, server=self.name, source="tools/list")
        return tuple(tools), tuple(problems)

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        max_bytes: int | None = None,
    ) -> ToolResult:
        """Call the tool `name` and wait for its result; Ctrl-C or `cancel` ends the wait.

        Parameters
        ----------
        arguments
            JSON values by name.
        timeout
            Seconds to wait.
        max_bytes
            Longest text of the result.

        Returns
        -------
        The result; ``is_error`` says whether the tool reported a failure.

        Raises
        ------
        ServerTimeout, ServerDied, ServerFlooded, ToolOutputTooLarge, ToolCallRejected, ServerNotRunning
            Each says what to do next. The server can be used again after any of them.
        Cancelled
            When `cancel` was called meanwhile.
        """
        seconds = self._call_timeout if timeout is None else timeout
        plain = copy_json(dict(arguments or {}))
        limit = self._max_bytes if max_bytes is None else max_bytes
        return self._request(
            "call",
            seconds,
            lambda connection: connection.call(name, plain, seconds=seconds, max_bytes=limit),
        )

    def _request(self, phase: str, seconds: float, ask: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        connection = self._usable()
        try:
            answer = self._wait(ask(connection), seconds=seconds, phase=phase)
        except (ServerTimeout, Cancelled, KeyboardInterrupt):
            self._suspect = True
            raise
        self._failures = 0
        return answer

    def _usable(self) -> Connection:
        """Return a connection that answers; one that hung or died is opened again."""
        with self._lock:
            connection = self._connection
            if connection is None:
                raise ServerNotRunning(
                    "it was not started", server=self.name, next_step="call start(), or use `with`"
                )
            if connection.alive and self._suspect:
                self._suspect = not self._wait(connection.answers(_PROBE_S), seconds=_PROBE_S, phase="call")
            if connection.alive and not self._suspect:
                return connection
            if not self._auto_restart or self._failures >= _RESTARTS:
                raise ServerNotRunning(
                    f"it hung or died {self._failures + 1} times",
                    server=self.name,
                    stderr=self.stderr,
                    next_step="look at its last lines, then call start()",
                )
            self._failures += 1
            self._restarts += 1
            _log.warning("server %s is started again", self.name)
            self._open(self._start_timeout)
            return self._connection or connection

    def _wait(self, coroutine: Coroutine[Any, Any, T], *, seconds: float, phase: str) -> T:
        try:
            return background_loop().run(coroutine, timeout=seconds + _SLACK_S)
        except TimeoutError as error:
            raise ServerTimeout(
                f"it could not even be asked within {seconds + _SLACK_S:g} s",
                server=self.name,
                phase=phase,
                seconds=seconds + _SLACK_S,
                next_step="close it and start it again",
            ) from error

    def cancel(self) -> None:
        """Cancel the calls that are waiting now, from any thread; they raise `Cancelled`."""
        connection = self._connection
        if connection is not None:
            background_loop().post(connection.cancel_calls)

    def abort(self) -> None:
        """Kill the process now, from any thread, also while it starts; whoever waits for it hears of it.

        A server behind an address has no process of ours, and is waited for as long as its limits say.
        """
        connection = self._connection
        if connection is not None:
            connection.link.kill()

    def close(self) -> None:
        """End the session and the whole process group; never hangs, never raises."""
        with self._lock:
            self._end()
            self._connection = None
            _running.discard(self)

    def _end(self) -> None:
        connection = self._connection
        if connection is None or self._owner != os.getpid():
            return  # what a fork inherited belongs to the parent
        try:
            self._wait(connection.close(), seconds=3 * self._limits.stop_s, phase="close")
        except ServerError:
            _log.warning("server %s did not end in time and was killed", self.name)
        finally:
            connection.link.kill()


def _load_sdk() -> None:
    """Import the SDK before any clock runs: a first import takes seconds on a slow disk."""
    for module in ("mcp", "mcp.client.stdio", "mcp.client.streamable_http"):
        import_module(module)
    for logger in ("mcp", "client"):  # its loggers; without a handler they would write to our standard error
        logging.getLogger(logger).addHandler(_SILENT)


_running: weakref.WeakSet[McpServer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End what still runs when the interpreter does."""
    for server in list(_running):
        server.close()
