"""What a request brings along, and what a tool loses that needs more or has no use for it."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.registry import ToolSpec
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.slots import FOREIGN, MISSING, UNPLACED, Slots, brought, brought_before

REPOSITORY, LOCAL, FILE, NUMBER, ID, ADDRESS, HASH = range(7)


def tool(name: str, required: tuple[str, ...] = (), *, server: str | None = None, **types: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name, "", schema, server=server)


@pytest.mark.parametrize(
    ("request_", "kinds"),
    [
        ("What is open in acme/docs?", {REPOSITORY}),
        ("Read acme/docs#7", {REPOSITORY, NUMBER, ID}),
        ("Show ~/docs", {LOCAL, FILE}),
        ("Show /etc/hosts", {LOCAL, FILE}),
        ("Show / please", set()),
        ("Open src/main.py and setup.cfg", {FILE}),
        ("What does deadbeef1 change?", {ID, HASH}),
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

    def loss(text: str, before: list[dict[str, str]] | None = None) -> list[float]:
        return slots.loss(normalise(text), before=before).tolist()

    assert loss("Read acme/docs#7") == pytest.approx([0, 0, MISSING + UNPLACED, UNPLACED])
    assert loss("Labels of acme/docs") == pytest.approx([MISSING, 0, MISSING + UNPLACED, UNPLACED])
    assert loss("The log of ~/docs") == pytest.approx(
        [2 * MISSING + UNPLACED, MISSING + UNPLACED, 0, UNPLACED]
    )
    assert loss("Read it") == pytest.approx([2 * MISSING, MISSING, MISSING, 0])
    assert loss("Read it", before=[]) == pytest.approx([2 * MISSING, MISSING, MISSING, 0])
    assert loss("Read it", before=[{"role": "user", "content": "See acme/docs#7"}]) == pytest.approx(
        [0, 0, MISSING, 0]
    )
    assert slots.loss(normalise("Read it")).dtype == np.float32


def test_tools_of_a_server_that_takes_no_such_thing_lose_more():
    tools = [
        tool("issue", server="github", owner="string", repo="string"),
        tool("me", server="github"),
        tool("status", server="git", repo_path="string"),
        tool("note", server="notion", text="string"),
        tool("anything", text="string"),
        tool("merge", server="gitlab", project_id="string"),
    ]

    def loss(text: str, before: list[dict[str, str]] | None = None) -> list[float]:
        return Slots(tools).loss(normalise(text), before=before).tolist()

    foreign = pytest.approx(
        [0, UNPLACED, UNPLACED + FOREIGN, UNPLACED + FOREIGN, UNPLACED, UNPLACED + FOREIGN]
    )
    assert loss("What is open in acme/docs?") == foreign
    # What was said before speaks for the server, not for one of its tools.
    said = [{"role": "user", "content": "Look at acme/docs."}]
    assert loss("And there?", before=said) == pytest.approx([0, 0, FOREIGN, FOREIGN, 0, FOREIGN])
    assert loss("What is open?") == [0] * 6
    # Nobody takes a web address, so it tells nothing but that it is unplaced.
    assert loss("Read https://example.org") == pytest.approx([UNPLACED] * 6)


def test_what_a_tool_loses_for_is_told_in_words():
    tools = [
        tool(
            "issue",
            ("owner", "repo", "number"),
            server="github",
            owner="string",
            repo="string",
            number="integer",
        ),
        tool("status", ("repo_path",), server="git", repo_path="string"),
        tool("me", server="github"),
    ]
    slots = Slots(tools)
    assert slots.reasons(normalise("What is open in acme/docs?"), [1, 0, 2]) == [
        (
            "needs a path on this disk",
            "has no use for a repository",
            "nothing of its server takes a repository",
        ),
        ("needs a number",),
        ("has no use for a repository",),
    ]
    before = [{"role": "user", "content": "acme/docs#7"}]
    assert slots.reasons(normalise("Read it"), [0], before=before) == [()]


def test_a_project_that_may_be_a_path_is_a_repository():
    path = {"type": "string", "description": "Project ID or URL-encoded path"}
    specs = [
        ToolSpec(name, "", {"type": "object", "properties": {"project_id": schema}}, server=name)
        for name, schema in (("gitlab", path), ("jira", {"type": "string"}))
    ]
    found = Slots(specs).loss(normalise("What is open in acme/docs?")).tolist()
    assert found == pytest.approx([0, UNPLACED + FOREIGN])


def test_a_hash_is_for_a_tool_that_takes_one():
    tools = [
        tool("commit", ("sha",), sha="string"),
        tool("file", ref="string"),
        tool("gist", gist_id="string"),
        tool("issue", issue_id="integer"),
        tool("labels", label="string"),
    ]
    found = Slots(tools).loss(normalise("Show deadbeef1")).tolist()
    assert found == pytest.approx([0, 0, 0, FOREIGN, FOREIGN])


def test_only_the_last_turns_are_looked_at_and_of_each_the_beginning():
    said = [{"role": "user", "content": "See acme/docs"}]
    other = {"role": "assistant", "content": "So it goes."}
    assert brought_before(said) == {REPOSITORY}
    assert brought_before([*said, *[other] * 7]) == {REPOSITORY}
    assert brought_before([*said, *[other] * 8]) == set()
    assert brought_before([{"role": "user", "content": "word " * 60 + "acme/docs"}]) == set()
    assert brought_before([{"role": "assistant", "content": None}]) == set()


def test_a_choice_of_words_and_free_text_are_never_missing():
    choice = {"type": "string", "enum": ["a", "b"]}
    schema = {"type": "object", "properties": {"id": choice, "text": {"type": "string"}, "odd": True}}
    spec = ToolSpec("choose", "", {**schema, "required": ["id", "text", "odd"]})
    assert Slots([spec]).loss(normalise("Do it")).tolist() == [0]
    assert Slots([]).loss(normalise("Do it")).shape == (0,)
