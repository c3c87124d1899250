"""Trace event JSON for Perfetto and Chrome: slices that nest, moments, and the token counts as a counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.paths import atomic_write
from nexus_lab.trace.schema import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from nexus_lab.trace.selection import Selection
    from nexus_lab.trace.tree import SpanNode

__all__ = ["perfetto_document", "write_perfetto"]

_US = 1e3  # nanoseconds per microsecond, the format's unit


def write_perfetto(selection: Selection, out: Path) -> None:
    """Write `selection` as trace event JSON."""
    atomic_write(out, to_json(perfetto_document(selection), strict=True).encode("utf-8", "replace"))


def perfetto_document(selection: Selection) -> dict[str, Any]:
    """Return the trace event document of `selection`: a process per run, times from the first event on."""
    nodes = sorted(
        (node for _, node in selection.tree().walk()), key=lambda node: (node.start_ns, -node.end_ns, node.id)
    )
    origin = nodes[0].start_ns if nodes else 0
    processes = {run.id: number for number, run in enumerate(selection.manifest.runs, start=1)}
    for node in nodes:
        processes.setdefault(node.run, len(processes) + 1)
    events = list(_process_names(processes, selection.manifest.name))
    tracks: dict[str, _Tracks] = {}
    for node in nodes:
        tracks.setdefault(node.run, _Tracks())
        events.append(_slice(node, processes[node.run], tracks[node.run].place(node), origin))
    for run, used in tracks.items():
        events += _track_names(processes[run], used.count)
    events += _counters(selection.tables["ops"], {(n.run, n.id): n for n in nodes}, processes, origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "session": selection.manifest.name,
            "origin_unix_ns": str(origin),
            "contents": selection.contents,
            "redacted": list(selection.redacted),
        },
    }


class _Tracks:
    """Gives each slice a track on which it nests: its own length must lie inside whatever is open there."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # per track, the ends of the open slices, innermost last

    @property
    def count(self) -> int:
        return len(self._open)

    def place(self, node: SpanNode) -> int:
        """Return the track of `node`; called in order of start, longest first."""
        for track, ends in enumerate(self._open):
            while ends and ends[-1] <= node.start_ns:
                ends.pop()
            if not ends or node.end_ns <= ends[-1]:
                ends.append(node.end_ns)
                return track
        self._open.append([node.end_ns])
        return len(self._open) - 1


def _slice(node: SpanNode, process: int, track: int, origin: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": node.name or node.kind,
        "cat": node.kind,
        "pid": process,
        "tid": track + 1,
        "ts": (node.start_ns - origin) / _US,
        "args": {"id": node.id, "status": node.status, **node.attributes, **node.contents},
    }
    if node.duration_ns == 0 and not node.children:
        return event | {"ph": "i", "s": "t"}
    return event | {"ph": "X", "dur": (node.end_ns - node.start_ns) / _US}


def _process_names(processes: dict[str, int], session: str) -> Iterator[dict[str, Any]]:
    for run, process in processes.items():
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": process,
            "tid": 0,
            "args": {"name": f"{session} {run}"},
        }


def _track_names(process: int, tracks: int) -> Iterator[dict[str, Any]]:
    for track in range(tracks):
        name = "turns" if track == 0 else f"at the same time {track}"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track + 1, "args": {"name": name}}


def _counters(
    ops: pl.DataFrame, nodes: dict[tuple[str, int], SpanNode], processes: dict[str, int], origin: int
) -> Iterator[dict[str, Any]]:
    for row in ops.iter_rows(named=True):
        node = nodes.get((row["run"], row["event"]))
        if node is not None and row["active_tokens"] is not None:
            yield {
                "ph": "C",
                "name": "active tokens",
                "pid": processes[row["run"]],
                "tid": 0,
                "ts": (node.end_ns - origin) / _US,
                "args": {"tokens": row["active_tokens"]},
            }
