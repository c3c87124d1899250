"""Sweeps lose nothing that had finished, whatever ends them, and run on any executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import sweep_work
from sweep_work import Numbered, work
from waiting import eventually

from nexus_lab.bench.sweep import JOURNAL, Finished, Journal, SweepBusy, SweepError, SweepFailed, run_tasks


class NeverRuns(Executor):
    def submit(self, *_args, **_options) -> Future:
        raise AssertionError("nothing was to be run")


def lines(folder: Path) -> list[dict]:
    path = folder / JOURNAL
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        # A process that nobody has waited for yet is still listed.
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def running(tmp_path):
    """A sweep in another process, whose last task waits; the three before it are done."""
    with subprocess.Popen(
        [sys.executable, sweep_work.__file__, str(tmp_path)], stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        eventually(lambda: len(lines(tmp_path)) == 3 and (tmp_path / "waiting").exists())
        yield process
        if process.poll() is None:
            process.kill()


def test_a_killed_sweep_goes_on_where_it_was(running, tmp_path):
    waiting = int((tmp_path / "waiting").read_text())
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    eventually(lambda: not alive(waiting))  # no worker outlives its parent
    before = lines(tmp_path)
    (tmp_path / "gate").touch()
    with Journal(tmp_path) as journal:
        finished = run_tasks(sweep_work.tasks(str(tmp_path)), work, journal, workers=1)
    assert [task.rows[0]["number"] for task in finished] == [0, 1, 2, 3]
    assert lines(tmp_path)[:3] == before
    known = {record["key"]: record["rows"] for record in before}
    assert all(finished[number].rows == known[str(number)] for number in range(3))


def test_ctrl_c_ends_at_once_and_keeps_what_is_done(running, tmp_path):
    waiting = int((tmp_path / "waiting").read_text())
    running.send_signal(signal.SIGINT)
    assert running.wait() != 0
    assert b"KeyboardInterrupt" in running.stderr.read()
    eventually(lambda: not alive(waiting))
    assert {record["key"] for record in lines(tmp_path)} == {"0", "1", "2"}


def test_half_a_line_is_cut_off_and_a_bad_one_passed_over(tmp_path):
    good = json.dumps({"key": "1", "seconds": 2.0, "rows": [{"number": 1, "pid": 5}]})
    (tmp_path / JOURNAL).write_text(f'{good}\nno record\n{{"key": "2"}}\n{good[:20]}')
    with Journal(tmp_path) as journal:
        assert journal.finished == {"1": Finished([{"number": 1, "pid": 5}], 2.0)}
        journal.add("3", Finished([], 1.0))
    with Journal(tmp_path) as journal:
        assert set(journal.finished) == {"1", "3"}


def test_a_folder_belongs_to_one_sweep_at_a_time(tmp_path):
    with Journal(tmp_path), pytest.raises(SweepBusy):
        Journal(tmp_path)
    Journal(tmp_path).__exit__()
    (tmp_path / "file").touch()
    with pytest.raises(SweepError, match="written"):
        Journal(tmp_path / "file")


def test_who_begins_anew_leaves_the_journal_of_a_running_sweep(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add("1", Finished([], 1.0))
        with pytest.raises(SweepBusy):
            Journal(tmp_path, resume=False)
        journal.add("2", Finished([], 1.0))
    with Journal(tmp_path) as journal:
        assert set(journal.finished) == {"1", "2"}
    with Journal(tmp_path, resume=False) as journal:
        assert journal.finished == {}
    assert (tmp_path / JOURNAL).read_bytes() == b""


def test_what_the_journal_has_is_not_run(tmp_path):
    steps = []
    with Journal(tmp_path) as journal:
        journal.add("7", Finished([{"number": 7}], 1.0))
        found = run_tasks(
            [Numbered(7)], work, journal, executor=NeverRuns(), on_progress=lambda *step: steps.append(step)
        )
    assert found[0].rows == [{"number": 7}]
    assert steps == [(1, 1)]


def test_a_failed_task_is_told_when_the_others_are_done(tmp_path):
    tasks = [Numbered(1, fails=True), Numbered(2), Numbered(3, fails=True)]
    with ThreadPoolExecutor(1) as executor, Journal(tmp_path) as journal:
        with pytest.raises(SweepFailed, match="2 of 3 tasks failed; the first: 1 is odd") as error:
            run_tasks(tasks, work, journal, executor=executor)
        assert error.value.next_step == "take an even one"
        assert set(journal.finished) == {"2"}


def test_a_task_that_is_to_be_alone_starts_when_the_others_are_done(tmp_path):
    order = []

    def noted(task):
        order.append((task.number, len(journal.finished)))
        return []

    tasks = [Numbered(0, alone=True), Numbered(1), Numbered(2), Numbered(3, alone=True)]
    with ThreadPoolExecutor(4) as executor, Journal(tmp_path) as journal:
        run_tasks(tasks, noted, journal, executor=executor)
    assert order[2:] == [(0, 2), (3, 3)]
