"""Bundles as zip files: written small, read without trusting a single name or size in them."""

from __future__ import annotations

import errno
import lzma
import shutil
import struct
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nexus_lab.trace.base import JOURNAL, MANIFEST, TABLES, DamagedSession, ForeignSession

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_BYTES", "MAX_MEMBERS", "pack", "unpack"]

MAX_BYTES = 2 << 30
MAX_MEMBERS = 256
_WANTED = frozenset({MANIFEST, JOURNAL, *(f"{table}.parquet" for table in TABLES)})
_CHUNK = 1 << 20
# What zipfile lets out: a password that is wanted and a method that is unknown are a RuntimeError.
_NOT_WHOLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    IndexError,  # a name without a letter
    ValueError,
    RuntimeError,
)


def pack(folder: Path, target: Path, *, prefix: str = "") -> None:
    """Write the files of `folder` into the zip `target`, under `prefix`.

    Parquet is compressed already, so that it is stored as it is.
    """
    temporary = target.with_name(f".{target.name}.partial")
    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            for path in sorted(item for item in folder.iterdir() if item.is_file() and item.name[0] != "."):
                method = zipfile.ZIP_STORED if path.suffix == ".parquet" else zipfile.ZIP_DEFLATED
                archive.write(path, f"{prefix}{path.name}", compress_type=method)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def unpack(source: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Extract a bundle's own files from the zip `source` into the empty `folder`; others are left in it.

    Names are matched against the few that a bundle has, at the top or inside one folder, and bytes are
    counted as they come out, so neither a path nor a stated size can do harm.

    Raises
    ------
    ForeignSession
        When the zip holds no manifest and no journal.
    DamagedSession
        When it is not a whole zip, holds a name that would escape, or unpacks to more than `max_bytes`.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            left = max_bytes
            for member in _members(archive, source):
                left = _extract(archive, member, folder / PurePosixPath(member.filename).name, left, source)
    except OSError as error:
        # A place before the file's start, or what bzip2 says; any other is the disk's.
        if error.errno not in {None, errno.EINVAL}:
            raise
        raise _broken(source, error) from error
    except _NOT_WHOLE as error:
        raise _broken(source, error) from error


def _broken(source: Path, error: Exception) -> DamagedSession:
    return DamagedSession(f"{source} is no whole zip: {error}", next_step="fetch it again")


def _members(archive: zipfile.ZipFile, source: Path) -> list[zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise DamagedSession(
            f"{source} holds {len(infos)} files", next_step="a bundle holds fewer than ten; refuse it"
        )
    wanted: dict[str, zipfile.ZipInfo] = {}
    tops = set()
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or any(":" in part for part in path.parts[:1]):
            raise DamagedSession(
                f"{source} holds a file that would land outside: {info.filename!r}",
                next_step="do not trust this zip",
            )
        if info.is_dir() or path.name not in _WANTED or len(path.parts) > 2:  # noqa: PLR2004 - folder and file
            continue
        tops.add(path.parts[:-1])
        if path.name in wanted or len(tops) > 1:
            raise DamagedSession(
                f"{source} holds more than one session", next_step="unpack it and choose one"
            )
        wanted[path.name] = info
    if not wanted.keys() & {MANIFEST, JOURNAL}:
        raise ForeignSession(
            f"{source} is a zip without a session in it", next_step="choose a zipped .nexus folder"
        )
    return list(wanted.values())


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, left: int, source: Path) -> int:
    with archive.open(member) as stream, target.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                out.close()
                shutil.rmtree(target.parent, ignore_errors=True)
                raise DamagedSession(
                    f"{source} unpacks to more than its bound", next_step="unpack it yourself if you trust it"
                )
            out.write(chunk)
    return left
