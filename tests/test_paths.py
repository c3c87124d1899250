"""Files are written whole or not at all, with the permissions that the user's mask gives."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from nexus_lab.paths import NotWritten, atomic_write


def test_a_new_file_follows_the_umask(tmp_path):
    path = tmp_path / "deep" / "f.json"
    before = os.umask(0o027)
    try:
        atomic_write(path, b"one")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_rewritten_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    path.chmod(0o600)
    atomic_write(path, b"two")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"two", 0o600)


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWritten, match="cannot be written: Not a directory") as refused:
        atomic_write(tmp_path / "file" / "deep" / "f", b"one")
    assert isinstance(refused.value, OSError)
    assert refused.value.errno == errno.ENOTDIR
    assert "NEXUS_LAB_HOME" in refused.value.next_step


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    with pytest.raises(TypeError):
        atomic_write(path, "text, not bytes")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
