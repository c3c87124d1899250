"""SHA-256 of large files, remembered while they stay as they are."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any

from nexus_lab.paths import atomic_write, cache_dir

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["remembered_sha256"]

_LOG = logging.getLogger(__name__)


def remembered_sha256(path: Path, *, record: str) -> str:
    """Return the hex digest of a file, from the record while its size and time of change stay the same.

    Parameters
    ----------
    record
        Name of the record in the cache folder; one that cannot be read or written only costs time.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    status = path.stat()
    key, stamp = str(path.resolve()), [status.st_size, status.st_mtime_ns]
    store = cache_dir() / record
    known = _read(store)
    entry = known.get(key)
    if isinstance(entry, dict) and entry.get("stamp") == stamp and isinstance(entry.get("sha256"), str):
        return str(entry["sha256"])
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    known[key] = {"stamp": stamp, "sha256": digest}
    try:
        atomic_write(store, json.dumps(known, indent=1).encode())
    except OSError as error:
        _LOG.debug("the digest is not remembered: %s", error)
    return digest


def _read(store: Path) -> dict[str, Any]:
    try:
        values = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
