"""What the model reads of a tool, and what it is told after a mistake."""

from __future__ import annotations

import pytest

from nexus_lab.arguments import ArgumentsError, Violation, repair_message, tool_text
from nexus_lab.registry import ToolSpec, schema_text

TOOL = ToolSpec(
    "list_issues",
    "List issues in a repository.",
    {"type": "object", "properties": {"owner": {"type": "string"}}, "required": ["owner"]},
)


def test_the_modes_show_the_signature_or_the_whole_schema():
    assert tool_text(TOOL, mode="signature").startswith("list_issues(owner: string")
    assert tool_text(TOOL, mode="full") == schema_text(TOOL)
    assert len(tool_text(TOOL)) < len(tool_text(TOOL, mode="full"))
    with pytest.raises(ArgumentsError, match="unknown schema mode"):
        tool_text(TOOL, mode="splice(exact)")


def test_a_repair_names_the_first_violations_and_counts_the_rest():
    violations = [Violation(f"/a{i}", "type", f'{i} is not of type "string"') for i in range(7)]
    text = repair_message(violations, tool=TOOL)
    assert "list_issues" in text
    assert text.count("\n- ") == 6
    assert "/a4: 4 is not" in text
    assert "and 2 more" in text
    assert "/a5" not in text
