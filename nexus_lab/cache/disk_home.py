"""Where the snapshots of a session go on disk: a folder for each model, and for each process that runs it.

Two kernels with the same model have a folder each; the first that is free is taken, so that what an earlier
kernel left is found again. What no kernel has is cleaned whenever a folder is taken: what nobody used for a
month, and what is too much.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nexus_lab.cache.disk import (
    DEFAULT_DISK_BYTES,
    LOCK,
    OWNER,
    DiskForeign,
    DiskInUse,
    DiskUnusable,
    SnapshotDisk,
    own_files,
    owner_of,
    snapshots_folder,
)
from nexus_lab.errors import Decline
from nexus_lab.paths import shown_path

if TYPE_CHECKING:
    from pathlib import Path

    from nexus_lab.engine import Engine

__all__ = ["KEPT_DAYS", "clean_disks", "open_disk"]

_LOG = logging.getLogger(__name__)

KEPT_DAYS = 30
"""Days after which a folder goes that no process has used."""

_MOST_AT_ONCE = 8
_SHARE = 4
_LEAST = 2**20
_INSTEAD = "what is finished stays in memory, and goes with it"
_NOTHING_KEPT = "nothing is kept in memory either, and a state that is wanted again is computed again"
_DAY_S = 86_400
_PRIVATE = 0o700

_OFF = Decline("disk_off", "no snapshots are kept on disk", _INSTEAD)
_FULL = Decline("disk_full", "there is no room for a snapshot on disk", _INSTEAD)
_BUSY = Decline(
    "disk_in_use",
    f"{_MOST_AT_ONCE} other processes keep snapshots of this model on disk",
    _INSTEAD,
)


def open_disk(engine: Engine, *, max_bytes: int = DEFAULT_DISK_BYTES) -> SnapshotDisk | Decline:
    """Take a folder in the package's cache for the snapshots of `engine`; it is the caller's to close.

    Parameters
    ----------
    max_bytes
        Most bytes of this folder, and after a cleaning of all that no process has; less where a quarter of
        what is free on the disk is less. 0 keeps none.

    Returns
    -------
    SnapshotDisk or Decline
        The folder, or why there is none.
    """
    if "splice" in engine.declines:
        return replace(engine.declines["splice"], instead=_NOTHING_KEPT)
    if max_bytes <= 0:
        return _OFF
    root = snapshots_folder()
    try:
        found = _taken(root, engine, max_bytes)
    except (OSError, DiskUnusable, DiskForeign) as error:
        _LOG.warning("no snapshots are kept on disk: %s", error)
        return Decline("disk_unusable", f"{shown_path(root)} cannot be used: {_why(error)}", _INSTEAD)
    if isinstance(found, SnapshotDisk):
        clean_disks(root, max_bytes=max_bytes)
    return found


def _taken(root: Path, engine: Engine, max_bytes: int) -> SnapshotDisk | Decline:
    root.mkdir(_PRIVATE, parents=True, exist_ok=True)
    root.chmod(_PRIVATE)  # also where it was made otherwise
    owner = owner_of(engine)
    limit = min(max_bytes, _affordable(root, owner))
    if limit < _LEAST:
        return _FULL
    disk = _first_free(root, owner, limit)
    if disk is None:
        return _BUSY
    try:
        disk.belong_to(engine)
    except BaseException:
        disk.close()
        raise
    return disk


def _why(error: Exception) -> str:
    cause = error if isinstance(error, OSError) else error.__cause__
    return (cause.strerror if isinstance(cause, OSError) else None) or str(error).partition("\n")[0]


def _affordable(root: Path, owner: str) -> int:
    """Return a quarter of what would be free on the disk without what this model has there."""
    own = sum(_size(folder) for folder in root.glob(f"{owner}*"))
    return (shutil.disk_usage(root).free + own) // _SHARE


def _first_free(root: Path, owner: str, max_bytes: int) -> SnapshotDisk | None:
    for number in range(1, _MOST_AT_ONCE + 1):
        with suppress(DiskInUse):
            return SnapshotDisk(root / (owner if number == 1 else f"{owner}-{number}"), max_bytes=max_bytes)
    return None


# -- cleaning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Left:
    """A folder of snapshots; `used_at` is in seconds since the epoch."""

    folder: Path
    n_bytes: int
    used_at: float


def clean_disks(root: Path, *, max_bytes: int, now: float | None = None) -> tuple[Path, ...]:
    """Delete folders of snapshots that no process has: unused for a month, then those used longest ago.

    Parameters
    ----------
    root
        Folder of the folders.
    max_bytes
        Most bytes of what stays and no process has.
    now
        Seconds since the epoch; the clock's by default.

    Returns
    -------
    The folders that are gone. One that cannot be deleted stays, and the next call tries again.
    """
    try:
        found = sorted(_all_left(root), key=lambda item: item.used_at, reverse=True)
    except OSError as error:
        _LOG.warning("%s cannot be cleaned: %s", shown_path(root), error)
        return ()
    oldest, total = (time.time() if now is None else now) - KEPT_DAYS * _DAY_S, 0
    gone = []
    for item in found:
        total += item.n_bytes
        if item.used_at >= oldest and total <= max_bytes:
            continue
        total -= item.n_bytes
        if _deleted(item.folder):
            gone.append(item.folder)
    return tuple(gone)


def _all_left(root: Path) -> list[_Left]:
    """Return the folders that nobody has locked."""
    found = []
    for folder in root.iterdir():
        if folder.is_symlink() or not (folder / LOCK).is_file():
            continue
        with suppress(OSError), (folder / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(_Left(folder, _size(folder), (folder / LOCK).stat().st_mtime))
    return found


def _size(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with suppress(OSError):  # gone meanwhile
            total += path.lstat().st_size
    return total


def _deleted(folder: Path) -> bool:
    """Delete what snapshots leave in a folder, the lock last; whoever waits for it makes the folder anew."""
    try:
        with (folder / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (*own_files(folder, "*"), *folder.glob(f"*{OWNER}")):
                path.unlink()
            (folder / LOCK).unlink()
            folder.rmdir()
    except OSError as error:
        _LOG.warning("%s cannot be deleted: %s", shown_path(folder), error)
        return False
    return True
