"""From journal records to tables: the last word on each span, the turn it belongs to, its rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.agent.base import Event, EventKind, Status
from nexus_lab.trace.base import TABLES, BundleStatus, Run
from nexus_lab.trace.schema import SCHEMAS, frame_of, is_flat, row_from_json, row_to_json, table_row, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexus_lab.trace.base import Manifest
    from nexus_lab.trace.journal import JournalRecords

__all__ = ["Folded", "event_record", "fold_journal", "run_record"]


def run_record(run: Run, session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record that opens a journal: the run, and what the manifest says of its session."""
    return {"type": "run", "run": asdict(run), "session": dict(session)}


def event_record(event: Event, *, contents: bool) -> dict[str, Any]:
    """Return the record of `event`, without its contents unless `contents`."""
    record: dict[str, Any] = {
        "type": "event",
        "id": event.id,
        "parent": event.parent,
        "kind": str(event.kind),
        "name": event.name,
        "start": event.start_ns,
        "duration": event.duration_ns,
        "status": str(event.status),
    }
    if event.attributes:
        record["attributes"] = dict(event.attributes)
    if contents and event.contents:
        record["contents"] = dict(event.contents)
    rows = [row_to_json(row, contents=contents) for row in event.rows if contents or row.table != "messages"]
    if rows:
        record["rows"] = rows
    return record


@dataclass(frozen=True, slots=True)
class Folded:
    """A journal's run as tables.

    Attributes
    ----------
    run
        Complete when the journal says so, otherwise recovered.
    session
        The manifest as it stood when the run began.
    live
        The run goes on elsewhere.
    """

    run: Run
    session: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...]
    live: bool


def fold_journal(
    journal: JournalRecords, *, manifest: Manifest | None = None, live: bool = False
) -> Folded | None:
    """Turn the records of one run into tables; ``None`` when nothing says whose they are.

    Parameters
    ----------
    manifest
        Of the bundle; knows the run that is being recorded, should the record that opens the journal be
        damaged.
    """
    run, session = _opening(journal.records, manifest)
    if run is None:
        return None
    live = live and run.status is not BundleStatus.COMPLETE
    spans = _last_words(journal.records)
    turns = _turn_numbers(spans)
    unended = str(Status.RUNNING if live else Status.INTERRUPTED)
    events = [_event_row(run.id, turns.get(span["id"]), span, unended) for span in spans.values()]
    tables, unreadable = _row_tables(run.id, spans, turns)
    return Folded(
        run=run,
        session=session,
        tables={"events": frame_of("events", events), **tables},
        notes=() if live else (*journal.notes, *_notes(events, unreadable)),
        live=live,
    )


def _notes(events: Iterable[Mapping[str, Any]], unreadable: int) -> Iterable[str]:
    interrupted = sum(event["duration"] is None for event in events)
    if interrupted:
        yield f"{interrupted} span{'s were' if interrupted > 1 else ' was'} open when the process ended"
    if unreadable:
        yield f"{unreadable} row{'s' if unreadable > 1 else ''} of a form that no table has, dropped"


def _row_tables(
    run: str, spans: Mapping[int, Mapping[str, Any]], turns: Mapping[int, int]
) -> tuple[dict[str, pl.DataFrame], int]:
    rows: dict[str, list[dict[str, Any]]] = {
        table: [] for table in TABLES if table not in ("events", "drift")
    }
    drift: list[pl.DataFrame] = []
    unreadable = 0
    for span in spans.values():
        key = {"run": run, "turn": turns.get(span["id"]), "event": span["id"]}
        for values in span.get("rows", ()):
            table, fields = row_from_json(values)
            try:
                if table == "drift":
                    drift.append(_drift_frame(key, fields))
                else:
                    rows[table].append(table_row(table, key, fields))
            except (KeyError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError):
                unreadable += 1
    tables = {table: frame_of(table, rows[table]) for table in rows}
    return {**tables, "drift": pl.concat([frame_of("drift", ()), *drift])}, unreadable


def _opening(
    records: Sequence[Mapping[str, Any]], manifest: Manifest | None
) -> tuple[Run | None, Mapping[str, Any]]:
    """Return the run with everything later records said about it, and the session's part."""
    run: Run | None = None
    session: Mapping[str, Any] = {}
    if records and manifest and manifest.latest and manifest.latest.status is BundleStatus.RECORDING:
        run, session = replace(manifest.latest, status=BundleStatus.RECOVERED), manifest.to_dict()
    for record in records:
        kind = record.get("type")
        if kind == "run":
            run = replace(Run.from_dict(record["run"]), status=BundleStatus.RECOVERED)
            session = record["session"]
        elif kind == "describe" and run is not None:
            known = {name: record[name] for name in ("model", "settings", "host", "note") if name in record}
            run = replace(run, **known)
        elif kind == "end" and run is not None:
            run = replace(run, status=BundleStatus.COMPLETE, ended=record["ended"])
    return run, session


def _last_words(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the newest record of each span, in the order the spans opened."""
    spans: dict[int, dict[str, Any]] = {}
    for record in records:
        if record.get("type") == "event":
            spans[record["id"]] = dict(record)
    return dict(sorted(spans.items()))


def _turn_numbers(spans: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Return each span's turn number: what the turn says itself, else its place in the order."""
    numbers: dict[int, int] = {}
    count = 0
    for span in spans.values():
        if span["kind"] == EventKind.TURN:
            said = span.get("attributes", {}).get("turn")
            count = said if isinstance(said, int) else count + 1
            numbers[span["id"]] = count
        elif span["parent"] in numbers:  # ids ascend, so a parent has been seen before its children
            numbers[span["id"]] = numbers[span["parent"]]
    return numbers


def _event_row(run: str, turn: int | None, span: Mapping[str, Any], unended: str) -> dict[str, Any]:
    return {
        "run": run,
        "turn": turn,
        "id": span["id"],
        "parent": span["parent"],
        "kind": span["kind"],
        "name": span["name"],
        "start": span["start"],
        "duration": span["duration"],
        "status": unended if span["duration"] is None else span["status"],
        "attributes": to_json(span.get("attributes", {})),
        "contents": to_json(span["contents"]) if span.get("contents") else None,
    }


def _drift_frame(key: Mapping[str, Any], fields: Mapping[str, Any]) -> pl.DataFrame:
    """Return one drift frame, layers x heads, in the long form."""
    if not is_flat(fields):
        raise ValueError("the frame is nested without end")
    heads = [len(row) for row in fields["values"]]
    columns = {
        **{name: [value] * sum(heads) for name, value in key.items()},
        **{name: [fields.get(name)] * sum(heads) for name in ("step", "label", "tensor", "measure")},
        "layer": [layer for layer, count in enumerate(heads) for _ in range(count)],
        "head": [head for count in heads for head in range(count)],
        "value": [value for row in fields["values"] for value in row],
    }
    return pl.DataFrame(columns, schema=SCHEMAS["drift"], strict=False)
