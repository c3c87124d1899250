"""The command tree."""

from __future__ import annotations

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
from nexus_lab.cli.train_gate import train_gate

__all__ = ["app"]

app = typer.Typer(
    name="nexus-lab",
    help="Watch, steer and measure an agent's tool routing and KV cache on local models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("export")(export.export)
app.command("train-gate")(train_gate)
app.command("doctor")(doctor.doctor)
app.command("policies")(policies.policies)
evaluate.app.command("cache")(cache.cache)
evaluate.app.command("attention")(cache.attention)
evaluate.app.command("sidecar")(sidecar.sidecar)
app.add_typer(registry.app, name="registry", help="Show, check and extend a registry of tools.")
app.add_typer(route.app, name="route", help="Route requests to tools; calibrate the gate.")
app.add_typer(blocks.app, name="blocks", help="Compile, list, check and remove the blocks of tools.")
app.add_typer(profile.app, name="profile", help="Show and change the named settings.")
app.add_typer(evaluate.app, name="eval", help="Measure quality: routing, arguments, splice, cache.")
app.add_typer(search.app, name="search", help="Look for better settings by trying them: cache policies.")
app.add_typer(benchmark.app, name="bench", help="Measure speed: the scan, the signatures, the workbench.")
