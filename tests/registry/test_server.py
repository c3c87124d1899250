"""Servers over stdio: the good one works, and each bad one gives its own typed error and a next step."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from waiting import eventually, meanwhile

from nexus_lab.errors import Cancelled
from nexus_lab.registry import (
    McpServer,
    SchemaRefused,
    ServerConfig,
    ServerDied,
    ServerFlooded,
    ServerNotRunning,
    ServerStartFailed,
    ServerTimeout,
    ToolCallRejected,
    ToolOutputTooLarge,
)


def say(server: McpServer, text: str, **options) -> str:
    return server.call("echo", {"text": text}, **options).text


def exists(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    if Path("/proc").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1] not in ("", "Z")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc").exists() else 0


def once_it_waits(server: McpServer, act):
    """Do something from another thread once a call of the server waits for its answer."""
    return meanwhile(lambda: server._connection._calls, act)


@pytest.fixture
def patient(monkeypatch):
    """A server that is suspected of hanging gets all the time that a busy machine may need."""
    monkeypatch.setattr("nexus_lab.registry.server._PROBE_S", 60.0)


def test_nothing_runs_before_it_is_started(raw):
    server = raw()
    assert not server.running
    assert server.pid is None
    with pytest.raises(ServerNotRunning, match="was not started"):
        server.call("echo", {"text": "hi"})


def test_a_good_server_lists_and_calls(raw):
    with raw() as server:
        assert server.running
        (tool,) = server.list_tools()
        assert (tool.name, tool.server, tool.read_only) == ("echo", "raw", True)
        result = server.call("echo", {"text": "grüße 名前"})
        assert (result.text, result.is_error, result.truncated) == ("grüße 名前", False, False)
        assert result.size_bytes == len(result.text.encode())
        pid = server.pid
        assert exists(pid)
        assert server.start() is server
        assert server.pid == pid
    assert not server.running
    assert not exists(pid)
    server.close()


def test_a_server_made_with_the_sdk(sdk_server):
    assert [tool.name for tool in sdk_server.list_tools()] == ["add", "wait", "big", "fail"]
    result = sdk_server.call("add", {"a": 2, "b": 3})
    assert (result.text, result.structured) == ("5", {"result": 5})
    assert sdk_server.call("fail").is_error
    assert sdk_server.call("add", {"a": "no"}).is_error


@pytest.mark.usefixtures("patient")
def test_a_server_without_a_handshake_is_discovered(raw):
    with raw("modern") as server:
        assert [tool.name for tool in server.list_tools()] == ["echo"]
        assert say(server, "hi") == "hi"
        with pytest.raises(ServerTimeout):
            say(server, "slow", timeout=0.2)
        assert say(server, "hi") == "hi"
        assert server.restarts == 0


def test_all_pages_of_tools_are_read(raw):
    with raw("pages") as server:
        assert len(server.list_tools()) == 9


def test_a_command_that_is_not_found():
    with pytest.raises(ServerStartFailed, match="'no-such-command' was not found") as caught:
        McpServer.stdio("x", "no-such-command").start()
    assert "install it" in caught.value.next_step


def test_a_command_that_is_no_program(tmp_path):
    with pytest.raises(ServerStartFailed, match="cannot be run"):
        McpServer.stdio("x", str(tmp_path)).start()


def test_a_working_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ServerStartFailed, match="working folder"):
        McpServer.stdio("x", sys.executable, cwd=str(tmp_path / "none")).start()


def test_a_server_that_exits_at_start(raw):
    with pytest.raises(ServerStartFailed, match="exit code 3; its last line was: missing --token") as caught:
        raw("exit").start()
    assert caught.value.stderr == ("first line", "missing --token")
    assert caught.value.next_step


def test_a_program_that_is_no_server(raw):
    with pytest.raises(ServerStartFailed, match=r"exit code 0; its last line was: usage"):
        raw("text").start()


def test_a_server_that_hangs_at_start(raw):
    server = raw("hang")
    with pytest.raises(ServerTimeout) as caught:
        server.start(timeout=0.5)
    assert caught.value.phase == "start"
    eventually(lambda: not exists(server.pid))


def test_a_server_that_only_writes_noise(raw):
    with pytest.raises(ServerFlooded, match="no MCP message") as caught:
        raw("flood").start()
    assert "this is not JSON" in caught.value.stderr[0]


def test_a_banner_is_no_reason_to_give_up(raw):
    with raw("banner") as server:
        assert say(server, "hi") == "hi"
        assert say(server, "chatter") == "chatter"


def test_a_list_that_hangs(raw):
    with raw("listhang") as server, pytest.raises(ServerTimeout) as caught:
        server.list_tools(timeout=0.3)
    assert caught.value.phase == "list"


def test_a_list_that_breaks_the_protocol(raw):
    with raw("badlist") as server:
        with pytest.raises(ToolCallRejected, match="breaks the protocol"):
            server.list_tools()
        assert say(server, "hi") == "hi"


@pytest.mark.usefixtures("patient")
def test_a_slow_call_times_out_and_the_server_stays(raw):
    with raw() as server:
        pid = server.pid
        with pytest.raises(ServerTimeout) as caught:
            say(server, "slow", timeout=0.2)
        assert caught.value.phase == "call"
        assert caught.value.next_step
        assert say(server, "hi") == "hi"
        assert (server.pid, server.restarts) == (pid, 0)


def test_a_hung_call_times_out_and_the_server_is_restarted(raw):
    with raw() as server:
        pid = server.pid
        with pytest.raises(ServerTimeout):
            say(server, "hang", timeout=1.0)
        assert say(server, "hi") == "hi"
        assert server.restarts == 1
        assert server.pid != pid
        assert not exists(pid)


@pytest.mark.parametrize(("word", "how", "code"), [("die", "exit code 7", 7), ("kill", "signal 9", -9)])
def test_a_server_that_dies_in_a_call(raw, word, how, code):
    with raw() as server:
        with pytest.raises(ServerDied, match=how) as caught:
            say(server, word)
        assert caught.value.exit_code == code
        if word == "die":
            assert caught.value.stderr == ("fatal: the disk is on fire \\x1b[31m",)
        assert say(server, "hi") == "hi"
        assert server.restarts == 1


def test_restarts_can_be_refused(raw):
    with raw(auto_restart=False) as server:
        with pytest.raises(ServerDied):
            say(server, "die")
        with pytest.raises(ServerNotRunning, match="hung or died"):
            say(server, "hi")
        server.start()
        assert say(server, "hi") == "hi"


def test_a_server_that_keeps_dying_is_given_up(raw):
    with raw() as server:
        for _ in range(4):
            with pytest.raises(ServerDied):
                say(server, "kill")
        with pytest.raises(ServerNotRunning, match="4 times"):
            say(server, "kill")
        assert server.restarts == 3


def test_an_answer_that_is_too_large(raw):
    with raw() as server:
        pid = server.pid
        with pytest.raises(ToolOutputTooLarge, match="1,000,000 bytes") as caught:
            say(server, "huge")
        assert "limit" in caught.value.next_step
        assert say(server, "hi") == "hi"
        assert server.pid == pid


def test_an_answer_that_never_ends(raw):
    with raw() as server:
        with pytest.raises(ToolOutputTooLarge):
            say(server, "endless", timeout=240)
        with pytest.raises((ServerFlooded, ServerTimeout)):
            say(server, "hi", timeout=240)
        assert say(server, "hi") == "hi"


def test_noise_in_a_call(raw):
    with raw() as server:
        with pytest.raises(ServerFlooded, match="stdout"):
            say(server, "noise", timeout=240)
        assert say(server, "hi") == "hi"


def test_a_long_text_is_cut_and_marked(sdk_server):
    result = sdk_server.call("big", {"size": 5000}, max_bytes=100)
    assert (len(result.text), result.truncated, result.size_bytes) == (100, True, 5000)


@pytest.mark.parametrize(("word", "said"), [("broken", "no valid message"), ("wrong", "breaks the protocol")])
def test_answers_that_are_no_answers(raw, word, said):
    with raw() as server:
        with pytest.raises(ToolCallRejected, match=said):
            say(server, word, timeout=240)
        assert say(server, "hi") == "hi"


def test_a_tool_that_fails_and_a_call_that_is_refused(raw):
    with raw() as server:
        result = server.call("echo", {"text": "fail"})
        assert (result.is_error, result.text) == (True, "no such file")
        with pytest.raises(ToolCallRejected, match=r"unknown tool \\x1b\[2J") as caught:
            say(server, "refuse")
        assert caught.value.code == -32602


def test_arguments_must_be_json(raw):
    with raw() as server, pytest.raises(SchemaRefused):
        server.call("echo", {"text": {1, 2}})


def test_calls_from_many_threads(sdk_server):
    def double(number: int) -> int:
        return sdk_server.call("add", {"a": number, "b": number}).structured["result"]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(double, range(40)))
    assert results == [2 * n for n in range(40)]


@pytest.mark.usefixtures("patient")
def test_cancel_ends_the_wait_and_the_server_stays(raw):
    with raw() as server:
        with once_it_waits(server, server.cancel), pytest.raises(Cancelled):
            say(server, "slow", timeout=240)
        assert say(server, "hi") == "hi"
        assert server.restarts == 0


def test_a_hung_server_is_restarted_after_a_cancel_too(raw):
    with raw() as server:
        with once_it_waits(server, server.cancel), pytest.raises(Cancelled):
            say(server, "hang", timeout=240)
        assert say(server, "hi") == "hi"
        assert server.restarts == 1


def test_a_forked_child_leaves_the_parents_servers_alone(raw):
    with raw() as server:
        child = os.fork()
        if child == 0:
            from nexus_lab.registry import server as module

            module._close_all()
            os._exit(0)
        os.waitpid(child, 0)
        assert say(server, "hi") == "hi"
        assert server.restarts == 0


@pytest.mark.usefixtures("patient")
def test_ctrl_c_ends_the_wait_and_the_server_stays(raw):
    with raw() as server:
        interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), once_it_waits(server, interrupt):
            say(server, "slow", timeout=240)
        assert say(server, "hi") == "hi"


def test_close_during_a_call_ends_the_call(raw):
    server = raw().start()
    with once_it_waits(server, server.close), pytest.raises((ServerNotRunning, ServerDied)):
        say(server, "hang", timeout=240)
    assert not server.running


def test_close_ends_a_server_that_ignores_it(raw):
    server = raw("stubborn").start()
    pid = server.pid
    server.close()
    assert not exists(pid)


def test_close_ends_the_whole_process_group(raw, tmp_path):
    file = tmp_path / "pid"
    server = raw("parent", str(file)).start()
    child = int(file.read_text())
    assert exists(child)
    server.close()
    eventually(lambda: not exists(child))


def test_a_dead_leader_with_a_living_child_is_noticed(raw, tmp_path):
    file = tmp_path / "pid"
    with raw("parent", str(file)) as server:
        child = int(file.read_text())
        with pytest.raises(ServerDied):
            say(server, "die", timeout=240)
        eventually(lambda: not exists(child))


def test_the_end_of_the_interpreter_ends_its_servers():
    script = Path(__file__).parent / "raw_server.py"
    code = (
        "from nexus_lab.registry import McpServer\n"
        f"server = McpServer.stdio('x', {sys.executable!r}, {str(script)!r}).start()\n"
        "print(server.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stderr == ""
    eventually(lambda: not exists(int(done.stdout)))


def test_a_server_gets_few_variables_and_its_own(raw, monkeypatch):
    monkeypatch.setenv("NEXUS_TEST_SECRET", "ours")
    with raw(env={"API_KEY": "sk-verysecret"}) as server:
        environment = json.loads(say(server, "env"))
    assert environment["API_KEY"] == "sk-verysecret"
    assert "PATH" in environment
    assert "NEXUS_TEST_SECRET" not in environment


def test_secrets_do_not_show_in_errors(raw):
    with raw(env={"API_KEY": "sk-verysecret"}) as server, pytest.raises(ServerDied) as caught:
        say(server, "leak")
    assert "the key is ***" in str(caught.value)
    assert "sk-verysecret" not in str(caught.value) + repr(server)


def test_no_process_or_pipe_is_left_behind(raw):
    before = open_files()
    for _ in range(3):
        with raw() as server:
            say(server, "hi")
    gc.collect()
    assert open_files() <= before + 6


def test_the_configuration_decides_about_the_transport():
    assert "http://127.0.0.1:9/mcp" in repr(McpServer.http("h", "http://127.0.0.1:9/mcp"))
    assert McpServer(ServerConfig("s", command="x")).name == "s"
