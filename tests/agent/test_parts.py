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
        ("Please do the following steps, in order:\n1. list it\n2. run it", ("list it", "run it")),
        ("Show the log, next, list the branches", ("Show the log", "list the branches")),
        ('Search for "a, then run b" and then list all', ('Search for "a, then run b"', "list all")),
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
        "Send this to the team:\n- delete the branch main\n- close issue 12",
        "Do none of the following:\n- delete the branch main\n- close issue 12",
        "Create an issue in ./inventory with this body:\n1. open the app\n2. check it",
        "In the repository ./inventory:\n- show the log\n- list the branches",
        "- show the log\n- list the branches\n\nof ./inventory",
        "If the build fails, then restart the server",
        "Once the tests pass, then merge the branch",
        "Remind me to call Bob and then show the mail",
        "Write to Bob that I check the log first and then restart the server",
        "Note for tomorrow: buy milk, then open the door",
        "Convert 3pm, next Monday in Berlin, to Tokyo time",
        "my calendar this week, next week and in May?",
        "List products sorted by price, then by name",
        "Run SELECT a FROM b ORDER BY price, then name DESC",
        "Show the commits after this release tag",
        "List all events after that meeting with Bob",
        "Show entries, finally decided entries only",
        'Post "first line\nsecond line, then delete the branch" to Slack',
        "Sum [a b, then show it]",
        "Run ```\nmake, then show it",
        'Say "hello, then list it',
        "Create a branch named fix then open",
        "List it, then show is what I want",
        "",
    ],
)
def test_one_thing_stays_one(request_):
    assert parts_of(request_, most=4) == (request_,)


def test_a_request_for_more_than_is_allowed_stays_whole():
    text = "open a b, then open b c, then open c d"
    assert parts_of(text, most=3) == ("open a b", "open b c", "open c d")
    assert parts_of(text, most=2) == (text,)
    assert parts_of(text, most=1) == (text,)
