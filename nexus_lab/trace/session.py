"""Reading a recorded session: tables as LazyFrames, spans as a tree, one line per turn."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.trace import archive, bundle
from nexus_lab.trace.base import (
    BUNDLE_SUFFIX,
    JOURNAL,
    SINGLE_FILE_SUFFIX,
    DamagedSession,
    ForeignSession,
    Manifest,
    SessionBusy,
    SessionMissing,
)
from nexus_lab.trace.text import clip, count, duration, number
from nexus_lab.trace.tree import SpanTree, build_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nexus_lab.trace.redact import Redactor

__all__ = ["Session", "read_session", "recover"]


class Session:
    """A recorded session.

    Attributes
    ----------
    path
        Where it was read from.
    manifest
        Model, settings, host, runs, status, notes.
    tables
        LazyFrame per table; `events`, `turns`, `routing`, `ops`, `fidelity`, `drift` and `messages` are also
        attributes. Times are UTC; ``run`` and ``turn`` are in each, ``event`` joins to ``events.id``.
    """

    def __init__(self, path: Path, manifest: Manifest, tables: Mapping[str, pl.LazyFrame]) -> None:
        self.path = path
        self.manifest = manifest
        self.tables = dict(tables)

    @property
    def events(self) -> pl.LazyFrame:
        """Spans: run, turn, id, parent, kind, name, start, duration, status, attributes, contents."""
        return self.tables["events"]

    @property
    def turns(self) -> pl.LazyFrame:
        """One row per finished turn: outcome, tool, schema mode, TTFT, tokens, times, settings, contents."""
        return self.tables["turns"]

    @property
    def routing(self) -> pl.LazyFrame:
        """Routing decisions: candidates with their scores, margin, tau, decision."""
        return self.tables["routing"]

    @property
    def ops(self) -> pl.LazyFrame:
        """Operations of the cache programs: state ids, ranges, positions, totals after each."""
        return self.tables["ops"]

    @property
    def fidelity(self) -> pl.LazyFrame:
        """Splices: D_KL and noise floor in nats, TTFT and prefill in seconds, or why declined."""
        return self.tables["fidelity"]

    @property
    def drift(self) -> pl.LazyFrame:
        """Drift per step, layer and KV head."""
        return self.tables["drift"]

    @property
    def messages(self) -> pl.LazyFrame:
        """The conversation; empty unless contents were recorded."""
        return self.tables["messages"]

    def tree(self, *, run: str | None = None, turn: int | None = None) -> SpanTree:
        """Return the spans as a tree, of one run or turn when asked."""
        events = self.events
        for name, value in (("run", run), ("turn", turn)):
            if value is not None:
                events = events.filter(pl.col(name) == value)
        return build_tree(events.collect())

    def to_frame(self) -> pl.DataFrame:
        """Return one row per turn: what was asked, routed, called, and what it took.

        Turns that never finished are there too, with nulls.
        """
        key = ["run", "turn"]
        spans = self.events.filter(pl.col("kind") == "turn").select(
            *key, pl.col("id").alias("event"), "status", "start", "duration"
        )
        routed = self.routing.group_by(key).agg(
            pl.col("margin", "tau", "decision").sort_by("event").first(),
            pl.col("tool").sort_by("event").first().alias("routed"),
        )
        worst = self.fidelity.group_by(key).agg(pl.col("dkl").max(), pl.col("noise_floor").max())
        said = self.turns.select(*key, pl.exclude(*key, "event"))
        return (
            spans.join(said, on=key, how="left")
            .join(routed, on=key, how="left")
            .join(worst, on=key, how="left")
            .sort("event")
            .collect()
        )

    def export(
        self,
        to: str,
        out: str | Path | None = None,
        *,
        contents: bool = False,
        redactor: Redactor | None = None,
    ) -> Path:
        """Write the session in another form and return where; see `nexus_lab.trace.export`."""
        from nexus_lab.trace.exporters import export

        return export(self, to, out, contents=contents, redactor=redactor)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        turns = self.to_frame()
        manifest = self.manifest
        total = self.events.select(pl.len()).collect().item()
        length = sum(turns["duration"].drop_nulls().to_physical())
        yield (
            f"Session {manifest.name}: {manifest.status}, {count(len(manifest.runs))} run(s), "
            f"{count(turns.height)} turn(s), {count(total)} events, {duration(length)}"
        )
        latest = manifest.latest
        if latest and latest.model.get("name"):
            yield f"model {latest.model['name']}"
        yield from (f"note: {note}" for note in manifest.notes)
        for row in turns.head(20).iter_rows(named=True):
            request = clip(" ".join((row["request"] or "").split()), 60) or "(contents not recorded)"
            margin = f"margin {number(row['margin'])}" if row["margin"] is not None else "no margin"
            yield (
                f"{row['run']} {row['turn'] or '?':>4}  {row['tool'] or row['outcome'] or row['status']}  "
                f"{margin}, {row['decision'] or 'not routed'}, {_length(row)}  {request}"
            )
        if turns.height > 20:  # noqa: PLR2004 - as above
            yield f"… showing first 20 of {count(turns.height)} turns"


def _length(row: Mapping[str, Any]) -> str:
    value = row["duration"]
    return "unfinished" if value is None else duration(value.total_seconds() * 1e9)


def read_session(path: str | Path) -> Session:
    """Open a recorded session: a bundle folder, its zip, or a single-file trace.

    A bundle whose process died is compacted first. One that is being recorded elsewhere is read as it
    stands and never written to, as is one in a folder that cannot be written.

    Parameters
    ----------
    path
        ``name.nexus`` (the suffix may be left out), a zip of it, or ``name.nexus.json``.

    Raises
    ------
    SessionMissing, ForeignSession, NewerSession, DamagedSession
        All of them `SessionError`; each says what to do.

    Examples
    --------
    >>> session = read_session("demo.nexus")  # doctest: +SKIP
    >>> session.routing.filter(pl.col("margin") < 0.01).collect()  # doctest: +SKIP
    """
    path = _find(Path(path).expanduser())
    if path.is_dir():
        loaded = _open_folder(path)
        return Session(path, loaded.manifest, loaded.tables)
    with path.open("rb") as stream:
        head = stream.read(4)
    if head.startswith(b"PK"):
        return _open_zip(path)
    if head.lstrip().startswith(b"{"):
        from nexus_lab.trace.exporters.single import read_single

        manifest, tables = read_single(path)
        return Session(path, manifest, tables)
    raise ForeignSession(
        f"{path} is not a nexus_lab session",
        next_step=f"choose a {BUNDLE_SUFFIX} folder, its zip, or a {SINGLE_FILE_SUFFIX} file",
    )


def recover(path: str | Path) -> Manifest:
    """Compact the journal that a dead process left in the bundle at `path`, and return its manifest.

    Raises
    ------
    SessionBusy
        When the bundle is being recorded.
    SessionError
        When it is missing, foreign, newer, or damaged.
    """
    from nexus_lab.trace.journal import SessionLock

    folder = _find(Path(path).expanduser())
    if not (folder / JOURNAL).exists():
        return bundle.load(folder).manifest
    lock = SessionLock(folder)
    try:
        return bundle.compact(folder)
    finally:
        lock.release()


def _find(path: Path) -> Path:
    for candidate in (path, path.with_name(path.name + BUNDLE_SUFFIX)):
        if candidate.exists():
            return candidate
    raise SessionMissing(
        f"there is no session at {path}", next_step="check the path; a session is a folder NAME.nexus"
    )


def _open_folder(path: Path) -> bundle.Loaded:
    live = False
    try:
        if (path / JOURNAL).exists():
            recover(path)
    except SessionBusy:
        live = True
    except DamagedSession:
        raise
    except OSError:
        pass  # it cannot be written here: read it as it stands
    return bundle.load(path, live=live)


def _open_zip(path: Path) -> Session:
    folder = tempfile.TemporaryDirectory(prefix="nexus-session-")
    try:
        archive.unpack(path, Path(folder.name))
        loaded = bundle.load(Path(folder.name))
        session = Session(path, loaded.manifest, loaded.tables)
    except BaseException:
        folder.cleanup()
        raise
    # Scanned tables need the files for as long as the session is in use.
    weakref.finalize(session, folder.cleanup)
    return session
