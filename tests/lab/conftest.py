"""Desks over the real model and a real server process."""

from __future__ import annotations

import pytest
from desk_tools import Asker, WordEmbedder, raw_config, tool
from echo_tool import echo_spec

from nexus_lab.lab.desk import Desk
from nexus_lab.registry import McpServer, Registry, Toolbox
from nexus_lab.settings import Profile


@pytest.fixture
def make_desk(bundled_engine, nexus_home):  # noqa: ARG001 - the user's own home stays untouched
    """Make desks whose one tool is called with the text given; everything ends with the test.

    The router finds the tool by its name, so a request says "echo". `make.ask(desk)` sends requests as a view
    does.
    """
    made: list[Desk] = []
    server = McpServer(raw_config())
    server.start()

    def make(text: str | dict = "hello", *, read_only: bool = True, session=None, registry=None, **settings):
        schema = {"const": text} if isinstance(text, str) else text
        tools = Toolbox([server], Registry.of([echo_spec(schema, read_only=read_only)], name="test"))
        desk = Desk(
            engine=bundled_engine,
            tools=tools,
            registry=registry,
            profile=Profile(max_tokens=24, answer_tokens=8, threads=1).changed(**settings),
            session=session,
            embedder=WordEmbedder(),
        )
        made.append(desk)
        desk.driver.submit("ready", lambda: None).get()
        return desk

    make.ask = Asker
    yield make
    for desk in made:
        desk.close()
    server.close()


@pytest.fixture
def files_desk(nexus_home):  # noqa: ARG001 - the user's own home stays untouched
    """A desk over tools of a list: no model, no server, no torch."""
    registry = Registry.of(
        [
            tool("list_issues", "List the issues of a repository.", state={"enum": ["open", "closed"]}),
            tool("get_current_time", "Tell the time in a timezone.", timezone={"type": "string"}),
            tool("fetch", "Download a web page as text.", url={"type": "string"}),
        ],
        name="files",
    )
    desk = Desk(registry=registry, embedder=WordEmbedder(), profile=Profile(threads=1))
    desk.driver.submit("ready", lambda: None).get()
    yield desk
    desk.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Two runs: the whole story, and its first four turns again."""
    from run_tools import record

    path = record(tmp_path_factory.mktemp("runs") / "story")
    return record(path, through=4, append=True, parent="r-001", note="fork of r-001")
