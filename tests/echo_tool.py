"""A real server that a test can make misbehave, and its tool under a schema of the test's own."""

from __future__ import annotations

from pathlib import Path

from nexus_lab.registry import ToolSpec

RAW_SERVER = Path(__file__).parent / "registry" / "raw_server.py"


def echo_spec(text: dict, *, read_only: bool = True) -> ToolSpec:
    """The server's tool under a schema that leaves the model no choice of `text`."""
    return ToolSpec(
        name="echo",
        description="Say it again",
        input_schema={
            "type": "object",
            "properties": {"text": text},
            "required": ["text"],
            "additionalProperties": False,
        },
        server="raw",
        annotations={"readOnlyHint": read_only},
        source="test",
    )
