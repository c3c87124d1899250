"""Servers that the tests of this room start: real processes, good and bad."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nexus_lab.registry import McpServer, ServerConfig
from nexus_lab.registry.server import Limits

HERE = Path(__file__).parent
LIMITS = Limits(message_bytes=1_000_000, noise_bytes=200_000, stop_s=0.4)


@pytest.fixture
def raw():
    """Make servers out of ``raw_server.py``; they end with the test."""
    made: list[McpServer] = []

    def make(mode: str = "good", *args: str, env=None, **options) -> McpServer:
        config = ServerConfig(
            "raw", sys.executable, (str(HERE / "raw_server.py"), mode, *args), env=env or {}
        )
        server = McpServer(config, limits=LIMITS, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def sdk_server():
    """A well-behaved server made with the SDK, over stdio; started once, since its imports take a while."""
    with McpServer(ServerConfig("sdk", sys.executable, (str(HERE / "sdk_server.py"),))) as server:
        yield server


@pytest.fixture
def http_server():
    """Address and process of a well-behaved server over streamable HTTP on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "sdk_server.py"), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
