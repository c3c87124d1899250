"""What a turn's card says of where a call comes from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nexus_lab.agent import EventKind, Status
from nexus_lab.arguments import plan_call
from nexus_lab.lab.fragments import fragment
from nexus_lab.lab.grounds import ground_words, marked
from nexus_lab.lab.turn_cards import TurnLog
from nexus_lab.registry import ToolSpec

ISSUES = ToolSpec(
    "list_issues",
    "List issues of a repository",
    {
        "type": "object",
        "properties": {
            "owner": {"type": "string", "description": "Repository owner"},
            "repo": {"type": "string", "description": "Repository name"},
            "state": {"enum": ["open", "closed"], "description": "State of the issues"},
            "per_page": {"type": "integer", "default": 30},
        },
        "required": ["owner", "repo", "per_page"],
    },
)


def grounds_of(request: str, context=()) -> list[dict]:
    return [one.to_dict() for one in plan_call(ISSUES, request, context).grounds]


def test_what_a_call_takes_from_a_request_is_marked_where_it_stands():
    request = "🙂 Which closed issues has acme/webshop?"
    grounds = grounds_of(request)
    pieces = marked(request, grounds)
    assert "".join(text for text, _ in pieces) == request
    assert [piece for piece in pieces if piece[1]] == [("acme", "owner"), ("webshop", "repo")]
    assert ground_words(grounds) == {
        "owner": "said in the request",
        "repo": "said in the request",
        "state": "a value that the schema lists",
        "per_page": "what the schema names where nothing is said",
    }


def test_what_was_said_before_is_told_and_not_marked():
    context = [{"role": "user", "content": "Look at acme/webshop"}, {"role": "assistant", "content": "I do."}]
    grounds = grounds_of("List its issues", context)
    assert marked("List its issues", grounds) == (("List its issues", None),)
    assert ground_words(grounds)["repo"] == "said 2 messages before"


@pytest.mark.parametrize(
    ("grounds", "pieces"),
    [
        ([("a", 0, 3), ("b", 0, 3)], [("abc", "a, b"), ("def", None)]),
        ([("a", 0, 4), ("b", 2, 6)], [("ab", "a"), ("cd", "a, b"), ("ef", "b")]),
        ([("a", 2, 99)], [("ab", None), ("cdef", "a")]),
        ([], [("abcdef", None)]),
    ],
)
def test_shared_and_overlong_parts_are_marked_once(grounds, pieces):
    given = [{"argument": n, "kind": "said", "turn": 0, "start": a, "stop": b} for n, a, b in grounds]
    assert list(marked("abcdef", given)) == pieces


def test_a_card_takes_them_from_the_event_and_its_page_escapes_them():
    request = "Which issues has acme/<b>webshop?"
    log = TurnLog(1, request, 1, 0)
    said = {"argument": "<i>", "kind": "said", "turn": 0, "start": 17, "stop": 21}
    log.hear(
        SimpleNamespace(
            kind=EventKind.ARGUMENTS,
            name="list_issues",
            id=1,
            parent=None,
            status=Status.OK,
            start_ns=0,
            duration_ns=5,
            attributes={"attempt": 1, "settled": True},
            contents={"grounds": [said, "no ground"]},
            rows=(),
        )
    )
    card = log.card()
    assert card.marked == (("Which issues has ", None), ("acme", "<i>"), ("/<b>webshop?", None))
    assert card.spans[0].detail == "attempt 1, settled by what was said"
    page = fragment(
        '{% for text, names in marked %}<mark title="{{ names }}">{{ text }}</mark>{% endfor %}',
        marked=card.marked,
    )
    assert "<b>" not in page
    assert "<i>" not in page
