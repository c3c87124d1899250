"""The desk, the registry and the routing panel over files: no model runs here."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest
from desk_tools import Asker, View, WordEmbedder, eventually, raw_config, tool
from echo_tool import RAW_SERVER

from nexus_lab.agent import EventKind
from nexus_lab.arguments import tool_text
from nexus_lab.lab.crew import NotReady
from nexus_lab.lab.desk import Desk
from nexus_lab.lab.driver import wait_for_all
from nexus_lab.lab.routing_book import book_path
from nexus_lab.lab.views import ViewLink
from nexus_lab.lab.wire import BadRequest, UnknownMethod
from nexus_lab.registry import (
    Registry,
    RegistryFormatError,
    ServerConfig,
    ServerStartFailed,
    ToolNotFound,
    connect,
)
from nexus_lab.settings import Profile, SettingsError

LIST = json.dumps([{"name": "now", "description": "Tell the time", "inputSchema": {"type": "object"}}])


@pytest.fixture
def ask(files_desk):
    return Asker(files_desk)


def _servers(*configs) -> str:
    return json.dumps({"mcpServers": {c.name: {"command": c.command, "args": list(c.args)} for c in configs}})


# -- the desk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["nothing", "routing.nothing", "nothing.route", "routing.part", "stop.x", ""]
)
def test_an_unknown_method_is_a_typed_error(ask, method):
    with pytest.raises(UnknownMethod) as caught:
        ask(method)
    assert caught.value.next_step


def test_every_part_is_json_and_every_panel_has_table_and_page(files_desk):
    parts = files_desk.parts(files_desk.part_names)
    assert set(parts) == set(files_desk.part_names)
    json.dumps(parts, allow_nan=False)
    for panel in files_desk.panels.values():
        assert isinstance(panel.to_frame(), pl.DataFrame)
        assert "<script" not in panel.to_html()
        assert repr(panel)


def test_a_part_that_breaks_is_left_out_and_said(files_desk, monkeypatch):
    files_desk.bar.tell("ok", "Something else.")
    with monkeypatch.context() as broken:
        broken.setattr(files_desk.panels["routing"], "part", lambda: 1 / 0)
        parts = files_desk.parts(["routing", "registry"])
        assert set(parts) == {"registry"}
        notice = files_desk.parts(["bar"])["bar"]["notice"]
        assert notice["status"] == "bad"
        assert notice["text"].startswith(
            "Something else. The routing panel cannot be shown as it is now: Zero"
        )
    assert set(files_desk.parts(["routing"])) == {"routing"}
    assert files_desk.parts(["bar"])["bar"]["notice"] == {"status": "ok", "text": "Something else."}


def test_a_part_that_broke_once_comes_by_itself(files_desk, monkeypatch):
    routing = files_desk.panels["routing"]
    make, failures = routing.part, iter([ValueError("one"), ValueError("two")])

    def part():
        if (error := next(failures, None)) is not None:
            raise error
        return make()

    monkeypatch.setattr(routing, "part", part)
    view = View()

    def send(message, buffers):
        view.send(message, buffers)
        view.ack()

    view.link = ViewLink(files_desk, send)
    view.link.receive({"kind": "hello"})
    eventually(lambda: any("routing" in message["parts"] for message in view.parts))
    assert "routing" not in view.parts[0]["parts"]
    eventually(
        lambda: next(m["parts"]["bar"] for m in view.parts[::-1] if "bar" in m["parts"])["notice"] is None
    )
    view.link.close()


def test_a_remark_on_a_turn_stands_in_the_bar(files_desk):
    files_desk.emitter.point(EventKind.STEP, "policy edited", note="mine.py:drop has changed.")
    notice = {"status": "warn", "text": "mine.py:drop has changed."}
    assert files_desk.parts(["bar"])["bar"]["notice"] == notice


def test_a_subscriber_hears_what_changed_until_it_ends(files_desk):
    heard = []
    end = files_desk.subscribe(heard.append)
    files_desk.changed("agent", "bar")
    end()
    files_desk.changed("cache")
    assert heard == [frozenset({"agent", "bar"})]


def test_without_a_model_the_agent_says_what_is_missing(ask, files_desk):
    part = files_desk.parts(["agent"])["agent"]
    assert part["ready"] is False
    assert "model" in part["missing"]
    with pytest.raises(NotReady):
        ask("agent.ask", text="What time is it?")
    assert files_desk.parts(["bar"])["bar"]["engine"] in {"idle", "unloaded"}


def test_settings_change_whole_or_not_at_all(ask, files_desk):
    made = ask("agent.apply", settings={"k": 3, "tau": 0.01, "ask_before": "every", "repair": "none"})
    assert (made["k"], made["ask_before"]) == (3, "every")
    for wrong in ({"k": 2, "top_k": 0}, {"k": 2, "ask_before": "perhaps"}, {"k": 2, "unknown": 1}):
        with pytest.raises((SettingsError, BadRequest)):
            ask("agent.apply", settings=wrong)
    assert (files_desk.profile.k, files_desk.ask_before) == (3, "every")


def test_closing_twice_is_harmless_and_ends_the_threads(nexus_home):  # noqa: ARG001
    desk = Desk(registry=json.loads(LIST), embedder=WordEmbedder())
    desk.close()
    desk.close()
    assert not desk.driver._thread.is_alive()


# -- the registry ------------------------------------------------------------------------------------------


def test_texts_and_files_of_tools_are_added(ask, files_desk, tmp_path):
    assert ask("registry.load_text", text=LIST) == {"added": 1, "problems": []}
    path = tmp_path / "tools.json"
    path.write_text(LIST.replace("now", "later"))
    assert ask("registry.load_file", path=str(path))["added"] == 1
    assert {"now", "later", "fetch"} <= set(files_desk.registry.names)
    assert ask("registry.load_text", text=LIST.replace("now", "soon"))["added"] == 1
    rows = {row["name"]: row["server"] for row in files_desk.parts(["registry"])["registry"]["tools"]}
    assert rows == {
        "list_issues": "files",
        "get_current_time": "files",
        "fetch": "files",
        "now": "pasted",
        "later": "tools",
        "soon": "pasted 2",
    }
    eventually(lambda: files_desk.router is not None and "later" in files_desk.router.index)


@pytest.mark.parametrize("text", ["{broken", "", "[1, 2]", '{"a": 1}', "\x00", "openapi: ["])
def test_a_text_that_is_no_tool_list_is_a_typed_error_and_changes_nothing(ask, files_desk, text):
    before = files_desk.registry.names
    with pytest.raises(RegistryFormatError) as caught:
        ask("registry.load_text", text=text)
    assert caught.value.next_step
    with pytest.raises(RegistryFormatError):
        ask("registry.load_file", path="/nowhere/tools.json")
    assert files_desk.registry.names == before


def test_listing_servers_starts_no_process(ask, files_desk, tmp_path):
    mark = tmp_path / "started"
    touch = ServerConfig("touch", sys.executable, ("-c", f"open({str(mark)!r}, 'w')"))
    listed = ask("registry.list_servers", text=_servers(touch, raw_config()))
    assert [entry["name"] for entry in listed["servers"]] == ["touch", "raw"]
    assert listed["problems"] == []
    bad = ask("registry.list_servers", text='{"mcpServers": {"bad": {"nothing": 1}}}')
    assert bad["servers"] == []
    assert len(bad["problems"]) == 1
    assert "bad" in bad["problems"][0]
    assert all(source.config is None for source in files_desk.sources.all)
    ask("registry.load_text", text=_servers(touch))
    assert files_desk.sources.get("touch").state == "listed"
    assert not mark.exists()


def test_a_chosen_server_starts_and_its_tools_join_and_leave(ask, files_desk):
    with pytest.raises(RegistryFormatError):
        ask("registry.start", text=_servers(raw_config()), names=["other"])
    reply = ask("registry.start", text=_servers(raw_config(), raw_config("unasked")), names=["raw"])
    assert reply == {"added": 1, "problems": []}
    assert files_desk.sources.get("unasked") is None
    assert files_desk.registry["echo"].server == "raw"
    server = files_desk.sources.get("raw").server
    assert server.running
    assert "echo" in files_desk.router.index
    with pytest.raises(RegistryFormatError):
        ask("registry.connect", name="raw", command=f"{sys.executable} {RAW_SERVER}")
    ask("registry.stop", name="raw")
    assert not server.running
    assert "echo" not in files_desk.registry
    assert ask("registry.retry", name="raw")["added"] == 1
    again = files_desk.sources.get("raw").server
    files_desk.close()
    assert not again.running


def test_servers_without_a_name_are_called_by_their_program_each_by_its_own(ask, files_desk):
    for _ in range(2):
        assert ask("registry.connect", name="", command=f"{sys.executable} {RAW_SERVER}")["problems"] == []
    first, second = [source.name for source in files_desk.sources.all if source.server is not None]
    assert second == f"{first}2"
    assert {tool.server for tool in files_desk.registry.of_server(second)} == {second}


def test_a_server_that_fails_shows_its_last_line_and_the_typed_error(ask, files_desk):
    reply = ask("registry.connect", name="bad", command=f"{sys.executable} {RAW_SERVER} exit")
    assert reply["added"] == 0
    assert len(reply["problems"]) == 1
    row = next(row for row in files_desk.parts(["registry"])["registry"]["servers"] if row["name"] == "bad")
    assert row["status"] == "failed"
    assert row["last_line"] == "missing --token"
    assert row["problem"]["type"] == ServerStartFailed.__name__
    assert row["problem"]["next_step"]
    assert "fetch" in files_desk.registry


def test_a_server_that_failed_is_started_with_another_command_and_other_variables(ask, files_desk):
    def row():
        return files_desk.parts(["registry"])["registry"]["servers"][-1]

    ask("registry.connect", name="raw", command=f"{sys.executable} {RAW_SERVER} exit --token hunter22")
    assert row()["status"] == "failed"
    assert "hunter22" not in str(row())
    assert row()["line"].endswith("exit --token '***'")
    with pytest.raises(RegistryFormatError):
        ask("registry.retry", name="raw", env={"A B": "x"})
    with pytest.raises(RegistryFormatError):
        ask("registry.retry", name="raw", line="  ")
    line = row()["line"].replace("exit", "good")
    assert ask("registry.retry", name="raw", line=line, env={"NEXUS_TEST": "s3cret-value"})["added"] == 1
    assert (row()["status"], row()["variables"]) == ("ready", ["NEXUS_TEST"])
    assert "s3cret-value" not in str(row())
    config = files_desk.sources.get("raw").config
    assert config.args[-2:] == ("--token", "hunter22")
    assert config.environment() == {"NEXUS_TEST": "s3cret-value"}
    ask("registry.stop", name="raw")
    ask("registry.retry", name="raw", env={"NEXUS_TEST": None})
    assert files_desk.sources.get("raw").config.env == {}


def test_a_server_that_the_users_toolbox_could_not_start_is_told(nexus_home):  # noqa: ARG001
    tools = connect(raw_config("mute", "exit"), on_failure="record")
    with Desk(tools=tools, embedder=WordEmbedder()) as desk:
        part = desk.parts(["registry"])["registry"]
        (row,) = [row for row in part["servers"] if row["name"] == "mute"]
        assert row["status"] == "failed"
        assert row["problem"]["message"]
        assert any("mute" in item["text"] for item in part["problems"])
        assert "mute" in desk.panels["registry"].to_html()


def test_tools_that_were_left_out_are_listed_with_the_reason(ask, files_desk):
    ask(
        "registry.load_text",
        text='{"tools": [{"description": "no name"}, {"name": "fine", "inputSchema": {}}]}',
    )
    part = files_desk.parts(["registry"])["registry"]
    assert [item["text"] for item in part["problems"]] == ["entry 0: no tool: it has description"]


def test_what_went_wrong_is_in_the_repr_too(nexus_home):  # noqa: ARG001
    with Desk(model="/no/such.gguf", embedder=WordEmbedder()) as desk:
        wait_for_all((desk.driver, desk.side))
        assert "/no/such.gguf" in repr(desk)


def test_stop_ends_the_start_of_a_server_that_says_nothing(ask, files_desk):
    waiting = ask.later("registry.connect", name="mute", command=f"{sys.executable} {RAW_SERVER} hang")
    eventually(lambda: any(server.pid is not None for server in files_desk.crew.starting))
    assert files_desk.parts(["bar"])["bar"]["holder"] == "connecting"
    files_desk.stop()
    assert "stopped" in waiting()["problems"][0]
    assert files_desk.sources.get("mute").state == "stopped"


def test_a_server_that_died_by_itself_shows_as_failed(ask, files_desk):
    ask("registry.connect", name="raw", command=f"{sys.executable} {RAW_SERVER}")
    import os
    import signal

    server = files_desk.sources.get("raw").server
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.running)
    row = files_desk.parts(["registry"])["registry"]["servers"][-1]
    assert (row["status"], row["problem"]["type"]) == ("failed", "ServerDied")
    assert ask("registry.retry", name="raw")["problems"] == []


def test_two_servers_of_one_tool_name_are_both_found(nexus_home):  # noqa: ARG001
    tools = [tool("search", "web", server="web"), tool("search", "files", server="files")]
    with Desk(registry=Registry.of(tools), embedder=WordEmbedder()) as desk:
        ask = Asker(desk)
        names = [row["name"] for row in desk.parts(["registry"])["registry"]["tools"]]
        assert names == ["search", "files.search"]
        assert ask("registry.tool", name="files.search")["description"] == "files"
        with pytest.raises(ToolNotFound):
            ask("registry.tool", name="nothing")


def test_details_show_what_the_model_sees_and_hostile_texts_stay_text(nexus_home):  # noqa: ARG001
    evil = tool("fetch<b>", "<img src=x onerror=alert(1)>\u202e", url={"type": "strange"})
    with Desk(registry=Registry.of([evil]), embedder=WordEmbedder()) as desk:
        detail = Asker(desk)("registry.tool", name="fetch<b>")
        assert detail["schema"] == tool_text(evil, mode="full")
        assert detail["signature"] == tool_text(evil)
        assert detail["schema_tokens"] is None
        assert "<img" not in desk.panels["registry"].to_html()
        row = desk.parts(["registry"])["registry"]["tools"][0]
        assert row["description"] == evil.description
        eventually(lambda: desk.panels["registry"]._facts.checks(evil) != ())


# -- routing -----------------------------------------------------------------------------------------------


def test_the_box_routes_records_and_answers_with_candidates(ask, files_desk):
    row = ask("routing.route", request="use get_current_time in Tokyo", with_conversation=True, top_k=2)
    assert (row.tool, row.decision, row.source) == ("get_current_time", "auto", "box")
    assert len(row.candidates) == 2
    part = files_desk.parts(["routing"])["routing"]
    assert part["decisions"][0]["id"] == row.id
    assert [item["margin"] for item in part["margins"]] == [row.margin]
    assert set(row.times_ms) >= {"embed", "scan", "gate"}


def test_the_gate_of_the_box_is_the_one_applied(ask, files_desk):
    request = "download the page of the repository issues"
    calibrated = ask("routing.route", request=request, with_conversation=False, top_k=3)
    assert calibrated.tau == files_desk.parts(["routing"])["routing"]["calibrated"]
    ask("routing.apply", tau=0.9, top_k=1)
    strict = ask("routing.route", request=request, with_conversation=False)
    assert (strict.tau, len(strict.candidates)) == (0.9, 1)
    assert strict.decision in {"escalation_unavailable", "no_tool"}
    with pytest.raises(SettingsError):
        ask("routing.apply", tau=-1, top_k=1)
    assert files_desk.profile.tau == 0.9
    ask("routing.apply", tau=None, top_k=3)
    assert files_desk.parts(["routing"])["routing"]["tau"] == calibrated.tau


def test_the_page_shows_what_stands_behind_a_decision_and_where_the_gate_comes_from(ask, files_desk):
    ask("routing.route", request="<b>use get_current_time</b> in Tokyo", with_conversation=False)
    html = files_desk.panels["routing"].to_html()
    assert "Behind “&lt;b&gt;use get_current_time&lt;/b&gt; in Tokyo”" in html
    assert "<b>" not in html
    for shown in ("Also counted", "Read, p", "nexus-lab route calibrate", "Told to have no tool", "AUROC"):
        assert shown in html
    (row, *_) = files_desk.panels["routing"].decisions
    assert {"dense", "lexical", "example", "notes", "cross_encoder"} <= set(row.candidates[0])
    assert f"{sum(row.times_ms.values()):.1f} ms: normalise" in html


def test_a_mark_teaches_persists_and_can_be_undone(ask, files_desk):
    request = "what is o'clock over there"
    first = ask("routing.route", request=request, with_conversation=False)
    marked = ask("routing.mark", id=first.id, mark="wrong", right_tool="get_current_time")
    assert (marked.mark, marked.right_tool) == ("wrong", "get_current_time")
    taught = ask("routing.route", request=request, with_conversation=False)
    assert taught.tool == "get_current_time"
    assert taught.candidates[0]["score"] > first.candidates[0]["score"]
    assert ask("registry.tool", name="get_current_time")["examples"] == [request]

    with Desk(registry=files_desk.registry, embedder=WordEmbedder()) as later:
        later.driver.submit("ready", lambda: None).get()
        again = Asker(later)
        part = later.parts(["routing"])["routing"]
        assert part["examples"] == 1
        assert len(part["margins"]) == 2
        assert [item["mark"] for item in part["margins"]] == ["wrong", None]
        assert part["decisions"][0]["request"] == request
        assert again("routing.route", request=request, with_conversation=False).tool == "get_current_time"
        again("routing.unmark", id=first.id)
        assert later.router.examples == ()
        scores = again("routing.route", request=request, with_conversation=False).candidates
        assert scores[0]["score"] == pytest.approx(first.candidates[0]["score"], abs=1e-6)
    text = book_path(files_desk.registry).read_text()
    assert request not in text


def test_two_marks_of_one_request_share_an_example_until_both_are_gone(ask, files_desk):
    rows = [ask("routing.route", request="fetch it", with_conversation=False) for _ in range(2)]
    assert rows[0].tool == "fetch"
    for row in rows:
        ask("routing.mark", id=row.id, mark="right")
    assert files_desk.router.examples == (("fetch", "fetch it"),)
    ask("routing.unmark", id=rows[0].id)
    assert files_desk.router.examples == (("fetch", "fetch it"),)
    ask("routing.mark", id=rows[1].id, mark="wrong", right_tool=None)
    assert files_desk.router.examples == ()
    files_desk.router.check_integrity()


def test_a_mark_teaches_the_tool_of_one_server_whatever_it_is_called_by_later(nexus_home):  # noqa: ARG001
    tools = [tool("search", "Search the web", server="web"), tool("search", "Search files", server="files")]
    request = "where did I put the letter"
    with Desk(registry=Registry.of(tools), embedder=WordEmbedder()) as desk:
        ask = Asker(desk)
        row = ask("routing.route", request=request, with_conversation=False)
        ask("routing.mark", id=row.id, mark="wrong", right_tool="files.search")
        assert desk.router.examples == (("files.search", request),)
        assert ask("registry.tool", name="files.search")["examples"] == [request]
        assert ask("registry.tool", name="search")["examples"] == []
    with Desk(registry=Registry.of(tools[::-1]), embedder=WordEmbedder()) as later:
        ask = Asker(later)
        eventually(lambda: later.router is not None and later.router.examples == (("search", request),))
        assert ask("registry.tool", name="search")["examples"] == [request]
        assert ask("registry.tool", name="web.search")["examples"] == []


def test_a_mark_that_means_nothing_changes_nothing(ask, files_desk):
    row = ask("routing.route", request="fetch it", with_conversation=False)
    for wrong, error in (
        ({"id": "none", "mark": "right"}, BadRequest),
        ({"id": row.id, "mark": "maybe"}, BadRequest),
        ({"id": row.id, "mark": "wrong", "right_tool": "absent"}, ToolNotFound),
    ):
        with pytest.raises(error):
            ask("routing.mark", **wrong)
    assert files_desk.router.examples == ()
    assert files_desk.parts(["routing"])["routing"]["decisions"][0]["mark"] is None


def test_a_broken_book_is_put_aside(nexus_home):  # noqa: ARG001
    registry = Registry.of([tool("fetch", "Download a page")])
    path = book_path(registry)
    path.parent.mkdir(parents=True)
    path.write_text('{"notes": [{"id": 5}]}')
    with Desk(registry=registry, embedder=WordEmbedder()) as desk:
        desk.driver.submit("ready", lambda: None).get()
        assert desk.parts(["routing"])["routing"]["margins"] == []
        Asker(desk)("routing.route", request="fetch it", with_conversation=False)
    assert len(json.loads(path.read_text())["notes"]) == 1
    assert path.with_suffix(".unreadable.json").exists()


def test_decisions_keep_no_request_on_disk_unless_marked(ask, files_desk):
    ask("routing.route", request="my secret wish", with_conversation=False)
    assert "secret" not in book_path(files_desk.registry).read_text()


def test_requests_are_read_from_lines_lists_and_json_lines(ask):
    read = lambda text: ask("routing.read_requests", text=text)["requests"]  # noqa: E731
    assert read("one\n\n two \n") == ["one", "two"]
    assert read('["one", {"query": "two"}, 5]') == ["one", "two"]
    assert read('{"request": "one", "tool": "x"}\n{"request": "two"}') == ["one", "two"]
    assert read("") == []


def test_the_first_request_freezes_nothing(nexus_home):  # noqa: ARG001
    import threading

    gate = threading.Event()

    class Slow(WordEmbedder):
        def embed_documents(self, texts):
            gate.wait(30)
            return super().embed_documents(texts)

    desk = Desk(registry=Registry.of([tool("fetch", "Get it")]), embedder=Slow(), profile=Profile())
    try:
        waiting = Asker(desk).later("routing.route", request="fetch it", with_conversation=False)
        parts = desk.parts(desk.part_names)
        assert parts["bar"]["engine"] in {"busy", "unloaded"}
        assert parts["routing"]["decisions"] == []
        gate.set()
        assert waiting().tool == "fetch"
    finally:
        gate.set()
        desk.close()
