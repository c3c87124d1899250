"""Corrections are kept for the tool as it was: another description may mean another job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from routing_tools import tool

from nexus_lab.lab.routing_book import Note, RoutingBook, book_path, owned
from nexus_lab.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

READ = "Read one file."
PAIR = ("read_file", "Show me the letter")


def book_of(registry: Registry) -> RoutingBook:
    book = RoutingBook.of(registry)
    note = Note(
        id="a", source="box", margin=0.1, tau=0.1, ms=1.0, decision="auto", tool="read_file", request=PAIR[1]
    )
    book.add(note)
    return book


def test_a_correction_belongs_to_the_tool_that_was_marked(nexus_home: Path):  # noqa: ARG001 - a home of its own
    before = Registry.of([tool("read_file", READ), tool("write_file", "Write one file.")])
    after = Registry.of([tool("read_file", "Read a file aloud."), tool("write_file", "Write one file.")])
    assert book_path(before) == book_path(after)
    note = book_of(before).mark("a", "right", request=PAIR[1], right_tool=None, registry=before)
    assert note.described is not None
    again = RoutingBook.of(after)
    assert again.examples == (PAIR,)
    assert again.examples_for(before) == (PAIR,)
    assert again.examples_for(after) == ()
    assert again.examples_for(Registry()) == ()


def test_the_tool_that_a_correction_names_is_the_one_that_is_recognised(nexus_home: Path):  # noqa: ARG001
    registry = Registry.of([tool("read_file", READ), tool("write_file", "Write one file.")])
    book = book_of(registry)
    note = book.mark("a", "wrong", request=PAIR[1], right_tool="write_file", registry=registry)
    changed = Registry.of([tool("read_file", "Read a file aloud."), tool("write_file", "Write one file.")])
    assert book.examples_for(changed) == (("write_file", PAIR[1]),)
    assert book.mark("a", None, request=None, right_tool=None).described is None
    assert note.described is not None


def test_a_book_from_before_keeps_its_corrections(nexus_home: Path):  # noqa: ARG001
    registry = Registry.of([tool("read_file", READ)])
    book_of(registry).mark("a", "right", request=PAIR[1], right_tool=None, registry=registry)
    path = book_path(registry)
    kept = json.loads(path.read_text())
    del kept["notes"][0]["described"]
    path.write_text(json.dumps(kept))
    assert RoutingBook.of(registry).examples_for(registry) == (PAIR,)


def servers(*names: str, description: str = READ) -> Registry:
    """Servers that all have a tool called ``read_file``; the first of them has the plain name."""
    return Registry.of([tool("read_file", description, server=name) for name in names])


def decided(registry: Registry, key: str) -> Note:
    return Note(
        id="a",
        source="box",
        margin=0.1,
        tau=0.1,
        ms=1.0,
        decision="auto",
        tool=key,
        tool_of=owned(registry[key]),
    )


def test_of_two_servers_with_one_tool_name_the_marked_one_learns(nexus_home: Path):  # noqa: ARG001
    before, after = servers("disk", "cloud"), servers("cloud", "disk")
    book = RoutingBook.of(before)
    book.add(decided(before, "read_file"))
    book.mark("a", "right", request=PAIR[1], right_tool=None, registry=before)
    again = RoutingBook.of(after)  # the same tools with the same texts, in another order
    assert again.examples_for(before) == (PAIR,)
    assert again.examples_for(after) == (("disk.read_file", PAIR[1]),)
    assert again.examples_for(servers("cloud")) == ()
    assert again.examples_for(servers("disk")) == (PAIR,)


def test_a_correction_names_the_server_of_the_right_tool(nexus_home: Path):  # noqa: ARG001
    before, after = servers("disk", "cloud"), servers("cloud", "disk")
    book = RoutingBook.of(before)
    book.add(decided(before, "read_file"))
    book.mark("a", "wrong", request=PAIR[1], right_tool="cloud.read_file", registry=before)
    again = RoutingBook.of(after)
    assert again.examples_for(before) == (("cloud.read_file", PAIR[1]),)
    assert again.examples_for(after) == (PAIR,)
    assert again.mark("a", None, request=None, right_tool=None).right_tool_of is None


def test_what_was_decided_is_marked_although_the_name_is_another_servers_by_now(nexus_home: Path):  # noqa: ARG001
    before, after = servers("disk", "cloud"), servers("cloud", "disk")
    book = RoutingBook.of(before)
    book.add(decided(before, "read_file"))
    book.mark("a", "right", request=PAIR[1], right_tool=None, registry=after)
    assert book.examples_for(after) == (("disk.read_file", PAIR[1]),)


def test_an_older_book_means_the_tool_whose_description_it_kept(nexus_home: Path):  # noqa: ARG001
    cloud = tool("read_file", "Read one file of the cloud.", server="cloud")
    before = Registry.of([cloud, *servers("disk")])
    book = RoutingBook.of(before)
    book.add(decided(before, "read_file"))
    book.mark("a", "right", request=PAIR[1], right_tool=None, registry=before)
    kept = json.loads(book.path.read_text())
    for name in ("tool_of", "right_tool_of"):
        del kept["notes"][0][name]
    book.path.write_text(json.dumps(kept))
    after = Registry.of([*servers("disk"), cloud])
    assert RoutingBook.of(after).examples_for(after) == (("cloud.read_file", PAIR[1]),)


@pytest.mark.parametrize(
    "notes", [["x"], [[]], [{"id": "a", "tool_of": 5}], [{"tool_of": ["a", "b", "c"]}], "no"]
)
def test_a_book_of_another_form_is_put_aside(nexus_home: Path, notes: object):  # noqa: ARG001
    registry = servers("disk")
    path = book_path(registry)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 1, "notes": notes}))
    assert RoutingBook.of(registry).notes == ()
    assert path.with_suffix(".unreadable.json").exists()


def a_note(number: str) -> Note:
    return Note(
        id=number, source="box", margin=0.1, tau=0.1, ms=1.0, decision="auto", tool="read_file", request=None
    )


def test_two_sessions_over_the_same_tools_lose_no_correction(nexus_home: Path):  # noqa: ARG001
    registry = Registry.of([tool("read_file", READ, server="files")])
    one, two = RoutingBook.of(registry), RoutingBook.of(registry)
    one.add(a_note("a"))
    one.mark("a", "right", request="Show me the letter", right_tool=None, registry=registry)
    two.add(a_note("b"))
    two.mark("b", "right", request="Read the note", right_tool=None, registry=registry)
    both = {("read_file", "Show me the letter"), ("read_file", "Read the note")}
    assert set(RoutingBook.of(registry).examples_for(registry)) == both
    # What one takes back is not brought back by the other, which has it as it was.
    two.save()
    one.mark("a", None, request=None, right_tool=None)
    two.add(a_note("c"))
    two.save()
    assert set(RoutingBook.of(registry).examples_for(registry)) == {("read_file", "Read the note")}
    assert {note.id for note in RoutingBook.of(registry).notes} == {"a", "b", "c"}


def test_a_disk_that_refuses_is_tried_again(nexus_home: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: ARG001
    registry = Registry.of([tool("read_file", READ, server="files")])
    book = RoutingBook.of(registry)
    book.add(a_note("a"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nexus_lab.lab.routing_book.atomic_write", full)
        book.save()
    assert book.failure is not None
    assert RoutingBook.of(registry).notes == ()
    book.save()
    assert book.failure is None
    assert [note.id for note in RoutingBook.of(registry).notes] == ["a"]
