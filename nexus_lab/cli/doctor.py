"""``nexus-lab doctor``: what this machine has, what works here, and what is declined and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nexus_lab.cli._output import console, plain
from nexus_lab.errors import NexusError

__all__ = ["doctor"]

_GIB = 2**30


def doctor(
    folders: Annotated[
        list[Path] | None,
        typer.Option("--models", metavar="FOLDER", help="Look for GGUF files in this folder too; repeat."),
    ] = None,
    n_ctx: Annotated[
        int, typer.Option(min=1, metavar="N", help="Context in tokens for which memory is estimated.")
    ] = 4096,
    *,
    load: Annotated[bool, typer.Option(help="Load the bundled model and say what it declines.")] = True,
) -> None:
    """Say what works here, and what is declined and why.

    Versions, processor features, kernels, the demonstration's servers, and the GGUF files of --models and of
    the Hugging Face cache.
    """
    from nexus_lab.engine import find_models, machine_facts

    for folder in folders or ():
        if not folder.is_dir():
            raise NexusError(f"there is no folder {folder}", next_step="name one that holds GGUF files")

    facts = machine_facts()
    _print_facts(facts)
    _print_models(find_models(folders or ()), n_ctx)
    _print_servers()
    if load:
        _print_declines()


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_facts(facts: dict[str, Any]) -> None:
    table = _table("Machine")
    memory = facts["memory_bytes"]
    for key, value in (
        ("system", f"{facts['system']} {facts['machine']}"),
        ("processor", facts["cpu"]),
        ("cores", f"{facts['cores_physical']} physical, {facts['cores_logical']} usable threads"),
        ("memory", f"{memory / _GIB:.1f} GiB" if memory else "unknown"),
        ("features", ", ".join(facts["cpu_features"])),
        ("scan kernel", f"{facts['scan_kernels'][0]} (of {', '.join(facts['scan_kernels'])})"),
    ):
        table.add_row(key, plain(value))
    for package, version in facts["versions"].items():
        table.add_row(package, plain(version))
    console.print(table)


def _print_models(entries: list[Any], n_ctx: int) -> None:
    table = _table("Models", "model", "file", "memory", "sha256", "status")
    for entry in entries:
        status = f"! {entry.decline.reason}" if entry.decline else "✓ ready"
        memory = (
            f"{entry.memory_estimate_bytes(n_ctx) / _GIB:.2f} GiB at {n_ctx} tokens" if entry.path else ""
        )
        table.add_row(
            plain(entry.name),
            plain(entry.path or "not here"),
            memory,
            plain((entry.sha256 or "")[:12]),
            plain(status),
        )
    console.print(table)


def _print_servers() -> None:
    from nexus_lab.demo.servers import DEMO_SERVERS, missing_servers

    table, missing = _table("Demo servers"), missing_servers()
    for server in DEMO_SERVERS:
        status = "! not installed: run nexus-lab demo --setup" if server in missing else "✓ ready"
        table.add_row(plain(server.package), status)
    console.print(table)


def _print_declines() -> None:
    from nexus_lab.engine import Engine

    table = Table(
        box=None, title="Bundled model", title_justify="left", title_style="bold", show_header=False
    )
    with Engine.load("bundled", n_ctx=512) as engine:
        for feature in ("splice", "shift", "input_patches", "attention_capture"):
            decline = engine.declines.get(feature)
            text = (
                "✓ works"
                if decline is None
                else f"! {decline.code}: {decline.reason}. Instead: {decline.instead}"
            )
            table.add_row(feature.replace("_", " "), plain(text))
    console.print(table)
