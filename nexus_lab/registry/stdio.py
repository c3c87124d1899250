"""A server's process, and MCP messages over its standard streams.

The SDK has a client for this; ours differs where a hostile or broken server matters: a line has a largest
size, noise on stdout is counted, standard error is kept, and the whole process group ends with the leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.registry.errors import ServerStartFailed
from nexus_lab.registry.lines import Line, LineSplitter, OutputTail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.shared.message import SessionMessage

    from nexus_lab.registry.config import ServerConfig

__all__ = ["TOO_LARGE", "UNREADABLE", "Limits", "StdioLink"]

_log = logging.getLogger(__name__)

# Codes of errors that stand in for an answer that cannot be delivered; outside the range of JSON-RPC's own.
TOO_LARGE = -70_001
UNREADABLE = -70_002

_CHUNK = 65_536
_POLL_S = 0.02
_DRAIN_S = 0.3
_OVERLONG = 8  # an answer may be this many times too large before it counts as a flood
_ANSWER_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\b')


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is accepted from a server at all.

    Attributes
    ----------
    message_bytes
        Largest message.
    noise_bytes
        Most bytes on stdout between two messages that are no message.
    stop_s
        Seconds that a server gets to end by itself, and again after SIGTERM.
    """

    message_bytes: int = 16 * 1024 * 1024
    noise_bytes: int = 1024 * 1024
    stop_s: float = 1.0


@dataclass(slots=True)
class StdioLink:
    """One process and its streams; used from the loop only, but for `kill`.

    Attributes
    ----------
    ended
        Set when no further message can come.
    fault
        Why the link was given up, empty when the process ended or was stopped.
    """

    config: ServerConfig
    limits: Limits
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""
    flooded: bool = False
    _process: asyncio.subprocess.Process | None = None
    _group_gone: bool = False
    _waiting: set[int | str] = field(default_factory=set)
    _noise: int = 0
    _answered_early: bool = False
    _tail: OutputTail = field(init=False)
    _noise_tail: OutputTail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = OutputTail(self.config.masked)
        self._noise_tail = OutputTail(self.config.masked, lines=3)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, negative for a signal; ``None`` while it runs."""
        return self._process.returncode if self._process else None

    @property
    def pid(self) -> int | None:
        """Process id, and id of its group."""
        return self._process.pid if self._process else None

    @property
    def stderr(self) -> tuple[str, ...]:
        """Last lines of standard error; of noise on stdout where there is no other."""
        return self._tail.lines or self._noise_tail.lines

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the process, and yield the SDK's pair of message streams; ending it is part of leaving.

        Raises
        ------
        ServerStartFailed
            When the command cannot be run.
        """
        import anyio

        process = self._process = await self._spawn()
        to_session, read_stream = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        write_stream, from_session = anyio.create_memory_object_stream["SessionMessage"](0)
        tasks = [
            asyncio.create_task(self._read_stdout(process, to_session)),
            asyncio.create_task(self._read_stderr(process)),
            asyncio.create_task(self._write_stdin(process, from_session)),
            asyncio.create_task(self._watch(process, to_session)),
        ]
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop(process)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (to_session, read_stream, write_stream, from_session):
                    stream.close()
                self._tail.finish()
                self.ended.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        from mcp.client.stdio import get_default_environment

        config = self.config
        config.check_startable()
        environment = get_default_environment() | config.environment()
        if config.cwd and not os.path.isdir(config.cwd):  # noqa: PTH112, ASYNC240 - one stat, no wait
            raise ServerStartFailed(
                f"its working folder {config.cwd!r} does not exist",
                server=config.name,
                next_step="make it, or mend cwd",
            )
        try:
            return await asyncio.create_subprocess_exec(
                config.command,
                *config.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                cwd=config.cwd,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ServerStartFailed(
                f"command {config.command!r} was not found",
                server=config.name,
                next_step="install it, or give its full path; PATH is passed on as it is here",
            ) from error
        except (OSError, ValueError) as error:
            raise ServerStartFailed(
                f"command {config.command!r} cannot be run: {error}",
                server=config.name,
                next_step="check that it is a program and may be executed",
            ) from error

    async def _read_stdout(self, process: asyncio.subprocess.Process, to_session: Any) -> None:
        import anyio

        assert process.stdout is not None  # noqa: S101 - it was spawned with pipes
        splitter = LineSplitter(self.limits.message_bytes)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            while chunk := await process.stdout.read(_CHUNK):
                for line in splitter.feed(chunk):
                    for message in self._messages(line):
                        await to_session.send(message)
                for message in self._overlong(splitter):
                    await to_session.send(message)
                if self._is_flood(splitter.pending):
                    break
            for line in splitter.finish():
                for message in self._messages(line):
                    await to_session.send(message)
        to_session.close()
        self.ended.set()

    def _overlong(self, splitter: LineSplitter) -> list[SessionMessage]:
        """Return the errors for a line that is too long already, as soon as that is known."""
        if splitter.pending <= self.limits.message_bytes:
            self._answered_early = False
            return []
        if self._answered_early:
            return []
        self._answered_early = True
        head = splitter.head
        return self._instead(head, TOO_LARGE, "its answer is too large") if _looks_like_message(head) else []

    def _is_flood(self, pending: int) -> bool:
        total = self._noise + max(0, pending - _OVERLONG * self.limits.message_bytes)
        if total <= self.limits.noise_bytes:
            return False
        self.flooded = True
        self.fault = f"it wrote {self._noise + pending:,} bytes to stdout that are no MCP message"
        return True

    def _messages(self, line: Line) -> list[SessionMessage]:
        """Return the message of a line, or the errors that stand in for the answer that it may have been."""
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCError, JSONRPCResponse
        from mcp_types import jsonrpc_message_adapter

        if line.whole:
            try:
                message = jsonrpc_message_adapter.validate_json(line.data, by_name=False)
            except ValueError:
                if not _looks_like_message(line.data) or not self._waiting:
                    self._take_noise(line)
                    return []
                return self._instead(line.data, UNREADABLE, "its answer is no valid message")
            self._noise = 0
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self._waiting.discard(message.id)
            return [SessionMessage(message)]
        answered, self._answered_early = self._answered_early, False
        if not _looks_like_message(line.data):
            self._take_noise(line)
        elif not answered:
            return self._instead(line.data, TOO_LARGE, "its answer is too large")
        return []

    def _take_noise(self, line: Line) -> None:
        if line.size:
            self._noise += line.size + 1
            self._noise_tail.add(line.data)
            _log.debug("server %s wrote a line that is no message", self.config.name)

    def _instead(self, head: bytes, code: int, text: str) -> list[SessionMessage]:
        from mcp.shared.message import SessionMessage
        from mcp.types import ErrorData, JSONRPCError

        match = _ANSWER_ID.match(head)
        number = int(match[1]) if match else None
        whom = {number} if number in self._waiting else set(self._waiting)
        self._waiting -= whom
        error = ErrorData(code=code, message=text)
        return [SessionMessage(JSONRPCError(jsonrpc="2.0", id=request, error=error)) for request in whom]

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101 - it was spawned with pipes
        with suppress(ConnectionError):
            while chunk := await process.stderr.read(_CHUNK):
                self._tail.feed(chunk)

    async def _write_stdin(self, process: asyncio.subprocess.Process, from_session: Any) -> None:
        import anyio
        from mcp.types import JSONRPCRequest

        assert process.stdin is not None  # noqa: S101 - it was spawned with pipes
        try:
            async for item in from_session:
                if isinstance(item.message, JSONRPCRequest):
                    self._waiting.add(item.message.id)
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
        except (ConnectionError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.fault = self.fault or "it closed its standard input"
        finally:
            from_session.close()

    async def _watch(self, process: asyncio.subprocess.Process, to_session: Any) -> None:
        """End the link soon after the leader ended, even while a child of it holds the pipes open."""
        while process.returncode is None:  # noqa: ASYNC110 - see _exited
            await asyncio.sleep(_POLL_S)
        self._end_group()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), _DRAIN_S)
        to_session.close()
        self.ended.set()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        """Close stdin, then SIGTERM, then SIGKILL; each wait is bounded."""
        if process.stdin is not None:
            process.stdin.close()
        wait = 0.0 if self.flooded else self.limits.stop_s
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._exited(process, wait):
                break
            self._signal(process.pid, number)
            wait = self.limits.stop_s
        if not await self._exited(process, self.limits.stop_s):
            _log.warning(
                "server %s (process %d) cannot be killed; left behind", self.config.name, process.pid
            )
        self._end_group()
        await asyncio.sleep(0)
        # Nothing public closes pipes that a survivor holds open.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            with suppress(ProcessLookupError, PermissionError):
                transport.close()

    @staticmethod
    async def _exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
        # Not process.wait(): that also waits for the pipes, which a surviving child may hold open.
        deadline = asyncio.get_running_loop().time() + seconds
        while process.returncode is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _end_group(self) -> None:
        """Kill what the leader left behind, once, so that a group id used anew is never hit."""
        if self._process is not None and not self._group_gone:
            self._group_gone = True
            self._signal(self._process.pid, signal.SIGKILL)

    @staticmethod
    def _signal(group: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def kill(self) -> None:
        """Kill the process group at once, from any thread."""
        if self._process is not None and not self._group_gone:
            self._signal(self._process.pid, signal.SIGKILL)


def _looks_like_message(head: bytes) -> bool:
    return head.lstrip().startswith(b"{")
