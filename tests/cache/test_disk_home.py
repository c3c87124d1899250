"""Which folder on disk a session takes, what it says when there is none, and what is cleaned."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from nexus_lab.cache import DiskForeign, DiskInUse, DiskUnusable, SnapshotDisk, open_disk
from nexus_lab.cache import disk as disk_files
from nexus_lab.cache.disk import owner_of, snapshots_folder
from nexus_lab.cache.disk_home import KEPT_DAYS, clean_disks
from nexus_lab.errors import Decline

pytestmark = pytest.mark.usefixtures("nexus_home")
DAY_S = 86_400


def engine(fingerprint="m1", kv_type="f16", *, flash=False, build="b1", **declines):
    """What a disk asks an engine for."""
    schedule = SimpleNamespace(kv_type=kv_type, flash_attention=flash)
    return SimpleNamespace(
        info=SimpleNamespace(fingerprint=fingerprint), schedule=schedule, build=build, declines=declines
    )


def left(root: Path, name: str, n_bytes: int, *, days_ago: float = 0.0, now: float = 0.0) -> Path:
    """A folder that a process has left, of one file of rows."""
    with SnapshotDisk(root / name):
        pass
    (root / name / f"{'0' * 64}.rows").write_bytes(bytes(n_bytes))
    used = now - days_ago * DAY_S
    os.utime(root / name / "lock", (used, used))
    return root / name


def test_each_of_two_sessions_has_a_folder_and_the_first_is_found_again():
    first = open_disk(engine())
    second = open_disk(engine())
    other = open_disk(engine("m2"))
    names = [disk.folder.name for disk in (first, second, other)]
    first_of, other_of = (owner_of(engine(name)) for name in ("m1", "m2"))
    assert names == [first_of, f"{first_of}-2", other_of]
    assert first_of.startswith("m1-f16-plain-")
    first.close()
    with open_disk(engine()) as again:
        assert again.folder == first.folder
    for disk in (second, other):
        disk.close()


def test_nobody_else_may_read_what_is_kept(nexus_home):
    snapshots_folder().mkdir(parents=True)
    snapshots_folder().chmod(0o755)
    with open_disk(engine()) as disk:
        assert nexus_home in disk.folder.parents
        assert disk.folder.stat().st_mode & 0o077 == 0
        assert snapshots_folder().stat().st_mode & 0o077 == 0


def test_why_there_is_none_is_told():
    assert open_disk(engine(), max_bytes=0).code == "disk_off"
    assert not snapshots_folder().exists()
    quantised = Decline("quantized_k", "keys are quantized")
    found = open_disk(engine(splice=quantised))
    assert (found.code, found.reason) == ("quantized_k", "keys are quantized")
    assert "computed again" in found.instead
    held = [open_disk(engine()) for _ in range(8)]
    assert open_disk(engine()).code == "disk_in_use"
    for disk in held:
        disk.close()


def test_a_folder_that_cannot_be_made_is_a_decline(nexus_home):
    (nexus_home / "cache").mkdir(parents=True)
    (nexus_home / "cache" / "snapshots").write_text("in the way")
    found = open_disk(engine())
    assert found.code == "disk_unusable"
    assert "File exists" in found.reason
    assert "memory" in found.instead


def test_no_more_than_a_quarter_of_what_is_free_is_taken(monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=2**23))
    with open_disk(engine(), max_bytes=2**30) as disk:
        assert disk.max_bytes == 2**21
    with open_disk(engine(), max_bytes=2**20) as disk:
        assert disk.max_bytes == 2**20
    assert open_disk(engine(), max_bytes=2**20 - 1).code == "disk_full"
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=0))
    assert open_disk(engine()).code == "disk_full"


def test_what_nobody_used_for_a_month_is_deleted(tmp_path):
    now = 10**9
    old = left(tmp_path, "old", 10, days_ago=KEPT_DAYS + 1, now=now)
    new = left(tmp_path, "new", 10, days_ago=KEPT_DAYS - 1, now=now)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.rows").write_text("not ours: nothing locks it")
    (tmp_path / "link").symlink_to(new)
    assert clean_disks(tmp_path, max_bytes=100, now=now) == (old,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "link", "new"]
    assert (tmp_path / "foreign" / "thesis.rows").exists()


def test_what_is_too_much_goes_beginning_with_what_was_used_longest_ago(tmp_path):
    now = 10**9
    folders = [left(tmp_path, f"n{days}", 40, days_ago=days, now=now) for days in (3, 2, 1)]
    assert clean_disks(tmp_path, max_bytes=80, now=now) == (folders[0],)
    assert clean_disks(tmp_path, max_bytes=80, now=now) == ()
    assert clean_disks(tmp_path, max_bytes=79, now=now) == (folders[1],)


def test_what_a_process_has_is_never_deleted(tmp_path):
    now = 10**9
    folder = left(tmp_path, "mine", 40, days_ago=99, now=now)
    with SnapshotDisk(folder):
        os.utime(folder / "lock", (0, 0))
        assert clean_disks(tmp_path, max_bytes=0, now=now) == ()
    assert clean_disks(tmp_path, max_bytes=0, now=now + 99 * DAY_S) == (folder,)
    assert clean_disks(tmp_path / "missing", max_bytes=0) == ()


def test_what_cannot_be_deleted_stays_and_is_no_error(tmp_path):
    folder = left(tmp_path, "odd", 40)
    (folder / f"{'0' * 64}.snapshot").mkdir()
    assert clean_disks(tmp_path, max_bytes=0, now=1.0) == ()
    assert folder.exists()


def test_opening_cleans_what_others_left():
    snapshots_folder().mkdir(parents=True)
    old = left(snapshots_folder(), "m0-f16-plain", 10)
    with open_disk(engine()):
        assert not old.exists()


def test_a_folder_that_is_taken_away_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    folder, real, taken = tmp_path / "disk", fcntl.flock, []

    def flock(handle, how):
        if not taken:
            taken.append(folder)
            (folder / "lock").unlink()
            folder.rmdir()
        return real(handle, how)

    monkeypatch.setattr(disk_files.fcntl, "flock", flock)
    with SnapshotDisk(folder):
        assert taken
        assert (folder / "lock").exists()
        with pytest.raises(DiskInUse):
            SnapshotDisk(folder)


def test_files_of_others_stay_in_a_folder_that_is_named(tmp_path):
    others = [tmp_path / name for name in (".my.cnf", "trip.snapshot", "data.rows", "notes.txt")]
    ours = [
        tmp_path / f".{'0' * 64}.rows.x1",
        tmp_path / f"{'1' * 64}.rows",
        tmp_path / f"{'2' * 64}.snapshot",
    ]
    for path in (*others, *ours):
        path.write_text("something")
    with SnapshotDisk(tmp_path, max_bytes=0) as disk:
        assert disk.counters()["orphans"] == disk.counters()["corrupt"] == 1
    assert all(path.exists() for path in others)
    assert not any(path.exists() for path in ours)
    clean_disks(tmp_path.parent, max_bytes=0)
    assert all(path.exists() for path in others)


def test_a_limit_below_nothing_is_refused(tmp_path):
    with pytest.raises(DiskUnusable, match="max_bytes = -1"):
        SnapshotDisk(tmp_path, max_bytes=-1)


def test_an_empty_folder_is_anybodys(tmp_path):
    for number in range(2):
        with SnapshotDisk(tmp_path) as disk:
            disk.belong_to(engine(f"m{number}"))
            disk.belong_to(engine(f"m{number}"))
            assert sorted(path.name for path in tmp_path.iterdir()) == [
                "lock",
                f"{owner_of(engine(f'm{number}'))}.owner",
            ]
            assert disk.n_bytes == sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


@pytest.mark.parametrize(
    "other", [{"fingerprint": "m2"}, {"kv_type": "f32"}, {"flash": True}, {"build": "b2"}]
)
def test_snapshots_of_another_model_or_layout_are_refused(tmp_path, other):
    with SnapshotDisk(tmp_path) as disk:
        disk.belong_to(engine())
        disk._kept["a snapshot"] = SimpleNamespace(n_bytes=1, rows=())
        disk.belong_to(engine())
        with pytest.raises(DiskForeign, match="another model") as refused:
            disk.belong_to(engine(**other))
    assert refused.value.next_step
