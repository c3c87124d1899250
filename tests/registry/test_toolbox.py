"""Servers that run, and the registry of their tools."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nexus_lab.registry import (
    McpServer,
    ProblemKind,
    RegistryFormatError,
    ServerConfig,
    ServerNotRunning,
    ServerStartFailed,
    ToolNotFound,
    ToolSpec,
    connect,
)

RAW = str(Path(__file__).parent / "raw_server.py")


def config(name: str, *args: str) -> ServerConfig:
    return ServerConfig(name, sys.executable, (RAW, *args))


def test_tools_of_several_servers_are_called_on_their_own():
    lines: list[str] = []
    with connect(config("one"), config("two"), config("three", "pages"), progress=lines.append) as box:
        assert sorted(lines) == ["one: 1 tool", "three: 9 tools", "two: 1 tool"]
        assert len(box.registry) == 10
        assert box.registry["echo"].server == "one"
        pids = {name: str(server.pid) for name, server in box.servers.items()}
        assert box.call("echo", {"text": "pid"}).text == pids["one"]
        assert box.call("two.echo", {"text": "pid"}).text == pids["two"]
        assert box.call(box.registry["two.echo"], {"text": "pid"}).text == pids["two"]
        assert box.call("echo_0_1", {"text": "pid"}).text == pids["three"]
        assert box.refresh().fingerprint == box.registry.fingerprint
        with pytest.raises(ToolNotFound):
            box.call("nope")
        with pytest.raises(ServerNotRunning, match="no server runs it"):
            box.call(ToolSpec("listed"))
        servers = list(box.servers.values())
    assert not any(server.running for server in servers)


def test_one_failure_ends_all_unless_it_may_be_recorded():
    good = McpServer(config("good"))
    with pytest.raises(ServerStartFailed, match="missing --token"):
        connect(good, config("bad", "exit"))
    assert not good.running
    with connect(config("good"), config("bad", "exit"), on_failure="record") as box:
        assert list(box.servers) == ["good"]
        (problem,) = box.registry.errors
        assert (problem.kind, problem.server) == (ProblemKind.SERVER_FAILED, "bad")
        assert [server.name for server in box.registry.servers] == ["good", "bad"]
        assert box.call("echo", {"text": "hi"}).text == "hi"


def test_two_servers_need_two_names():
    with pytest.raises(RegistryFormatError, match="two servers"):
        connect(config("one"), config("one"))


def test_cancel_reaches_every_server():
    from waiting import meanwhile

    from nexus_lab.errors import Cancelled

    with connect(config("one")) as box:
        (server,) = box.servers.values()
        with meanwhile(lambda: server._connection._calls, box.cancel), pytest.raises(Cancelled):
            box.call("echo", {"text": "slow"}, timeout=240)


def test_a_failure_that_is_raised_is_not_told_as_well():
    lines: list[str] = []
    with pytest.raises(ServerStartFailed) as caught:
        connect(*(config(name, "exit") for name in ("one", "two")), progress=lines.append)
    assert lines == [caught.value.problem.replace("'one'", "'two'")]
