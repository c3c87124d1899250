"""A desk over a real engine and a real server process, whose router is told what to choose."""

from __future__ import annotations

from contextlib import contextmanager

from desk_tools import WordEmbedder, raw_config
from told_decision import told_decision

from nexus_lab.lab.desk import DISK_BYTES, Desk
from nexus_lab.lab.driver import wait_for_all
from nexus_lab.registry import McpServer, Registry, Toolbox, ToolSpec
from nexus_lab.routing.base import Outcome
from nexus_lab.settings import Profile


class ToldRouter:
    """Chooses the tool it was told, and says that it escalated when told so."""

    def __init__(self, registry):
        self.registry = registry
        self.tool = "echo"
        self.outcome = Outcome.AUTO

    def configure(self, *, tau, top_k):
        pass

    def route(self, request, context=(), **_options):
        return told_decision(request, self.tool, outcome=self.outcome, used_context=bool(context))


def fixed_spec(text, *, description="Say it again"):
    """The server's tool under a schema that leaves the model no choice of `text`."""
    return ToolSpec(
        name="echo",
        description=description,
        input_schema={
            "type": "object",
            "properties": {"text": {"const": text}},
            "required": ["text"],
            "additionalProperties": False,
        },
        server="raw",
        annotations={"readOnlyHint": True},
        source="test",
    )


@contextmanager
def told_desk(
    engine,
    folder,
    *,
    text="hello",
    contents=True,
    description="Say it again",
    disk_bytes=DISK_BYTES,
    **settings,
):
    """Lend a desk that is ready to be asked; its record goes into `folder`."""
    with McpServer(raw_config()) as server:
        tools = Toolbox([server], Registry.of([fixed_spec(text, description=description)], name="test"))
        desk = Desk(
            engine=engine,
            tools=tools,
            profile=Profile(max_tokens=24, answer_tokens=8, threads=1).changed(**settings),
            session=folder / "here.nexus",
            contents=contents,
            embedder=WordEmbedder(),
            disk_bytes=disk_bytes,
        )
        try:
            settle(desk)
            desk.agent.router = ToldRouter(desk.registry)
            yield desk
        finally:
            desk.close()


def settle(desk):
    """Wait until both lanes have nothing to do."""
    wait_for_all((desk.driver, desk.side))


def ask(desk, text="Say hello"):
    """Ask, and wait for the turn."""
    return desk.ask(text).get()
