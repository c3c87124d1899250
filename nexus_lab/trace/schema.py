"""The tables of a bundle: their columns, which of them hold contents, and how typed rows become them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.agent.base import (
    DriftFrame,
    FidelityRow,
    MessageRow,
    OpRow,
    RoutingRow,
    TurnRow,
    content_fields,
)
from nexus_lab.trace.base import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.agent.base import Row

__all__ = [
    "CONTENT_COLUMNS",
    "JSON_COLUMNS",
    "SCHEMAS",
    "conform",
    "frame_of",
    "is_flat",
    "row_from_json",
    "row_to_json",
    "table_row",
    "to_json",
]

_RANGES = pl.List(pl.Struct({"start": pl.Int64, "stop": pl.Int64}))
_CANDIDATES = pl.List(
    pl.Struct(
        {
            "tool": pl.String,
            "score": pl.Float64,
            "dense": pl.Float64,
            "lexical": pl.Float64,
            "cross_encoder": pl.Float64,
            "view": pl.String,
            "sidecar": pl.Float64,
        }
    )
)
_TIMES = pl.List(pl.Struct({"stage": pl.String, "ms": pl.Float64}))
# Every table begins with these: the run, the turn (null outside turns), the event that carried the row.
_KEY: dict[str, Any] = {"run": pl.String, "turn": pl.Int64, "event": pl.Int64}

SCHEMAS: dict[str, dict[str, Any]] = {
    "events": {
        "run": pl.String,
        "turn": pl.Int64,
        "id": pl.Int64,
        "parent": pl.Int64,
        "kind": pl.String,
        "name": pl.String,
        "start": pl.Datetime("ns", "UTC"),
        "duration": pl.Duration("ns"),
        "status": pl.String,
        "attributes": pl.String,
        "contents": pl.String,
    },
    "turns": _KEY
    | {
        "outcome": pl.String,
        "tool": pl.String,
        "server": pl.String,
        "request": pl.String,
        "answer": pl.String,
        "arguments": pl.String,
        "result": pl.String,
        "result_is_error": pl.Boolean,
        "problem": pl.String,
        "schema_mode": pl.String,
        "ttft_s": pl.Float64,
        "prompt_tokens": pl.Int64,
        "reused_tokens": pl.Int64,
        "generated_tokens": pl.Int64,
        "times_ms": _TIMES,
        "settings": pl.String,
    },
    "routing": _KEY
    | {
        "query": pl.String,
        "candidates": _CANDIDATES,
        "margin": pl.Float64,
        "tau": pl.Float64,
        "decision": pl.String,
        "tool": pl.String,
        "reason": pl.String,
        "times_ms": _TIMES,
        "settings": pl.String,
    },
    "ops": _KEY
    | {
        "op": pl.String,
        "state_id": pl.String,
        "parent_state_id": pl.String,
        "tokens": pl.Int64,
        "ranges": _RANGES,
        "positions": _RANGES,
        "active_tokens": pl.Int64,
        "logical_tokens": pl.Int64,
        "next_position": pl.Int64,
        "block": pl.String,
        "anchored": pl.Boolean,
        "note": pl.String,
        "token_ids": pl.List(pl.Int32),
    },
    "fidelity": _KEY
    | {
        "path": pl.String,
        "block": pl.String,
        "tool": pl.String,
        "n_past": pl.Int64,
        "n_tokens": pl.Int64,
        "repaired": pl.Int64,
        "strategy": pl.String,
        "budget": pl.Float64,
        "contract": pl.String,
        "dkl": pl.Float64,
        "noise_floor": pl.Float64,
        "top1": pl.Float64,
        "top5_overlap": pl.Float64,
        "n_positions": pl.Int64,
        "ttft_s": pl.Float64,
        "prefill_s": pl.Float64,
        "decline_code": pl.String,
        "decline_reason": pl.String,
        "decline_instead": pl.String,
    },
    "drift": _KEY
    | {
        "step": pl.Int32,
        "label": pl.String,
        "tensor": pl.String,
        "measure": pl.String,
        "layer": pl.UInt16,
        "head": pl.UInt16,
        "value": pl.Float32,
    },
    "messages": _KEY
    | {
        "role": pl.String,
        "text": pl.String,
        "tool": pl.String,
        "call_id": pl.String,
        "arguments": pl.String,
        "n_tokens": pl.Int64,
    },
}

ROW_TYPES: dict[str, type[Any]] = {
    row.table: row for row in (RoutingRow, OpRow, FidelityRow, DriftFrame, MessageRow, TurnRow)
}

CONTENT_COLUMNS: dict[str, frozenset[str]] = {
    "events": frozenset({"contents"}),
    **{table: content_fields(row) for table, row in ROW_TYPES.items()},
}

JSON_COLUMNS: dict[str, frozenset[str]] = {
    "events": frozenset({"attributes", "contents"}),
    "turns": frozenset({"arguments", "settings"}),
    "routing": frozenset({"settings"}),
    "messages": frozenset({"arguments"}),
}

assert set(SCHEMAS) == set(TABLES)  # noqa: S101 - two lists of one thing


def to_json(value: object, *, strict: bool = False) -> str:
    """Return `value` as compact JSON; arrays and records become lists and objects.

    Parameters
    ----------
    strict
        Write NaN and infinities as null, as JSON proper wants; otherwise as Python's JSON does.
    """
    try:
        return _dumps(value, allow_nan=not strict)
    except ValueError:
        if not strict:
            raise
        return _dumps(_finite(value), allow_nan=False)  # rare, and dear: it rebuilds the whole value


def _dumps(value: object, *, allow_nan: bool) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain, allow_nan=allow_nan)


def _plain(value: Any) -> Any:
    for name in ("tolist", "isoformat"):  # numpy scalars and arrays; dates
        if hasattr(value, name):
            return getattr(value, name)()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if hasattr(value, "keys"):
        return {str(key): value[key] for key in value}
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return _finite(_plain(value))


def row_to_json(row: Row, *, contents: bool) -> dict[str, Any]:
    """Return `row` for the journal, with its content fields dropped unless `contents`."""
    hidden = frozenset() if contents else CONTENT_COLUMNS[row.table]
    values = {name: getattr(row, name) for name in type(row).__dataclass_fields__ if name not in hidden}
    return {"table": row.table, **values}


def row_from_json(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return table name and fields of a row as the journal holds it; the name is empty when unknown."""
    fields = dict(values)
    table = str(fields.pop("table", ""))
    return (table if table in ROW_TYPES else ""), fields


def table_row(table: str, key: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table row of one journal row; drift frames have their own way."""
    values: dict[str, Any] = {name: fields.get(name) for name in SCHEMAS[table] if name not in key}
    for name in JSON_COLUMNS.get(table, ()):
        values[name] = None if values[name] is None else to_json(values[name])
    if table == "fidelity":
        values.update(_decline_columns(fields.get("decline")))
    for name in ("ranges", "positions"):
        if name in values:
            values[name] = [{"start": start, "stop": stop} for start, stop in values[name] or ()]
    if "times_ms" in values:
        values["times_ms"] = [{"stage": stage, "ms": ms} for stage, ms in (values["times_ms"] or {}).items()]
    return {**key, **values}


def _decline_columns(decline: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"decline_{name}": (decline or {}).get(name) for name in ("code", "reason", "instead")}


def conform(table: str, frame: pl.LazyFrame) -> pl.LazyFrame:
    """Give `frame` every column that `table` has today; columns that it does not know stay at the end.

    Raises
    ------
    polars.exceptions.PolarsError
        When a column cannot be read as the type that it has today.
    """
    found = frame.collect_schema()
    columns = [
        (pl.col(name) if name in found else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in SCHEMAS[table].items()
    ]
    extra = [pl.col(name) for name in found if name not in SCHEMAS[table]]
    return frame.select(*columns, *extra)


def frame_of(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Build the table from `rows`; a value of the wrong type becomes null, so that it costs itself only."""
    schema = SCHEMAS[table]
    return pl.DataFrame(
        [_column(name, dtype, [row.get(name) for row in rows]) for name, dtype in schema.items()]
    )


def is_flat(value: object, *, levels: int = 4) -> bool:
    """Whether `value` is nested as little as any column needs; polars takes for ever over one without end."""
    if not isinstance(value, list | tuple | dict):
        return True
    parts = value.values() if isinstance(value, dict) else value
    nested = [part for part in parts if isinstance(part, list | tuple | dict)]
    return levels > 0 and all(is_flat(part, levels=levels - 1) for part in nested)


def _column(name: str, dtype: Any, values: Sequence[Any]) -> pl.Series:
    values = [value if is_flat(value) else None for value in values]
    try:
        return pl.Series(name, values, dtype=dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [_value(value, dtype) for value in values], dtype=dtype, strict=False)


def _value(value: Any, dtype: Any) -> Any:
    """Return `value` where `dtype` can hold it, else null."""
    try:
        return pl.Series([value], dtype=dtype, strict=False).item()
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None
