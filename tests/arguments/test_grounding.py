"""Values that the conversation offers, and the grammar that allows no others."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from nexus_lab.arguments import GrammarPlan, mentioned, plan_call, spoken_values
from nexus_lab.registry import ToolSpec

BYTES = LLTokenizer("byte", slices=[])


def tool(required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    return ToolSpec("tool", "", {"type": "object", "properties": properties, "required": list(required)})


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
LIST_ISSUES = tool(
    ("owner", "repo"),
    owner=TEXT,
    repo=TEXT,
    state={"type": "string", "enum": ["OPEN", "CLOSED"]},
    labels={"type": "array", "items": TEXT},
    perPage=WHOLE,
    orderBy={"type": "string", "enum": ["CREATED_AT", "UPDATED_AT"]},
    since=TEXT,
)


def accepts(plan: GrammarPlan, text: str) -> bool:
    matcher = LLMatcher(BYTES, plan.grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("request_", "argument", "schema", "values"),
    [
        ("Show issue 482 and 7,000 of 2.5", "number", WHOLE, (482, 7000, 2.5)),
        ("Close acme/webshop#560", "number", WHOLE, (560,)),
        ("Issues 1,2 and 1,000", "number", WHOLE, (1, 2, 1000)),
        ("From -5 to (−2.5), 10-20, GPT-4 .5", "n", {"type": "number"}, (-5, 5, -2.5, 2.5, 10, 20, 4, 0.5)),
        ("Since 2026-02-01 until 2026-02-28", "since", TEXT, ("2026-02-01", "2026-02-28")),
        ("Since 2026-02-01", "day", {"type": "string", "format": "date"}, ("2026-02-01",)),
        ("Read https://example.com/a, please", "url", TEXT, ("https://example.com/a",)),
        ("Show src/main.py and .gitignore", "path", TEXT, ("src/main.py", ".gitignore")),
        ("What did c0ffee42 change?", "sha", TEXT, ("c0ffee42",)),
        ("Meet at 14:30 or 9:05 pm", "time", TEXT, ("14:30", "9:05 pm")),
        ("At 08:00:15 sharp", "at", {"type": "string", "format": "time"}, ("08:00:15",)),
        (
            "14:30 from Europe/Berlin in New York, not UTC",
            "target_timezone",
            TEXT,
            ("America/New_York", "Europe/Berlin", "UTC"),
        ),
        ('Comment "Looks good" and “Thanks”', "body", TEXT, ("Looks good", "Thanks")),
        (
            "Find login errors",
            "query",
            TEXT,
            ("Find login errors", "Find login", "login errors", "Find", "login", "errors"),
        ),
        ("Tag v2.4.1 of the repo", "tag", TEXT, ("Tag", "v2.4.1", "repo")),
        ("Label it bug", "labels", {"type": "array", "items": TEXT}, ("Label", "bug")),
        ("Ask jlee42's team", "name", TEXT, ("Ask", "jlee42", "team")),
    ],
)
def test_values_are_what_was_said_and_looks_like_them(
    request_: str, argument: str, schema: dict[str, Any], values: tuple[Any, ...]
):
    assert spoken_values(tool(**{argument: schema}), request_) == {argument: values}


def test_a_free_text_is_offered_as_it_was_written():
    values = spoken_values(tool(query=TEXT), "Run SELECT name, price FROM products WHERE stock > 1.")["query"]
    assert "SELECT name, price FROM products WHERE stock > 1" in values
    assert all(value in "Run SELECT name, price FROM products WHERE stock > 1." for value in values)


@pytest.mark.parametrize("text", ["9" * 400 + ".5", "9" * 3_999, "v1.2.3 of python3.11", "#1.2.3"])
def test_what_is_no_number_is_not_offered_as_one(text: str):
    assert spoken_values(tool(n={"type": "number"}), text) == {}


def test_of_a_long_request_only_texts_that_fit_are_held():
    request = "hello world foo bar " * 5_000
    tracemalloc.start()
    values = spoken_values(tool(query=TEXT, body={**TEXT, "maxLength": 1_000}), request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert max(map(len, values["query"])) <= 256
    assert max(map(len, values["body"])) <= 1_000
    plan = plan_call(tool(("query",), query=TEXT), request)
    assert accepts(plan, '{"query":"hello world foo bar"}')
    assert not accepts(plan, '{"query":"never said"}')


def test_what_no_encoding_carries_does_not_break_the_grammar():
    plan = plan_call(tool(("query",), query=TEXT), 'Find "a\ud800b"')
    assert accepts(plan, '{"query":"a\ufffdb"}') or accepts(plan, '{"query":"a\ufffd\ufffd\ufffdb"}')


def test_half_a_word_of_a_long_request_is_not_offered():
    request = "word " * 797 + "see docs/a-page-of-its-own.md"
    assert set(spoken_values(tool(path=TEXT), request)["path"]) == {
        "word",
        "see",
        "docs/a-page-of-its-own.md",
    }


def test_an_owner_is_told_from_its_repository():
    values = spoken_values(LIST_ISSUES, "Issues of acme/webshop and globex/infra#3")
    assert values["owner"] == ("acme", "globex")
    assert values["repo"] == ("webshop", "infra")


def test_a_path_is_not_the_repository_where_there_is_another():
    write = tool(("path",), owner=TEXT, repo=TEXT, path=TEXT)
    assert spoken_values(write, "Write docs/a.md in acme/webshop")["path"] == ("docs/a.md",)
    assert spoken_values(write, "Write it in acme/webshop")["path"] == ("acme/webshop",)


@pytest.mark.parametrize(
    "schema",
    [{"enum": ["a"]}, {"const": 1}, {"type": "boolean"}, {"type": "object"}, {"type": "array"}, True, {}],
)
def test_other_arguments_are_free(schema: Any):
    assert spoken_values(tool(x=schema), 'Say "a" 1') == {}


def test_nothing_said_leaves_an_argument_free():
    assert spoken_values(tool(n=WHOLE, s=TEXT), "Do it") == {}


def test_the_latest_turn_comes_first_and_the_model_is_not_heard():
    context = [
        {"role": "user", "content": "Read issue 7 of acme/docs"},
        {"role": "assistant", "content": "Issue 99 of evil/corp."},
        {"role": "user", "content": None},
    ]
    values = spoken_values(tool(n=WHOLE, owner=TEXT, repo=TEXT), "And 8?", context)
    assert values == {"n": (8, 7), "owner": ("acme",), "repo": ("docs",)}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Which issues are open in acme/webshop?", {"state"}),
        ("Those with the label bug", {"labels"}),
        ("20 per page, please", {"perPage"}),
        ("Everything of acme", set()),
        ("closed ones, by when they were created at", {"state", "orderBy"}),
        ("What came in from 2026-01-01 on?", {"since"}),
    ],
)
def test_optional_arguments_that_were_spoken_of(request_: str, expected: set[str]):
    assert mentioned(LIST_ISSUES, request_) == expected


def test_what_was_said_before_counts():
    context = [
        {"role": "user", "content": "only open ones"},
        {"role": "assistant", "content": "with labels?"},
    ]
    assert mentioned(LIST_ISSUES, "go on", context) == {"state"}


def test_what_no_required_argument_takes_may_go_to_an_optional_one():
    review = tool(("number",), number=WHOLE, body=TEXT, run_id=WHOLE, owner=TEXT, repo=TEXT)
    assert mentioned(review, 'Approve 7 with "Looks good"') == {"body"}
    assert mentioned(review, "Approve 7 and 8") == {"run_id"}
    assert mentioned(review, "Approve 7 of acme/docs") == {"owner", "repo"}


def test_the_plan_of_a_call_allows_only_what_was_said():
    plan = plan_call(LIST_ISSUES, "List the open issues of acme/webshop")
    assert accepts(plan, '{"owner":"acme","repo":"webshop","state":"OPEN"}')
    assert accepts(plan, '{"owner":"acme","repo":"webshop"}')
    assert not accepts(plan, '{"owner":"Repository owner","repo":"webshop"}')
    assert not accepts(plan, '{"owner":"acme","repo":"webshop","perPage":10}')


def test_values_that_break_the_schema_are_no_choice():
    plan = plan_call(tool(("n",), n={"type": "integer", "maximum": 100}), "Show 482 or 48")
    assert accepts(plan, '{"n":48}')
    assert not accepts(plan, '{"n":482}')
    free = plan_call(tool(("n",), n={"type": "integer", "maximum": 100}), "Show 482")
    assert accepts(free, '{"n":5}')


def test_the_items_of_a_list_are_what_was_said():
    plan = plan_call(LIST_ISSUES, 'Issues of acme/docs with the labels "bug" and "good first issue"')
    assert accepts(plan, '{"owner":"acme","repo":"docs","labels":["bug","good first issue"]}')
    assert not accepts(plan, '{"owner":"acme","repo":"docs","labels":["other"]}')


@given(st.text(max_size=120), st.lists(st.text(max_size=40), max_size=2))
def test_any_conversation_can_be_heard(request_: str, before: list[str]):
    context = [{"role": "user", "content": text} for text in before]
    values = spoken_values(LIST_ISSUES, request_, context)
    heard = " ".join([*before, request_])
    for name in ("owner", "repo", "since"):
        assert all(value in heard for value in values.get(name, ()))
    assert mentioned(LIST_ISSUES, request_, context) <= set(LIST_ISSUES.properties) - {"owner", "repo"}
