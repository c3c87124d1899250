"""``nexus-lab export``: a session in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    session: Annotated[
        Path, typer.Argument(help="A recorded session: NAME.nexus, its zip, or NAME.nexus.json.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="FORM", help="html, otlp, perfetto, csv, parquet or json.")
    ] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Where; beside the session by default. csv and parquet are folders, or a zip when it ends "
            "in .zip.",
        ),
    ] = None,
    contents: Annotated[
        bool,
        typer.Option("--contents", help="Include messages, arguments and results, without known secrets."),
    ] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            "--redact", metavar="PATTERN", help="Regular expression of what is to be removed too; repeat."
        ),
    ] = None,
) -> None:
    """Export a recorded session in another form.

    html is one page for any browser, otlp and perfetto are for other tools' trace viewers, csv and parquet
    are tables, json is one file that the JupyterLab extension opens. Message contents are left out unless
    --contents is given.
    """
    from nexus_lab.cli._output import console, plain, print_written
    from nexus_lab.trace import Redactor, read_session
    from nexus_lab.trace import export as export_session

    # Without contents there is nothing to redact but home folders and what the reader names.
    redactor = Redactor.of(patterns=redact or ()) if contents else Redactor.of(("home",), redact or ())
    recorded = read_session(session)
    path = export_session(recorded, to, out, contents=contents, redactor=redactor)
    print_written(path)
    if contents and not recorded.manifest.contents:
        console.print(plain("contents were not recorded in this session, so there are none in the export"))
