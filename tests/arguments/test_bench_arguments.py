"""Comparing calls with what was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexus_lab.agent.calling import Written
from nexus_lab.arguments import MissingValues
from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.bench import argument_cases, argument_fitting
from nexus_lab.bench import arguments as bench
from nexus_lab.bench.argument_cases import ArgumentCase, read_cases
from nexus_lab.bench.argument_figures import gains, share_over_cases
from nexus_lab.bench.argument_unsaid import unsaid
from nexus_lab.bench.base import ResultsError
from nexus_lab.registry import Registry, ToolSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("found", "gold", "kind", "same"),
    [
        (482, 482, "exact", True),
        (482.0, 482, "exact", True),
        ("482", 482, "exact", False),
        (True, 1, "exact", False),
        ("Acme", "acme", "exact", False),
        ({"a": [1.0], "b": None}, {"b": None, "a": [1]}, "exact", True),
        (["b", "a"], ["a", "b"], "exact", False),
        (["b", "a"], ["a", "b"], "set", True),
        (["a", "a", "b"], ["a", "b", "b"], "set", False),
        ("a", ["a"], "set", False),
        (' "Fix Rotation crash." ', "fix rotation crash", "text", True),
        ("fix rotation", "fix rotation crash", "text", False),
        ("it freezes: page after PAYING", "page freezes after paying", "keywords", True),
        ("page freezes", "page freezes after paying", "keywords", False),
        ("parse_invoice", "parse_invoice repo:acme/billing", "keywords", True),
        ("author jlee42", "author:jlee42", "keywords", True),
        ("author", "author:jlee42", "keywords", False),
        ("San Francisco,CA", "san francisco, CA", "loose", True),
        ("San Francisco", "san francisco, CA", "loose", False),
        ("", "a", "loose", False),
        ("a", "", "loose", False),
        (["New York", 2.0], ["new york", 2], "loose", True),
        ({"w": 3}, {"w": [2, 3], "h": ["", 1]}, "loose", True),
        ({"w": 3}, {"w": [2, 3], "h": [1]}, "loose", False),
        ({"w": 3, "x": 1}, {"w": [3]}, "loose", False),
    ],
)
def test_values_are_compared_as_the_case_says(found: Any, gold: Any, kind: str, same: bool):  # noqa: FBT001
    assert argument_cases.matches(found, gold, kind) is same


def test_an_unknown_comparison_is_refused():
    with pytest.raises(ResultsError, match="unknown comparison"):
        argument_cases.matches(1, 1, "roughly")


TOOL = ToolSpec(
    "read",
    "Read a thread.",
    {
        "type": "object",
        "properties": {
            "owner": {"type": "string", "description": "Repository owner"},
            "n": {"type": "integer"},
            "method": {"enum": ["get", "list"]},
        },
    },
)
CASE = ArgumentCase(
    id="1",
    tool=TOOL,
    request="Read 3 of acme",
    context=(),
    accepted={"owner": ("acme",), "n": (3,), "method": ("get",)},
    stated=("owner", "n"),
    apart=False,
    may_lack=frozenset({"method"}),
)


def written(arguments: dict[str, Any] | None, problem: Any = None) -> Written:
    return Written(arguments=arguments, violations=(), problem=problem, ttft_s=0.0, n_generated=1)


def test_only_stated_arguments_count():
    scored = bench.score(written({"owner": "acme", "n": 4}), CASE)
    assert (scored.right, scored.stated, scored.valid, scored.all_right) == (
        ("owner",),
        ("owner", "n"),
        True,
        False,
    )
    assert bench.score(written({"owner": "acme", "n": 3.0, "extra": 1}), CASE).all_right


def test_a_call_that_cannot_be_sent_is_not_right():
    assert not bench.score(written({"owner": "acme", "n": 3}, ResultsError("bad")), CASE).all_right
    unread = bench.score(written(None, ResultsError("bad")), CASE)
    assert (unread.right, unread.valid, unread.told) == ((), False, False)
    assert bench.score(written(None, MissingValues(("n",))), CASE).told


@pytest.mark.parametrize(
    ("value", "copied", "texts"),
    [("Repository owner", 1, 1), ("acme", 0, 1), ("somebody", 0, 1), ("ab", 0, 0), (3, 0, 0)],
)
def test_a_text_of_the_prompt_that_nobody_said_is_copied(value: Any, copied: int, texts: int):
    scored = bench.score(written({"owner": value, "method": "list"}), CASE)
    assert (scored.copied, scored.texts) == (copied, texts)


def test_leaving_out_is_right_where_it_may_be():
    assert CASE.is_right("method", NOTHING)
    assert CASE.is_right("other", NOTHING)
    assert not CASE.is_right("owner", NOTHING)


def test_rows_of_two_makes_are_read(tmp_path: Path):
    spec = {"name": "read", "description": "", "inputSchema": TOOL.input_schema}
    rows = [
        {"query": "q", "gold_tool": "read", "gold_args": {"n": 1, "owner": "a"}, "optional_args": ["owner"]},
        {"query": "q", "gold_tool": "unknown", "gold_args": {}},
        {
            "query": "q",
            "gold_tool": "read",
            "tools": [spec],
            "accepted_args": {"n": [1, 2], "owner": ["a", ""]},
        },
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    ours, theirs = read_cases(path, Registry.of([TOOL]))
    assert (ours.stated, ours.may_lack) == (("n",), {"owner"})
    assert (theirs.stated, theirs.may_lack) == (("n",), {"owner"})
    assert theirs.is_right("n", 2)
    assert not ours.is_right("n", 2)
    assert read_cases(path) == [theirs]
    assert len(read_cases(path, Registry.of([TOOL]), limit=1)) == 1


def test_what_is_kept_apart_is_not_fitted_to():
    from dataclasses import replace

    with pytest.raises(ResultsError, match="no case is left"):
        argument_fitting.fit([replace(CASE, apart=True)])


def test_a_fit_prefers_what_was_right():
    tools = [ToolSpec(f"t{n}", "", TOOL.input_schema) for n in range(4)]
    cases = [
        ArgumentCase(
            id=str(n),
            tool=tool,
            request=f"Read {n + 5} of acme",
            context=(),
            accepted={"n": (n + 5,)},
            stated=("n",),
            apart=False,
        )
        for n, tool in enumerate(tools)
    ]
    weights = argument_fitting.fit(cases).weights
    assert weights["integer|k:number"] > 0


def test_an_interval_over_cases_is_wider_than_one_over_arguments_that_stand_together():
    hits, counts = [4] * 15 + [0] * 5, [4] * 20
    found = share_over_cases(hits, counts, case={}, metric="args_right")
    assert (found.value, found.n) == (0.75, 80)
    assert found.low is not None
    assert found.high is not None
    # Twenty trials, not eighty: a standard error of sqrt(0.75 * 0.25 / 20) = 0.097.
    assert 0.3 < found.high - found.low < 0.45


def test_all_right_is_no_certainty():
    found = share_over_cases([3, 2, 0], [3, 2, 0], case={}, metric="args_right")
    assert (found.value, found.n, found.high) == (1.0, 5, 1.0)
    # Wilson's lower bound for two of two cases; the third counts nothing.
    assert found.low == pytest.approx(0.3424, abs=1e-3)


def test_a_gain_is_paired_by_case():
    from dataclasses import replace

    cases = [replace(CASE, id=str(n)) for n in range(8)]
    all_right, none_right = {"owner": "acme", "n": 3}, {"owner": "b", "n": 4}
    ours = [bench.score(written(all_right), case) for case in cases]
    theirs = [bench.score(written(none_right if n == 0 else all_right), case) for n, case in enumerate(cases)]
    (found,) = gains(cases, ours, theirs, case={"part": "all"})
    assert (found.metric, found.value, found.n) == ("args_right_gain", 2 / 16, 16)
    assert found.low is not None
    assert found.low >= 0
    (same,) = gains(cases, ours, ours, case={"part": "all"})
    assert (same.value, same.low) == (0.0, None)


def test_what_is_filled_counts_also_where_it_is_not_stated():
    scored = bench.score(written({"owner": "acme", "n": 4, "method": "list", "unknown": 1}), CASE)
    assert (scored.filled, scored.filled_right) == (3, 1)


def test_a_value_is_cut_out_with_what_leads_to_it():
    tool = ToolSpec(
        "list",
        "",
        {
            "type": "object",
            "properties": {
                "owner": {"type": "string"},
                "n": {"type": "integer"},
                "state": {"enum": ["open", "closed"]},
            },
            "required": ["owner", "n", "state"],
        },
    )
    case = ArgumentCase(
        id="1",
        tool=tool,
        request="Show the 3 open issues of acme/webshop",
        context=({"role": "user", "content": "Look at acme/docs"},),
        accepted={"owner": ("acme",), "n": (3,), "state": ("open",)},
        stated=("owner", "n", "state"),
        apart=False,
    )
    found = {one.name: (one.case.request, one.case.context[0]["content"]) for one in unsaid(case)}
    assert found == {
        "owner": ("Show the 3 open issues", "Look"),
        "n": ("Show the open issues of acme/webshop", "Look at acme/docs"),
    }


def test_an_unknown_system_is_refused(tmp_path: Path):
    with pytest.raises(ResultsError, match="unknown systems"):
        bench.run(None, None, tmp_path, systems=["best"])  # type: ignore[arg-type]


@pytest.mark.model
def test_the_bundled_model_writes_valid_calls(tmp_path: Path):
    from nexus_lab.engine import Engine

    tool = ToolSpec(
        "set_volume",
        "Set the volume of a room.",
        {
            "type": "object",
            "properties": {"room": {"enum": ["kitchen", "cellar"]}, "loud": {"type": "boolean"}},
            "required": ["room", "loud"],
        },
    )
    context = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]
    row = {"query": "Make the kitchen loud", "gold_tool": "set_volume", "gold_args": {"room": "kitchen"}}
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps(row) + "\n" + json.dumps({**row, "context": context}))
    with Engine.load(n_ctx=1024) as engine:
        found = bench.run(engine, Registry.of([tool]), cases, systems=["full", "no_grounding"])
        with pytest.raises(ResultsError, match="no case"):
            bench.run(engine, Registry(), cases)
    figures = {
        (one.case["system"], one.case["schema_mode"], one.metric): one
        for one in found.results
        if one.case.get("part") != "apart"
    }
    modes = [("full", "signature"), ("full", "full"), ("no_grounding", "signature")]
    assert {key[:2] for key in figures} == set(modes)
    for metric in ("args_right", "cases_right", "json_valid"):
        assert {key[:2] for key in figures if key[2] == metric} == set(modes)
    assert all(figures[*mode, "json_valid"].value == 1.0 for mode in modes)
    assert figures["full", "signature", "args_right"].value == 1.0
    assert figures["full", "signature", "token_saving"].value > 0
