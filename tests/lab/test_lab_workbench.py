"""The widget: in plain Python, and in a real kernel that sends from background threads."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from desk_tools import eventually
from echo_tool import RAW_SERVER

import nexus_lab as nl
from nexus_lab.agent import TurnOutcome
from nexus_lab.errors import NexusError
from nexus_lab.lab import workbench
from nexus_lab.lab.crew import NotReady
from nexus_lab.lab.workbench import UnknownPanel, WidgetNotBuilt, Workbench

TOOLS = [
    {"name": "fetch", "description": "Get <b>", "inputSchema": {"type": "object", "properties": {"url": {}}}}
]


@pytest.fixture(autouse=True)
def _home(nexus_home):
    """The user's own files stay untouched."""


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A front end, so that these tests do not depend on the built one."""
    for name in ("widget.js", "widget.css"):
        (tmp_path / name).write_text("export default { render() {} }")
    monkeypatch.setattr(workbench, "_STATIC", tmp_path)
    workbench._asset.cache_clear()
    yield
    workbench._asset.cache_clear()


def test_without_a_built_front_end_it_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(workbench, "_STATIC", tmp_path)
    workbench._asset.cache_clear()
    with pytest.raises(WidgetNotBuilt) as caught:
        Workbench()
    assert "npm run build" in caught.value.next_step
    workbench._asset.cache_clear()


@pytest.mark.usefixtures("built")
def test_plain_python_can_look_ask_and_write_a_page(tmp_path):
    with pytest.raises(UnknownPanel):
        nl.Workbench(panel="nothing")
    wb = nl.Workbench(registry=TOOLS)
    try:
        wb.wait()
        assert wb.registry.to_frame()["tool"].to_list() == ["fetch"]
        assert wb.routing.name == "routing"
        with pytest.raises(NotReady):
            wb.ask("fetch it")
        assert not wb.stop()
        page = wb.to_html(tmp_path / "page.html").read_text()
        assert "<b>" not in page.replace("<b>Get", "") or "Get &lt;b&gt;" in page
        assert "<script" not in page
        view = wb.panel_view("registry")
        assert "Agent</h2>" not in view.to_html()
        assert (view.panel, view.desk) == ("registry", wb.desk)
    finally:
        wb.close()
    assert not wb.desk.driver._thread.is_alive()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("tools", ["tools.json", Path("tools.json"), [{"name": "fetch"}]])
def test_a_list_of_tools_in_the_place_of_running_servers_is_told_where_it_belongs(tools):
    with pytest.raises(NexusError, match="running servers") as caught:
        Workbench(tools=tools)
    assert "registry=" in caught.value.next_step


@pytest.mark.usefixtures("built")
def test_state_holds_no_bulk_and_the_bundle_has_a_page_for_readers_without_a_kernel():
    wb = Workbench(registry=TOOLS * 1)
    try:
        state = {name: value for name, value in wb.get_state().items() if name not in {"_esm", "_css"}}
        assert len(json.dumps(state, default=str)) < 2000
        assert {"panel", "theme"} <= set(state)
        bundle = wb._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"} <= set(data)
        assert "sandbox" in data["text/html"]
        assert data["text/plain"].startswith("Workbench(")
    finally:
        wb.close()


def test_a_views_message_goes_to_the_shell_it_names_whoever_wrote_last():
    from ipykernel.comm.comm import BaseComm

    from nexus_lab.lab.views import answer_where_asked

    comm = BaseComm(target_name="views", primary=False)
    comm._reply_subshell_id = None  # as after a message that the main shell sent
    assert comm._reply_subshell_for({}, "a subshell") is None, "ipykernel has another way now: look again"
    answer_where_asked(comm)
    comm._reply_subshell_id = None
    assert comm._reply_subshell_for({}, "a subshell") == "a subshell"
    answer_where_asked(None)


@pytest.mark.usefixtures("built")
def test_the_workbench_and_the_status_panel_answer_where_they_are_asked(monkeypatch):
    from nexus_lab.lab import status_comm

    asked = []
    for module in (workbench, status_comm):
        monkeypatch.setattr(module, "answer_where_asked", asked.append)
    comm = SimpleNamespace(on_msg=lambda _f: None, on_close=lambda _f: None, send=lambda *_a, **_k: None)
    status_comm._Office().on_open(comm, {})
    wb = Workbench(registry=TOOLS)
    try:
        assert asked == [comm, wb.comm]
    finally:
        wb.close()


def test_importing_the_package_does_not_import_the_workbench():
    code = (
        "import sys, nexus_lab; assert not [m for m in sys.modules if 'lab.' in m and 'nexus_lab.lab' in m]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
@pytest.mark.usefixtures("built")
def test_a_write_is_refused_unless_somebody_answers(bundled_engine):
    from desk_tools import WordEmbedder, raw_config
    from echo_tool import echo_spec

    from nexus_lab.registry import McpServer, Registry, Toolbox
    from nexus_lab.settings import Profile

    with McpServer(raw_config()) as server:
        spec = echo_spec({"enum": ["hello", "two"]}, read_only=False)
        wb = Workbench(
            bundled_engine,
            Toolbox([server], Registry.of([spec])),
            profile=Profile(max_tokens=24, answer_tokens=8, threads=1),
        )
        wb.desk.router._given = WordEmbedder()
        try:
            wb.wait()
            assert wb.ask("echo hello").outcome is TurnOutcome.REFUSED
            assert wb.ask("echo hello", approve=False).outcome is TurnOutcome.REFUSED
            assert wb.ask("echo hello", approve=True).outcome is TurnOutcome.CALLED
            edited = wb.ask("echo hello", approve=lambda _tool, _arguments: {"text": "two"})
            assert edited.result.text == "two"
            wrong = wb.ask("echo hello", approve=lambda _tool, _arguments: {"text": "three"})
            assert wrong.outcome is TurnOutcome.FAILED
        finally:
            wb.close()


KERNEL_CELL = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, str(Path({tests!r}).parent)]
from desk_tools import WordEmbedder, raw_config
from echo_tool import echo_spec
from nexus_lab.lab import workbench
from nexus_lab.registry import McpServer, Registry, Toolbox
from nexus_lab.settings import Profile
workbench._STATIC = Path({static!r})
server = McpServer(raw_config()).start()
tools = Toolbox([server], Registry.of([echo_spec({{"const": "hello"}}, read_only=False)]))
wb = workbench.Workbench(tools=tools, model="bundled", n_ctx=1024,
                         profile=Profile(max_tokens=24, answer_tokens=8, threads=1))
wb.desk.router._given = WordEmbedder()
wb.wait()
print("COMM " + wb.comm.comm_id)
"""


class Kernel:
    """A kernel with a widget in it, spoken to as a browser would."""

    def __init__(self, client) -> None:
        self.client = client
        self.comm = ""
        self.subshell: str | None = None
        self.got: list[dict] = []

    def send(self, content: dict) -> None:
        data = {"method": "custom", "content": content}
        message = self.client.session.msg("comm_msg", {"comm_id": self.comm, "data": data})
        if self.subshell is not None:
            message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def read(self, until, seconds: float = 240):
        """Take messages, acknowledging each, until one of them pleases."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                raise AssertionError("\n".join(content["traceback"]))
            if message["msg_type"] == "stream":
                said = {"kind": "stream", "text": content["text"]}
            elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "custom":
                said = content["data"]["content"]
                if said["kind"] == "parts":
                    self.send({"kind": "ack", "revision": said["revision"]})
            else:
                continue
            self.got.append(said)
            if until(said):
                return said
        raise AssertionError("it never came")


@pytest.mark.model
def test_a_real_kernel_streams_a_turn_and_takes_an_approval_while_the_cell_waits(tmp_path, nexus_home):
    from jupyter_client.manager import start_new_kernel

    for name in ("widget.js", "widget.css"):
        (tmp_path / name).write_text("export default { render() {} }")
    manager, client = start_new_kernel(
        startup_timeout=240, kernel_name="python3", extra_arguments=[], env=_environment(nexus_home)
    )
    kernel = Kernel(client)
    try:
        client.execute(KERNEL_CELL.format(tests=str(RAW_SERVER.parents[1] / "lab"), static=str(tmp_path)))
        said = kernel.read(lambda m: m["kind"] == "stream" and "COMM" in m["text"])
        kernel.comm = said["text"].split()[-1]
        kernel.send({"kind": "hello"})
        first = kernel.read(lambda m: m["kind"] == "parts")
        assert "agent" in first["parts"]
        kernel.send({"kind": "request", "id": 1, "method": "agent.ask", "params": {"text": "echo hello"}})
        waiting = kernel.read(
            lambda m: m["kind"] == "parts" and m["parts"].get("agent", {}).get("approval") is not None
        )
        assert waiting["parts"]["agent"]["approval"]["tool"] == "echo"
        kernel.send(
            {
                "kind": "request",
                "id": 2,
                "method": "agent.approve",
                "params": {"allow": True, "remember": False},
            }
        )
        kernel.read(lambda m: m["kind"] == "parts" and _state(m) == "called")
        assert {m["id"] for m in kernel.got if m["kind"] == "reply" and m["ok"]} == {1, 2}
        revisions = [m["revision"] for m in kernel.got if m["kind"] == "parts"]
        assert revisions == sorted(set(revisions))
        # A cell that waits for a turn holds the main shell; views then speak on a shell of their own.
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        kernel.subshell = client.get_control_msg(timeout=240)["content"]["subshell_id"]
        kernel.got.clear()
        client.execute("print('TURN ' + wb.ask('echo hello').outcome)")
        kernel.read(lambda m: m["kind"] == "parts" and (m["parts"].get("agent") or {}).get("approval"))
        kernel.send({"kind": "request", "id": 3, "method": "agent.approve", "params": {"allow": False}})
        # Two arguments of print may come as two messages.
        assert "refused" in kernel.read(lambda m: m["kind"] == "stream")["text"]
        client.execute("wb.close(); server.close(); print('CLOSED')")
        kernel.read(lambda m: m["kind"] == "stream" and "CLOSED" in m["text"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    eventually(lambda: not manager.is_alive())


def _state(message: dict) -> str | None:
    turns = message["parts"].get("agent", {}).get("turns")
    return turns[-1]["state"] if turns else None


def _environment(home) -> dict[str, str]:
    import os

    return {**os.environ, "NEXUS_LAB_HOME": str(home)}
