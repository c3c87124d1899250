"""An agent over a real server process, with a router that is told what to choose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from echo_tool import RAW_SERVER, echo_spec
from remote_tools import Chat, styled_spec
from told_router import ToldRouter

from nexus_lab.agent import Agent, Endpoint, RemoteAgent
from nexus_lab.registry import McpServer, Registry, ServerConfig, Toolbox
from nexus_lab.settings import Profile
from nexus_lab.splice import BlockLibrary


@pytest.fixture
def make_agent(bundled_engine, tmp_path):
    """Make agents whose one tool is called with the text given; everything ends with the test."""
    made: list[Agent] = []
    server = McpServer(ServerConfig("raw", sys.executable, (str(RAW_SERVER),)))
    server.start()

    def make(
        text: str | dict = "hello",
        *,
        read_only: bool = True,
        approve=None,
        observers=(),
        disk=None,
        **settings,
    ):
        schema = {"const": text} if isinstance(text, str) else text
        tools = Toolbox([server], Registry.of([echo_spec(schema, read_only=read_only)], name="test"))
        agent = Agent(
            bundled_engine,
            tools,
            router=ToldRouter(),
            profile=Profile(max_tokens=24, answer_tokens=8).changed(**settings),
            observers=observers,
            approve=approve,
            library=BlockLibrary(bundled_engine, tmp_path / "blocks"),
            disk=disk,
        )
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.close()
    server.close()


@pytest.fixture(scope="session")
def chat_process():
    script = Path(__file__).parent / "chat_server.py"
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield Chat(int(process.stdout.readline()))
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def chat(chat_process):
    """The chat server, with nothing asked yet."""
    chat_process.script()
    return chat_process


@pytest.fixture
def make_remote(chat):
    """Make agents on the chat server; the model's name says how that behaves."""
    server = McpServer(ServerConfig("raw", sys.executable, (str(RAW_SERVER),)))
    server.start()

    def make(
        model: str = "smol", *, spec=None, observers=(), approve=None, timeout_s=60.0, key=None, **settings
    ):
        tools = Toolbox([server], Registry.of([spec or styled_spec()], name="test"))
        return RemoteAgent(
            Endpoint(chat.url, model, timeout_s=timeout_s, key_variable=key),
            tools,
            router=ToldRouter(),
            profile=Profile(max_tokens=64, answer_tokens=8).changed(**settings),
            observers=observers,
            approve=approve,
        )

    yield make
    server.close()
