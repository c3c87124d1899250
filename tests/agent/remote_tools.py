"""What the tests of remote turns share: the chat server seen from outside, a tool, and a listener."""

from __future__ import annotations

import httpx2

from nexus_lab.registry import ToolSpec

HELLO = 'Say "hello there"'


class Listener:
    """Hears every event."""

    def __init__(self) -> None:
        self.events = []

    def on_event(self, event) -> None:
        self.events.append(event)

    def of(self, kind):
        return [e for e in self.events if e.kind is kind and e.duration_ns is not None]

    def declined(self):
        return [e.attributes["code"] for e in self.events if e.status == "declined"]


class Chat:
    """A chat server in a process of its own, what it was asked, and what it is to say instead."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"

    def log(self) -> list[dict]:
        return httpx2.get(f"{self.root}/log", trust_env=False, timeout=60).json()

    def script(self, *answers: dict) -> None:
        """Forget the log, and say these before the model says anything."""
        httpx2.put(f"{self.root}/script", json=list(answers), trust_env=False, timeout=60)

    def bodies(self) -> list[dict]:
        return [entry["body"] for entry in self.log()]


STYLE = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "loud": {"type": "boolean"}},
    "required": ["colour", "loud"],
    "additionalProperties": False,
}


def styled_spec(*, read_only: bool = True) -> ToolSpec:
    """The server's tool with a second argument, whose parts no conversation settles."""
    return ToolSpec(
        name="echo",
        description="Say it again",
        input_schema={
            "type": "object",
            "properties": {"text": {"type": "string"}, "style": STYLE},
            "required": ["text", "style"],
            "additionalProperties": False,
        },
        server="raw",
        annotations={"readOnlyHint": read_only},
    )
