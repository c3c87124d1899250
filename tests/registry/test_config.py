"""Configurations of servers never show what is secret in them."""

from __future__ import annotations

import pytest

from nexus_lab.registry import RegistryFormatError, ServerConfig, ServerStartFailed, Transport
from nexus_lab.registry.lines import LineSplitter, OutputTail


def test_what_is_shown_is_masked():
    config = ServerConfig(
        "s",
        command="run",
        args=(
            "--token",
            "aaaa1111",
            "--api-key=bbbb2222",
            "postgres://user:cccc3333@host/db",
            "--port",
            "80",
        ),
        env={"PASSWORD": "dddd4444"},
    )
    shown = config.shown()
    assert shown == "PASSWORD=*** run --token *** --api-key=*** postgres://***@host/db --port 80"
    for text in (repr(config), str(config.to_dict()), shown):
        assert not any(secret in text for secret in ("aaaa1111", "bbbb2222", "cccc3333", "dddd4444"))


def test_headers_and_addresses_are_masked():
    config = ServerConfig(
        "s", url="https://me:pw123456@h.example/mcp?key=k1234567", headers={"X-Key": "h1234567"}
    )
    assert config.shown() == "https://***@h.example/mcp?***"
    assert config.transport is Transport.HTTP
    assert "h1234567" not in repr(config) + str(config.to_dict())


def test_secrets_are_taken_out_of_what_a_server_says():
    config = ServerConfig("s", command="run", env={"API_KEY": "sk-12345678"}, args=("--token", "tttt9999"))
    assert config.masked("key sk-12345678 and tttt9999") == "key *** and ***"


@pytest.mark.parametrize(
    "parts",
    [
        {"name": "", "command": "x"},
        {"name": "s"},
        {"name": "s", "command": "x", "url": "http://h"},
        {"name": "s", "url": "ftp://h"},
        {"name": "s", "url": "file:///etc/passwd"},
    ],
)
def test_impossible_configurations_are_refused(parts):
    with pytest.raises(RegistryFormatError):
        ServerConfig(**parts)


def test_open_variables_come_from_the_environment(monkeypatch):
    config = ServerConfig("s", command="x", env={"NEXUS_TEST_A": None, "B": "given"})
    with pytest.raises(ServerStartFailed, match="NEXUS_TEST_A") as caught:
        config.environment()
    assert "set NEXUS_TEST_A" in caught.value.next_step
    monkeypatch.setenv("NEXUS_TEST_A", "mine")
    assert config.environment() == {"NEXUS_TEST_A": "mine", "B": "given"}


def test_a_saved_configuration_without_its_secret_says_so():
    config = ServerConfig("s", command="x", args=("--token", "secret99"))
    again = ServerConfig.from_dict("s", config.to_dict())
    with pytest.raises(ServerStartFailed, match="left out"):
        again.check_startable()
    remote = ServerConfig("r", url="https://h/mcp", headers={"X-Key": "h1234567"})
    with pytest.raises(ServerStartFailed, match="X-Key"):
        ServerConfig.from_dict("r", remote.to_dict()).check_startable()


def test_sse_is_listed_but_not_started():
    config = ServerConfig.from_dict("s", {"type": "sse", "url": "https://h/sse"})
    with pytest.raises(ServerStartFailed, match="SSE"):
        config.check_startable()


def test_lines_are_cut_the_same_however_the_chunks_fall():
    data = b"one\r\ntwo\n\nthree" + b"\n" + b"x" * 500 + b"\nlast"
    expected = [b"one", b"two", b"", b"three", b"x" * 256, b"last"]
    for size in (1, 2, 7, 100, 1000):
        splitter = LineSplitter(300)
        lines = []
        for start in range(0, len(data), size):
            lines += splitter.feed(data[start : start + size])
        lines += splitter.finish()
        assert [line.data for line in lines] == expected
        assert [line.whole for line in lines] == [True, True, True, True, False, True]
        assert lines[4].size == 500
        assert splitter.pending == 0


def test_an_endless_line_is_not_held():
    splitter = LineSplitter(1000)
    for _ in range(1000):
        assert list(splitter.feed(b"y" * 1000)) == []
    assert splitter.pending == 1_000_000
    assert len(splitter._buffer) <= 1000
    assert splitter.head == b"y" * 256


def test_the_tail_keeps_the_last_lines_harmless():
    tail = OutputTail(lambda text: text.replace("secret", "***"), lines=3, width=20)
    for index in range(10):
        tail.feed(f"line {index} \x1b[31m\n".encode())
    tail.feed(b"the secret\xff" + b"z" * 100)
    tail.finish()
    assert len(tail.lines) == 3
    assert tail.lines[0] == "line 8 \\x1b[31m"
    assert tail.lines[2].startswith("the ***�zzz")
    assert len(tail.lines[2]) == 20
