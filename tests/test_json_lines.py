"""JSON Lines end at line feeds only, for every reader; the strings in them may hold any other character."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nexus_lab.bench.trajectories import read_trajectories
from nexus_lab.errors import NexusError
from nexus_lab.json_lines import json_lines
from nexus_lab.lab.imports import NotATranscript, read_transcript
from nexus_lab.lab.routing_records import requests_in
from nexus_lab.routing import read_rows
from nexus_lab.splice.conversations import kept_conversations, kept_path

if TYPE_CHECKING:
    from pathlib import Path

# str.splitlines cuts at each of these but the first.
SAID = "Ship it.\u200b\u2028To Oslo.\u2029Before\x85noon."
MESSAGES = [{"role": "user", "content": SAID}, {"role": "assistant", "content": "Done."}]


def lines(*values: object, end: str = "\n") -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + end for value in values)


def test_lines_are_numbered_as_an_editor_does_and_blank_ones_left_out():
    assert list(json_lines('\ufeff{"a": 1}\r\n\n  \n"b\u2028c\x85d"\n')) == [
        (1, '{"a": 1}\r'),
        (4, '"b\u2028c\x85d"'),
    ]
    assert list(json_lines("")) == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_requests_are_read_whole(tmp_path: Path, end: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(("\ufeff" + lines({"query": SAID}, {"query": "Next"}, end=end)).encode())
    assert [row["query"] for row in read_rows(path)] == [SAID, "Next"]


def test_conversations_are_read_whole(tmp_path: Path):
    path = tmp_path / "talks.jsonl"
    path.write_text(lines({"id": "a", "messages": MESSAGES}, {"id": "b", "messages": MESSAGES}))
    assert [one.messages[0]["content"] for one in read_trajectories(path)] == [SAID, SAID]


def test_kept_conversations_are_read_whole(nexus_home: Path):  # noqa: ARG001
    kept_path().parent.mkdir(parents=True, exist_ok=True)
    kept_path().write_text(lines(MESSAGES, MESSAGES) + "\n")
    assert [talk[0]["content"] for talk in kept_conversations()] == [SAID, SAID]


def test_an_imported_transcript_is_read_whole():
    found = read_transcript(lines({"messages": MESSAGES}, {"messages": MESSAGES}))
    assert found.n_turns == 2
    with pytest.raises(NotATranscript, match="line 3 is none either"):
        read_transcript(lines({"messages": MESSAGES}) + "\nno JSON\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [('{"query": "a",}', "at column 15"), ("[" * 100_000, "nested without end"), ("{x", "column 2")],
)
def test_what_is_wrong_with_a_line_is_told_by_its_column(tmp_path: Path, line: str, why: str):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"query": "a"}\n' + line + "\n")
    for read in (read_rows, read_trajectories):
        with pytest.raises(NexusError) as caught:
            read(path)
        told = caught.value.problem
        if read is read_rows:
            assert told.startswith(f"line 2 of {path} is not JSON: ")
            assert why in told
            assert "line 1" not in told
    with pytest.raises(NotATranscript, match=f"line 2 is none either: .*{why}"):
        read_transcript(path.read_text())


@pytest.mark.parametrize("read", [read_rows, read_trajectories])
def test_a_file_that_cannot_be_read_says_why_in_words(tmp_path: Path, read):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(NexusError) as missing:
        read(path)
    assert missing.value.problem == f"{path} cannot be read: No such file or directory"
    path.write_bytes(b'{"query": "\xff"}')
    with pytest.raises(NexusError) as binary:
        read(path)
    assert binary.value.problem == f"{path} cannot be read: it is no UTF-8 text (invalid start byte)"


def test_requests_of_the_routing_panel_are_read_whole():
    assert requests_in(lines({"query": SAID}, {"query": "Next"})) == [SAID, "Next"]
    assert requests_in("Ship it\r\n\nNext") == ["Ship it", "Next"]
