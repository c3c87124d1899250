"""``nexus-lab train-gate``: train the cross-encoder on one's own tools, and calibrate the gate anew."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nexus_lab.cli._output import console, plain, print_written
from nexus_lab.cli._progress import stage_bar, told_when_stopped
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.routing.train_gate import Lesson

__all__ = ["train_gate"]


_ENOUGH = 20


class Part(StrEnum):
    """Which model is trained."""

    READER = "reader"
    EMBEDDER = "embedder"


class Start(StrEnum):
    """What the cross-encoder goes on from."""

    SHIPPED = "shipped"
    EMBEDDER = "embedder"


def train_gate(
    registry: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Tools; repeat, each with its --requests.")
    ],
    requests: Annotated[
        list[str],
        typer.Option(
            metavar="FILE,...",
            help='Requests for these tools, a line each: {"tool", "request"}; "package" for those that come '
            "with it, of which the ones take part whose tools are there.",
        ),
    ],
    kept_apart: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of a registry's tools to leave out, 0 to 1; repeat, in the order of --registry.",
        ),
    ] = None,
    without_server: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave the tools of this server out; repeat.")
    ] = None,
    part: Annotated[
        Part, typer.Option(help="What is trained: the cross-encoder (reader), or the embedder before it.")
    ] = Part.READER,
    start: Annotated[
        Start, typer.Option(help="What the cross-encoder goes on from: the shipped one, or the embedder.")
    ] = Start.SHIPPED,
    minutes: Annotated[
        float, typer.Option(metavar="MINUTES", help="Train for at most so long.", min=0.05)
    ] = 5.0,
    epochs: Annotated[
        float, typer.Option(metavar="TIMES", help="Go over the requests at most so often.", min=0.01)
    ] = 3.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the weights; by default where routers look for yours."
        ),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the cross-encoder here while it is trained."),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Threads; one loses the least on a busy machine.")
    ] = 1,
) -> None:
    """Train the gate's models on your own tools.

    Ctrl-C leaves everything as it was. The weights are used from the next router on. Calibrate the gate
    afterwards: nexus-lab route calibrate.
    """
    import torch

    from nexus_lab.routing.train_gate import train_embedder, train_reader
    from nexus_lab.routing.tune_embedder import EmbedderRecipe
    from nexus_lab.routing.tune_reader import ReaderRecipe

    if len(registry) != len(requests):
        raise NexusError(
            f"{len(registry)} registries and {len(requests)} lists of requests",
            next_step="give --requests once for each --registry",
        )
    torch.set_num_threads(threads)
    lessons = _lessons(registry, requests, kept_apart or [])
    command = shlex.join(["nexus-lab", *(Path(arg).name if "/" in arg else arg for arg in sys.argv[1:])])
    seconds = 60 * minutes
    with (
        told_when_stopped("the weights are as they were", next_step="give the command again"),
        stage_bar("training") as tell,
    ):
        if part is Part.READER:
            trained = train_reader(
                lessons,
                folder=out,
                start=start.value,
                recipe=ReaderRecipe(seconds=seconds, epochs=epochs),
                without_servers=without_server or (),
                checkpoints=checkpoints,
                command=command,
                on_progress=tell,
            )
        else:
            trained = train_embedder(
                lessons,
                folder=out,
                recipe=EmbedderRecipe(seconds=seconds, epochs=epochs),
                without_servers=without_server or (),
                command=command,
                on_progress=tell,
            )
    for learned in trained.card["learned_from"]:
        counts = f"{learned['requests']} requests, {learned['without_tool']} of them without a tool"
        console.print(plain(f"{learned['pool']}: {counts}, {learned['tools']} tools"))
    done = trained.card["done"]
    console.print(plain(f"{done['note']}, in {done['seconds']} s"))
    print_written(trained.path)
    for line in _next(registry, requests, lessons, trained.card["requests_held"]):
        console.print(plain(line), soft_wrap=True)


def _next(registries: list[Path], requests: list[str], lessons: list[Lesson], held: float) -> Iterator[str]:
    """Yield what to do now: the command, and what its figures are worth."""
    from nexus_lab.routing.rows import share_of

    own = [
        (path, [name for name in names.split(",") if name != "package"], lesson)
        for path, names, lesson in zip(registries, requests, lessons, strict=True)
    ]
    path, files, lesson = next((one for one in own if one[1]), (registries[0], [], lessons[0]))
    command = [
        "nexus-lab",
        "route",
        "calibrate",
        "--registry",
        str(path),
        "--pairs",
        *(files or ["FILE"])[:1],
    ]
    if not files:
        yield f"calibrate the gate next, on requests of your own: {shlex.join(command)}"
        return
    count = sum(share_of(str(row["query"])) < held for row in lesson.rows)
    if count >= _ENOUGH:
        yield f"calibrate the gate next, on the {count} requests that were held back from training:"
        yield f"  {shlex.join([*command, '--share', f'{held:g}'])}"
        return
    yield f"calibrate the gate next: {shlex.join(command)}"
    yield (
        f"of these {len(lesson.rows)} requests {count} took no part in training, too few to go by; "
        "others that it has not learned from would tell more"
    )


def _lessons(registries: list[Path], requests: list[str], kept_apart: list[float]) -> list[Lesson]:
    from nexus_lab.registry import load_registry
    from nexus_lab.routing import read_rows
    from nexus_lab.routing.known import package_rows_for
    from nexus_lab.routing.train_gate import Lesson

    lessons = []
    for number, (path, names) in enumerate(zip(registries, requests, strict=True)):
        registry = load_registry(path)
        rows = [
            row
            for name in names.split(",")
            for row in (package_rows_for(registry) if name == "package" else read_rows(Path(name)))
        ]
        share = kept_apart[number] if number < len(kept_apart) else 0.0
        lessons.append(Lesson(registry, rows, share))
    return lessons
