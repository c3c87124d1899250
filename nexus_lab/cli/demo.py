"""``nexus-lab demo``: the whole job once, on the embedded defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nexus_lab.cli._options import Model, Threads
from nexus_lab.cli._output import console, plain

__all__ = ["demo"]

_NARROW = 120


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--out",
            "--output",
            metavar="FOLDER",
            help="Folder for work files, session and report; an earlier demonstration in it goes.",
        ),
    ] = Path("demo-session"),
    model: Model = "bundled",
    threads: Threads = None,
    *,
    shadow: Annotated[bool, typer.Option(help="Measure each splice against a full prefill.")] = True,
    setup: Annotated[
        bool,
        typer.Option("--setup", help="Only check the models and install the servers: once, while online."),
    ] = False,
) -> None:
    """Run the whole job once, and record it.

    Nine requests on MCP servers that others wrote. Prints a row for each, and leaves a session and an HTML
    report in the folder.
    """
    if setup:
        _set_up()
        return
    from nexus_lab.demo.run import run_demo
    from nexus_lab.demo.table import splice_lines, turn_table

    run = run_demo(
        output,
        model=model,
        shadow=shadow,
        threads=threads,
        progress=lambda line: console.print(plain(line, style="dim")),
        on_step=lambda step: console.print(plain(f"{step.turn}", limit=160)),
    )
    if not console.is_terminal or console.width < _NARROW:
        console.width = _NARROW
    console.print()
    console.print(turn_table(run.steps))
    for step in run.steps:
        if step.turn.splice is not None:
            console.print(plain("Splice", style="bold"))
            for line in splice_lines(step.turn.splice):
                console.print(plain(f"  {line}"))
    console.print()
    console.print(plain(f"session  {run.session}"))
    console.print(plain(f"report   {run.report}"))
    console.print(plain(f"{run.seconds:.0f} s in all"))


def _set_up() -> None:
    """Check the bundled models' digests and make the servers' environments."""
    from nexus_lab.demo.servers import install_servers
    from nexus_lab.engine import resolve_model
    from nexus_lab.routing import check_bundled_embedder

    console.print(plain(f"✓ generator {resolve_model('bundled').name}: sha256 as expected"))
    console.print(plain(f"✓ embedder {check_bundled_embedder().name}: sha256 as expected"))
    install_servers(lambda line: console.print(plain(line, style="dim")))
    console.print(plain("✓ demo servers: time, git, sqlite"))
