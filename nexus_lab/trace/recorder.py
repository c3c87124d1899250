"""Recording a session: an observer that journals what it hears and leaves a bundle behind."""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import nexus_lab
from nexus_lab.agent.base import Event, reserve_event_ids
from nexus_lab.trace.base import (
    BUNDLE_SUFFIX,
    MANIFEST,
    BundleStatus,
    Manifest,
    Run,
    SessionBusy,
    SessionError,
)
from nexus_lab.trace.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from nexus_lab.trace.journal import JournalWriter, SessionLock

__all__ = ["SessionRecorder", "insist_new"]

logger = logging.getLogger(__name__)


class SessionRecorder:
    """Observer that records every event into the bundle at `path`.

    Each event is in the journal before `on_event` returns. Closing compacts the journal into Parquet tables;
    a process that dies leaves the journal, and the next open of the session compacts it.

    Parameters
    ----------
    path
        The bundle's folder; ``.nexus`` is appended when missing.
    contents
        Also record what users, models and tools wrote. Off by default.
    redactor
        What is removed from contents before they are written; ``None`` writes them as they are, and only
        then token ids are kept, since they decode to the text.
    model, settings, host
        Facts of the model, the profile and the machine; `describe` can add them later.
    append
        Add a run to an existing bundle instead of refusing it.
    parent, note
        The run that this one was forked from, and a few words.

    Raises
    ------
    SessionBusy
        When somebody else is recording into the bundle.
    SessionError
        When the path is taken, or cannot be written.

    Examples
    --------
    >>> with SessionRecorder("demo.nexus", contents=True) as recorder:  # doctest: +SKIP
    ...     agent = Agent(..., observers=[recorder])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        contents: bool = False,
        redactor: Redactor | None = Redactor.secrets(),  # noqa: B008 - frozen
        model: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        host: Mapping[str, Any] | None = None,
        append: bool = False,
        parent: str | None = None,
        note: str = "",
    ) -> None:
        self.path = _bundle_path(path)
        self.failure: OSError | None = None
        self._contents = contents
        self._redactor = redactor if contents else None
        self._mutex = threading.Lock()
        self._closed = False
        self._first_id = 0
        self._lock = _open_folder(self.path, append=append)
        try:
            manifest = self._manifest(append=append)
            self._run = Run(
                id=f"r-{len(manifest.runs) + 1:03d}",
                started=_now(),
                parent=parent,
                note=note,
                model=dict(model or {}),
                settings=dict(settings or {}),
                host=dict(host) if host is not None else _host(),
            )
            self._journal = self._begin(manifest)
        except BaseException:
            self._lock.release()
            raise

    @property
    def run(self) -> str:
        """Identifier of the run being recorded."""
        return self._run.id

    @property
    def note(self) -> str:
        """The few words that the run was begun with."""
        return self._run.note

    def describe(self, **facts: Any) -> None:
        """Add facts of the run: `model`, `settings`, `host` (mappings) or `note`."""
        unknown = set(facts) - {"model", "settings", "host", "note"}
        if unknown:
            raise SessionError(
                f"a run has no {min(unknown)!r}", next_step="describe model, settings, host or note"
            )
        self._write({"type": "describe", **facts})

    def on_event(self, event: Event) -> None:
        """Write `event` to the journal; when the disk fails, say so once and let the turn go on."""
        from nexus_lab.trace.fold import event_record

        if self._closed or event.id <= self._first_id:
            return
        record = event_record(event, contents=self._contents)
        if self._redactor is not None:
            record = _redacted(record, self._redactor)
        try:
            self._write(record)
        except (TypeError, ValueError, RecursionError) as error:
            logger.warning(
                "event %d (%s) holds a value that JSON cannot say: %s", event.id, event.name, error
            )
            self._write(_bare(record, error))

    def close(self) -> Manifest | None:
        """Finish the run and compact the journal; harmless when done twice.

        Returns
        -------
        The manifest; ``None`` when the disk failed, in which case the journal stays for the next open.
        """
        from nexus_lab.trace.bundle import compact

        with self._mutex:
            if self._closed:
                return None
            self._closed = True
        try:
            if self.failure is None:
                self._journal.append({"type": "end", "ended": _now()})
            self._journal.close()
            return compact(self.path)
        except OSError as error:
            self._fail(error)
            return None
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "failed" if self.failure else "recording"
        return f"SessionRecorder({str(self.path)!r}, {self.run}, {state})"

    def _manifest(self, *, append: bool) -> Manifest:
        """Return the manifest to continue, after finishing what a dead process left, or a new one."""
        from nexus_lab.trace.bundle import compact, load

        if append and any(item.name != ".lock" for item in self.path.iterdir()):
            manifest = compact(self.path)
            last = load(self.path).tables["events"].select("id").max().collect().item()
            self._first_id = last or 0
            reserve_event_ids(self._first_id)
            return _appended(manifest, contents=self._contents, redactor=self._redactor)
        return Manifest(
            id=uuid.uuid4().hex,
            name=self.path.name.removesuffix(BUNDLE_SUFFIX),
            created=_now(),
            status=BundleStatus.RECORDING,
            contents=self._contents,
            redacted=self._redactor.kinds if self._redactor else (),
            nexus_lab=nexus_lab.__version__,
        )

    def _begin(self, manifest: Manifest) -> JournalWriter:
        from nexus_lab.trace.bundle import write_manifest
        from nexus_lab.trace.fold import run_record
        from nexus_lab.trace.journal import JournalWriter

        manifest = replace(manifest, status=BundleStatus.RECORDING, runs=(*manifest.runs, self._run))
        write_manifest(self.path, manifest)
        journal = JournalWriter(self.path)
        journal.append(run_record(self._run, manifest.to_dict()))
        return journal

    def _write(self, record: dict[str, Any]) -> None:
        with self._mutex:
            if self._closed or self.failure is not None:
                return
            try:
                self._journal.append(record)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        logger.error("the session %s is recorded no further: %s", self.path, error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _host() -> dict[str, Any]:
    return {
        "system": platform.platform(terse=True),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def _bundle_path(path: str | Path) -> Path:
    path = Path(path).expanduser()
    return path if path.name.endswith(BUNDLE_SUFFIX) else path.with_name(path.name + BUNDLE_SUFFIX)


def _open_folder(path: Path, *, append: bool) -> SessionLock:
    from nexus_lab.trace.journal import SessionLock

    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = SessionLock(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise SessionError(f"{path} is a file", next_step="record under another name") from error
    except SessionBusy:
        raise
    except OSError as error:
        raise SessionError(
            f"{path} cannot be written: {error.strerror}", next_step="record into a folder of yours"
        ) from error
    if not append:
        try:
            insist_new(path)
        except SessionError:
            lock.release()
            raise
    return lock


def insist_new(path: str | Path) -> None:
    """Raise SessionError when `path` holds something already, before anything is started for its sake."""
    folder = _bundle_path(path)
    taken = [item.name for item in folder.iterdir() if item.name != ".lock"] if folder.is_dir() else []
    if taken:
        raise SessionError(
            f"{folder} holds {'a session' if MANIFEST in taken else 'other files'} already",
            next_step="record under another name (in Python, append=True adds a run to a session)",
        )


def _appended(manifest: Manifest, *, contents: bool, redactor: Redactor | None) -> Manifest:
    """Return the manifest of a bundle whose runs differ: contents if any has them, redacted if all are."""
    kinds = redactor.kinds if redactor else ()
    if not contents:
        return manifest
    kept = tuple(kind for kind in manifest.redacted if kind in kinds) if manifest.contents else kinds
    return replace(manifest, contents=True, redacted=kept)


def _redacted(record: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Redact the contents of an event and of its rows; token ids go, as they spell the text."""
    from nexus_lab.trace.schema import CONTENT_COLUMNS

    record = dict(record)
    if "contents" in record:
        record["contents"] = redactor.value(_known(record["contents"]))
    if "rows" in record:
        rows = [dict(row, token_ids=None) if row["table"] == "ops" else dict(row) for row in record["rows"]]
        for row in rows:
            for name in CONTENT_COLUMNS[row["table"]] & row.keys():
                row[name] = redactor.value(_known(row[name]))
        record["rows"] = rows
    return record


def _known(value: Any) -> Any:
    """Return `value` as plain JSON values, so that the redactor sees every text in it."""
    if value is None or isinstance(value, str):
        return value
    import json

    from nexus_lab.trace.schema import to_json

    return json.loads(to_json(value))


def _bare(record: dict[str, Any], error: Exception) -> dict[str, Any]:
    bare = {key: value for key, value in record.items() if key not in ("attributes", "contents", "rows")}
    return {**bare, "attributes": {"unrecorded": type(error).__name__}}
