"""``nexus-lab eval sidecar``: what it is worth to let the model try the candidates of a close decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nexus_lab.cli._options import Json, Model, Threads
from nexus_lab.cli._progress import bar
from nexus_lab.cli._results import show_results

__all__ = ["sidecar"]


def sidecar(
    registry: Annotated[Path, typer.Option(metavar="FILE", help="The tools, in any form that is loaded.")],
    queries: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help='Requests, a line each: {"query", "context", "gold_tool"}; repeat.'
        ),
    ] = None,
    trajectories: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Conversations, a line each: {"id", "messages"}; a call right behind a request is a case.',
        ),
    ] = None,
    model: Model = "bundled",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="What the model sees of a tool: signature or full.")
    ] = "signature",
    depth: Annotated[int, typer.Option(min=1, max=5, metavar="N", help="Candidates that are tried.")] = 5,
    tau: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="MARGIN",
            help="Margin under which a decision is too close; calibrated by default, inf tries all.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="At most N close decisions, evenly chosen; all by default."),
    ] = None,
    threads: Threads = None,
    json: Json = None,
    *,
    known: Annotated[bool, typer.Option(help="Use the package's example requests for known tools.")] = True,
    window: Annotated[bool, typer.Option(help="Show the model the turns before the request.")] = True,
    reader: Annotated[bool, typer.Option(help="Let the cross-encoder read close decisions first.")] = True,
) -> None:
    """Measure close decisions with and without the sidecar.

    The sidecar lets the model itself try the candidates. Told are top-1, the paired difference, milliseconds.
    """
    from nexus_lab.bench import sidecar as bench
    from nexus_lab.engine import Engine

    with Engine.load(model, n_ctx=4096, threads=threads) as engine, bar("trying candidates") as tell:
        result = bench.run(
            engine,
            registry,
            queries or (),
            trajectories=trajectories,
            schema_mode=mode,
            depth=depth,
            tau=tau,
            limit=limit,
            known=known,
            windows=window,
            cross_encoder="auto" if reader else None,
            on_progress=tell,
        )
    show_results(result, json)
