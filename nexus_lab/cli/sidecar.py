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
    registry: Annotated[Path, typer.Option(help="The tools.")],
    queries: Annotated[
        list[Path] | None, typer.Option(help="JSON Lines of query, context, gold_tool; repeat.")
    ] = None,
    trajectories: Annotated[
        Path | None, typer.Option(help="JSON Lines of conversations; calls right behind a request are cases.")
    ] = None,
    model: Model = "bundled",
    mode: Annotated[str, typer.Option(help="What the model sees of a tool: signature, full.")] = "signature",
    depth: Annotated[int, typer.Option(min=1, max=5, help="Candidates that are tried.")] = 5,
    tau: Annotated[
        float | None, typer.Option(min=0, help="Margin under which a decision is too close; inf tries all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many decisions, evenly chosen.")] = None,
    threads: Threads = None,
    json: Json = None,
    *,
    known: Annotated[bool, typer.Option(help="Use the requests for known tools in the package.")] = True,
    window: Annotated[bool, typer.Option(help="Show the model the turns before the request.")] = True,
    reader: Annotated[bool, typer.Option(help="Ask the cross-encoder first.")] = True,
) -> None:
    """Measure close decisions with and without the sidecar: top-1, paired difference, milliseconds."""
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
