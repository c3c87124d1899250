"""Zipped bundles are read without trusting them."""

from __future__ import annotations

import os
import zipfile

import pytest

from nexus_lab.trace import DamagedSession, ForeignSession, read_session
from nexus_lab.trace.archive import MAX_MEMBERS, pack, unpack


@pytest.fixture
def zipped(bundle, tmp_path):
    path = tmp_path / "sent.zip"
    pack(bundle, path, prefix="ticket-triage.nexus/")
    return path


def test_a_zip_opens_like_its_folder(session, zipped):
    found = read_session(zipped)
    assert found.path == zipped
    assert all(found.tables[name].collect().equals(lazy.collect()) for name, lazy in session.tables.items())


def test_a_zip_with_its_files_at_the_top_opens_too(bundle, tmp_path):
    pack(bundle, tmp_path / "flat.zip")
    assert len(read_session(tmp_path / "flat.zip").tree()) == 6


@pytest.mark.parametrize(
    "name",
    [
        "../escape.parquet",
        "/etc/manifest.json",
        "a/../../manifest.json",
        "..\\manifest.json",
        "C:/manifest.json",
    ],
)
def test_a_name_that_would_escape_is_refused(zipped, name):
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(DamagedSession, match="outside"):
        read_session(zipped)


def test_an_entry_without_a_name_is_refused(zipped):
    data = zipped.read_bytes()
    start = data.rindex(b"PK\x01\x02")  # the last entry of the directory; its name's length is at 28
    zipped.write_bytes(data[: start + 28] + b"\0\0" + data[start + 30 :])
    with pytest.raises(DamagedSession, match="no whole zip"):
        read_session(zipped)


def test_other_files_stay_in_the_zip(zipped, tmp_path):
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("ticket-triage.nexus/run.sh", "echo hi")
        archive.writestr("README.txt", "hi")
    target = tmp_path / "out"
    target.mkdir()
    unpack(zipped, target)
    assert {path.suffix for path in target.iterdir()} == {".json", ".parquet"}


def test_a_symbolic_link_is_written_as_a_plain_file_and_not_followed(zipped, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    link = zipfile.ZipInfo("ticket-triage.nexus/journal.jsonl")
    link.external_attr = (0o120777) << 16
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr(link, str(secret))
    target = tmp_path / "out"
    target.mkdir()
    unpack(zipped, target)
    assert not (target / "journal.jsonl").is_symlink()
    assert (target / "journal.jsonl").read_text() == str(secret)


def test_a_bomb_is_stopped_at_the_bound_whatever_its_header_says(zipped, tmp_path):
    with zipfile.ZipFile(zipped, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ticket-triage.nexus/journal.jsonl", b"0" * (64 << 20))
    assert zipped.stat().st_size < 1 << 20
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(DamagedSession, match="bound"):
        unpack(zipped, target, max_bytes=8 << 20)
    assert not target.exists()


def test_too_many_files_and_two_sessions_are_refused(bundle, tmp_path):
    many = tmp_path / "many.zip"
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(MAX_MEMBERS + 1):
            archive.writestr(f"x/{number}", "")
    with pytest.raises(DamagedSession, match="257 files"):
        read_session(many)
    two = tmp_path / "two.zip"
    with zipfile.ZipFile(two, "w") as archive:
        for name in ("a", "b"):
            archive.write(bundle / "manifest.json", f"{name}/manifest.json")
    with pytest.raises(DamagedSession, match="more than one"):
        read_session(two)


def test_a_zip_without_a_session_and_a_broken_one_are_refused(zipped, tmp_path):
    empty = tmp_path / "empty.zip"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ForeignSession):
        read_session(empty)
    os.truncate(zipped, zipped.stat().st_size // 2)
    with pytest.raises(DamagedSession, match="no whole zip"):
        read_session(zipped)


def test_a_flipped_bit_in_a_member_is_found(zipped):
    data = bytearray(zipped.read_bytes())
    place = data.index(b"PAR1") + 200
    data[place] ^= 0xFF
    zipped.write_bytes(bytes(data))
    with pytest.raises(DamagedSession):
        read_session(zipped)
