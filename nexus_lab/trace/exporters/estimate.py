"""How large an export will be: a part of the session is exported for it, and the rest reckoned."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from nexus_lab.trace.exporters import export
from nexus_lab.trace.selection import select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.trace.redact import Redactor
    from nexus_lab.trace.session import Session

__all__ = ["estimate_size", "size_on_disk"]

_EVENTS = 1200
_WINDOWS = 4
# They do not grow with the session as a part of it does, and are quick to write: a report has its limits, and
# what repeats itself costs Parquet nothing.
_WHOLE = ("html", "parquet")


def estimate_size(
    session: Session,
    to: str,
    *,
    name: str = "export",
    contents: bool = False,
    redactor: Redactor | None = None,
) -> int:
    """Return about how many bytes `nexus_lab.trace.export` would write.

    Of a long session some stretches are exported into a temporary folder, and the rest is taken to be like
    them. A short one, and a form whose size is not in proportion, is written as a whole.

    Parameters
    ----------
    name
        Name of the file or folder, where its ending says which (``.zip``).
    to, contents, redactor
        As for `nexus_lab.trace.export`.

    Raises
    ------
    SessionError
        When the form is unknown.
    """
    from nexus_lab.trace.session import Session

    ids = session.events.select("id").collect()["id"]

    def part(kept: pl.Series) -> Session:
        tables = {
            name: table.filter(pl.col("id" if name == "events" else "event").is_in(kept.implode()))
            for name, table in session.tables.items()
        }
        return Session(session.path, session.manifest, tables)

    def written(of: Session) -> int:
        with tempfile.TemporaryDirectory(prefix="nexus-estimate-") as folder:
            return size_on_disk(export(of, to, Path(folder) / name, contents=contents, redactor=redactor))

    if len(ids) <= _EVENTS or to in _WHOLE:
        return written(session)
    each = _EVENTS // _WINDOWS
    starts = [(len(ids) - each) * window // (_WINDOWS - 1) for window in range(_WINDOWS)]
    sample = part(pl.concat([ids.slice(start, each) for start in starts]))
    empty = written(part(ids.clear()))
    more = _bytes(select(session, contents=contents).tables) / max(
        1, _bytes(select(sample, contents=contents).tables)
    )
    return round(empty + more * (written(sample) - empty))


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return sum(item.stat().st_size for item in files)


def _bytes(tables: Mapping[str, pl.DataFrame]) -> float:
    return sum(frame.estimated_size() for frame in tables.values())
