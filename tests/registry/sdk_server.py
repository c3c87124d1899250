"""A well-behaved MCP server made with the SDK; over stdio, or over HTTP when given a port."""

from __future__ import annotations

import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("sdk")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "done"


@server.tool()
def big(size: int) -> str:
    """Return a long text."""
    return "x" * size


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it broke")


if len(sys.argv) > 1:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
