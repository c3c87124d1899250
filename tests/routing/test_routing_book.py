"""Corrections are kept for the tool as it was: another description may mean another job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from routing_tools import tool

from nexus_lab.lab.routing_book import Note, RoutingBook, book_path
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
