"""Cases of a file: requests with their right calls."""

from __future__ import annotations

import json
from pathlib import Path

from nexus_lab.bench.splice_inputs import read_cases
from nexus_lab.bench.splice_tools import SPLICE_CASES
from nexus_lab.registry import Registry


def test_a_line_ends_at_a_newline_alone(tmp_path: Path):
    """JSON allows every other mark of a line's end within its texts."""
    tool = SPLICE_CASES[0].tool
    asked = "It crashes.\u2028Please\u0085file\u2029that."
    row = {"query": asked, "gold_tool": tool.name, "gold_args": {"title": asked}}
    path = tmp_path / "calls.jsonl"
    path.write_text(f"{json.dumps(row, ensure_ascii=False)}\r\n\r\n", encoding="utf-8", newline="")
    cases, own = read_cases(path, Registry.of([tool], name="mine"))
    assert (cases[tool.name].request, own) == (asked, [])
    assert json.loads(cases[tool.name].answer)["arguments"] == {"title": asked}
