"""Options that several commands have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "shares",
]

_Number = TypeVar("_Number", int, float)

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
    """Return the whole numbers between commas.

    Raises
    ------
    NexusError
        When one is none.
    """
    return _read(text, int, "256,512")


def shares(text: str) -> list[float]:
    """Return the fractions between commas, from 0 to 1.

    Raises
    ------
    NexusError
        When one is none.
    """
    found = _read(text, float, "0,0.25")
    if not all(0 <= share <= 1 for share in found):
        raise NexusError(f"{text!r} has a share beyond 0 to 1", next_step="write shares such as 0,0.25")
    return found


def _read(text: str, kind: Callable[[str], _Number], example: str) -> list[_Number]:
    try:
        return [kind(part) for part in listed(text)]
    except ValueError as error:
        raise NexusError(
            f"{text!r} is no list of numbers", next_step=f"write them with commas, such as {example}"
        ) from error
