"""A bundle on disk: its manifest, its tables, and the compaction of a journal into them.

Compaction can be killed anywhere. Each file is replaced whole; a table takes the journal's run in place of
any rows of that run it already has, so doing it again changes nothing; and the journal goes only after the
manifest that no longer needs it is on the disk.
"""

from __future__ import annotations

import io
import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from nexus_lab.paths import atomic_write
from nexus_lab.trace.base import (
    BUNDLE_SUFFIX,
    JOURNAL,
    MANIFEST,
    SCHEMA_VERSION,
    TABLES,
    BundleStatus,
    DamagedSession,
    ForeignSession,
    Manifest,
)
from nexus_lab.trace.fold import Folded, fold_journal
from nexus_lab.trace.journal import read_journal
from nexus_lab.trace.schema import conform, frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexus_lab.trace.base import Run

__all__ = ["Loaded", "compact", "load", "read_manifest", "table_path", "write_manifest", "write_parquet"]

logger = logging.getLogger(__name__)

# Tables up to this size are read and checked when the bundle is opened; larger ones are scanned when used.
_EAGER_BYTES = 64 << 20
_ROW_GROUP = 100_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A bundle as read: its manifest and one LazyFrame per table."""

    manifest: Manifest
    tables: Mapping[str, pl.LazyFrame]


def table_path(bundle: Path, table: str) -> Path:
    """Return the file of `table`."""
    return bundle / f"{table}.parquet"


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """Write `frame` to `path` at once, compressed, with the schema version in its metadata."""
    buffer = io.BytesIO()
    frame.write_parquet(
        buffer,
        compression="zstd",
        row_group_size=_ROW_GROUP,
        metadata={"nexus_schema_version": str(SCHEMA_VERSION)},
    )
    atomic_write(path, buffer.getvalue())


def read_manifest(bundle: Path) -> Manifest | None:
    """Read the manifest; ``None`` when there is none yet.

    Raises
    ------
    SessionError
        When it is foreign, newer, or damaged.
    """
    path = bundle / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedSession(f"{path} cannot be read: {error}", next_step="restore it from a copy") from error
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedSession(f"{path} is not JSON: {error}", next_step="restore it from a copy") from error
    return Manifest.from_dict(values, where=str(bundle))


def write_manifest(bundle: Path, manifest: Manifest) -> None:
    """Replace the manifest."""
    atomic_write(bundle / MANIFEST, (json.dumps(manifest.to_dict(), indent=2, default=str) + "\n").encode())


def load(bundle: Path, *, live: bool = False) -> Loaded:
    """Read the bundle at `bundle` as it stands, its journal included, and write nothing.

    Parameters
    ----------
    live
        Somebody is recording: spans without an end are running, not interrupted.

    Raises
    ------
    SessionError
        When it is missing, foreign, newer, or damaged.
    """
    for _ in range(3):  # a compaction elsewhere may take the journal away while we look at it
        try:
            manifest = read_manifest(bundle)
            folded = _journal(bundle, manifest, live=live)
            tables = {table: _table(bundle, table) for table in TABLES}
        except FileNotFoundError:
            continue
        return _joined(bundle, manifest, folded, tables, live=live)
    raise DamagedSession(f"files of {bundle} vanish while it is read", next_step="open it again")


def _joined(
    bundle: Path,
    manifest: Manifest | None,
    folded: Folded | None,
    tables: dict[str, pl.LazyFrame],
    *,
    live: bool = False,
) -> Loaded:
    if folded is not None:
        status = BundleStatus.RECORDING if folded.live else folded.run.status
        tables = {table: _joined_table(tables[table], folded, table) for table in TABLES}
        return Loaded(_joined_manifest(manifest, folded, status=status), tables)
    if manifest is None:
        raise ForeignSession(
            f"{bundle} holds neither a manifest nor a journal",
            next_step=f"choose a folder that ends in {BUNDLE_SUFFIX}",
        )
    if manifest.status is BundleStatus.RECORDING and not live:  # its journal was lost
        manifest = replace(manifest, status=BundleStatus.RECOVERED)
    return Loaded(manifest, tables)


def _journal(bundle: Path, manifest: Manifest | None, *, live: bool = False) -> Folded | None:
    path = bundle / JOURNAL
    if not path.exists():
        return None
    try:
        return fold_journal(read_journal(path), manifest=manifest, live=live)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedSession(
            f"the journal of {bundle} is not one that this version reads: {type(error).__name__}: {error}",
            next_step=f"open it with the version that wrote it, or delete {JOURNAL} to read the rest",
        ) from error


def _table(bundle: Path, table: str) -> pl.LazyFrame:
    path = table_path(bundle, table)
    if not path.exists():
        return frame_of(table, ()).lazy()
    try:
        eager = path.stat().st_size <= _EAGER_BYTES
        if eager:
            return conform(table, pl.read_parquet(path).lazy()).collect().lazy()
        return conform(table, pl.scan_parquet(path))
    except FileNotFoundError:
        raise
    # Some damage makes polars panic, which is no Exception.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DamagedSession(
            f"table {table!r} of {bundle} cannot be read: {str(error).partition(chr(10))[0]}",
            next_step=f"restore {path.name} from a copy, or delete it to read the rest",
        ) from error


def _joined_table(table: pl.LazyFrame, folded: Folded, name: str) -> pl.LazyFrame:
    """Return `table` with the journal's run in place of what it may already have of it."""
    others = table.filter(pl.col("run") != folded.run.id)
    return pl.concat([others, folded.tables[name].lazy()], how="diagonal")


def _joined_manifest(manifest: Manifest | None, folded: Folded, *, status: BundleStatus) -> Manifest:
    base = manifest or Manifest.from_dict(folded.session, where="the journal")
    run = replace(folded.run, status=status)
    build = _llama_cpp_build(run)
    return replace(
        base,
        status=status,
        runs=(*(other for other in base.runs if other.id != run.id), run),
        notes=tuple(dict.fromkeys((*base.notes, *(f"{run.id}: {note}" for note in folded.notes)))),
        llama_cpp_build=build or base.llama_cpp_build,
    )


def _llama_cpp_build(run: Run) -> str | None:
    """Return the build as the machine's facts state it, else the version of the binding that carries it."""
    versions = run.host.get("versions")
    named = versions if isinstance(versions, dict) else {}
    build = run.host.get("llama_cpp_build") or named.get("llama.cpp")
    binding = named.get("llama-cpp-python")
    return str(build) if build else f"llama-cpp-python {binding}" if binding else None


def compact(bundle: Path) -> Manifest:
    """Move the journal's run into the tables. The caller holds the lock of `bundle`.

    Raises
    ------
    SessionError
        When the bundle is foreign, newer, or damaged; the journal stays.
    OSError
        When the disk cannot be written; the journal stays.
    """
    _sweep(bundle)
    found = read_manifest(bundle)
    folded = _journal(bundle, found)
    loaded = _joined(bundle, found, folded, {table: _table(bundle, table) for table in TABLES})
    if folded is None:
        return _discard_empty_journal(bundle, found, loaded.manifest)
    rows = {}
    for table in TABLES:
        frame = _collect(loaded.tables[table], table, bundle)
        rows[table] = frame.height
        if table != "messages" or frame.height:
            write_parquet(table_path(bundle, table), frame)
    manifest = replace(loaded.manifest, rows=rows)
    write_manifest(bundle, manifest)
    _sync_folder(bundle)
    (bundle / JOURNAL).unlink()
    return manifest


def _collect(table: pl.LazyFrame, name: str, bundle: Path) -> pl.DataFrame:
    try:
        return table.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DamagedSession(
            f"table {name!r} of {bundle} cannot be read: {str(error).partition(chr(10))[0]}",
            next_step="restore it from a copy; the journal was kept",
        ) from error


def _discard_empty_journal(bundle: Path, found: Manifest | None, manifest: Manifest) -> Manifest:
    """Drop a journal whose process died before its first record was whole."""
    (bundle / JOURNAL).unlink(missing_ok=True)
    if manifest != found:
        write_manifest(bundle, manifest)
    return manifest


def _sweep(bundle: Path) -> None:
    """Remove what a killed compaction left half written."""
    for path in bundle.iterdir():
        if path.name.startswith(tuple(f".{name}." for name in (MANIFEST, *(f"{t}.parquet" for t in TABLES)))):
            path.unlink(missing_ok=True)


def _sync_folder(bundle: Path) -> None:
    with suppress(OSError):  # some file systems refuse it
        descriptor = os.open(bundle, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
