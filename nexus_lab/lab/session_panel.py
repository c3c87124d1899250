"""The Session panel: runs, what differs between two of them, exports, imports and replays."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nexus_lab.agent import EventKind, Status
from nexus_lab.agent.base import FidelityRow
from nexus_lab.lab.adapter_words import named_with
from nexus_lab.lab.compare import Comparison, compare_runs
from nexus_lab.lab.fork import ask_in_turn, profile_changes
from nexus_lab.lab.imports import TranscriptError, free_path, import_transcript, read_text
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.session_runs import Catalogue, LiveRun, RunRow, policy_name, stem_of
from nexus_lab.lab.wire import BadRequest, Lane, job
from nexus_lab.paths import shown_path
from nexus_lab.trace import Redactor, SessionError, estimate_size, export
from nexus_lab.trace.base import BUNDLE_SUFFIX, JOURNAL, SINGLE_FILE_SUFFIX
from nexus_lab.trace.exporters.estimate import size_on_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from nexus_lab.agent import Event, Turn
    from nexus_lab.lab.desk import Desk
    from nexus_lab.trace import Session

__all__ = ["SessionPanel"]

T = TypeVar("T")
_TARGETS = (
    ("parquet", "Bundle, Parquet", "polars, everything"),
    ("json", "Single-file trace", "opens in Lab, no kernel"),
    ("otlp", "OTLP JSON", "Phoenix, Jaeger"),
    ("perfetto", "Perfetto JSON", "ui.perfetto.dev"),
    ("html", "HTML, self-contained", "read-only, no network"),
    ("csv", "CSV tables", "spreadsheets"),
)
_SUFFIXES = {
    "parquet": BUNDLE_SUFFIX,
    "json": SINGLE_FILE_SUFFIX,
    "otlp": ".otlp.json",
    "perfetto": ".perfetto.json",
    "html": ".html",
    "csv": ".csv.zip",
}


class SessionPanel(Panel):
    """Lists the runs of the session's folder; nothing in it is ever overwritten."""

    name = "session"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._catalogue = Catalogue()
        self._live = LiveRun()
        self._last_event: float | None = None
        self._started: str | None = None
        self._settings: dict[str, Any] = {}
        self._note = ""
        self._in_turn = False
        self._refresh_later()

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the runs, as ``SessionPart`` of the wire."""
        recorder = self.desk.recorder
        since = None if self._last_event is None else time.monotonic() - self._last_event
        journal = None
        if recorder is not None:
            path = recorder.path / JOURNAL
            journal = {"path": shown_path(path), "seconds_since_event": since, "gone": not path.exists()}
        return {
            "name": self.desk.session_name,
            "folder": shown_path(self.folder),
            "runs": self.runs,
            "journal": journal,
            "targets": [
                {"target": target, "label": label, "detail": detail} for target, label, detail in _TARGETS
            ],
        }

    @property
    def folder(self) -> Path:
        """Where the session's bundle and its neighbours are."""
        return self.desk.session_path.parent

    @property
    def runs(self) -> tuple[RunRow, ...]:
        """The runs, the one being recorded first, then the newest."""
        recorder = self.desk.recorder
        rows = self._catalogue.rows
        if recorder is None:
            return rows
        return (self._live_row(recorder.run), *(row for row in rows if row.run != recorder.run))

    def _live_row(self, run: str) -> RunRow:
        live, desk = self._live, self.desk
        if desk.bar.waiting:
            status, text = "warn", "waiting for approval"
        elif desk.recorder is not None and desk.recorder.failure is not None:
            status, text = "bad", "no longer recorded: the disk failed"
        elif desk.recorder is not None and not (desk.recorder.path / JOURNAL).exists():
            status, text = "bad", "no longer recorded: the journal is gone"
        elif live.failed:
            status, text = "bad", f"recording, {live.failed} failed"
        elif live.declined:
            status, text = "warn", f"recording, {live.declined} declined"
        else:
            status, text = "none", "recording"
        return RunRow(
            run=run,
            path=str(desk.session_path),
            started=self._started,
            model=named_with(desk.model_name, desk.adapter),
            policy=policy_name(self._settings),
            turns=live.turns,
            status=status,
            status_text=text,
            worst_dkl=live.worst_dkl,
            note=self._note,
            live=True,
        )

    # -- what is asked ------------------------------------------------------------------------------------

    @job("reading sessions", lane=Lane.SIDE)
    def refresh(self) -> dict[str, int]:
        """Look again which runs there are; returns how many."""
        return {"runs": len(self._aside("reading sessions", self._refresh))}

    @job("opening a session", lane=Lane.SIDE)
    def open(self, path: str) -> dict[str, Any]:
        """Add a bundle, its zip, or a single-file trace to the list; it stays where it is.

        Raises
        ------
        SessionError
            When it is none, or cannot be read.
        """

        def work() -> dict[str, Any]:
            session = self._catalogue.open(Path(path).expanduser())
            self._refresh()
            return {"path": str(session.path), "runs": self._names(session.path)}

        return self._aside("opening a session", work)

    @job("importing", lane=Lane.SIDE)
    def import_(self, path: str | None = None, text: str | None = None) -> dict[str, Any]:
        """Import messages or an OTLP trace as a run of a new bundle in the session's folder.

        Raises
        ------
        TranscriptError
            When it is neither, or broken; it names the part.
        """
        if (path is None) == (text is None):
            raise BadRequest("give a path or a text", next_step="choose one of the two")

        def work() -> dict[str, Any]:
            content = text if path is None else read_text(path)
            name = "imported" if path is None else stem_of(Path(path))
            bundle = import_transcript(content or "", self.folder, name=name)
            self._refresh()
            names = self._names(bundle)
            return {"path": str(bundle), "run": names[0] if names else "", "runs": names}

        return self._aside("importing", work)

    @job("comparing", lane=Lane.SIDE)
    def compare(self, a: str, b: str) -> Comparison:
        """Compare two runs of the list.

        Raises
        ------
        RunMissing
            When there is no such run.
        """

        def work() -> Comparison:
            return compare_runs(self._session(a), self._session(b), names=(a, b))

        return self._aside("comparing", work)

    @job("exporting", lane=Lane.SIDE)
    def export(
        self,
        run: str,
        target: str,
        *,
        contents: bool = False,
        redact: str = "all",
    ) -> dict[str, Any]:
        """Write a run in another form beside the session, under a free name.

        Parameters
        ----------
        target
            ``parquet``, ``json``, ``otlp``, ``perfetto``, ``html`` or ``csv``.
        contents
            Include what users, models and tools wrote, as far as it was recorded.
        redact
            What is removed from contents: ``all`` kinds, ``secrets`` only, or ``none``.

        Returns
        -------
        dict
            ``path``, the same as it is ``shown``, and its size in ``bytes``.
        """
        redactor = _redactor(target, redact, contents=contents)

        def work() -> dict[str, Any]:
            session = self._session(run)
            stem = f"{stem_of(session.path)}-{session.manifest.runs[0].id}"
            if target == "parquet":
                stem += "-export"
            out = free_path(self.folder / f"{stem}{_SUFFIXES[target]}")
            written = export(session, target, out, contents=contents, redactor=redactor)
            return {"path": str(written), "shown": shown_path(written), "bytes": size_on_disk(written)}

        return self._aside("exporting", work)

    @job("reckoning an export", lane=Lane.SIDE)
    def estimate(
        self, run: str, target: str, *, contents: bool = False, redact: str = "all"
    ) -> dict[str, int]:
        """Return about how many ``bytes`` an export would take; parameters as for `export`."""
        redactor = _redactor(target, redact, contents=contents)

        def work() -> dict[str, int]:
            size = estimate_size(
                self._session(run),
                target,
                name=f"export{_SUFFIXES[target]}",
                contents=contents,
                redactor=redactor,
            )
            return {"bytes": size}

        return self._aside("reckoning an export", work)

    @job("replaying")
    def replay(self, run: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the requests of a run again under other settings, as a new run and a new conversation.

        Returns
        -------
        dict
            The new ``run`` and the number of ``requests``; its turns come after this reply.

        Raises
        ------
        RunMissing, TranscriptError
            When there is no such run, or its requests were not recorded.
        NotReady
            When a model or a running server is missing.
        """
        driver = self.desk.driver
        if driver.is_mine:
            return self._replay(run, settings or {})
        return driver.submit("replaying", lambda: self._replay(run, settings or {})).get()

    def _replay(self, run: str, settings: dict[str, Any]) -> dict[str, Any]:
        from nexus_lab.lab.crew import NotReady

        desk = self.desk
        if desk.agent is None:
            raise NotReady(desk.missing or "there is no agent", next_step="see Models and Registry")
        requests = self._requests(run)
        changes = profile_changes(settings, desk.profile)
        ask_before = changes.pop("ask_before", desk.ask_before)
        desk.change_profile(**changes, ask_before=ask_before)
        desk.agent.profile = desk.profile
        desk.agent.new_conversation(turn=0)
        recorder = desk.crew.begin_run(parent=run, note=f"replay of {run}")
        ask_in_turn(desk, requests)
        return {"run": recorder.run, "requests": len(requests)}

    def _requests(self, run: str) -> tuple[str, ...]:
        """Return what was asked in a run; of the live one it is known without a record."""
        recorder = self.desk.recorder
        if recorder is not None and run == recorder.run and self._live.requests:
            return self._live.requests
        asked = self._session(run).turns.sort("turn").select("request").collect()["request"]
        if not len(asked):
            raise TranscriptError(f"run {run} has no turn to ask again", next_step="choose another run")
        if asked.null_count():
            raise TranscriptError(
                f"run {run} was recorded without contents, so that its requests are not known",
                next_step="record with contents on, or choose another run",
            )
        return tuple(asked)

    # -- hearing ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Count turns, failures and splices of the live run."""
        self._last_event = time.monotonic()
        live = self._live
        if event.kind is EventKind.TURN:
            self._in_turn = event.duration_ns is None
            if self._in_turn:
                live.turns += 1
                live.requests = (*live.requests, str(event.contents.get("request", "")))
            elif event.status is Status.ERROR:
                live.failed += 1
            self.changed()
        for row in event.rows if self._in_turn else ():
            if isinstance(row, FidelityRow):
                live.saw(row.dkl, declined=row.decline is not None)

    def on_turn(self, turn: Turn) -> None:  # noqa: ARG002 - the contract
        """Show the journal's age anew."""
        self.changed()

    def on_run(self) -> None:
        """Begin the count of another run, and read what the last one left."""
        from datetime import UTC, datetime

        self._live = LiveRun()
        recorder = self.desk.recorder
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._settings = self.desk.profile.to_dict()
        self._note = recorder.note if recorder is not None else ""
        self._refresh_later()

    # -- as a table and a page ----------------------------------------------------------------------------

    def to_frame(self) -> pl.DataFrame:
        """Return one row per run."""
        import polars as pl

        columns = {item.name: [getattr(row, item.name) for row in self.runs] for item in fields(RunRow)}
        kinds = {"turns": pl.Int64, "worst_dkl": pl.Float64, "live": pl.Boolean, "imported": pl.Boolean}
        return pl.DataFrame(columns, schema={name: kinds.get(name, pl.String) for name in columns})

    def to_html(self) -> str:
        """Return the list of runs as a fragment."""
        from nexus_lab.lab.static_html import session_fragment

        return session_fragment(self.part())

    def __repr__(self) -> str:
        recorder = self.desk.recorder
        live = f", recording {recorder.run}" if recorder is not None else ""
        return f"SessionPanel({self.desk.session_name}: {len(self.runs)} runs{live})"

    # -- within -------------------------------------------------------------------------------------------

    def _refresh(self) -> tuple[RunRow, ...]:
        rows = self._catalogue.refresh(self.folder, self.desk.session_path)
        self.changed()
        return rows

    def _refresh_later(self) -> None:
        self.desk.side.submit("reading sessions", self._refresh)

    def _session(self, run: str) -> Session:
        """Return a run, read anew; the list may be older than it."""
        known = {row.run for row in self._catalogue.rows}
        if run not in known:
            self._refresh()
        return self._catalogue.session(run)

    def _names(self, path: Path) -> list[str]:
        wanted = path.resolve()
        rows = [row for row in self._catalogue.rows if row.path and Path(row.path).resolve() == wanted]
        return sorted(row.run for row in rows)

    def _aside(self, label: str, work: Callable[[], T]) -> T:
        """Run on the side lane, and wait for it when called from elsewhere."""
        side = self.desk.side
        return work() if side.is_mine else side.submit(label, work).get()


def _redactor(target: str, redact: str, *, contents: bool) -> Redactor | None:
    if target not in _SUFFIXES:
        raise SessionError(f"nothing is known as {target!r}", next_step="choose " + ", ".join(_SUFFIXES))
    if not contents:
        return None
    if redact == "all":
        return Redactor.of()
    if redact == "secrets":
        return Redactor.secrets()
    if redact == "none":
        return Redactor.of(())
    raise SessionError(f"nothing is known as {redact!r} to redact", next_step="choose all, secrets or none")
