"""How the command line shows a result file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from nexus_lab.cli._options import STDOUT
from nexus_lab.cli._output import plain, print_figures, print_written

if TYPE_CHECKING:
    from pathlib import Path

    from nexus_lab.bench.attention import AttentionStudy
    from nexus_lab.bench.base import ResultFile
    from nexus_lab.bench.cache_report import CacheSweep
    from nexus_lab.bench.policy_search import PolicySearch
    from nexus_lab.bench.splice_report import SpliceSweep

__all__ = ["show_results", "show_sweep"]

_WORDS = 2


def show_results(results: ResultFile, path: Path | None) -> None:
    """Print every result with its interval and n, and write them as JSON when a file is named."""
    table = Table(box=None, title=results.name, title_justify="left", title_style="bold")
    table.add_column("case")
    table.add_column("metric")
    for column in ("value", "95 % interval", "n"):
        table.add_column(column, justify="right")
    for result in results.results:
        case = " ".join(f"{key}={value}" for key, value in result.case.items())
        interval = "" if result.low is None else f"{result.low:.4g} to {result.high:.4g}"
        value = f"{result.value:.4g} {result.unit}".strip()
        table.add_row(plain(case), plain(result.metric), value, interval, str(result.n or ""))
    print_figures(table)
    _write(results, path)


def show_sweep(
    sweep: SpliceSweep | CacheSweep | AttentionStudy | PolicySearch,
    path: Path | None,
    *,
    title: str = "eval splice",
) -> None:
    """Print a sweep as one table, and write every figure with its interval when a file is named."""
    head, rows = sweep.overview()
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < _WORDS else "right")
    for row in rows:
        table.add_row(*map(plain, row))
    print_figures(table)
    _write(sweep.results(), path)


def _write(results: ResultFile, path: Path | None) -> None:
    if path == STDOUT:
        typer.echo(results.to_json(), nl=False)
    elif path is not None:
        results.write(path)
        print_written(path)
