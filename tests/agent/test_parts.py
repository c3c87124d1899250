"""Requests that ask for several things in order, and those that only look like it."""

from __future__ import annotations

import pytest

from nexus_lab.agent.parts import parts_of


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (
            "Convert 14:30 from Berlin to New York and then show the git status of ./inventory",
            ("Convert 14:30 from Berlin to New York", "show the git status of ./inventory"),
        ),
        (
            "List the tables, then describe products. Finally, run SELECT 1",
            ("List the tables", "describe products", "run SELECT 1"),
        ),
        ("Read the file and after that, please create a PR", ("Read the file", "create a PR")),
        ("1. List tables\n2. Describe orders", ("List tables", "Describe orders")),
        ("Do this:\n- show the log\n* create a branch", ("show the log", "create a branch")),
    ],
)
def test_what_is_asked_for_in_order_is_parted(request_, parts):
    assert parts_of(request_, most=4) == parts


@pytest.mark.parametrize(
    "request_",
    [
        "Show the next page",
        "What time was it then in Tokyo?",
        "Since then nothing works",
        'Search for "first this, then that"',
        "Run `make; then test`",
        "Create an issue titled Bug. Assign it to bob.",
        "Create an issue with this text: first I open it, then it closes by itself",
        "Tell me what happens then",
        "Two tickets for the next concert",
        "Compare a and b, then",
        "- only one item",
        "",
    ],
)
def test_one_thing_stays_one(request_):
    assert parts_of(request_, most=4) == (request_,)


def test_no_more_parts_than_allowed_and_nothing_is_lost():
    text = "open a, then open b, then open c, then open d"
    assert parts_of(text, most=2) == ("open a", "open b then open c then open d")
    assert parts_of(text, most=1) == (text,)
