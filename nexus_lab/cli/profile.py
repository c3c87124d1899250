"""``nexus-lab profile``: the named settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from nexus_lab.cli._output import console, plain
from nexus_lab.settings import Profile, list_profiles, load_profile, save_profile

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the stored profiles."""
    for name in list_profiles() or ["default"]:
        console.print(plain(name))


@app.command()
def show(name: Annotated[str, typer.Argument()] = "default") -> None:
    """Show one profile."""
    table = Table(box=None, show_header=False)
    for key, value in load_profile(name).to_dict().items():
        table.add_row(key, plain("calibrated" if key == "tau" and value is None else value))
    console.print(table)


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Profile; made when it does not exist.")],
    settings: Annotated[list[str], typer.Argument(help="KEY=VALUE pairs, for example k=6 tau=0.02")],
) -> None:
    """Change settings and store the profile."""
    base = load_profile(name) if name in list_profiles() else Profile(name=name)
    path = save_profile(base.changed(**dict(_pair(text) for text in settings)))
    console.print(plain(f"stored in {path}"))


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, None if value == "none" else value
