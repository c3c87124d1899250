"""What a request brings along, and what a tool loses that needs more or has no use for it."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.registry import ToolSpec
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.slots import MISSING, UNPLACED, Slots, brought

REPOSITORY, LOCAL, FILE, NUMBER, ID, ADDRESS = range(6)


def tool(name: str, required: tuple[str, ...] = (), **types: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": list(required)})


@pytest.mark.parametrize(
    ("request_", "kinds"),
    [
        ("What is open in acme/docs?", {REPOSITORY}),
        ("Read acme/docs#7", {REPOSITORY, NUMBER, ID}),
        ("Show ~/docs", {LOCAL, FILE}),
        ("Show /etc/hosts", {LOCAL, FILE}),
        ("Show / please", set()),
        ("Open src/main.py and setup.cfg", {FILE}),
        ("What does deadbeef1 change?", {ID}),
        ("Who is U07MEI?", {ID}),
        ("Fetch https://example.org", {ADDRESS}),
        ('Delete "old notes"', {FILE, ID}),
        ("Close number 12", {NUMBER, ID}),
        ("Version 2.4 please", {NUMBER, ID}),
        ("Thanks. Really", set()),
        ("The factorial of five", {NUMBER, ID}),
    ],
)
def test_what_a_request_brings(request_: str, kinds: set[int]):
    assert brought(normalise(request_)) == kinds


def test_a_tool_loses_for_what_is_missing_and_for_what_it_has_no_use_for():
    tools = [
        tool("issue", ("owner", "repo", "number"), owner="string", repo="string", number="integer"),
        tool("labels", ("owner", "repo"), owner="string", repo="string"),
        tool("log", ("repo_path",), repo_path="string"),
        tool("search", ("query",), query="string"),
    ]
    slots = Slots(tools)

    def loss(text: str, *, refers_back: bool = False) -> list[float]:
        return slots.loss(normalise(text), refers_back=refers_back).tolist()

    assert loss("Read acme/docs#7") == pytest.approx([0, 0, MISSING + UNPLACED, UNPLACED])
    assert loss("Labels of acme/docs") == pytest.approx([MISSING, 0, MISSING + UNPLACED, UNPLACED])
    assert loss("The log of ~/docs") == pytest.approx(
        [2 * MISSING + UNPLACED, MISSING + UNPLACED, 0, UNPLACED]
    )
    assert loss("Read it") == pytest.approx([2 * MISSING, MISSING, MISSING, 0])
    assert loss("Read it", refers_back=True) == [0, 0, 0, 0]
    assert slots.loss(normalise("Read it"), refers_back=False).dtype == np.float32


def test_a_choice_of_words_and_free_text_are_never_missing():
    choice = {"type": "string", "enum": ["a", "b"]}
    schema = {"type": "object", "properties": {"id": choice, "text": {"type": "string"}, "odd": True}}
    spec = ToolSpec("choose", "", {**schema, "required": ["id", "text", "odd"]})
    assert Slots([spec]).loss(normalise("Do it"), refers_back=False).tolist() == [0]
    assert Slots([]).loss(normalise("Do it"), refers_back=False).shape == (0,)
