"""Block files on disk: which there are, when each was last used, and which go when they are too many.

Several processes share the folder, so that any file may be gone in the next moment.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

__all__ = ["DEFAULT_QUOTA", "BlockEntry", "compiling", "entries", "leftovers", "touch", "trim", "unlink"]

DEFAULT_QUOTA = 4 * 1024**3
"""Bytes that compiled blocks may take, all models together."""

_PATIENCE_S = 120.0
_POLL_S = 0.02
_UNFINISHED_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEntry:
    """A block file, as its folder shows it.

    Attributes
    ----------
    path
        The file; its stem is the block's address.
    model
        Fingerprint of the model: the name of its folder.
    nbytes
        Length of the file, in bytes.
    used_ns
        When it was last used, in nanoseconds since the epoch. Kept as the file's access time, which is set
        by hand, since many file systems record none.
    modified_ns
        When it was written.
    identity
        Device and inode.
    """

    path: Path
    model: str
    nbytes: int
    used_ns: int
    modified_ns: int
    identity: tuple[int, int]


def entries(root: Path) -> list[BlockEntry]:
    """Return the block files of all models below `root`, the one used longest ago first."""
    found = []
    for path in root.glob("*/*.atb"):
        with suppress(OSError):
            facts = path.stat()
            found.append(
                BlockEntry(
                    path=path,
                    model=path.parent.name,
                    nbytes=facts.st_size,
                    used_ns=facts.st_atime_ns,
                    modified_ns=facts.st_mtime_ns,
                    identity=(facts.st_dev, facts.st_ino),
                )
            )
    return sorted(found, key=lambda entry: (entry.used_ns, entry.path))


def touch(path: Path, *, used_ns: int | None = None) -> None:
    """Note that a block was used now, or at `used_ns`; a folder that cannot be written is left as it is."""
    with suppress(OSError):
        moment = time.time_ns() if used_ns is None else used_ns
        os.utime(path, ns=(moment, path.stat().st_mtime_ns))


def unlink(path: Path) -> None:
    """Remove a file that another process may have removed already."""
    path.unlink(missing_ok=True)


def trim(root: Path, quota: int, *, spared: Collection[tuple[int, int]] = ()) -> tuple[BlockEntry, ...]:
    """Remove the blocks used longest ago until the rest takes at most `quota` bytes.

    What cannot be removed, such as another user's file, is passed over.

    Parameters
    ----------
    spared
        Identities of files that stay, whatever the quota.

    Returns
    -------
    tuple of BlockEntry
        What was removed.
    """
    found, gone = entries(root), []
    total = sum(entry.nbytes for entry in found)
    for entry in found:
        if total <= quota:
            break
        if entry.identity not in spared:
            with suppress(OSError):
                unlink(entry.path)
                gone.append(entry)
                total -= entry.nbytes
    return tuple(gone)


def leftovers(root: Path, *, older_than_s: float = _UNFINISHED_S) -> list[Path]:
    """Return files that a writer which was killed has left unfinished, and its locks, sorted.

    Parameters
    ----------
    older_than_s
        Seconds since the last write; a younger file may still be written.
    """
    limit = time.time() - older_than_s
    found = []
    for pattern in ("*/*.atb.*.tmp", "*/.*.lock"):
        for path in root.glob(pattern):
            with suppress(OSError):
                if path.stat().st_mtime < limit:
                    found.append(path)
    return sorted(found)


@contextmanager
def compiling(
    path: Path, *, check: Callable[[], None] = lambda: None, patience_s: float = _PATIENCE_S
) -> Iterator[None]:
    """Hold the right to compile the block of `path`, so that two processes do not do it twice.

    The system takes the lock back when its holder dies. It saves work and guards nothing: files appear
    whole either way, so that a holder who takes too long, or a folder that knows no locks, is passed over.

    Parameters
    ----------
    check
        Called while waiting; what it raises ends the wait.
    patience_s
        Seconds to wait at most.
    """
    lock = path.with_name(f".{path.stem}.lock")
    descriptor = _locked(lock, check, time.monotonic() + patience_s)
    try:
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                unlink(lock)  # while it is held: who waits for it finds that it is no longer the file
            os.close(descriptor)


def _locked(path: Path, check: Callable[[], None], deadline: float) -> int | None:
    while True:
        descriptor = _try_lock(path)
        if descriptor is None or descriptor >= 0:
            return descriptor
        if time.monotonic() >= deadline:
            return None
        check()
        time.sleep(_POLL_S)


def _try_lock(path: Path) -> int | None:
    """Return the descriptor of a lock that was got, -1 when another holds it, ``None`` without locks."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    found: int | None = -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_file(path, descriptor):
            found = descriptor
    except BlockingIOError:
        pass
    except OSError:
        found = None
    finally:
        if found != descriptor:
            os.close(descriptor)
    return found


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
