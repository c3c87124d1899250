"""The structure holds: rooms import only what stands above them, and importing the package stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nexus_lab

PACKAGE = Path(nexus_lab.__file__).parent
ROOMS = (
    "registry",
    "routing",
    "arguments",
    "engine",
    "cache",
    "splice",
    "agent",
    "trace",
    "bench",
    "lab",
    "demo",
    "cli",
)
ROOTS = {"errors", "settings", "paths", "_core", "text"}
LINE_LIMIT = 600
HEAVY = ("torch", "llama_cpp", "sentence_transformers", "polars", "mcp", "plotly", "scipy", "rich", "numpy")


def _imports(path: Path) -> set[str]:
    """Rooms of the package that the module at `path` imports, wherever in the file."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("nexus_lab.")}
    return rooms & {*ROOMS, *ROOTS}


def test_the_check_sees_an_import_inside_a_function(tmp_path: Path):
    module = tmp_path / "sample.py"
    module.write_text(
        "def f():\n    from nexus_lab.trace.journal import x\n    from nexus_lab import _core\n"
    )
    assert _imports(module) == {"trace", "_core"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_stands_above_it(room: str):
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) | ROOTS
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in (PACKAGE / room).rglob("*.py")
        for name in _imports(path) - allowed
    }
    assert not wrong


def test_only_the_engine_imports_llama_cpp():
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "llama_cpp" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "llama_cpp")
    }
    assert users == {"engine"}


def test_no_module_outgrows_a_sitting():
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.parent.glob("src_cpp/**/*.?pp")]
    long = {
        str(path): count for path in sources if (count := len(path.read_text().splitlines())) > LINE_LIMIT
    }
    assert not long


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, nexus_lab; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_resolves_and_is_documented():
    for name in nexus_lab.__all__:
        value = getattr(nexus_lab, name)
        assert name == "__version__" or value.__doc__, name
