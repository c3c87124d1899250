"""Tables for other tools: CSV files, or a bundle of its own in Parquet; a folder, or a zip by its name."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from nexus_lab.paths import atomic_write
from nexus_lab.trace import archive, bundle
from nexus_lab.trace.base import BUNDLE_SUFFIX, MANIFEST, Manifest, SessionError
from nexus_lab.trace.schema import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.trace.selection import Selection

__all__ = ["write_bundle", "write_csv"]


def write_bundle(selection: Selection, out: Path) -> None:
    """Write a bundle that `read_session` opens, with the selection's tables."""
    with _folder(out, prefix=f"{selection.manifest.name}{BUNDLE_SUFFIX}/") as folder:
        for table, frame in selection.tables.items():
            if table != "messages" or frame.height:
                bundle.write_parquet(bundle.table_path(folder, table), frame)
        bundle.write_manifest(folder, exported_manifest(selection))


def write_csv(selection: Selection, out: Path) -> None:
    """Write one CSV file per table and the manifest; nested values are JSON, times ISO, lengths in ns."""
    with _folder(out, prefix=f"{selection.manifest.name}-csv/") as folder:
        for table, frame in selection.tables.items():
            atomic_write(folder / f"{table}.csv", _flat(frame).write_csv().encode())
        text = json.dumps(exported_manifest(selection).to_dict(), indent=2, default=str)
        atomic_write(folder / MANIFEST, text.encode())


def exported_manifest(selection: Selection) -> Manifest:
    """Return the manifest of an export: what it holds, and what was removed."""
    return replace(
        selection.manifest,
        redacted=selection.redacted,
        rows={table: frame.height for table, frame in selection.tables.items()},
    )


@contextmanager
def _folder(out: Path, *, prefix: str) -> Iterator[Path]:
    """Give a folder to fill; it appears at `out` only when it is whole."""
    if out.exists() and (out.is_dir() != (out.suffix != ".zip") or _foreign(out)):
        raise SessionError(f"{out} exists and is no earlier export", next_step="name another place")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        yield folder
        if out.suffix == ".zip":
            archive.pack(folder, out, prefix=prefix)
            return
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)


def _foreign(out: Path) -> bool:
    """Tell whether `out` is a folder that an export must not replace."""
    if not out.is_dir():
        return False
    names = {item.name for item in out.iterdir()}
    ours = {MANIFEST, *(f"{table}{suffix}" for table in _tables() for suffix in (".csv", ".parquet"))}
    return not names <= ours


def _tables() -> tuple[str, ...]:
    from nexus_lab.trace.base import TABLES

    return TABLES


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    columns = []
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.List | pl.Struct):
            texts = [None if value is None else to_json(_plain(value), strict=True) for value in frame[name]]
            columns.append(pl.Series(name, texts, dtype=pl.String))
        elif isinstance(dtype, pl.Duration):
            columns.append(frame[name].to_physical())
        elif isinstance(dtype, pl.Datetime):
            columns.append(frame[name].dt.strftime("%Y-%m-%dT%H:%M:%S%.9fZ"))
        else:
            columns.append(frame[name])
    return pl.DataFrame(columns)


def _plain(value: object) -> object:
    return value.to_list() if isinstance(value, pl.Series) else value
