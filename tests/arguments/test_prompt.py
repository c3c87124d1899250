"""What the model reads, and what it is told after a mistake."""

from __future__ import annotations

import pytest

from nexus_lab.arguments import (
    ArgumentsError,
    Violation,
    call_messages,
    instructions,
    mentioned,
    repair_message,
    tool_text,
)
from nexus_lab.registry import ToolSpec, schema_text

TOOL = ToolSpec(
    "list_issues",
    "List issues in a repository.",
    {
        "type": "object",
        "properties": {
            "owner": {"type": "string"},
            "state": {"type": "string", "enum": ["OPEN", "CLOSED"]},
            "labels": {"type": "array", "items": {"type": "string"}},
            "perPage": {"type": "integer", "description": "Results per page"},
            "orderBy": {"type": "string", "enum": ["CREATED_AT", "UPDATED_AT"]},
        },
        "required": ["owner"],
    },
)


def test_the_modes_show_the_signature_or_the_whole_schema():
    assert tool_text(TOOL, mode="signature").startswith("list_issues(owner: string")
    assert tool_text(TOOL, mode="full") == schema_text(TOOL)
    assert len(instructions(TOOL)) < len(instructions(TOOL, mode="full"))
    with pytest.raises(ArgumentsError, match="unknown schema mode"):
        tool_text(TOOL, mode="splice(exact)")


def test_the_turns_are_task_conversation_request():
    context = [
        {"role": "user", "content": "Open acme/webshop."},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "Done."},
    ]
    turns = call_messages(TOOL, "And the open ones?", context)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert turns[-1]["content"] == "And the open ones?"
    assert "list_issues(" in turns[0]["content"]


def test_the_task_holds_no_value_to_copy():
    task = instructions(TOOL).split("Function:")[0]
    assert not any(character in task for character in '{}"0123456789/')


def test_a_repair_names_the_first_violations_and_counts_the_rest():
    violations = [Violation(f"/a{i}", "type", f'{i} is not of type "string"') for i in range(7)]
    text = repair_message(violations, tool=TOOL)
    assert "list_issues" in text
    assert text.count("\n- ") == 6
    assert "/a4: 4 is not" in text
    assert "and 2 more" in text
    assert "/a5" not in text


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Which issues are open in acme/webshop?", {"state"}),
        ("Those with the label bug", {"labels"}),
        ("20 per page, please", {"perPage"}),
        ("Everything of acme", set()),
        ("closed ones, by when they were created at", {"state", "orderBy"}),
    ],
)
def test_optional_arguments_that_were_spoken_of(request_: str, expected: set[str]):
    assert mentioned(TOOL, request_) == expected


def test_what_was_said_before_counts_and_what_the_model_said_does_not():
    context = [
        {"role": "user", "content": "only open ones"},
        {"role": "assistant", "content": "with labels?"},
    ]
    assert mentioned(TOOL, "go on", context) == {"state"}
