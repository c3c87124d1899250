"""What an export may show: contents only when asked for, and redacted."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.trace.redact import Redactor
from nexus_lab.trace.schema import CONTENT_COLUMNS, JSON_COLUMNS, SCHEMAS, to_json
from nexus_lab.trace.text import from_json
from nexus_lab.trace.tree import SpanTree, build_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.trace.base import Manifest, Run
    from nexus_lab.trace.session import Session

__all__ = ["Selection", "select"]

# Columns whose values are words of ours or identifiers; everything else that is text is redacted.
_OURS = frozenset(
    {"run", "kind", "status", "op", "state_id", "parent_state_id", "decision", "outcome", "tensor", "measure"}
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a session that an export shows.

    Attributes
    ----------
    contents
        Texts of users, models and tools are in it.
    redacted
        Kinds that were removed, now or when it was recorded.
    """

    manifest: Manifest
    tables: Mapping[str, pl.DataFrame]
    contents: bool
    redacted: tuple[str, ...]

    def tree(self) -> SpanTree:
        """Return the spans as a tree."""
        return build_tree(self.tables["events"])


def select(session: Session, *, contents: bool = False, redactor: Redactor | None = None) -> Selection:
    """Return what may be shown of `session`.

    Parameters
    ----------
    contents
        Keep contents, as far as they were recorded.
    redactor
        What to remove from every text, contents or not. ``None`` removes home folders from the manifest and
        nothing else; a redactor without a rule removes nothing at all.
    """
    contents = contents and session.manifest.contents
    tables = {}
    for name, lazy in session.tables.items():
        frame = lazy.collect()
        if not contents:
            frame = _without_contents(name, frame)
        if redactor is not None and redactor.kinds:
            frame = _redacted(name, frame, redactor)
        tables[name] = frame
    kinds = (*session.manifest.redacted, *(redactor.kinds if redactor else ()))
    manifest = _manifest(session.manifest, redactor or Redactor.of(("home",)))
    return Selection(
        manifest=replace(manifest, contents=contents),
        tables=tables,
        contents=contents,
        redacted=tuple(dict.fromkeys(kinds)),
    )


def _without_contents(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    if table == "messages":
        return frame.clear()
    hidden = [name for name in CONTENT_COLUMNS[table] if name in frame.columns]
    # A column that no version of ours wrote could hold anything.
    unknown = [name for name in frame.columns if name not in SCHEMAS[table]]
    return frame.with_columns(pl.lit(None).cast(frame.schema[name]).alias(name) for name in hidden).drop(
        unknown
    )


def _redacted(table: str, frame: pl.DataFrame, redactor: Redactor) -> pl.DataFrame:
    columns: list[pl.Series] = []
    for name, dtype in frame.schema.items():
        if name == "token_ids":
            columns.append(pl.Series(name, [None] * frame.height, dtype=dtype))  # they spell the text
        elif dtype == pl.String and name not in _OURS:
            json_column = name in JSON_COLUMNS.get(table, ())
            columns.append(_redacted_column(frame[name], redactor, parse=json_column))
    return frame.with_columns(columns)


def _redacted_column(column: pl.Series, redactor: Redactor, *, parse: bool) -> pl.Series:
    """Redact each different text once; most columns repeat themselves."""
    known: dict[str | None, str | None] = {None: None}
    for text in column.unique():
        if text is not None:
            known[text] = to_json(redactor.value(from_json(text))) if parse else redactor.text(text)
    return pl.Series(column.name, [known[text] for text in column], dtype=pl.String)


def _manifest(manifest: Manifest, redactor: Redactor) -> Manifest:
    def clean(values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(redactor.value(json.loads(to_json(dict(values)))))

    def run(item: Run) -> Run:
        return replace(
            item,
            note=redactor.text(item.note),
            model=clean(item.model),
            settings=clean(item.settings),
            host=clean(item.host),
        )

    return replace(manifest, runs=tuple(map(run, manifest.runs)))
