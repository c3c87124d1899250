"""Servers over streamable HTTP, on the loopback interface, with a real server process."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from waiting import meanwhile

from nexus_lab.errors import Cancelled
from nexus_lab.registry import (
    McpServer,
    ServerConfig,
    ServerDied,
    ServerStartFailed,
    ServerTimeout,
    ToolCallRejected,
    ToolOutputTooLarge,
)
from nexus_lab.registry.server import Limits


def test_a_good_server_over_http(http_server):
    url, process = http_server
    config = ServerConfig("web", url=url)
    with McpServer(config, limits=Limits(message_bytes=300_000)) as server:

        def waits():
            return server._connection._calls

        assert [tool.name for tool in server.list_tools()] == ["add", "wait", "big", "fail"]
        assert server.call("add", {"a": 2, "b": 3}).text == "5"
        assert server.call("fail").is_error
        assert server.call("big", {"size": 50_000}, max_bytes=10).truncated
        with pytest.raises(ToolOutputTooLarge):
            server.call("big", {"size": 2_000_000})
        with pytest.raises(ServerTimeout):
            server.call("wait", {"seconds": 3.0}, timeout=0.2)
        assert server.call("add", {"a": 1, "b": 1}).text == "2"
        with meanwhile(waits, server.cancel), pytest.raises(Cancelled):
            server.call("wait", {"seconds": 3.0})
        assert server.call("add", {"a": 1, "b": 1}).text == "2"
        assert server.restarts == 0
        with pytest.raises(ServerStartFailed, match="no MCP session"):
            McpServer.http("wrong", url.replace("/mcp", "/nothing")).start()
        with meanwhile(waits, process.kill), pytest.raises(ServerDied, match="connection was lost"):
            server.call("wait", {"seconds": 30.0})
        with pytest.raises(ServerStartFailed):
            server.call("add", {"a": 1, "b": 1})


def test_nobody_at_the_address():
    with pytest.raises(ServerStartFailed, match="no MCP session") as caught:
        McpServer.http("nobody", "http://127.0.0.1:9/mcp").start()
    assert "/mcp" in caught.value.next_step


class _Handler(BaseHTTPRequestHandler):
    """Answers every POST as the server's `answer` says."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append(dict(self.headers))
        self.server.answer(self, body)

    def log_message(self, *_args):
        pass


def _reply(handler, data: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _redirect(handler, _body):
    handler.send_response(302)
    handler.send_header("location", "http://127.0.0.2:9/mcp")
    handler.send_header("content-length", "0")
    handler.end_headers()


@pytest.fixture
def strange_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server, f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler, _body: _reply(handler, b"<html>not MCP</html>"), "no MCP session"),
        (lambda handler, _body: _reply(handler, b"", status=401), "no MCP session"),
        (lambda handler, _body: _reply(handler, b"x" * 400_000), "no MCP session"),
        (
            lambda handler, _body: _reply(handler, gzip.compress(b" " * 50_000_000), content_encoding="gzip"),
            "compressed",
        ),
        (_redirect, "no MCP session"),
    ],
)
def test_strangers_at_the_address(strange_server, answer, said):
    server, url = strange_server
    server.answer = answer
    client = McpServer(ServerConfig("web", url=url), limits=Limits(message_bytes=100_000))
    with pytest.raises((ServerStartFailed, ToolCallRejected), match=said):
        client.start(timeout=10)


def test_a_silent_address_times_out_and_headers_are_sent(strange_server):
    server, url = strange_server
    over = threading.Event()
    server.answer = lambda _handler, _body: over.wait(60)
    config = ServerConfig("web", url=url, headers={"X-Api-Key": "kkkk1234"})
    try:
        with pytest.raises(ServerTimeout):
            McpServer(config).start(timeout=2)
    finally:
        over.set()
    assert {name.lower(): value for name, value in server.seen[0].items()}["x-api-key"] == "kkkk1234"
