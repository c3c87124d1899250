"""Options that several commands have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nexus_lab.errors import NexusError

__all__ = [
    "Context",
    "Flash",
    "Json",
    "Limit",
    "Model",
    "Resume",
    "Threads",
    "Trajectories",
    "Turns",
    "Work",
    "Workers",
    "listed",
    "numbers",
]

Flash = Annotated[bool, typer.Option("--flash-attention", help="Use flash attention.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the results here.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many conversations.")]
Model = Annotated[str, typer.Option(help="bundled, a GGUF file, or hf:owner/repo/file.")]
Threads = Annotated[int | None, typer.Option(help="Threads; the physical cores by default.")]
Trajectories = Annotated[
    Path | None, typer.Option(help="JSON Lines of conversations to splice behind; samples by default.")
]
Turns = Annotated[int | None, typer.Option(min=1, help="Only the first so many replies of each.")]
Resume = Annotated[bool, typer.Option(help="Take up what an earlier run finished.")]
Work = Annotated[
    Path | None, typer.Option(help="Folder of the finished tasks, which the next run goes on from.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes of one thread; the cores by default.")]


class Context(StrEnum):
    """What blocks are compiled behind."""

    NONE = "none"
    SYSTEM = "system"
    TYPICAL = "typical"


def listed(text: str) -> list[str]:
    """Return what stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[int]:
    """Return the numbers between commas.

    Raises
    ------
    NexusError
        When one is none.
    """
    try:
        return [int(part) for part in listed(text)]
    except ValueError as error:
        raise NexusError(
            f"{text!r} is no list of numbers", next_step="write them with commas, such as 256,512"
        ) from error
