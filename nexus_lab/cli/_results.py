"""How the command line shows a result file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from nexus_lab.cli._output import console, plain

if TYPE_CHECKING:
    from pathlib import Path

    from nexus_lab.bench.base import ResultFile

__all__ = ["show_results"]


def show_results(results: ResultFile, path: Path | None) -> None:
    """Print every result with its interval and n, and write the file when one is named."""
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
    console.print(table)
    if path is not None:
        results.write(path)
        console.print(plain(f"wrote {path}"))
