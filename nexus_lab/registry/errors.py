"""What can go wrong with registries and servers; every one says what to do next."""

from __future__ import annotations

from nexus_lab.errors import NexusError

__all__ = [
    "RegistryError",
    "RegistryFormatError",
    "SchemaRefused",
    "ServerDied",
    "ServerError",
    "ServerFlooded",
    "ServerInstallFailed",
    "ServerNotRunning",
    "ServerStartFailed",
    "ServerTimeout",
    "ToolCallRejected",
    "ToolFailed",
    "ToolNotFound",
    "ToolOutputTooLarge",
]


class RegistryError(NexusError):
    """The root of this room's errors."""


class RegistryFormatError(RegistryError):
    """A source holds no tools in a form that is known.

    Attributes
    ----------
    found
        What the source holds instead.
    accepted
        The forms that can be read.
    """

    def __init__(
        self, problem: str, *, found: str = "", accepted: tuple[str, ...] = (), next_step: str = ""
    ) -> None:
        step = next_step or ("give one of: " + "; ".join(accepted) if accepted else "")
        super().__init__(problem, next_step=step)
        self.found = found
        self.accepted = accepted


class SchemaRefused(RegistryError):
    """A JSON value is too deep, too large or no JSON, so that no tool is made of it."""


class ToolNotFound(RegistryError):
    """No tool of the registry has this name."""


class ToolFailed(RegistryError):
    """The tool ran and reported an error (``isError``)."""


class ServerInstallFailed(RegistryError):
    """The environment of a server could not be made."""


class ServerError(RegistryError):
    """Something between us and an MCP server went wrong.

    Attributes
    ----------
    server
        Name of the server.
    stderr
        Last lines that the server wrote to its standard error, control characters made visible.
    """

    def __init__(
        self, problem: str, *, server: str, stderr: tuple[str, ...] = (), next_step: str = ""
    ) -> None:
        said = f"; its last line was: {stderr[-1]}" if stderr else ""
        super().__init__(f"server {server!r}: {problem}{said}", next_step=next_step)
        self.server = server
        self.stderr = stderr


class ServerStartFailed(ServerError):
    """The command was not found, the process ended at once, or it does not speak MCP."""


class ServerTimeout(ServerError):
    """The server did not answer in time.

    Attributes
    ----------
    phase
        ``start``, ``list`` or ``call``.
    seconds
        How long was waited.
    """

    def __init__(
        self,
        problem: str,
        *,
        server: str,
        phase: str,
        seconds: float,
        stderr: tuple[str, ...] = (),
        next_step: str = "",
    ) -> None:
        super().__init__(problem, server=server, stderr=stderr, next_step=next_step)
        self.phase = phase
        self.seconds = seconds


class ServerDied(ServerError):
    """The connection ended while an answer was due.

    Attributes
    ----------
    exit_code
        Exit code of the process, negative for a signal; ``None`` where unknown (HTTP).
    """

    def __init__(
        self,
        problem: str,
        *,
        server: str,
        exit_code: int | None = None,
        stderr: tuple[str, ...] = (),
        next_step: str = "",
    ) -> None:
        super().__init__(problem, server=server, stderr=stderr, next_step=next_step)
        self.exit_code = exit_code


class ServerNotRunning(ServerError):
    """The server was not started, was closed, or has failed too often."""


class ServerFlooded(ServerError):
    """The server wrote so much that is no MCP message that the connection was given up."""


class ToolOutputTooLarge(ServerError):
    """One answer exceeds the size that is accepted at all."""


class ToolCallRejected(ServerError):
    """The server answered with a protocol error: no such tool, wrong arguments, ...

    Attributes
    ----------
    code
        JSON-RPC error code.
    """

    def __init__(
        self, problem: str, *, server: str, code: int = 0, stderr: tuple[str, ...] = (), next_step: str = ""
    ) -> None:
        super().__init__(problem, server=server, stderr=stderr, next_step=next_step)
        self.code = code
