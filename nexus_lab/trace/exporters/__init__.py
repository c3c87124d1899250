"""Exports of a session: each made from the bundle, so that an old one can be exported anew."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from nexus_lab.trace.base import BUNDLE_SUFFIX, SINGLE_FILE_SUFFIX, SessionError
from nexus_lab.trace.redact import Redactor
from nexus_lab.trace.selection import Selection, select

if TYPE_CHECKING:
    from nexus_lab.trace.session import Session

__all__ = ["Exporter", "Target", "export"]


class Target(StrEnum):
    """Forms that a session can be exported to."""

    HTML = "html"
    OTLP = "otlp"
    PERFETTO = "perfetto"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


class Exporter(Protocol):
    """Writes a selection to a path."""

    def __call__(self, selection: Selection, out: Path) -> None:
        """Write `selection` to `out`."""


_WRITERS = {
    Target.HTML: ("nexus_lab.trace.report", "write_html"),
    Target.OTLP: ("nexus_lab.trace.exporters.otlp", "write_otlp"),
    Target.PERFETTO: ("nexus_lab.trace.exporters.perfetto", "write_perfetto"),
    Target.CSV: ("nexus_lab.trace.exporters.tables", "write_csv"),
    Target.PARQUET: ("nexus_lab.trace.exporters.tables", "write_bundle"),
    Target.JSON: ("nexus_lab.trace.exporters.single", "write_single"),
}
_SUFFIXES = {
    Target.HTML: ".html",
    Target.OTLP: ".otlp.json",
    Target.PERFETTO: ".perfetto.json",
    Target.CSV: ".csv.zip",
    Target.PARQUET: f".export{BUNDLE_SUFFIX}",
    Target.JSON: SINGLE_FILE_SUFFIX,
}


def export(
    session: Session,
    to: str,
    out: str | Path | None = None,
    *,
    contents: bool = False,
    redactor: Redactor | None = None,
) -> Path:
    """Write `session` in the form `to` and return where.

    Parameters
    ----------
    to
        ``html`` (one self-contained file), ``otlp`` (OTLP JSON with GenAI conventions), ``perfetto`` (trace
        event JSON), ``csv`` or ``parquet`` (a folder, or a zip when `out` ends in ``.zip``), ``json`` (the
        single-file trace).
    out
        Where; beside the session by default.
    contents
        Include what users, models and tools wrote, if it was recorded.
    redactor
        What is removed from every text. With contents, everything that `Redactor` knows is removed unless
        another redactor is given; `Redactor.of(())` removes nothing.

    Raises
    ------
    SessionError
        When the form is unknown, or `out` cannot be written.
    """
    try:
        target = Target(to)
    except ValueError as error:
        raise SessionError(
            f"nothing is known as {to!r} to export to", next_step="choose " + ", ".join(Target)
        ) from error
    path = Path(out).expanduser() if out is not None else _beside(session, target)
    if contents and redactor is None:
        redactor = Redactor.of()
    module, name = _WRITERS[target]
    writer = cast("Exporter", getattr(import_module(module), name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(select(session, contents=contents, redactor=redactor), path)
    except OSError as error:
        raise SessionError(
            f"{path} cannot be written: {error.strerror or error}", next_step="name another place with --out"
        ) from error
    return path


def _beside(session: Session, target: Target) -> Path:
    name = session.path.name
    for suffix in (SINGLE_FILE_SUFFIX, f"{BUNDLE_SUFFIX}.zip", BUNDLE_SUFFIX, ".zip"):
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    return session.path.with_name(name + _SUFFIXES[target])
