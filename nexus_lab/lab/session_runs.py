"""The runs of a session folder: found, read, and each told in one line."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nexus_lab.errors import NexusError
from nexus_lab.lab.compare import RunMissing, session_of_run
from nexus_lab.lab.imports import IMPORTED_FROM
from nexus_lab.trace import BundleStatus, read_session
from nexus_lab.trace.base import BUNDLE_SUFFIX, JOURNAL, MANIFEST, SINGLE_FILE_SUFFIX
from nexus_lab.trace.text import clip, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from nexus_lab.trace import Run, Session

__all__ = ["Catalogue", "LiveRun", "RunRow", "policy_name", "stem_of"]

_MOST_BUNDLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run, as ``RunRow`` of the wire."""

    run: str
    path: str | None
    started: str | None
    model: str | None
    policy: str | None
    turns: int
    status: str
    status_text: str
    worst_dkl: float | None
    note: str
    live: bool = False
    imported: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """A bundle as it was when it was last read."""

    stamp: tuple[int, ...]
    session: str
    rows: tuple[tuple[str, RunRow], ...]


@dataclass(slots=True)
class LiveRun:
    """What was heard of the run that is being recorded.

    Attributes
    ----------
    requests
        What was asked, in order, recorded or not.
    """

    turns: int = 0
    failed: int = 0
    declined: int = 0
    worst_dkl: float | None = None
    requests: tuple[str, ...] = ()

    def saw(self, dkl: float | None, *, declined: bool) -> None:
        """Take note of a splice."""
        self.declined += declined
        if dkl is not None:
            self.worst_dkl = dkl if self.worst_dkl is None else max(self.worst_dkl, dkl)


class Catalogue:
    """Reads the bundles of a folder, and those opened from elsewhere; each again only when it has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Path, _Found] = {}
        self._opened: dict[Path, None] = {}
        self._places: dict[str, tuple[Path, str]] = {}
        self._rows: tuple[RunRow, ...] = ()

    @property
    def rows(self) -> tuple[RunRow, ...]:
        """The runs as last read, newest first."""
        return self._rows

    def open(self, path: Path) -> Session:
        """Add a bundle from anywhere.

        Raises
        ------
        SessionError
            When it is none.
        """
        session = read_session(path)
        with self._lock:
            self._opened[session.path.resolve()] = None
        return session

    def refresh(self, folder: Path, own: Path) -> tuple[RunRow, ...]:
        """Read what has changed; bundles that cannot be read, and exports of the own session, are left out.

        Parameters
        ----------
        folder
            Where to look.
        own
            The session's own bundle, whose runs go by their plain names.
        """
        with self._lock:
            opened = list(self._opened)
        paths = {path.resolve(): None for path in (own, *_bundles(folder), *opened) if path.exists()}
        own = own.resolve()
        rows: list[RunRow] = []
        places: dict[str, tuple[Path, str]] = {}
        for path in paths:
            runs = self._read(path)
            # An export beside a session holds the same runs; one that was opened is shown all the same.
            if path != own and path not in opened and self._is_same_session(path, own):
                continue
            for run, row in runs:
                name = run if path == own else f"{stem_of(path)}/{run}"
                if name in places:
                    name = f"{path}/{run}"
                places[name] = (path, run)
                rows.append(_named(row, name))
        rows.sort(key=lambda row: row.started or "", reverse=True)
        with self._lock:
            self._places, self._rows = places, tuple(rows)
        return self._rows

    def session(self, name: str) -> Session:
        """Return the part of a session that is the run `name`.

        Raises
        ------
        RunMissing
            When no run of that name is known.
        SessionError
            When its bundle cannot be read any more.
        """
        with self._lock:
            place = self._places.get(name)
        if place is None:
            raise RunMissing(f"there is no run {name!r}", next_step="choose one of the list")
        return session_of_run(read_session(place[0]), place[1])

    def _read(self, path: Path) -> tuple[tuple[str, RunRow], ...]:
        stamp = _stamp(path)
        known = self._found.get(path)
        if known is not None and known.stamp == stamp:
            return known.rows
        try:
            session = read_session(path)
        except (NexusError, OSError):
            return ()
        rows = tuple((run.id, _row(session, run)) for run in session.manifest.runs)
        # Reading may have compacted a journal, which changes the stamp.
        self._found[path] = _Found(_stamp(path), session.manifest.id, rows)
        return rows

    def _is_same_session(self, path: Path, own: Path) -> bool:
        one, other = self._found.get(path), self._found.get(own)
        return one is not None and other is not None and one.session == other.session


def stem_of(path: Path) -> str:
    """Return the name of a bundle without its suffix."""
    for suffix in (SINGLE_FILE_SUFFIX, f"{BUNDLE_SUFFIX}.zip", BUNDLE_SUFFIX):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.stem


def policy_name(settings: Mapping[str, Any]) -> str | None:
    """Return the cache policy of a profile as views name it."""
    policy = settings.get("policy")
    if policy == "rolling_drop" and settings.get("repos"):
        return "rolling_drop_repos"
    return policy if isinstance(policy, str) else None


def _bundles(folder: Path) -> Iterable[Path]:
    try:
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and _is_bundle(path)]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_BUNDLES]


def _is_bundle(path: Path) -> bool:
    if path.is_dir():
        return path.name.endswith(BUNDLE_SUFFIX)
    return path.name.endswith((f"{BUNDLE_SUFFIX}.zip", SINGLE_FILE_SUFFIX))


def _stamp(path: Path) -> tuple[int, ...]:
    stamp: list[int] = []
    for file in (path, path / MANIFEST, path / JOURNAL) if path.is_dir() else (path,):
        try:
            facts = file.stat()
        except OSError:
            continue
        stamp += [facts.st_mtime_ns, facts.st_size]
    return tuple(stamp)


def _named(row: RunRow, name: str) -> RunRow:

    return replace(row, run=name)


def _row(session: Session, run: Run) -> RunRow:
    part = session_of_run(session, run.id)
    spans = part.events.filter(pl.col("kind") == "turn").select(pl.len()).collect().item()
    failed = part.turns.filter(pl.col("outcome") == "failed").select("problem", "tool").collect()
    in_turns = part.fidelity.filter(pl.col("turn").is_not_null())  # trials of the Splice panel are none
    fidelity = in_turns.select("dkl", "decline_code").collect()
    declined = fidelity["decline_code"].count()
    worst = fidelity["dkl"].max()
    imported = IMPORTED_FROM in run.settings
    status, text = _status(run, failed, declined, imported=imported)
    model, adapter = run.model.get("name"), run.model.get("adapter")
    if model and isinstance(adapter, dict) and adapter.get("name"):
        model = f"{model} + {clip(visible(str(adapter['name'])), 60)}"
    return RunRow(
        run=run.id,
        path=str(session.path),
        started=run.started,
        model=str(model) if model else None,
        policy=policy_name(run.settings),
        turns=int(spans),
        status=status,
        status_text=text,
        worst_dkl=float(worst) if isinstance(worst, int | float) else None,
        note=run.note or (f"fork of {run.parent}" if run.parent else ""),
        imported=imported,
    )


def _status(run: Run, failed: pl.DataFrame, declined: int, *, imported: bool) -> tuple[str, str]:
    if imported:
        return "ok", "imported"
    if run.status is BundleStatus.RECORDING:
        return "none", "recording"
    if failed.height:
        problem = failed["problem"].drop_nulls()
        what = f": {problem[0]}" if len(problem) else ""
        return "bad", f"{plural(failed.height, 'turn')} failed{what}"
    word = "recovered" if run.status is BundleStatus.RECOVERED else "finished"
    return ("warn", f"{word}, {declined} declined") if declined else ("ok", word)
