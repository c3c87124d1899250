"""Paths that somebody typed, into a field or a call."""

from __future__ import annotations

from pathlib import Path

from nexus_lab.errors import NexusError
from nexus_lab.trace.text import clip, visible

__all__ = ["PathRefused", "named_path"]

_SHOWN = 200


class PathRefused(NexusError):
    """A name that no file can have, or one that may not be looked at."""


def named_path(name: str | Path) -> Path:
    """Return a path whose home folder is written out; there need be nothing.

    Raises
    ------
    PathRefused
        When it is too long, holds a null byte, names no user, or may not be looked at.
    """
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else str(error)
        shown = clip(visible(str(name)), _SHOWN)
        raise PathRefused(f"{shown} cannot be read: {told}", next_step="name another file") from error
    return path
