"""Recorded sessions that are damaged, or not ours: read or refused by a typed error, whatever is in them."""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib

import pytest
from foreign_tools import N_CASES, damaged_bytes, damaged_json, hold_to_word

from nexus_lab.trace import DamagedSession, Session, export, read_session
from nexus_lab.trace.archive import pack
from nexus_lab.trace.base import JOURNAL, MANIFEST
from nexus_lab.trace.bundle import load


def _use(session) -> None:
    """Everything that the workbench asks of a session when it opens one."""
    assert repr(session)
    assert len(session.tree()) >= 0
    for table in session.tables.values():
        table.collect()


@pytest.fixture
def copied(bundle, tmp_path):
    """A bundle of its own for each test."""
    return shutil.copytree(bundle, tmp_path / "copied.nexus")


@pytest.fixture(scope="module")
def single(session, tmp_path_factory):
    return export(session, "json", tmp_path_factory.mktemp("single") / "story.nexus.json", contents=True)


def test_a_single_file(single, tmp_path):
    document = json.loads(single.read_bytes())
    # Few rows, so that damage falls on every field.
    document["tables"] = {
        table: {name: values[:2] for name, values in columns.items()}
        for table, columns in document["tables"].items()
    }

    def read(path) -> None:
        _use(read_session(path))

    hold_to_word(read, tmp_path / "story.nexus.json", damaged_json(document))


def test_a_column_of_values_nested_without_end_is_refused_at_once(single, tmp_path):
    document = json.loads(single.read_bytes())
    document["tables"]["fidelity"]["tool"][0] = json.loads("[" * 900 + "]" * 900)
    (tmp_path / "deep.nexus.json").write_text(json.dumps(document))
    with pytest.raises(DamagedSession, match="nested"):
        read_session(tmp_path / "deep.nexus.json")


def test_a_turn_without_its_number_is_listed(single, tmp_path):
    document = json.loads(single.read_bytes())
    events = document["tables"]["events"]
    events["turn"] = [None] * len(events["turn"])
    (tmp_path / "unnumbered.nexus.json").write_text(json.dumps(document))
    assert "   ?  " in repr(read_session(tmp_path / "unnumbered.nexus.json"))


def test_a_manifest(copied):
    path = copied / MANIFEST

    def read(_path) -> None:
        _use(read_session(copied))

    hold_to_word(read, path, damaged_json(json.loads(path.read_text())))


@pytest.mark.parametrize("table", ["events", "ops", "drift"])
def test_a_table(copied, table):
    path = copied / f"{table}.parquet"

    def read(_path) -> None:
        _use(read_session(copied))

    data = path.read_bytes()
    hold_to_word(read, path, damaged_bytes(data, N_CASES // 3))
    # The directory of a Parquet file stands at its end.
    turned = (changed[::-1] for changed in damaged_bytes(data[::-1], N_CASES // 3, near=2000, seed=2))
    hold_to_word(read, path, turned)


def test_a_zip(bundle, tmp_path):
    pack(bundle, tmp_path / "whole.zip")

    def read(path) -> None:
        _use(read_session(path))

    data = (tmp_path / "whole.zip").read_bytes()
    assert zipfile.is_zipfile(tmp_path / "whole.zip")
    hold_to_word(read, tmp_path / "sent.zip", damaged_bytes(data, N_CASES // 3))
    turned = (changed[::-1] for changed in damaged_bytes(data[::-1], N_CASES // 2, near=900, seed=2))
    hold_to_word(read, tmp_path / "sent.zip", turned)


def _line(record: bytes) -> bytes:
    return b"%08x %08x %s\n" % (len(record), zlib.crc32(record), record)


def test_a_journal(bundle, tmp_path):
    """Each damaged record gets its right length and sum: a writer of another version, or a bad one."""
    live = tmp_path / "live.nexus"
    live.mkdir()
    run = {"id": "r-001", "started": "2026-01-01T00:00:00+00:00", "status": "recording"}
    opening = {"type": "run", "run": run, "session": json.loads((bundle / MANIFEST).read_text())}
    row = {"table": "ops", "op": "append", "ranges": [[0, 4]], "positions": [[0, 4]], "times_ms": {"a": 1.0}}
    drift = {"table": "drift", "step": 1, "tensor": "k", "measure": "absolute", "values": [[0.1, 0.2]]}
    event = {
        "type": "event", "id": 1, "parent": None, "kind": "turn", "name": "a", "start": 5, "duration": 7,
        "status": "ok", "attributes": {"turn": 1}, "rows": [row, drift],
    }  # fmt: skip
    records = [opening, event, {"type": "end", "ended": "2026-01-01T00:00:01+00:00"}]

    def lines():
        for text in damaged_json(records, 2 * N_CASES):
            try:
                parts = json.loads(text)
            except (ValueError, RecursionError):
                parts = None
            if isinstance(parts, list):
                yield b"".join(_line(json.dumps(part).encode()) for part in parts)
            else:
                yield _line(text)

    def read(path) -> None:
        loaded = load(live)
        _use(Session(path, loaded.manifest, loaded.tables))

    hold_to_word(read, live / JOURNAL, lines())
