"""How the command line prints: one console for text, one for errors, and nothing untrusted as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

    from nexus_lab.errors import NexusError

__all__ = ["console", "plain", "print_error", "print_figures", "print_written"]

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)
_UNBOUNDED = 10_000


def plain(value: object, *, style: str = "", limit: int | None = None) -> Text:
    """Return `value` as text that carries no markup and no terminal control.

    Parameters
    ----------
    limit
        Longest form in characters; what is cut is marked by an ellipsis.
    """
    text = "".join(character if character.isprintable() else " " for character in str(value))
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return Text(text, style=style)


def print_written(path: object) -> None:
    """Say where something was written; the path stays whole, so that it can be copied from a terminal."""
    console.print(plain(f"wrote {path}"), soft_wrap=True)


def print_error(error: NexusError) -> None:
    """Print what went wrong and the next step to standard error."""
    _errors.print(Text("× ", style="red").append_text(plain(error.problem, style="red")))
    if error.next_step:
        _errors.print(Text("  next: ").append_text(plain(error.next_step)))


def print_figures(table: Table) -> None:
    """Print a table whose figures must not be cut.

    Where it is wider than the terminal, each row is printed as a list; what goes to a file or a pipe is as
    wide as it needs to be.
    """
    unbounded = console.options.update(width=_UNBOUNDED)
    needed = Measurement.get(console, unbounded, table).maximum
    if needed <= console.width:
        console.print(table)
    elif console.is_terminal:
        _print_rows(table)
    else:
        Console(highlight=False, width=needed, file=console.file).print(table)


def _print_rows(table: Table) -> None:
    if table.title is not None:
        console.print(table.title, style="bold")
    heads = [column.header for column in table.columns]
    for first, *cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(first, style="bold")
        for head, cell in zip(heads[1:], cells, strict=True):
            console.print(Text("  ").append(f"{head} ", style="dim").append(str(cell)), soft_wrap=True)
