"""Options that several commands have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Context", "Flash", "Json", "Model", "Threads", "Trajectories", "Workers"]

Flash = Annotated[bool, typer.Option("--flash-attention", help="Use flash attention.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the results here.")]
Model = Annotated[str, typer.Option(help="bundled, a GGUF file, or hf:owner/repo/file.")]
Threads = Annotated[int | None, typer.Option(help="Threads; the physical cores by default.")]
Trajectories = Annotated[
    Path | None, typer.Option(help="JSON Lines of conversations to splice behind; samples by default.")
]
Workers = Annotated[int | None, typer.Option(help="Processes of one thread; the cores by default.")]


class Context(StrEnum):
    """What blocks are compiled behind."""

    NONE = "none"
    SYSTEM = "system"
    TYPICAL = "typical"
