"""The journal keeps what it was given, whatever kills its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from nexus_lab.trace import SessionBusy, read_session, recover
from nexus_lab.trace.base import JOURNAL
from nexus_lab.trace.journal import JournalWriter, SessionLock, read_journal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def journal(tmp_path):
    writer = JournalWriter(tmp_path, flush_seconds=0.01)
    yield writer
    writer.close()


@given(
    records=st.lists(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), max_size=6),
    cut=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_a_journal_cut_anywhere_yields_the_whole_records_before_the_cut(tmp_path_factory, records, cut):
    folder = tmp_path_factory.mktemp("cut")
    writer = JournalWriter(folder)
    ends = []
    for record in records:
        writer.append(record)
        ends.append(writer.path.stat().st_size)
    writer.close()
    length = int(cut * writer.path.stat().st_size)
    os.truncate(writer.path, length)
    whole = sum(end <= length for end in ends)
    found = read_journal(writer.path)
    assert list(found.records) == [_utf8(record) for record in records[:whole]]
    assert bool(found.notes) == (length not in (0, *ends))


def _utf8(value):
    """What UTF-8 cannot say (a lone surrogate) is written as a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return value


def test_a_damaged_record_costs_itself_only(journal):
    for number in range(5):
        journal.append({"number": number})
    data = bytearray(journal.path.read_bytes())
    data[data.index(b'"number":2') + 9] ^= 1
    journal.path.write_bytes(bytes(data))
    found = read_journal(journal.path)
    assert [record["number"] for record in found.records] == [0, 1, 3, 4]
    assert found.notes == ("1 damaged record of the journal dropped",)


def test_records_of_many_threads_stay_whole(journal):
    def write(name):
        for number in range(200):
            journal.append({"thread": name, "number": number, "text": "x" * number})

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_journal(journal.path)
    assert not found.notes
    for name in range(4):
        assert [r["number"] for r in found.records if r["thread"] == name] == list(range(200))


def test_a_record_is_in_the_file_before_append_returns(journal):
    journal.append({"text": "here"})
    assert b'"here"' in journal.path.read_bytes()


def test_the_disk_is_flushed_from_a_helper_thread_and_not_per_record(tmp_path, monkeypatch):
    flushes = []
    monkeypatch.setattr(
        "nexus_lab.trace.journal.os.fsync", lambda _file: flushes.append(threading.current_thread().name)
    )
    writer = JournalWriter(tmp_path, flush_seconds=0.2)
    for number in range(500):
        writer.append({"number": number})
    eventually(lambda: flushes)
    assert set(flushes) == {"nexus-journal"}
    assert len(flushes) < 400
    writer.close()
    writer.close()


def test_a_record_the_disk_refused_leaves_no_half_behind(tmp_path):
    """A file size limit makes the kernel write a part of the record and then refuse the rest."""
    code = """
        import resource, signal, sys
        from pathlib import Path
        from nexus_lab.trace.journal import JournalWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        writer = JournalWriter(Path(sys.argv[1]))
        for number in range(100):
            try:
                writer.append({"number": number, "text": "x" * 300})
            except OSError:
                print(number, flush=True)
                break
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    refused = int(found.stdout)
    journal = read_journal(tmp_path / JOURNAL)
    assert [record["number"] for record in journal.records] == list(range(refused))
    assert not journal.notes


def test_the_lock_has_one_holder_and_dies_with_it(tmp_path):
    lock = SessionLock(tmp_path)
    with pytest.raises(SessionBusy, match=f"process {os.getpid()}") as caught:
        SessionLock(tmp_path)
    assert caught.value.next_step
    lock.release()
    lock.release()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDING), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    with pytest.raises(SessionBusy, match=f"process {child.pid}"):
        SessionLock(tmp_path)
    child.kill()
    child.wait()
    child.stdout.close()
    SessionLock(tmp_path).release()


HOLDING = """
    import sys, time
    from pathlib import Path
    from nexus_lab.trace.journal import SessionLock
    lock = SessionLock(Path(sys.argv[1]))
    print("held", flush=True)
    time.sleep(60)
"""
RECORDING = """
    import itertools, sys
    from nexus_lab.agent.base import Emitter, EventKind, MessageRow
    from nexus_lab.trace import SessionRecorder
    recorder = SessionRecorder(sys.argv[1], contents=True, settings={"k": 4})
    emitter = Emitter(recorder)
    for turn in itertools.count(1):
        with emitter.span(EventKind.TURN, f"turn {turn}", turn=turn) as span:
            for step in range(20):
                row = MessageRow(role="user", text=f"{turn}.{step}")
                event = emitter.point(EventKind.MESSAGE, "said", row)
                print(event.id, flush=True)
        print(span.id, flush=True)
"""


@pytest.fixture
def recording(tmp_path):
    """A process that records without end; its output names each event after it was recorded."""
    path = tmp_path / "killed.nexus"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RECORDING), str(path)], stdout=subprocess.PIPE, text=True
    )
    yield path, child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_killed_process_loses_nothing_that_had_finished(recording):
    path, child = recording
    told = [int(child.stdout.readline()) for _ in range(150)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    told += [int(line) for line in child.stdout if line.endswith("\n")]
    assert (path / JOURNAL).exists()

    session = read_session(path)
    assert session.manifest.status == "recovered"
    assert session.manifest.latest.ended is None
    assert session.manifest.latest.settings == {"k": 4}
    assert not (path / JOURNAL).exists()
    recorded = set(session.events.collect()["id"])
    assert set(told) <= recorded
    last = session.events.collect().filter(kind="turn").sort("id").tail(1).row(0, named=True)
    assert (last["status"], last["duration"]) in {("interrupted", None), ("ok", last["duration"])}
    said = set(session.messages.collect()["event"])
    assert set(told) - set(session.events.filter(kind="turn").collect()["id"]) <= said
    again = read_session(path)
    assert set(again.events.collect()["id"]) == recorded


def test_a_session_recorded_elsewhere_is_read_and_never_written(recording):
    path, child = recording
    told = [int(child.stdout.readline()) for _ in range(30)]
    before = sorted(item.name for item in path.iterdir())
    session = read_session(path)
    assert session.manifest.status == "recording"
    assert set(told) <= set(session.events.collect()["id"])
    open_turns = session.events.filter(kind="turn", status="running").collect()
    assert open_turns.height <= 1
    assert "interrupted" not in set(session.events.collect()["status"])
    with pytest.raises(SessionBusy):
        recover(path)
    assert sorted(item.name for item in path.iterdir()) == before
    assert child.poll() is None
