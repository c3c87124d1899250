"""Options that several commands have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nexus_lab.cli._output import console
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "STDOUT",
    "Adapter",
    "Context",
    "Flash",
    "Json",
    "Limit",
    "Model",
    "PriceList",
    "Resume",
    "Talks",
    "Threads",
    "Trajectories",
    "Turns",
    "Work",
    "Workers",
    "json_option",
    "listed",
    "numbers",
    "shares",
]

_Number = TypeVar("_Number", int, float)

STDOUT = Path("-")
"""What names standard output in place of a file."""


def _apart(context: typer.Context, path: Path | None) -> Path | None:
    """Leave standard output to the JSON where it goes there: tables and words go to standard error."""
    if path == STDOUT:
        console.stderr = True
        context.call_on_close(lambda: setattr(console, "stderr", False))
    return path


def json_option(about: str) -> Any:
    """Return the option ``--json FILE``, which means the same wherever it stands."""
    # A folder would be found out when all had been measured.
    return typer.Option("--json", metavar="FILE", dir_okay=False, callback=_apart, help=about)


Adapter = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="GGUF file of a LoRA adapter that runs with the model; none by default."
    ),
]
Flash = Annotated[
    bool,
    typer.Option("--flash-attention", help="Use flash attention; attention rows cannot be captured with it."),
]
Json = Annotated[
    Path | None, json_option("Write every figure here, with n, its interval and the machine; - prints them.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Only the first N conversations; all by default.")
]
Model = Annotated[
    str, typer.Option(metavar="MODEL", help="bundled, a GGUF file, or hf:owner/repo/file.gguf.")
]
PriceList = Annotated[
    str,
    typer.Option(
        metavar="NAME=PRICE,...",
        help="Prices of a token prefilled or decoded, a KV cell attended or scanned, and a cell of the "
        "peak; by default prefilled=1,decoded=4,attended=0.0005,scanned=0,peak=0.",
    ),
]
Talks = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help='Conversations, a line each: {"id", "messages": [{"role", "content", "tool_calls"}]}.',
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Threads; the physical cores by default.")
]
Trajectories = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='Conversations to splice behind, a line each: {"id", "messages": [{"role", "content"}]}; '
        "samples by default.",
    ),
]
Turns = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Only the first N replies of each conversation; all by default."),
]
Resume = Annotated[bool, typer.Option(help="Go on from the tasks that an earlier run finished.")]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep the finished tasks here, for later runs as well; in the package's cache by default.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes, of one thread each; as many as cores by default."),
]


SomeTools = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Tools; by default a few that come with the package.")
]
ForcedCalls = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='Calls that are forced as the answer, a line each: {"query", "gold_tool", "gold_args"}; '
        "by default made of the schemas.",
    ),
]


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
