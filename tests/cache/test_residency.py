"""Where rows are kept: memory, then disk; what goes first; limits; and what a killed process leaves."""

from __future__ import annotations

import hashlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from direct import NOISE, kl, rows_by_position, same_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import Synthetic, tells_its_tokens

from nexus_lab import _core
from nexus_lab.cache import (
    Append,
    CacheProgram,
    DiskInUse,
    DiskUnusable,
    Drop,
    OpTree,
    SequencePool,
    Snapshot,
    SnapshotDisk,
    SnapshotStore,
    StartKind,
    Tier,
    residency,
)
from nexus_lab.engine import SequenceState
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.engine import Engine

pytestmark = pytest.mark.model

ROOM = 2**21  # 91 rows of the bundled model, less what rounding takes


@pytest.fixture(scope="module")
def template(bundled_engine: Engine) -> SequenceState:
    """One row, for its layout."""
    with bundled_engine.scratch_sequence() as seq:
        bundled_engine.prefill(seq, [1], logits="none")
        return bundled_engine.save_state(seq)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SnapshotDisk]:
    with SnapshotDisk(tmp_path / "disk", max_bytes=2**22) as made:
        yield made


def store_of(template: SequenceState, disk: SnapshotDisk | None = None) -> tuple[SnapshotStore, Synthetic]:
    store = SnapshotStore(_core.BuddyArena(ROOM), disk=disk)
    return store, Synthetic(store, template)


def kept(store: SnapshotStore, maker: Synthetic, program: CacheProgram, before: Snapshot | None = None):
    found = store.keep(maker.after(program, before))
    assert isinstance(found, Snapshot)
    store.check_integrity()
    return found


def test_dropped_rows_go_before_those_of_finished_programs_however_fresh(template: SequenceState):
    store, maker = store_of(template)
    finished = kept(store, maker, CacheProgram().append(range(100, 110)))
    start = kept(store, maker, CacheProgram().append(range(10)))
    tool = kept(store, maker, start.program.append(range(10, 30)), start)
    store.hold(maker, kept(store, maker, tool.program.drop((10, 30)), tool).rows)
    store.find(tool.program.id)  # used last of all
    while "nothing of it has gone" and store.counters()["chunks_evicted"] == 0:
        other = CacheProgram().append((7, store.counters()["kept"]))
        assert store.keep(maker.after(other))
    assert store.counters()["dropped_evicted"] == 1
    assert tool.program.id not in store
    assert {finished.program.id, start.program.id} <= set(store.tree)
    store.check_integrity()


def test_a_state_is_cut_out_of_a_longer_one_behind_a_drop(template: SequenceState):
    store, maker = store_of(template)
    start = CacheProgram().append(range(10)).drop((2, 5))
    whole = kept(store, maker, start.append(range(20, 40)))
    wanted = start.append((*range(20, 33), 99))
    beginning = store.beginning(wanted)
    assert beginning == start.append(range(20, 33))
    cut = store.bring(beginning)
    assert cut is not None
    assert cut.complete()
    assert tells_its_tokens(cut)
    assert cut.state.positions.tolist() == whole.state.positions[:23].tolist()
    assert store.beginning(CacheProgram().append(range(10)).drop((2, 6))) is None
    assert store.bring(wanted) is None
    assert store.counters()["cut"] == 1


@pytest.mark.parametrize("finished", [False, True])
def test_a_request_continues_behind_the_drops_of_another(finished, engine, words, make_runner):
    first = make_runner(pool=SequencePool(engine))
    start = CacheProgram((Append(words[:20]),)).drop((3, 8))
    first.run(start.append(words[20:40]))
    rows = rows_by_position(engine.save_state(first.seq))
    if finished:
        first.close()
        assert engine.used_cells() == 3
    second = make_runner(pool=first.pool, store=first.store)
    result = second.run(start.append((*words[20:33], *words[50:54])))
    assert result.start.kind is (StartKind.SNAPSHOT if finished else StartKind.SLOT)
    assert result.start.tokens == 33
    assert [(record.tokens, record.op.kind.value) for record in result.records] == [(4, "append")]
    held = rows_by_position(engine.save_state(second.seq))
    assert same_rows({p: rows[p] for p in range(8, 33)}, {p: held[p] for p in range(8, 33)})
    if not finished:
        assert engine.used_cells() == 35 + 4  # shared cells count once
    direct = make_runner(pool=SequencePool(engine)).run(result.program)
    assert kl(direct.logits, result.logits) <= NOISE


def test_a_finished_conversation_can_stay_whole(engine, words, make_runner):
    pool = SequencePool(engine, keep_tails=True)
    program = CacheProgram((Append(words[:20]),)).drop((0, 8)).append(words[20:40])
    with make_runner(pool=pool) as first:
        first.run(program)
    assert engine.used_cells() == 32
    second = make_runner(pool=pool)  # with another store
    result = second.run(program.append(words[40:44]))
    assert (result.start.kind, result.start.tokens) == (StartKind.SLOT, 40)
    assert engine.used_cells() == 36
    pool.check_integrity()


def test_finished_programs_go_to_disk_and_come_back(template: SequenceState, disk: SnapshotDisk):
    store, maker = store_of(template, disk)
    first = kept(store, maker, CacheProgram().append(range(30)).drop((4, 9)))
    logits = np.array(first.logits)
    program = first.program
    del first
    for turn in range(4):
        kept(store, maker, CacheProgram().append((turn, *range(50, 79))))
    assert program.id in store
    assert program.id in disk
    assert store.tree.tiers(program.id) is Tier.DISK
    assert store.beginning(program.append((1, 2))) == program
    back = store.find(program.id)
    assert back is not None
    assert tells_its_tokens(back)
    assert np.array_equal(back.logits, logits)
    assert store.tree.tiers(program.id) == Tier.HOST | Tier.DISK
    store.check_integrity()


def test_what_is_on_disk_waits_where_memory_has_no_room_for_it(template: SequenceState, disk: SnapshotDisk):
    store, maker = store_of(template, disk)
    program = CacheProgram().append(range(40))
    kept(store, maker, program)
    store.persist()
    live = CacheProgram().append(range(50, 90))
    store.hold(maker, kept(store, maker, live).rows)
    assert store.tree.tiers(program.id) is Tier.DISK
    assert store.find(program.id) is None
    assert store.bring(CacheProgram().append(range(30))) is None
    assert program.id in store
    store.release(maker)
    assert store.find(program.id) is not None
    store.check_integrity()


def test_what_comes_back_from_disk_takes_the_place_of_another(template: SequenceState, disk: SnapshotDisk):
    store = SnapshotStore(_core.BuddyArena(ROOM), max_snapshots=2, disk=disk)
    maker = Synthetic(store, template)
    programs = [CacheProgram().append((number, *range(4))) for number in range(4)]
    for program in programs:
        kept(store, maker, program)
        store.persist()
    for program in programs:
        assert store.find(program.id) is not None
        store.check_integrity()
    assert len(store) == 2
    assert program.id in store


def test_what_the_tree_has_no_room_for_does_not_stay_on_disk(template: SequenceState, disk: SnapshotDisk):
    store, maker = store_of(template, disk)
    programs = [CacheProgram().append(range(40)), CacheProgram().append((7, 8))]
    for program in programs:
        kept(store, maker, program)
    store.persist()
    later = SnapshotStore(_core.BuddyArena(ROOM), disk=disk, tree=OpTree(20))
    later.check_integrity()
    assert list(disk) == [programs[1].id]


def test_a_snapshot_is_read_though_its_place_on_disk_is_needed_meanwhile(
    template: SequenceState, tmp_path: Path
):
    store, maker = store_of(template)
    first, second = (kept(store, maker, CacheProgram().append((n, *range(8)))) for n in (1, 2))
    with SnapshotDisk(tmp_path) as disk:
        assert disk.write(first) == (True, ())
        disk.max_bytes = disk.n_bytes

        def adopt(builders):
            assert disk.write(second) == (True, (first.program.id,))
            return [store.chunk(build) for build in builders]

        found = disk.read(first.program.id, adopt)
        assert found is not None
        assert tells_its_tokens(found)
        assert list(disk) == [second.program.id]


def test_another_process_takes_the_disk_over(template: SequenceState, tmp_path: Path):
    programs = [CacheProgram().append((turn, *range(20))).drop((3, 5)) for turn in range(3)]
    with SnapshotDisk(tmp_path) as disk:
        with pytest.raises(DiskInUse):
            SnapshotDisk(tmp_path)
        store, maker = store_of(template, disk)
        for program in programs:
            kept(store, maker, program)
        assert store.persist() == 3
        assert store.persist() == 0
    (tmp_path / f".{'0' * 64}.rows.x1").write_bytes(b"what a killed process was writing")
    (tmp_path / f"{'0' * 64}.rows").write_bytes(b"rows whose snapshot was not written any more")
    with SnapshotDisk(tmp_path) as disk:
        store, _ = store_of(template, disk)
        assert disk.counters()["orphans"] == 1
        for program in programs:
            found = store.find(program.id)
            assert found is not None
            assert tells_its_tokens(found)
        store.check_integrity()
        store.clear()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]


@pytest.mark.parametrize("kind", ["rows", "snapshot"])
def test_a_flipped_byte_is_found_and_the_state_computed_again(kind, words, make_runner, tmp_path):
    program = CacheProgram((Append(words[:20]), Drop(((3, 8),)), Append(words[20:30])))
    with SnapshotDisk(tmp_path) as disk:
        first = make_runner(store=SnapshotStore(disk=disk))
        expected = first.run(program)
        first.store.persist()
        first.close()
        first.pool.close()
    path = max(tmp_path.glob(f"*.{kind}"), key=lambda item: item.stat().st_size)
    damaged = bytearray(path.read_bytes())
    with SnapshotDisk(tmp_path) as disk:
        assert make_runner(store=SnapshotStore(disk=disk)).run(program).start.kind is StartKind.SNAPSHOT
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with SnapshotDisk(tmp_path) as disk:
        second = make_runner(store=SnapshotStore(disk=disk))
        result = second.run(program)
        assert disk.counters()["corrupt"] == 1
        assert result.start.kind is not StartKind.SNAPSHOT
        assert result.state == expected.state
        assert program.id in second.store  # as computed again, in memory
        assert program.id not in disk
        second.store.check_integrity()


def foreign(path: Path, **changes: bytes | None) -> None:
    """Write an index anew, with some arrays changed or left out, and a hash that agrees."""
    with np.load(io.BytesIO(path.read_bytes()[32:])) as arrays:
        found = {name: arrays[name] for name in arrays if changes.get(name, b"") is not None}
    found |= {name: np.frombuffer(data, np.uint8) for name, data in changes.items() if data is not None}
    file = io.BytesIO()
    np.savez(file, **found)
    path.write_bytes(hashlib.sha256(file.getvalue()).digest() + file.getvalue())


@pytest.mark.parametrize(
    "changes",
    [{"program": b'{"version": 99}'}, {"program": b"\xff"}, {"names": None}, {"schedule": None}, None],
)
def test_a_file_of_another_version_is_lost_and_nothing_else(changes, template: SequenceState, tmp_path: Path):
    with SnapshotDisk(tmp_path) as disk:
        store, maker = store_of(template, disk)
        first = kept(store, maker, CacheProgram().append(range(8)))
        second = kept(store, maker, CacheProgram().append(range(20, 30)))
        store.persist()
    path = tmp_path / f"{first.program.id}.snapshot"
    if changes is None:
        path.write_bytes(hashlib.sha256(b"no archive").digest() + b"no archive")
    else:
        foreign(path, **changes)
    with SnapshotDisk(tmp_path) as disk:
        store, _ = store_of(template, disk)
        assert store.find(first.program.id) is None
        assert disk.counters()["corrupt"] == 1
        assert not path.exists()
        assert store.find(second.program.id) is not None
        store.check_integrity()


def test_a_folder_that_cannot_be_used_is_a_typed_error_and_is_not_held(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskUnusable, match="cannot hold snapshots"):
        SnapshotDisk(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotDisk, "_take_over", lambda _self: (tmp_path / "none").read_bytes())
        with pytest.raises(DiskUnusable, match="No such file") as held:
            SnapshotDisk(tmp_path / "disk")
    SnapshotDisk(tmp_path / "disk").close()  # while the failed one is still there
    assert held.value.next_step


def test_what_cannot_be_deleted_stands_in_nobody_s_way(tmp_path: Path, caplog):
    (tmp_path / f"{'0' * 64}.rows").mkdir()
    (tmp_path / f"{'0' * 64}.snapshot").mkdir()
    (tmp_path / f"{'1' * 64}.snapshot").symlink_to("nowhere")
    with SnapshotDisk(tmp_path) as disk:
        assert len(disk) == 0
        assert disk.counters()["corrupt"] == 2
    assert caplog.text.count("cannot be deleted") == 2


_WRITER = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[3])
from synthetic import Synthetic
from nexus_lab import _core
from nexus_lab.cache import CacheProgram, SnapshotDisk, SnapshotStore
from nexus_lab.engine import SequenceState
maker = Synthetic(SnapshotStore(disk=SnapshotDisk(Path(sys.argv[1]))), SequenceState(np.load(sys.argv[2])))
for turn in range(100000):
    snapshot = maker.store.keep(maker.after(CacheProgram().append((turn % 1000, *range(12)))))
    maker.store.persist()
    print(snapshot.program.to_json(), flush=True)
"""


def test_a_killed_process_loses_nothing_that_it_had_written(template: SequenceState, tmp_path: Path):
    np.save(tmp_path / "row.npy", template.buffer)
    folder = tmp_path / "disk"
    arguments = [str(folder), str(tmp_path / "row.npy"), str(Path(__file__).parent)]
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(8)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    with SnapshotDisk(folder) as disk:
        store, _ = store_of(template, disk)
        for line in (item for item in told if item.endswith("\n")):
            found = store.find(CacheProgram.from_json(line).id)
            assert found is not None
            assert tells_its_tokens(found)
        assert disk.counters()["corrupt"] == 0
        store.check_integrity()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_limit_is_ever_exceeded(template: SequenceState, tmp_path_factory, data: st.DataObject):
    limit = data.draw(st.sampled_from((2**19, 2**20, 2**22)))
    with SnapshotDisk(tmp_path_factory.mktemp("disk"), max_bytes=limit) as disk:
        store = SnapshotStore(_core.BuddyArena(ROOM), max_snapshots=5, disk=disk)
        maker = Synthetic(store, template)
        known: list[CacheProgram] = [CacheProgram()]
        for _ in range(data.draw(st.integers(3, 12))):
            program = data.draw(st.sampled_from(known))
            size = data.draw(st.integers(1, 30))
            program = program.append(data.draw(st.integers(0, 3)) + np.arange(size)) if size % 3 else program
            if len(program.layout) and data.draw(st.booleans()):
                program = program.drop((0, len(program.layout) // 2))
            if not program.canonical_ops:
                continue
            beginning = store.beginning(program)
            before = None if beginning is None else store.bring(beginning)
            found = store.keep(maker.after(program, before))
            known.append(program)
            if data.draw(st.booleans()) and isinstance(found, Snapshot):
                store.hold(maker, found.rows)
            if data.draw(st.booleans()):
                store.persist()
            store.check_integrity()
            used = sum(path.stat().st_size for path in disk.folder.iterdir())
            assert used == disk.n_bytes <= limit
            assert store.counters()["arena_used_bytes"] <= ROOM
            assert isinstance(found, Decline) or tells_its_tokens(found)
        del found, before


def test_warm_sequences_keep_to_their_cells(engine, words, make_runner):
    pool = SequencePool(engine, max_warm_cells=45)
    for turn in range(4):
        with make_runner(pool=pool) as runner:
            runner.run(CacheProgram((Append((turn + 2, *words[:19])),)))
        assert engine.used_cells() <= 45
        assert pool.counters()["warm_cells"] == engine.used_cells() == 20 * min(turn + 1, 2)
    pool.check_integrity()


def test_residency_is_one_record(engine, words, make_runner, disk):
    store = SnapshotStore(disk=disk)
    runner = make_runner(store=store, pool=SequencePool(engine, tree=store.tree))
    runner.run(CacheProgram((Append(words[:20]), Drop(((3, 8),)), Append(words[20:30]))))
    runner.store.persist()
    found = residency(engine, runner.store, runner.pool)
    assert found.programs == {Tier.LIVE: 1, Tier.HOST: 3, Tier.DISK: 1}
    assert found.cells == 25
    assert (found.max_cells, found.max_disk_bytes) == (engine.n_ctx, disk.max_bytes)
    assert 0 < found.host_bytes <= found.max_host_bytes
    assert found.disk_bytes == disk.n_bytes > 0
    dropped = [node for node in found.nodes if node.dropped]
    assert [(node.start, node.tokens, node.tiers) for node in dropped] == [(3, 5, Tier.HOST)]
    assert found.counters["l0_leased"] == 1
    runner.close()  # its first three tokens stay warm
    found = residency(engine, runner.store, runner.pool)
    assert (found.cells, found.programs[Tier.LIVE]) == (3, 1)
    runner.pool.close()
    assert residency(engine, runner.store, runner.pool).programs[Tier.LIVE] == 0
