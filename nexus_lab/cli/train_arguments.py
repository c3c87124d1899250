"""``nexus-lab train-arguments``: train an adapter that fills in the calls of one's own tools."""

from __future__ import annotations

import hashlib
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nexus_lab.cli._options import Model, Threads
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._progress import stage_bar, told_when_stopped

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nexus_lab.bench.argument_exercises import Exercise
    from nexus_lab.registry import Registry

__all__ = ["train_arguments"]


class Mode(StrEnum):
    """How a tool is shown."""

    SIGNATURE = "signature"
    FULL = "full"


def train_arguments(
    cases: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help='Requests with their calls, a line each: {"query", "gold_tool", "gold_args"}; half of them, '
            "by a hash, is kept apart, as in nexus-lab eval arguments; repeat.",
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The tools; not needed where the cases bring their own."),
    ] = None,
    sessions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="NAME", help="Session with contents: its approved and corrected calls count; repeat."
        ),
    ] = None,
    model: Model = "bundled",
    minutes: Annotated[
        float, typer.Option(metavar="MINUTES", help="Train for at most so long.", min=0.01)
    ] = 30.0,
    epochs: Annotated[
        float, typer.Option(metavar="TIMES", help="Go over the requests at most so often.", min=0.01)
    ] = 4.0,
    rank: Annotated[
        int, typer.Option(metavar="N", help="Inner width of each pair of matrices.", min=1, max=256)
    ] = 8,
    rate: Annotated[
        float, typer.Option(metavar="RATE", help="Learning rate at its height.", min=1e-7, max=1.0)
    ] = 1e-3,
    first_layer: Annotated[
        int, typer.Option(metavar="N", help="Leave the layers below it as they are, which is faster.", min=0)
    ] = 0,
    mode: Annotated[Mode, typer.Option(help="What the model sees of a tool.")] = Mode.SIGNATURE,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the adapter; by default one in the package's data folder."
        ),
    ] = None,
    threads: Threads = None,
    *,
    swaps: Annotated[bool, typer.Option(help="Tell the requests again with other names and numbers.")] = True,
) -> None:
    """Train a LoRA adapter for arguments, on a CPU.

    It is written as GGUF, with a card beside it. Ctrl-C keeps the best adapter so far. Try it:
    nexus-lab eval arguments --adapter FILE. In a turn that it runs in, its word also counts where the
    conversation leaves several calls close, as much as was best on rows that it has not learned from.
    """
    from nexus_lab.arguments.tune_adapter import AdapterRecipe
    from nexus_lab.bench import train_arguments as training
    from nexus_lab.registry import load_registry

    tools = load_registry(registry) if registry is not None else None
    learned, apart = _exercises(cases or [], sessions or [], tools)
    recipe = AdapterRecipe(
        rank=rank,
        alpha=2 * rank,
        learning_rate=rate,
        first_layer=first_layer,
        seconds=60 * minutes,
        epochs=epochs,
    )
    files = [*(cases or []), *([registry] if registry is not None else [])]
    words = ["nexus-lab", *(Path(one).name if "/" in one else one for one in sys.argv[1:])]
    with (
        told_when_stopped("nothing was better than no adapter yet, so none was written"),
        stage_bar("training") as tell,
    ):
        trained = training.train_arguments(
            learned,
            apart=apart,
            model=model,
            folder=out,
            recipe=recipe,
            mode=mode.value,
            swaps=swaps,
            threads=threads,
            sources={file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
            command=shlex.join(words),
            on_progress=tell,
        )
    _tell(trained.path, trained.card)


def _exercises(
    cases: list[Path], sessions: list[Path], tools: Registry | None
) -> tuple[list[Exercise], list[Exercise]]:
    """Return what is learned from, and what is kept apart."""
    from nexus_lab.bench.argument_cases import read_cases
    from nexus_lab.bench.argument_exercises import exercises_of, recorded
    from nexus_lab.errors import NexusError
    from nexus_lab.trace import read_session

    if not cases and not sessions:
        raise NexusError("there is nothing to learn from", next_step="give --cases, or --sessions, or both")
    if sessions and tools is None:
        raise NexusError("a session does not hold its tools' schemas", next_step="give them with --registry")
    found = [case for file in cases for case in read_cases(file, tools)]
    learned, apart = exercises_of(found, apart=False), exercises_of(found, apart=True)
    for path in sessions:
        learned += recorded(read_session(path), tools) if tools is not None else ()
    return learned, apart


def _tell(path: Path, card: Mapping[str, Any]) -> None:
    done, apart, learned = card["done"], card["rows_kept_apart"], card["learned_from"]
    lines = [f"{learned['rows']} requests, {done['rows']} rows read in {done['seconds']:.0f} s"]
    if not done["finished"]:
        lines.append("stopped; the best adapter so far is kept")
    lines.append(f"loss on {learned['rows_held']} held rows: {done['held'][0]} to {min(done['held'])}")
    if "with" in apart and apart["with"]["rows"]:
        count, share = apart["with"]["rows"], apart["with"]["answers"]
        without = apart["without"]["answers"]
        lines.append(
            f"answers right to the last token, of {count} kept apart: {share:.0%}, without it {without:.0%}"
        )
    if card["scoring"] is not None:
        weight = card["scoring"]["likelihood"]
        lines.append(f"its word on calls that the evidence leaves close counts {max(weight, 0.0):.3f}")
    lines += [
        f"wrote {path}, {card['bytes'] / 1e6:.1f} MB",
        f"try it: nexus-lab eval arguments --adapter {shlex.quote(str(path))} --cases …",
    ]
    for line in lines:
        console.print(plain(line), soft_wrap=True)
