"""How a long command says how far it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nexus_lab.cli._output import console
from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["bar", "stage_bar", "told_when_stopped"]


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; gives what is to be told of things done and all of them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def stage_bar(what: str) -> Iterator[Callable[[str, float], None]]:
    """Show a bar while the block runs; gives what is to be told of the stage and the fraction of all done."""
    from nexus_lab.registry import neutralise

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda stage, done: progress.update(task, description=escape(neutralise(stage)), completed=done)


@contextmanager
def told_when_stopped(
    what: str, *, next_step: str = "give the same command again to go on"
) -> Iterator[None]:
    """Turn Ctrl-C into a sentence that says `what` is left of the work, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Cancelled(f"stopped; {what}", next_step=next_step) from error
