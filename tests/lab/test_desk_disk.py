"""A desk's snapshots on disk: they outlive it, come back in the next one, and are told truly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from told_tools import ask, told_desk

from nexus_lab.cache import SnapshotDisk, StartKind, Tier
from nexus_lab.cache.disk import snapshots_folder
from nexus_lab.lab.desk import _finish_records
from nexus_lab.trace import read_session

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("nexus_home")]


@pytest.fixture
def earlier(bundled_engine, tmp_path):
    """A session that has ended; the operations of its program."""
    with told_desk(bundled_engine, tmp_path / "earlier") as desk:
        ask(desk)
        cells = [(cell.kind, cell.tokens, cell.state_id) for cell in desk.panels["cache"].ops]
        assert desk.panels["cache"].residency.programs[Tier.DISK] == 0
    assert bundled_engine.used_cells() == 0
    return cells


def files():
    return sorted(path.suffix for path in snapshots_folder().glob("*/*"))


def on_disk():
    """Bytes of all files of snapshots."""
    return sum(path.stat().st_size for path in snapshots_folder().glob("*/*"))


def test_a_session_begins_with_what_an_earlier_one_left_on_disk(bundled_engine, tmp_path, earlier):
    assert files().count(".snapshot") == 1
    with told_desk(bundled_engine, tmp_path / "now") as desk:
        turn = ask(desk)
        panel = desk.panels["cache"]
        n_system = desk.agent.live.messages[0].stop
        assert turn.reused_tokens >= n_system - 1
        found = panel.residency
        assert found.counters["disk_read"] == 1
        assert found.programs[Tier.DISK] == 1
        assert found.disk_bytes == on_disk()
        assert found.max_disk_bytes == desk.crew.disk_bytes
        # The program is the same, and so are its states: nothing of it was told in part.
        cells = [(cell.kind, cell.tokens, cell.state_id) for cell in panel.ops]
        assert cells == earlier
        text = panel.memories().to_text()
        assert str(desk.crew.disk.folder.name) in text
        assert "1 state" in next(line for line in text.splitlines() if line.startswith("disk"))
        assert "snapshots read back from disk" in text
        assert any("disk" in branch.places for branch in panel.tree().shot.branches)


def test_the_record_of_a_session_begins_with_what_came_from_disk(bundled_engine, tmp_path, earlier):
    with told_desk(bundled_engine, tmp_path / "now") as desk:
        ask(desk)
        path = desk.session_path
    rows = read_session(path).ops.collect().sort("event").to_dicts()
    assert rows[0]["tokens"] > 1
    known = {row["state_id"] for row in rows}
    begun = [row["parent_state_id"] for row in rows if row["parent_state_id"] not in known]
    assert len(set(begun)) == 1  # the empty program alone
    assert rows[-1]["state_id"] == earlier[-1][2]


def test_the_state_of_an_earlier_session_is_planned_and_read_from_disk(bundled_engine, tmp_path, earlier):
    with told_desk(bundled_engine, tmp_path / "now") as desk:
        ask(desk)
        panel, store = desk.panels["cache"], desk.agent.live.runner.store
        panel.goto(0)
        for program_id in list(store._snapshots):
            store._forget(program_id)
        desk.driver.submit("emptied", desk.agent._pool.close).get()
        plan = panel.plan_restore(len(earlier))
        assert (plan.start, plan.places) == (StartKind.SNAPSHOT, ("disk",))
        assert "a snapshot (disk)" in panel.restores().to_text()
        part = panel.plan_restore(1)  # cut out of the longer one
        assert (part.start, part.places) == (StartKind.SNAPSHOT, ("disk",))
        done = panel.bring_back(len(earlier))
        assert done.from_disk
        assert done.computed == 0
        assert "from a snapshot on disk" in panel.restores().to_text()
        again = panel.bring_back(len(earlier) - 1)
        assert not again.from_disk


def test_two_desks_of_one_model_do_not_share_a_folder(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path / "one") as one:
        with told_desk(bundled_engine, tmp_path / "two") as two:
            assert one.crew.disk.folder != two.crew.disk.folder
            ask(two)
        ask(one)
    assert files().count(".snapshot") == 2
    with told_desk(bundled_engine, tmp_path / "three") as three:
        assert three.crew.disk.folder == snapshots_folder() / three.crew.disk.folder.name
        assert len(three.crew.disk) == 1


def test_a_desk_without_a_disk_says_so(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path, disk_bytes=0) as desk:
        ask(desk)
        text = desk.panels["cache"].memories().to_text()
        assert "No snapshots are kept on disk. Instead: " in text
        assert desk.crew.disk.code == "disk_off"
    assert not snapshots_folder().exists()


def test_a_folder_that_cannot_be_used_keeps_nobody_from_asking(bundled_engine, tmp_path, nexus_home):
    (nexus_home / "cache").mkdir(parents=True)
    (nexus_home / "cache" / "snapshots").write_text("in the way")
    with told_desk(bundled_engine, tmp_path) as desk:
        assert ask(desk).problem is None
        assert "cannot be used" in desk.panels["cache"].memories().to_text()


def test_what_nobody_closed_is_written_when_the_process_ends(bundled_engine, tmp_path):
    with told_desk(bundled_engine, tmp_path) as desk:
        ask(desk)
        assert ".snapshot" not in files()
        _finish_records()
        assert files().count(".snapshot") == 1
        with SnapshotDisk(desk.agent._store.disk.folder) as taken:  # nobody has it any more
            assert len(taken) == 1
    assert bundled_engine.used_cells() == 0


_SESSION = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from desk_tools import WordEmbedder, raw_config
from told_tools import ToldRouter, ask, fixed_spec, settle
from nexus_lab.lab.desk import Desk
from nexus_lab.registry import McpServer, Registry, Toolbox
from nexus_lab.settings import Profile
server = McpServer(raw_config())
server.start()
desk = Desk(
    model="bundled",
    tools=Toolbox([server], Registry.of([fixed_spec("hello")], name="test")),
    profile=Profile(max_tokens=24, answer_tokens=8, threads=1),
    session=Path(sys.argv[1]) / "here.nexus",
    embedder=WordEmbedder(),
    n_ctx=1024,
)
settle(desk)
desk.agent.router = ToldRouter(desk.registry)
print("reused", ask(desk).reused_tokens)
"""


def test_a_process_that_just_ends_leaves_its_states_to_the_next(tmp_path):
    here = Path(__file__).parent
    arguments = [sys.executable, "-c", _SESSION, str(tmp_path), str(here), str(here.parent)]
    told = [
        subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=240).stdout.split()
        for _ in range(2)
    ]
    assert told[0] == ["reused", "0"]
    assert int(told[1][1]) > 10
