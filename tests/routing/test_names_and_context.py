"""Requests that name their tool, and requests that refer back."""

from __future__ import annotations

from typing import Any

import pytest
from routing_tools import tool

from nexus_lab.registry import Registry
from nexus_lab.routing.context import refers_back, resolve
from nexus_lab.routing.names import NameFinder
from nexus_lab.routing.scoring import tools_by_key


@pytest.fixture
def finder(registry: Registry) -> NameFinder:
    more = registry.add([tool("listIssuesV2"), tool("Finance Tool"), tool("Ünïcode_tool")])
    return NameFinder(tuple(tools_by_key(more)), more)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ("use list_issues for acme", ["list_issues"]),
        ("LIST_ISSUES, then create_branch.", ["list_issues", "create_branch"]),
        ("list_issues", ["list_issues"]),
        ("please run listIssuesV2()", ["listIssuesV2"]),
        ("github.list_issues please", ["list_issues"]),
        ("fetch", ["fetch"]),
        ("use fetch on this page", ["fetch"]),
        ("call `fetch`", ["fetch"]),
        ("the fetch tool", ["fetch"]),
        ("fetch(url)", ["fetch"]),
        ("fetch the page and search it", []),
        ("list issues", []),
        ("my_list_issues_copy", []),
        ("files.search for readme", ["files.search"]),
        ("ask the finance tool", ["Finance Tool"]),
        ("try ünïcode_tool", ["Ünïcode_tool"]),
        ("", []),
    ],
)
def test_named_tools_are_found(finder: NameFinder, registry: Registry, request_: str, named: list[str]):
    more = registry.add([tool("listIssuesV2"), tool("Finance Tool"), tool("Ünïcode_tool")])
    names = tuple(tools_by_key(more))
    assert [names[place] for place in finder.places(request_)] == named


@pytest.mark.parametrize(
    ("request_", "back"),
    [
        ("Open a pull request there to main, title Dark mode.", True),
        ("And the open issues of the others?", True),
        ("Then squash it in.", True),
        ("Yes, start a branch try-cache from develop.", True),
        ("Which check?", True),
        ("List the open issues of the repository acme", False),
        ("Create a repository called photo sorter for me", False),
    ],
)
def test_a_request_that_refers_back_is_told_from_one_that_stands_alone(request_: str, back: bool):  # noqa: FBT001
    assert refers_back(request_) is back


CONTEXT: list[dict[str, Any]] = [
    {"role": "user", "content": "Open issues of acme/docs"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "list_issues", "arguments": {}}]},
    {"role": "tool", "content": "[]"},
    {"role": "user", "content": "I committed the stylesheet."},
    {"role": "assistant", "content": "Good."},
]


def test_the_reference_is_the_last_user_turn_and_the_last_tool():
    found = resolve("Open a pull request there", CONTEXT)
    assert found is not None
    assert (found.text, found.tool) == ("I committed the stylesheet.", "list_issues")


def test_calls_in_the_chat_form_are_read_too():
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "fetch"}}],
    }
    found = resolve("again", [call])
    assert found is not None
    assert (found.text, found.tool) == ("", "fetch")


@pytest.mark.parametrize(
    "context", [[], [{"role": "assistant", "content": "Hello"}], [{"role": "user", "content": None}]]
)
def test_without_anything_before_there_is_no_reference(context: list[dict[str, Any]]):
    assert resolve("Open it there", context) is None


def test_a_request_that_stands_alone_has_no_reference():
    assert resolve("List the open issues of the repository acme", CONTEXT) is None
