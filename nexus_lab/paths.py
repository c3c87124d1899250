"""Where the package keeps files, and how it writes them without leaving halves behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from nexus_lab.errors import NexusError

__all__ = ["NotWritten", "atomic_write", "cache_dir", "config_dir", "home", "shown_path"]

_APP = "nexus-lab"


class NotWritten(NexusError, OSError):
    """A file could not be written; what was there before is untouched."""


def home() -> Path:
    """Folder for data that is kept: server environments, block libraries.

    ``NEXUS_LAB_HOME`` overrides the platform's data folder, and then holds cache and configuration too.
    """
    return _folder("user_data_path", "data")


def cache_dir() -> Path:
    """Folder for data that can be made again."""
    return _folder("user_cache_path", "cache")


def config_dir() -> Path:
    """Folder for profiles."""
    return _folder("user_config_path", "config")


def shown_path(path: Path) -> str:
    """Return where `path` is as a user reads it: absolute, with the home folder as ``~``."""
    whole = path.absolute()
    try:
        return str(Path("~") / whole.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # elsewhere, or nobody's home is known
        return str(whole)


def _folder(kind: str, name: str) -> Path:
    override = os.environ.get("NEXUS_LAB_HOME")
    if override:
        return Path(override).expanduser() / name
    import platformdirs

    path: Path = getattr(platformdirs, kind)(_APP, appauthor=False)
    return path


def atomic_write(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a kill, sees the old file or the whole new one.

    Raises
    ------
    NotWritten
        When the folder cannot be written; the old file is untouched.
    """
    try:
        _replace(path, data)
    except OSError as error:
        refused = NotWritten(
            f"{path} cannot be written: {error.strerror or error}",
            next_step="free some disk space, or name a folder that can be written "
            "(NEXUS_LAB_HOME for the package's own files)",
        )
        refused.errno, refused.strerror = error.errno, error.strerror
        raise refused from error


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(descriptor, mode)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
