"""Every keyword of JSON Schema, on cases written from the specification (draft 2020-12).

Each schema stands for the argument ``x``. Whatever the grammar accepts has to satisfy the schema, or to be
caught by the check that follows, with the keyword named as one that the grammar does not hold. The ratchet
file holds, by keyword, how many valid values the grammar refuses for being narrower; it may only fall.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from nexus_lab.arguments import GrammarPlan, SchemaUnusable, build_grammar, validate

DATA = Path(__file__).parents[1] / "data"
SUITE = json.loads((DATA / "schema_suite.json").read_text(encoding="utf-8"))
RATCHET = json.loads((DATA / "schema_ratchet.json").read_text(encoding="utf-8"))
BYTES = LLTokenizer("byte", slices=[])


def schema_of(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"x": case["schema"]},
        "required": ["x"],
        "additionalProperties": False,
        **({"$defs": case["defs"]} if "defs" in case else {}),
    }


@cache
def plan_of(number: int) -> GrammarPlan | None:
    try:
        return build_grammar(schema_of(SUITE[number]), tool="suite")
    except SchemaUnusable:
        return None


def accepts(plan: GrammarPlan | None, value: Any) -> bool:
    if plan is None:
        return False
    text = json.dumps({"x": value}, ensure_ascii=False, separators=(",", ":"))
    matcher = LLMatcher(BYTES, plan.grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize(
    "number", range(len(SUITE)), ids=lambda number: f"{number}-{SUITE[number]['keyword']}"
)
def test_nothing_is_wrongly_accepted(number: int):
    case, plan = SUITE[number], plan_of(number)
    for value in case["invalid"]:
        assert validate({"x": value}, schema_of(case)), f"the full schema takes {value!r}"
        if accepts(plan, value):
            assert plan is not None
            assert plan.unchecked, f"{value!r} passes, and nothing says that it may"
            assert all(line.startswith("suite /") for line in plan.report())
            assert {part.keyword for part in plan.unchecked}
    for value in case["valid"]:
        assert not validate({"x": value}, schema_of(case)), f"the full schema refuses {value!r}"


def test_what_is_wrongly_refused_only_falls():
    refused = Counter(
        SUITE[number]["keyword"]
        for number in range(len(SUITE))
        for value in SUITE[number]["valid"]
        if not accepts(plan_of(number), value)
    )
    assert dict(refused) == RATCHET["wrongly_refused"]
    assert RATCHET["wrongly_accepted"] == 0


def test_the_suite_names_every_keyword_that_a_grammar_may_leave_out():
    from nexus_lab.arguments.project import _BY_TYPE, _LISTS, _REFUSED

    named = {case["keyword"] for case in SUITE} | {
        key for case in SUITE if isinstance(case["schema"], dict) for key in case["schema"]
    }
    wanted = {
        *_LISTS,
        "$ref",
        "enum",
        "const",
        "type",
        *_REFUSED,
        *(key for keys in _BY_TYPE.values() for key in keys),
    }
    # Dynamic references and what older drafts called otherwise.
    assert wanted - named <= {"$dynamicRef", "$recursiveRef", "dependencies", "additionalItems"}
