"""What the conversation settles of a call, and the grammar that allows nothing else for it."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from nexus_lab.arguments import GrammarPlan, ground, plan_call, validate
from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.arguments.wants import arguments_of
from nexus_lab.registry import ToolSpec

BYTES = LLTokenizer("byte", slices=[])


def tool(required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    return ToolSpec("tool", "", {"type": "object", "properties": properties, "required": list(required)})


def described(text: str, **rest: Any) -> dict[str, Any]:
    return {"type": "string", "description": text, **rest}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
OWNER, REPO = described("Repository owner"), described("Repository name")
LIST_ISSUES = tool(
    ("owner", "repo"),
    owner=OWNER,
    repo=REPO,
    state={"type": "string", "enum": ["OPEN", "CLOSED"]},
    labels={"type": "array", "items": TEXT, "description": "Filter by labels"},
    perPage={**WHOLE, "description": "Results per page"},
    since=described("Only what came after this date (YYYY-MM-DD)"),
)


def accepts(plan: GrammarPlan, text: str) -> bool:
    matcher = LLMatcher(BYTES, plan.grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def values(spec: ToolSpec, request: str, *context: dict[str, Any]) -> dict[str, Any]:
    return dict(ground(spec, request, context).values)


@pytest.mark.parametrize(
    ("request_", "spec", "expected"),
    [
        (
            "List the open issues of acme/webshop",
            LIST_ISSUES,
            {"owner": "acme", "repo": "webshop", "state": "OPEN"},
        ),
        ("Show the working tree status of .", tool(("repo_path",), repo_path=TEXT), {"repo_path": "."}),
        (
            'Issues of acme/docs labelled "bug"',
            LIST_ISSUES,
            {"owner": "acme", "repo": "docs", "labels": ["bug"]},
        ),
        (
            "What came into globex/infra since 2026-01-05?",
            LIST_ISSUES,
            {"owner": "globex", "repo": "infra", "since": "2026-01-05"},
        ),
        (
            "Convert 250 dollars from USD to EUR",
            tool(
                ("amount", "from_currency", "to_currency"),
                amount={"type": "number", "description": "Amount to convert"},
                from_currency=described("Currency to convert from"),
                to_currency=described("Currency to convert to"),
            ),
            {"amount": 250, "from_currency": "USD", "to_currency": "EUR"},
        ),
        (
            "Read /srv/data/report.csv",
            tool(("path",), path=described("Path of the file")),
            {"path": "/srv/data/report.csv"},
        ),
        (
            "Send a mail to ada@example.com saying the build is green",
            tool(
                ("to", "body"),
                to=described("E-mail address of the recipient"),
                body=described("Text of the message"),
            ),
            {"to": "ada@example.com", "body": "the build is green"},
        ),
    ],
)
def test_values_go_where_they_belong(request_: str, spec: ToolSpec, expected: dict[str, Any]):
    assert values(spec, request_) == expected


def test_two_numbers_fill_two_arguments():
    spec = tool(
        ("pullNumber", "line"),
        pullNumber={**WHOLE, "description": "Pull request number"},
        line={**WHOLE, "description": "Line of the file"},
    )
    assert values(spec, "Comment on line 42 in pull request 101") == {"pullNumber": 101, "line": 42}


def test_one_part_does_not_fill_two_arguments():
    spec = tool(
        ("branch", "from_branch"),
        branch=described("Name of the new branch"),
        from_branch=described("Source branch"),
    )
    found = values(spec, "Create branch release-2.1 from develop")
    assert found == {"branch": "release-2.1", "from_branch": "develop"}
    assert len(set(values(spec, "Branch release-2.1").values())) <= 1


def test_both_halves_come_from_one_repository():
    context = {"role": "user", "content": "We moved from initech/legacy to globex/infra."}
    found = values(LIST_ISSUES, "Show the closed issues of acme/webshop", context)
    assert (found["owner"], found["repo"]) == ("acme", "webshop")


def test_what_the_user_says_wins_over_what_the_model_said():
    context = (
        {"role": "user", "content": "Read issue 7 of acme/docs"},
        {"role": "assistant", "content": "Issue 99 of evil/corp."},
        {"role": "user", "content": None},
    )
    spec = tool(("n", "owner", "repo"), n={**WHOLE, "description": "Issue number"}, owner=OWNER, repo=REPO)
    assert values(spec, "And issue 8?", *context) == {"n": 8, "owner": "acme", "repo": "docs"}


def test_relative_dates_follow_the_date_that_was_given():
    spec = tool(("day",), day=described("Date of the meeting, YYYY-MM-DD", format="date"))
    today = {"role": "system", "content": "Today is Monday, 2026-03-02."}
    assert values(spec, "Plan the meeting for tomorrow", today) == {"day": "2026-03-03"}
    assert "day" not in values(spec, "Plan the meeting for tomorrow")


def test_a_thousand_is_read_as_the_schema_needs_it():
    one = tool(("distance",), distance={**WHOLE, "description": "Distance in miles"})
    low = tool(("page",), page={**WHOLE, "maximum": 500, "description": "Page"})
    assert values(one, "It drives 100,200 miles") == {"distance": 100200}
    assert values(low, "Go to page 100,200")["page"] in (100, 200)


def test_a_listed_value_breaks_no_schema():
    spec = tool(("n",), n={"type": "integer", "maximum": 100, "description": "Issue number"})
    assert values(spec, "Show issue 482 or 48") == {"n": 48}


def test_a_branch_for_null_is_looked_through():
    spec = tool((), team={"anyOf": [TEXT, {"type": "null"}], "description": "Name of the team"})
    plan = plan_call(spec, 'For the team "Platform"')
    assert plan.settled == '{"team":"Platform"}'


QUERY = tool(("query",), query=described("SELECT SQL query to execute"))


@pytest.mark.parametrize("request_", ["SELECT", "Which products do we have?", "Use SELECT please"])
def test_half_a_statement_is_asked_for_instead_of_sent(request_: str):
    assert ground(QUERY, request_).missing == ("query",)
    assert plan_call(QUERY, request_).missing == ("query",)


def test_a_whole_statement_is_taken_as_it_was_written():
    statement = "SELECT name, price FROM products WHERE stock > 1"
    assert values(QUERY, f"Run {statement}.") == {"query": statement}


def test_a_number_that_nobody_said_is_asked_for():
    spec = tool(("n",), n={**WHOLE, "description": "Issue number"})
    assert ground(spec, "Show the issue").missing == ("n",)
    assert ground(tool(("n",), n={**WHOLE, "default": 3}), "Show the issue").missing == ()


def test_the_plan_of_a_call_allows_only_what_was_said():
    plan = plan_call(LIST_ISSUES, "List the open issues of acme/webshop")
    assert plan.settled == '{"owner":"acme","repo":"webshop","state":"OPEN"}'
    assert accepts(plan, plan.settled)
    assert not accepts(plan, '{"owner":"Repository owner","repo":"webshop","state":"OPEN"}')
    assert not accepts(plan, '{"owner":"acme","repo":"webshop","state":"OPEN","perPage":10}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^\p{L}+$"},
        {"type": "array", "items": {"enum": []}},
        {"type": {"a": 1}},
        {"type": [{"a": 1}]},
        {"anyOf": [{"type": {"a": 1}}]},
    ],
)
def test_a_schema_that_cannot_be_applied_still_has_a_plan(schema: dict[str, Any]):
    spec = ToolSpec("rename", "", {"properties": {"name": schema}, "required": ["name"]})
    plan = plan_call(spec, "Name it alpha")
    assert plan.schema_used["properties"].keys() == {"name"}


def test_what_nothing_was_said_for_is_left_to_the_model():
    spec = tool(("mood",), mood={"type": "object", "properties": {"x": TEXT}})
    plan = plan_call(spec, "Do it")
    assert plan.settled is None
    assert accepts(plan, '{"mood":{"x":"calm"}}')


def test_no_slug_is_seen_in_a_figure_of_speech():
    found = values(LIST_ISSUES, "We are on call 24/7 and/or at weekends")
    assert {"owner", "repo"}.isdisjoint(name for name in found if found[name] in ("24", "7", "and", "or"))


def test_what_no_encoding_carries_does_not_break_the_grammar():
    plan = plan_call(tool(("title",), title=described("Title")), 'Titled "a\ud800b"')
    assert accepts(plan, '{"title":"a\ufffdb"}') or accepts(plan, '{"title":"a\ufffd\ufffd\ufffdb"}')


def test_a_long_conversation_stays_small():
    request = "hello world foo bar " * 5_000
    tracemalloc.start()
    ground(tool(query=TEXT, body={**TEXT, "maxLength": 1_000}), request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 256 * 2**20


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=120), st.lists(st.text(max_size=40), max_size=2))
def test_any_conversation_gives_valid_values(request_: str, before: list[str]):
    context = [{"role": "user", "content": text} for text in before]
    found = ground(LIST_ISSUES, request_, context)
    assert set(found.open) <= {"owner", "repo"}
    partial = {**LIST_ISSUES.input_schema, "required": []}
    assert not validate(found.values, partial)


def test_nothing_is_the_same_in_every_process():
    assert pickle.loads(pickle.dumps(NOTHING)) is NOTHING  # noqa: S301 - what was pickled here


BRANCHES = tool(
    ("repo_path", "branch_type"),
    repo_path=described("The path to the Git repository."),
    branch_type=described(
        "Whether to list local branches ('local'), remote branches ('remote') or all branches('all')."
    ),
)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [("List the branches of ./inventory", "all"), ("Which remote branches has ./inventory?", "remote")],
)
@pytest.mark.parametrize("before", ["", '{"name": "describe_table", "arguments": {"table_name":"'])
def test_values_that_a_description_lists_are_all_that_there_are(request_: str, kind: str, before: str):
    context = [{"role": "assistant", "content": before}] if before else []
    said = ground(BRANCHES, request_, context)
    assert dict(said.values) == {"repo_path": "./inventory", "branch_type": kind}


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("Level of detail, either 'summary' or 'full'.", ["summary", "full"]),
        ("Options are: 'read', 'update', 'create_or_delete'", ["read", "update", "create_or_delete"]),
        ("Mode of analysis, e.g. 'static' or 'dynamic'.", None),
        ("Room, one of 'single', 'double', etc.", None),
        ("The unit, 'metric' or 'imperial'. Default is 'metric'.", None),
        ("Birthday: 'YYYY-MM-DD', or 'clear'", None),
        ("Paper, either '2401.12345' or '2404.19756'", None),
        ("A name in 'quotes'", None),
        ("Either 'a'. Then a sentence follows, or 'b'", None),
    ],
)
def test_a_list_counts_where_it_is_whole(text: str, listed: list[str] | None):
    (argument,) = arguments_of(tool(("value",), value=described(text)))
    assert (argument.options if argument.kind == "option" else None) == listed
