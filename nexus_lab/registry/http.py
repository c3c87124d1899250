"""MCP messages over streamable HTTP, with bounds on what a server may answer."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nexus_lab.registry.errors import ServerStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from nexus_lab.registry.config import ServerConfig
    from nexus_lab.registry.stdio import Limits

__all__ = ["HttpLink", "is_loopback"]

_CONNECT_S = 10.0


@dataclass(slots=True)
class HttpLink:
    """One session with a server behind a URL; used from the loop only.

    Attributes
    ----------
    ended
        Set when no further message can come.
    fault
        Why the link was given up.
    too_large
        Answers refused for their size and not yet reported.
    """

    config: ServerConfig
    limits: Limits
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""
    flooded: bool = False
    too_large: int = 0

    exit_code: int | None = None
    pid: int | None = None
    stderr: tuple[str, ...] = ()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield the SDK's pair of message streams.

        Raises
        ------
        ServerStartFailed
            When the configuration cannot be used.
        """
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        self.config.check_startable()
        url = self.config.url
        if url is None:
            raise ServerStartFailed("it has no URL", server=self.config.name, next_step="give one")
        client = httpx2.AsyncClient(
            headers={**self.config.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(_CONNECT_S, read=None),
            trust_env=not is_loopback(url),
            event_hooks={"response": [self._limit]},
        )
        try:
            async with (
                client,
                streamable_http_client(
                    url, http_client=client, max_sse_event_size=self.limits.message_bytes
                ) as (read, write),
            ):
                yield read, write
        finally:
            self.ended.set()

    async def _limit(self, response: httpx2.Response) -> None:
        """Bound the answer to a request; the stream of notifications (GET) is bounded by event."""
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            self.fault = f"its answer is compressed ({encoding[:20]}), although none was asked for"
            response.stream = _limited(self, response.stream, -1)
        elif response.request.method == "POST":
            response.stream = _limited(self, response.stream, self.limits.message_bytes)

    def kill(self) -> None:
        """There is no process of ours."""


def is_loopback(url: str) -> bool:
    """Whether a URL is of this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _limited(link: HttpLink, stream: Any, limit: int) -> Any:
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > limit:
                    link.too_large += 1
                    raise httpx2.StreamError(f"its answer has more than {limit:,} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()
