"""``nexus-lab bench``: measurements of speed and size."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from nexus_lab.cli._options import Json, Model
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._results import show_results

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def slb(json: Json = None) -> None:
    """Time the INT8 scan of the router beside faiss and numkong.

    The scan gives the best three rows and the margin. Needs the extra bench.
    """
    from nexus_lab.bench import slb as bench

    with console.status("scanning"):
        result = bench.run()
    show_results(result, json)


@app.command()
def signatures(
    registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tools; those of the demonstration by default.")
    ] = None,
    json: Json = None,
) -> None:
    """Count the tokens of signatures beside those of full schemas."""
    from nexus_lab.bench import tokens as bench

    with console.status("counting"):
        result = bench.run(registry)
    show_results(result, json)


@app.command()
def tree(
    programs: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="N", help="Programs in the tree; repeat; 100, 1,000 and 10,000 by default."
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Time the search for cached programs, beside a tree in Python."""
    from nexus_lab.bench import tree as bench

    with console.status("matching"):
        result = bench.run(programs=tuple(programs or bench.PROGRAMS))
    show_results(result, json)


@app.command()
def agent(
    model: Model = "bundled",
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns asked from threads.")] = 200,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Threads that ask them of one engine.")
    ] = 4,
    stops: Annotated[
        int, typer.Option(min=1, metavar="N", help="Turns that are stopped in a long prefill.")
    ] = 20,
    deaths: Annotated[int, typer.Option(min=1, metavar="N", help="Calls whose server is killed.")] = 5,
    session: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of the long session.")] = 30,
    json: Json = None,
) -> None:
    """Put the agent to the test, with the demonstration's servers.

    Threads that ask at once, turns that are stopped, servers that die, and a long session.
    """
    from nexus_lab.bench import agent as bench
    from nexus_lab.demo.tools import demo_tools

    with (
        tempfile.TemporaryDirectory(prefix="nexus-lab-") as folder,
        console.status("starting") as status,
        demo_tools("time", "git", "sqlite", folder=folder) as tools,
    ):
        result = bench.run(
            tools,
            model=model,
            turns=turns,
            threads=threads,
            stops=stops,
            deaths=deaths,
            session=session,
            tell=lambda text: status.update(plain(text)),
        )
    show_results(result, json)


@app.command()
def lab(
    events: Annotated[
        int, typer.Option(min=100, metavar="N", help="Events of the session whose export is opened.")
    ] = 100_000,
    repeats: Annotated[
        int, typer.Option(min=1, metavar="N", help="Times that films and openings are repeated.")
    ] = 5,
    json: Json = None,
) -> None:
    """Time the workbench's views, in a headless Chromium.

    And an HTML export, and what a saved notebook grows by.
    """
    from nexus_lab.bench import lab as bench

    with console.status("measuring") as status:
        result = bench.run(events=events, repeats=repeats, tell=status.update)
    show_results(result, json)
