"""Comparing calls with what was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexus_lab.bench import arguments as bench
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
    ],
)
def test_values_are_compared_as_the_case_says(found: Any, gold: Any, kind: str, same: bool):  # noqa: FBT001
    assert bench.matches(found, gold, kind) is same


def test_an_unknown_comparison_is_refused():
    with pytest.raises(ResultsError, match="unknown comparison"):
        bench.matches(1, 1, "roughly")


ROW = {
    "gold_args": {"owner": "acme", "n": 3, "method": "get"},
    "arg_match": {"owner": "exact", "n": "exact", "method": "exact"},
    "specified_args": ["owner", "n"],
}


def written(arguments: dict[str, Any] | None, problem: Any = None) -> bench.Written:
    return bench.Written(arguments=arguments, violations=(), problem=problem, ttft_s=0.0, n_generated=1)


def test_only_stated_arguments_count():
    scored = bench.score(written({"owner": "acme", "n": 4}), ROW)
    assert (scored.right, scored.specified, scored.valid, scored.all_right) == (
        ("owner",),
        ("owner", "n"),
        True,
        False,
    )
    assert bench.score(written({"owner": "acme", "n": 3.0, "extra": 1}), ROW).all_right


def test_a_call_that_cannot_be_sent_is_not_right():
    assert not bench.score(written({"owner": "acme", "n": 3}, ResultsError("bad")), ROW).all_right
    unread = bench.score(written(None, ResultsError("bad")), ROW)
    assert (unread.right, unread.valid) == ((), False)


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
        found = bench.run(engine, Registry.of([tool]), cases)
        with pytest.raises(ResultsError, match="no case"):
            bench.run(engine, Registry(), cases)
    figures = {(one.case["schema_mode"], one.metric): one for one in found.results}
    assert set(figures) == {
        (mode, metric) for mode in bench.MODES for metric in ("args_right", "cases_right", "json_valid")
    }
    assert all(figures[mode, "json_valid"].value == 1.0 for mode in bench.MODES)
    assert figures["signature", "args_right"].n == 2
