"""Snapshots as a failing disk, another version or an enemy leaves them: their states are computed again."""

from __future__ import annotations

import hashlib
import io
import resource
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from direct import NOISE, kl
from tiny_models import write_model

from nexus_lab.cache import (
    Append,
    CacheProgram,
    DiskForeign,
    ProgramRunner,
    SnapshotDisk,
    SnapshotStore,
    StartKind,
    fold,
)
from nexus_lab.engine import Engine

PROGRAM = CacheProgram((Append(tuple(range(10, 40))),)).drop((3, 8)).append(range(50, 60))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A random model, loaded in milliseconds."""
    model = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with Engine.load(model, n_ctx=256, threads=1) as made:
        yield made


def run(engine, folder, program=PROGRAM):
    """Bring `program` about with what is in `folder`; returns the result and what the disk counts."""
    with SnapshotDisk(folder) as disk, ProgramRunner(engine, store=SnapshotStore(disk=disk)) as runner:
        result = runner.run(program)
        runner.store.persist()
        runner.store.check_integrity()
        runner.pool.check_integrity()
        counters = disk.counters()
    runner.pool.close()
    assert engine.used_cells() == 0
    return result, counters


@pytest.fixture(scope="module")
def whole(engine, tmp_path_factory):
    """A folder with one snapshot, and the logits of its state."""
    folder = tmp_path_factory.mktemp("disk")
    result, counters = run(engine, folder)
    assert (counters["snapshots"], counters["written"]) == (1, 1)
    return folder, np.array(result.logits)


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(whole[0], tmp_path / "disk")


def sealed(path: Path, data: bytes) -> None:
    path.write_bytes(hashlib.sha256(data).digest() + data)


def rewritten(path: Path, name: str, change) -> None:
    """Change one array of an index, with a hash that agrees."""
    with np.load(io.BytesIO(path.read_bytes()[32:])) as arrays:
        found = {key: arrays[key] for key in arrays}
    found[name] = change(found[name])
    file = io.BytesIO()
    np.savez(file, **found)
    sealed(path, file.getvalue())


def archive(name: str, data: bytes, *, packing: int = 0) -> bytes:
    """A zip file of one member, said to be packed in some way."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(name, data)
    found = bytearray(file.getvalue())
    directory = found.find(b"PK\x01\x02")
    found[8:10] = found[directory + 10 : directory + 12] = packing.to_bytes(2, "little")
    return bytes(found)


def json_bytes(text: str):
    return lambda _array: np.frombuffer(text.encode(), np.uint8)


def test_a_whole_one_is_read(engine, whole, folder):
    result, counters = run(engine, folder)
    assert (result.start.kind, result.start.tokens) == (StartKind.SNAPSHOT, 40)
    assert np.array_equal(result.logits, whole[1])
    assert (counters["read"], counters["corrupt"]) == (1, 0)


HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999,), }\n"
HUGE = b"\x93NUMPY\x01\x00" + len(HEADER).to_bytes(2, "little") + HEADER
OPS = '{"format":"nexus-cache-program","version":1,"ops":[%s]}'


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*.snapshot", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("*.snapshot", lambda path: path.write_bytes(b"")),
        ("*.snapshot", lambda path: (path.unlink(), path.mkdir())),
        ("*.snapshot", lambda path: path.rename(path.with_name(f"{'0' * 64}.snapshot"))),
        ("*.rows", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("*.rows", lambda path: path.write_bytes(b"")),
        ("*.rows", lambda path: path.unlink()),
        ("*.rows", lambda path: (path.unlink(), path.mkdir())),
        ("*.snapshot", lambda path: rewritten(path, "row", lambda rows: rows + 1000)),
        ("*.snapshot", lambda path: rewritten(path, "row", lambda rows: rows - 1000)),
        ("*.snapshot", lambda path: rewritten(path, "row", lambda rows: rows[:5])),
        ("*.snapshot", lambda path: rewritten(path, "row", lambda rows: np.tile(rows, 2))),
        ("*.snapshot", lambda path: rewritten(path, "row", lambda rows: rows.astype(float))),
        ("*.snapshot", lambda path: rewritten(path, "chunk", lambda chunk: chunk + 7)),
        ("*.snapshot", lambda path: rewritten(path, "chunk", lambda chunk: chunk - 5)),
        ("*.snapshot", lambda path: rewritten(path, "logits", lambda logits: logits.reshape(1, -1))),
        ("*.snapshot", lambda path: rewritten(path, "logits", lambda logits: logits.astype(float))),
        ("*.snapshot", lambda path: rewritten(path, "schedule", lambda batches: batches + 9)),
        ("*.snapshot", lambda path: rewritten(path, "program", json_bytes("[" * 100_000))),
        (
            "*.snapshot",
            lambda path: rewritten(
                path, "program", json_bytes(OPS % '{"op":"append","tokens":[99999999999999]}')
            ),
        ),
        ("*.snapshot", lambda path: sealed(path, archive("program.npy", b"x" * 99, packing=99))),
        ("*.snapshot", lambda path: sealed(path, archive("program.npy", HUGE))),
    ],
)
def test_a_damaged_one_is_lost_and_its_state_computed_again(engine, whole, folder, pattern, damage):
    for path in folder.glob(pattern):
        damage(path)
    result, counters = run(engine, folder)
    assert result.start.kind is StartKind.EMPTY
    assert result.state == fold(PROGRAM)
    assert np.array_equal(result.logits, whole[1])
    assert counters["corrupt"] >= 1
    again, _ = run(engine, folder)
    if not any(path.is_dir() for path in folder.iterdir()):
        assert again.start.kind is StartKind.SNAPSHOT  # written anew


def test_what_a_full_disk_does_not_take_stays_in_memory(engine, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SnapshotDisk(tmp_path) as disk, ProgramRunner(engine, store=SnapshotStore(disk=disk)) as runner:
        program = CacheProgram().append(range(10)).drop((3, 5)).append(range(10, 40))
        runner.run(program)
        for allowed in (1000, 12_000):  # not even the first file, then some of them
            resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, limits[1]))
            try:
                assert runner.store.persist() == 0
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert (len(disk), disk.n_bytes) == (0, 0)
            assert {path.suffix for path in tmp_path.iterdir()} == {"", ".owner"}
        assert disk.counters()["refused"] == 2
        runner.store.check_integrity()
        assert runner.store.persist() == 1
    runner.pool.close()
    assert run(engine, tmp_path, program)[0].start.kind is StartKind.SNAPSHOT


def test_the_rows_of_another_model_are_refused(engine, folder, tmp_path):
    other = write_model(tmp_path / "other.gguf", seed=4)
    with Engine.load(other, n_ctx=256, threads=1) as stranger:
        with SnapshotDisk(folder) as disk, pytest.raises(DiskForeign):
            ProgramRunner(stranger, store=SnapshotStore(disk=disk))
        with SnapshotDisk(folder) as disk, pytest.raises(DiskForeign):
            SnapshotStore.for_engine(stranger, disk=disk)
        assert stranger.used_cells() == 0
    assert run(engine, folder)[0].start.kind is StartKind.SNAPSHOT


def test_a_folder_that_is_closed_is_read_and_written_no_more(engine, folder):
    with SnapshotDisk(folder) as disk:
        store = SnapshotStore(disk=disk)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with ProgramRunner(engine, store=store) as runner:
        assert runner.run(PROGRAM).start.kind is StartKind.EMPTY
        runner.run(CacheProgram().append(range(20)))
        assert store.persist() == 0
        store.clear()
    runner.pool.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_first_run_tells_what_it_begins_with(engine, tmp_path):
    plain = CacheProgram().append(range(20))
    run(engine, tmp_path, plain)
    told, _ = run(engine, tmp_path, plain.append(range(20, 30)))
    assert told.start.kind is StartKind.SNAPSHOT
    assert [(record.tokens, record.reused) for record in told.records] == [(20, 20), (10, 0)]
    assert told.records[0].parent_id == CacheProgram().id
    assert told.records[0].state_id == told.records[1].parent_id == plain.id


def test_of_a_longer_one_only_the_beginning_is_read(engine, folder, whole):
    beginning = PROGRAM.prefix(2)
    # The rows of what was appended last are gone, and nobody asks for them.
    index = next(folder.glob("*.snapshot"))
    with np.load(io.BytesIO(index.read_bytes()[32:])) as arrays:
        names, chunk = arrays["names"].tobytes().decode(), arrays["chunk"]
    last = names[64 * chunk[-1] :][:64]
    (folder / f"{last}.rows").unlink()
    with SnapshotDisk(folder) as disk:
        assert len(disk) == 0  # it is noticed where a process begins
    shutil.copytree(whole[0], folder, dirs_exist_ok=True)
    with SnapshotDisk(folder) as disk, ProgramRunner(engine, store=SnapshotStore(disk=disk)) as runner:
        (folder / f"{last}.rows").unlink()
        rows = runner.store.counters()["rows"]
        result = runner.run(beginning.append((3, 4)))
        assert (result.start.kind, result.start.tokens) == (StartKind.SNAPSHOT, 30)
        assert runner.store.counters()["rows"] == rows + 30 + 2  # five of them dropped since
        assert runner.store.counters()["cut"] == disk.counters()["read"] == 1
        assert disk.counters()["corrupt"] == 0
        runner.store.check_integrity()
        runner.pool.check_integrity()
        wanted = np.array(result.logits)
        assert runner.run(PROGRAM).start.tokens == 30  # what is gone is missed now, and nothing else
        assert disk.counters()["corrupt"] == 1
    runner.pool.close()
    with ProgramRunner(engine) as alone:
        assert kl(alone.run(beginning.append((3, 4))).logits, wanted) <= NOISE  # in other cells
    alone.pool.close()


def test_where_there_is_no_room_for_all_what_was_used_last_stays(engine, tmp_path):
    programs = [CacheProgram().append(range(number, number + 20)) for number in range(6)]
    with SnapshotDisk(tmp_path, max_bytes=40_000) as disk:
        with ProgramRunner(engine, store=SnapshotStore(disk=disk)) as runner:
            for program in programs:
                runner.run(program)
            assert runner.store.persist() == 6
            assert [program.id for program in disk.programs()] == [item.id for item in programs[-len(disk) :]]
            assert 1 <= len(disk) < 6
        runner.pool.close()
