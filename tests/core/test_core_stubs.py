"""The committed stubs are those of the module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import nexus_lab

COMMITTED = Path(nexus_lab.__file__).parent / "_core.pyi"


def _normalised(text: str) -> str:
    """Return what a stub says, without layout, imports, and the name under which this Python has Buffer."""
    tree = ast.parse(text.replace("typing_extensions.Buffer", "collections.abc.Buffer"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.dump(tree, indent=1)


def test_stubs_match_the_module(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", "nexus_lab._core", "-o", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    generated = (tmp_path / "nexus_lab" / "_core.pyi").read_text(encoding="utf-8")
    assert _normalised(COMMITTED.read_text(encoding="utf-8")) == _normalised(generated), (
        "the stubs are stale: CONTRIBUTING.md says how to regenerate them"
    )


def test_the_comparison_sees_real_differences():
    text = COMMITTED.read_text(encoding="utf-8")
    assert _normalised(text) == _normalised(text.replace("\n\n", "\n\n\n"))
    for before, after in (
        ("def core_version() -> str:", "def core_version() -> bytes:"),
        ("n_tokens", "n_token"),
        ("k: ", "j: "),
        ("Version of the native core.", "Its version."),
    ):
        assert before in text
        assert _normalised(text) != _normalised(text.replace(before, after))
