"""The single-file trace ``<name>.nexus.json``: a whole session in one JSON object, column by column.

Columns are lists of equal length. Times are nanoseconds since ``origin_ns`` (a decimal text, since a
JavaScript number cannot hold it); lengths are nanoseconds; nested values are lists and objects.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.paths import atomic_write
from nexus_lab.trace.base import FORMAT, TABLES, DamagedSession, ForeignSession, Manifest
from nexus_lab.trace.exporters.tables import exported_manifest
from nexus_lab.trace.schema import JSON_COLUMNS, SCHEMAS, conform, is_flat, to_json
from nexus_lab.trace.text import from_json

if TYPE_CHECKING:
    from pathlib import Path

    from nexus_lab.trace.selection import Selection

__all__ = ["read_single", "write_single"]

_KIND = "single-file trace"
_BAD_VALUES = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def write_single(selection: Selection, out: Path) -> None:
    """Write `selection` as one JSON file."""
    origin = min(selection.tables["events"]["start"].drop_nulls().to_physical(), default=0)
    document = {
        **exported_manifest(selection).to_dict(),
        "kind": _KIND,
        "origin_ns": str(origin),
        "tables": {name: _columns(name, frame, origin) for name, frame in selection.tables.items()},
    }
    atomic_write(out, to_json(document, strict=True).encode("utf-8", "replace"))


def _columns(table: str, frame: pl.DataFrame, origin: int) -> dict[str, list[Any]]:
    columns = {}
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Datetime):
            values: list[Any] = (frame[name].to_physical() - origin).to_list()
        elif isinstance(dtype, pl.Duration):
            values = frame[name].to_physical().to_list()
        elif name in JSON_COLUMNS.get(table, ()):
            values = [from_json(text) for text in frame[name]]
        else:
            values = frame[name].to_list()
        columns[name] = values
    return columns


def read_single(path: Path) -> tuple[Manifest, dict[str, pl.LazyFrame]]:
    """Read a single-file trace.

    Raises
    ------
    ForeignSession, NewerSession, DamagedSession
        When it is not one, is of a later schema, or its tables do not hold together.
    """
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedSession(f"{path} is not JSON: {error}", next_step="fetch it again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("kind") != _KIND:
        raise ForeignSession(f"{path} is JSON, but no nexus_lab trace", next_step="choose a .nexus.json file")
    manifest = Manifest.from_dict(document, where=str(path))
    try:
        origin = int(document["origin_ns"])
        tables = {table: _frame(table, document["tables"].get(table, {}), origin) for table in TABLES}
    except (*_BAD_VALUES, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DamagedSession(
            f"the tables of {path} do not hold together: {type(error).__name__}: {error}",
            next_step="fetch it again",
        ) from error
    return manifest, tables


def _frame(table: str, columns: dict[str, list[Any]], origin: int) -> pl.LazyFrame:
    series = []
    for name, values in columns.items():
        dtype = SCHEMAS[table].get(name)
        if name in JSON_COLUMNS.get(table, ()):
            texts = [None if value is None else to_json(value) for value in values]
            series.append(pl.Series(name, texts, dtype=pl.String))
        elif not all(map(is_flat, values)):
            raise ValueError(f"{name} of {table} holds a value that is nested without end")
        elif isinstance(dtype, pl.Datetime):
            series.append((pl.Series(name, values, dtype=pl.Int64) + origin).cast(dtype))
        elif isinstance(dtype, pl.Duration):
            series.append(pl.Series(name, values, dtype=pl.Int64).cast(dtype))
        else:
            series.append(pl.Series(name, values, dtype=dtype, strict=dtype is not None))
    return conform(table, pl.DataFrame(series).lazy()) if series else pl.LazyFrame(schema=SCHEMAS[table])
