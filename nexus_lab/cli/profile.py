"""``nexus-lab profile``: the named settings."""

from __future__ import annotations

import inspect
import json
import re
from typing import Annotated, Any

import typer
from rich.table import Table

from nexus_lab.cli._output import console, plain
from nexus_lab.settings import Profile, SettingsError, list_profiles, load_profile, save_profile

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

_YES_NO = {"yes": True, "no": False}
# What is meant where these are not set; elsewhere "none" is a value like any other.
_UNSET = {"tau": "calibrated", "threads": "physical cores", "turn_seconds": "no limit"}
_ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*)\n(?P<text>(?: {4}.*\n?)+)", re.MULTILINE)


@app.command("list")
def list_() -> None:
    """List the profiles."""
    for name in sorted({"default", *list_profiles()}):
        console.print(plain(name))


@app.command()
def show(name: Annotated[str, typer.Argument(help="Profile.")] = "default") -> None:
    """Show the settings of a profile, and what each of them is."""
    table, meanings = Table(box=None, show_header=False, pad_edge=False), _meanings()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    for key, value in load_profile(name).to_dict().items():
        table.add_row(key, plain(_written(key, value)), plain(meanings.get(key, "")))
    console.print(table)


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Profile; made when it does not exist.")],
    settings: Annotated[list[str], typer.Argument(help="KEY=VALUE pairs, for example k=6 tau=0.02.")],
) -> None:
    """Change settings of a profile, and store it.

    nexus-lab profile show tells what settings there are. Quote what has brackets:
    'schema_mode=splice(paper)'. tau=none goes back to the calibrated one.
    """
    base = load_profile(name) if name in list_profiles() else Profile(name=name)
    path = save_profile(base.changed(**dict(_pair(text) for text in settings)))
    console.print(plain(f"stored in {path}"))


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = (part.strip() for part in text.partition("="))
    if not separator:
        raise SettingsError(f"{text!r} is not KEY=VALUE", next_step="write a setting such as tau=0.02")
    if value in _YES_NO or (key in _UNSET and value == "none"):
        return key, _YES_NO.get(value)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _written(key: str, value: object) -> object:
    """Return the value as `set` takes it, or what is meant where nothing is set."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _UNSET.get(key, "none") if value is None else value


def _meanings() -> dict[str, str]:
    """Return what each setting is, as its class documents it."""
    entries = inspect.cleandoc(Profile.__doc__ or "").partition("Attributes\n----------\n")[2]
    return {
        name: " ".join(entry["text"].replace("`", "").replace("None", "none").split())
        for entry in _ENTRY.finditer(entries)
        for name in entry["names"].split(", ")
    }
