"""How the command line prints: one console for text, one for errors, and nothing untrusted as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from nexus_lab.errors import NexusError

__all__ = ["console", "plain", "print_error"]

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


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


def print_error(error: NexusError) -> None:
    """Print what went wrong and the next step to standard error."""
    _errors.print(Text("× ", style="red").append_text(plain(error.problem, style="red")))
    if error.next_step:
        _errors.print(Text("  next: ").append_text(plain(error.next_step)))
