"""One live MCP session: handshake, tools, calls, and how each failure is named. Runs on the loop."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from nexus_lab.errors import Cancelled
from nexus_lab.registry.base import ToolResult
from nexus_lab.registry.errors import (
    ServerDied,
    ServerError,
    ServerFlooded,
    ServerNotRunning,
    ServerStartFailed,
    ServerTimeout,
    ToolCallRejected,
    ToolOutputTooLarge,
)
from nexus_lab.registry.http import HttpLink
from nexus_lab.registry.json_values import compact_json
from nexus_lab.registry.stdio import TOO_LARGE, UNREADABLE, Limits, StdioLink
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import anyio
    from mcp import ClientSession

    from nexus_lab.registry.config import ServerConfig

__all__ = ["Connection"]

T = TypeVar("T")

_PAGE_LIMIT = 100
_TOOL_LIMIT = 10_000
_END_S = 5.0


@dataclass(slots=True)
class Connection:
    """A session with one server, from its start to its end.

    Attributes
    ----------
    config, limits
        What is started, and what is accepted from it.
    """

    config: ServerConfig
    limits: Limits
    link: StdioLink | HttpLink = field(init=False)
    _session: ClientSession | None = None
    _failure: BaseException | None = None
    _task: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: dict[anyio.CancelScope, bool] = field(default_factory=dict)  # whether each was cancelled
    _asked_to_stop: bool = False

    def __post_init__(self) -> None:
        kind = HttpLink if self.config.url else StdioLink
        self.link = kind(self.config, self.limits)

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return self._session is not None and not self.link.ended.is_set() and not self._stop.is_set()

    async def open(self, seconds: float) -> None:
        """Start the server and shake hands.

        Raises
        ------
        ServerStartFailed, ServerTimeout, ServerFlooded
            When it could not be started, was silent for `seconds`, or only wrote noise.
        """
        import anyio

        scope = anyio.CancelScope()
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._serve(scope, ready))
        waiter = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({self._task, waiter}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            if not ready.is_set():
                scope.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(self._task)
        if ready.is_set():
            return
        if self._failure is None:
            raise ServerTimeout(
                f"it did not answer within {seconds:g} s of its start",
                server=self.config.name,
                phase="start",
                seconds=seconds,
                stderr=self.link.stderr,
                next_step="run the command by hand to see what it waits for, or give it more time",
            )
        raise self._start_error(self._failure)

    async def _serve(self, scope: anyio.CancelScope, ready: asyncio.Event) -> None:
        """Hold streams and session open in one task, as their cancel scopes demand."""
        from mcp import ClientSession
        from mcp.types import Implementation

        from nexus_lab import __version__

        try:
            with scope:
                async with (
                    self.link.streams() as (read, write),
                    ClientSession(
                        read, write, client_info=Implementation(name="nexus-lab", version=__version__)
                    ) as session,
                ):
                    await _handshake(session)
                    self._session = session
                    ready.set()
                    await self._until_end()
        except Exception as error:  # noqa: BLE001 - kept, and named when somebody waits for an answer
            self._failure = _leaf(error)
        finally:
            self.link.ended.set()

    async def _until_end(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, self.link.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _start_error(self, failure: BaseException) -> ServerError:
        name, stderr = self.config.name, self.link.stderr
        if isinstance(failure, ServerError):
            return failure
        if self.link.flooded:
            return self._flood_error()
        if self.link.exit_code is not None and self.link.exit_code >= 0:
            return ServerStartFailed(
                f"it ended at once with exit code {self.link.exit_code}",
                server=name,
                stderr=stderr,
                next_step="run the command by hand; its last lines say what it lacks",
            )
        why = neutralise(self.config.masked(self.link.fault or _reason(failure)), limit=300)
        if self.config.url:
            return ServerStartFailed(
                f"no MCP session at {self.config.shown()}: {why}",
                server=name,
                next_step="check that the server runs and that the address ends in its MCP path, often /mcp",
            )
        return ServerStartFailed(
            f"it does not speak MCP: {why}", server=name, stderr=stderr, next_step="check command and version"
        )

    def _flood_error(self) -> ServerFlooded:
        return ServerFlooded(
            self.link.fault,
            server=self.config.name,
            stderr=self.link.stderr,
            next_step="a stdio server must log to stderr; report it, or use another version",
        )

    async def close(self) -> None:
        """End session and process."""
        self._asked_to_stop = True
        self._stop.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    def cancel_calls(self) -> None:
        """Cancel what is being asked now; the session stays."""
        for scope in self._calls:
            self._calls[scope] = True
            scope.cancel()

    async def list_tools(self, seconds: float) -> list[dict[str, Any]]:
        """Return the entries of the server's ``tools/list``, all pages."""
        return await self._ask(self._list_pages, phase="list", seconds=seconds)

    async def _list_pages(self, session: ClientSession) -> list[dict[str, Any]]:
        from mcp.types import PaginatedRequestParams

        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_PAGE_LIMIT):
            params = PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await session.list_tools(params=params)
            entries += [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
            if not page.next_cursor or page.next_cursor == cursor:
                return entries
            if len(entries) > _TOOL_LIMIT:
                break
            cursor = page.next_cursor
        raise ToolOutputTooLarge(
            f"its list of tools does not end ({len(entries):,} so far)",
            server=self.config.name,
            next_step="use another version of the server",
        )

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        seconds: float,
        max_bytes: int,
    ) -> ToolResult:
        """Call a tool."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        start = time.perf_counter()
        answer = await self._ask(
            lambda session: session.send_request(request, CallToolResult), phase="call", seconds=seconds
        )
        return _result(answer, max_bytes, time.perf_counter() - start)

    async def answers(self, seconds: float) -> bool:
        """Whether the server answers anything at all within `seconds`."""
        try:
            await self._ask(_probe, phase="call", seconds=seconds)
        except (ToolCallRejected, ToolOutputTooLarge):
            return True
        except ServerError:
            return False
        return True

    async def _ask(self, ask: Callable[[ClientSession], Awaitable[T]], *, phase: str, seconds: float) -> T:
        import anyio
        from mcp.shared.exceptions import MCPError

        session = self._session
        if session is None or not self.alive:
            raise await self._end_error(phase)
        scope = anyio.move_on_after(seconds)
        self._calls[scope] = False
        try:
            with scope:
                return await ask(session)
        except MCPError as error:
            raise await self._named(error, phase) from error
        except (RuntimeError, ValueError) as error:
            raise self._malformed(error) from error
        finally:
            cancelled = self._calls.pop(scope)
        if cancelled:
            raise Cancelled(f"the {phase} of server {self.config.name!r} was cancelled")
        raise ServerTimeout(
            f"no answer within {seconds:g} s",
            server=self.config.name,
            phase=phase,
            seconds=seconds,
            stderr=self.link.stderr,
            next_step="allow more time, or call again: a server that hangs is restarted first",
        )

    async def _named(self, error: Any, phase: str) -> ServerError:
        """Return the typed error for one of the SDK's."""
        name = self.config.name
        text = neutralise(self.config.masked(error.message), limit=300)
        if isinstance(self.link, HttpLink) and self.link.too_large:
            self.link.too_large -= 1
            error.error.code = TOO_LARGE
        if error.code == TOO_LARGE or "byte limit" in text:
            return ToolOutputTooLarge(
                f"its answer is larger than the {self.limits.message_bytes:,} bytes that are accepted",
                server=name,
                next_step="ask for less: a narrower query, a page, a limit",
            )
        if error.code == UNREADABLE:
            return ToolCallRejected(
                text, server=name, code=error.code, next_step="report it to the server's author"
            )
        if text.startswith("SSE stream ended"):
            self.link.fault = "the answer broke off"
            self._stop.set()
        if text == "Connection closed" or self._stop.is_set() or self.link.ended.is_set():
            return await self._end_error(phase)
        return ToolCallRejected(
            f"it refused the {phase}: {text} (code {error.code})",
            server=name,
            code=error.code,
            next_step="check the tool's name and arguments against its schema",
        )

    def _malformed(self, error: Exception) -> ToolCallRejected:
        why = neutralise(self.config.masked(_first_fault(error)), limit=200)
        return ToolCallRejected(
            f"its answer breaks the protocol: {why}",
            server=self.config.name,
            next_step="report it to the server's author, or use another version",
        )

    async def _end_error(self, phase: str) -> ServerError:
        """Return why there is no connection any more, once it is known."""
        if self._task is not None and not self._asked_to_stop:
            await asyncio.wait({self._task}, timeout=_END_S)
        name, stderr = self.config.name, self.link.stderr
        if self._asked_to_stop or self._task is None:
            return ServerNotRunning("it was closed", server=name, next_step="start it again")
        if self.link.flooded:
            return self._flood_error()
        code = self.link.exit_code
        how = f"it died (exit code {code})" if code is not None else "the connection was lost"
        if code is not None and code < 0:
            how = f"it died (signal {-code})"
        why = self.link.fault or ("" if self._failure is None else _reason(self._failure))
        return ServerDied(
            f"{how} in the {phase}" + (f": {neutralise(self.config.masked(why), limit=200)}" if why else ""),
            server=name,
            exit_code=code,
            stderr=stderr,
            next_step="the next call restarts it; if it dies again, run its command by hand",
        )


async def _handshake(session: ClientSession) -> None:
    """Shake hands; a server that knows only the newest protocol, without a handshake, is discovered."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import METHOD_NOT_FOUND
    from mcp_types import UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
            raise
        await session.discover()


async def _probe(session: ClientSession) -> None:
    if session.initialize_result is not None:
        await session.send_ping()
    else:
        await session.list_tools()


def _first_fault(error: Exception) -> str:
    """Return what a validation error of the SDK's types says first, or any other error's own words."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}"
    return " ".join(str(error).split())


def _leaf(error: BaseException) -> BaseException:
    """Return the first single exception of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{text or 'no reason given'} ({type(error).__name__})"


def _result(answer: Any, max_bytes: int, seconds: float) -> ToolResult:
    parts = [_part(block) for block in answer.content]
    structured = answer.structured_content
    if not any(parts) and structured is not None:
        parts = [compact_json(structured)]
    whole = "\n".join(parts).encode(errors="replace")
    text = whole[:max_bytes].decode(errors="ignore")
    return ToolResult(
        text=text,
        is_error=bool(answer.is_error),
        structured=structured,
        truncated=len(whole) > max_bytes,
        size_bytes=len(whole),
        seconds=seconds,
    )


def _part(block: Any) -> str:
    """Return a content block as text."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and isinstance(getattr(block.resource, "text", None), str):
        return str(block.resource.text)
    if block.type == "resource_link":
        return f"[{block.uri}]"
    data = getattr(block, "data", "") or getattr(getattr(block, "resource", None), "blob", "")
    kind = getattr(block, "mime_type", None) or block.type
    return f"[{kind}, {len(data) * 3 // 4} bytes]"
