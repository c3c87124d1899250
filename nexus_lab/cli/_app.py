"""The command tree."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from nexus_lab.cli import (
    benchmark,
    blocks,
    cache,
    demo,
    doctor,
    evaluate,
    export,
    policies,
    profile,
    registry,
    route,
    run,
    search,
    sidecar,
)
from nexus_lab.cli.train_arguments import train_arguments
from nexus_lab.cli.train_gate import train_gate

__all__ = ["app"]

# Below this the boxes of a styled help leave too few columns for the words, and cut names of options.
_BOXED = 112

app = typer.Typer(
    name="nexus-lab",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= _BOXED else None,
    epilog="Exit codes: 0 done, 1 something was found wrong or a request had a problem, 2 it could not be "
    "done, 130 stopped by Ctrl-C. Errors go to standard error, with the next step.",
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from nexus_lab import __version__

        typer.echo(f"nexus-lab {__version__}")
        raise typer.Exit


@app.callback()
def nexus_lab(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Watch, steer and measure an agent's tool routing and KV cache on local models.

    Begin with nexus-lab doctor, then nexus-lab demo --setup and nexus-lab demo. The workbench opens in a
    notebook: import nexus_lab as nl; nl.Workbench().
    """


app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("export")(export.export)
app.command("train-gate")(train_gate)
app.command("train-arguments")(train_arguments)
app.command("doctor")(doctor.doctor)
app.command("policies")(policies.policies)
evaluate.app.command("cache")(cache.cache)
evaluate.app.command("attention")(cache.attention)
evaluate.app.command("sidecar")(sidecar.sidecar)
app.add_typer(registry.app, name="registry", help="Show, check and extend a registry of tools.")
app.add_typer(route.app, name="route", help="Route requests to tools; calibrate the gate.")
app.add_typer(blocks.app, name="blocks", help="Compile, list, check and remove the blocks of tools.")
app.add_typer(profile.app, name="profile", help="Show and change the named settings.")
app.add_typer(evaluate.app, name="eval", help="Measure quality, with intervals and beside baselines.")
app.add_typer(search.app, name="search", help="Look for better cache policies by trying them.")
app.add_typer(benchmark.app, name="bench", help="Measure speed and size, and put the agent to the test.")
