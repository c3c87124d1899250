"""Requests that name a server, and the words that name none."""

from __future__ import annotations

import numpy as np
import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry, ToolSpec
from nexus_lab.routing.naming_servers import NAMED, ServerFinder
from nexus_lab.routing.router import Router
from nexus_lab.routing.scoring import tools_by_key

TOOLS = [
    tool("list_issues", "List the issues of a repository.", server="github"),
    tool("list_tickets", "List the issues of a project.", server="gitlab"),
    tool("now", "Tell the time.", server="time"),
    tool("wait", "Wait some time.", server="clock"),
    tool("find", "Find pages.", server="brave-search"),
    tool("search", "Search files.", server="files"),
]


def finder(tools: list[ToolSpec]) -> ServerFinder:
    return ServerFinder(tools)


@pytest.mark.parametrize(
    ("request_", "places"),
    [
        ("What is open on GitHub?", [0]),
        ("What is open on GitLab?", [1]),
        ("GitHub and GitLab, please", [0, 1]),
        ("What is the time?", []),  # another server's tool speaks of it as well
        ("Search for pages", []),
        ("Ask Brave for pages", [4]),
        ("Which files are there?", []),  # an ordinary word
        ("What is open?", []),
    ],
)
def test_tools_of_a_named_server_gain(request_: str, places: list[int]):
    gained = finder(TOOLS).gain(request_)
    assert gained.dtype == np.float32
    assert np.flatnonzero(gained).tolist() == places
    assert gained.max() == pytest.approx(NAMED if places else 0)


def test_the_talk_before_counts_where_the_request_names_none():
    before = [{"role": "user", "content": "I work on GitLab."}, {"role": "assistant", "content": None}]
    found = finder(TOOLS)
    assert np.flatnonzero(found.gain("And what is open there?", before=before)).tolist() == [1]
    assert np.flatnonzero(found.gain("And what is open on GitHub?", before=before)).tolist() == [0]
    long_ago = [*before, *[{"role": "assistant", "content": "So it goes."}] * 8]
    assert not found.gain("And what is open there?", before=long_ago).any()


def test_one_server_alone_is_not_told_from_others():
    assert not finder(TOOLS[:1]).gain("What is open on GitHub?").any()
    assert finder([]).gain("What is open on GitHub?").shape == (0,)
    unknown = [tool("a", "A", server=None), tool("b", "B", server="github")]
    assert not finder(unknown).gain("On GitHub").any()


def test_an_ordinary_word_names_no_server_whatever_tools_there_are():
    assert not finder([TOOLS[0], TOOLS[2]]).gain("What did I break this time?").any()


def test_twins_on_two_servers_are_told_by_the_name():
    same = "List the issues of a project."
    twins = [tool("list_issues", same, server="github"), tool("get_issues", same, server="gitlab")]
    router = Router(Registry.of(twins), WordEmbedder(), store=False)
    for name, chosen in (("GitHub", "list_issues"), ("GitLab", "get_issues")):
        decision = router.route(f"List the issues of the project on {name}")
        assert decision.candidates[0].tool == chosen
    assert set(tools_by_key(router.registry)) == {"list_issues", "get_issues"}
