"""The notebooks run from top to bottom, and what is kept of them can be read without running anything."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import notebook_tools as tools
import pytest

NAMES = (
    "01_quick_start.ipynb",
    "02_routing_and_gate.ipynb",
    "03_splice_step_by_step.ipynb",
    "04_cache_engineering.ipynb",
    "05_comparing_runs.ipynb",
)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_five():
    assert tuple(tools.names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_with_its_outputs(name):
    notebook = tools.read(name)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run `make notebooks`"
    assert any(cell.outputs for cell in code_cells(notebook))
    assert not [
        output for cell in code_cells(notebook) for output in cell.outputs if output.output_type == "error"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_names_no_machine(name):
    path = tools.NOTEBOOKS / name
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 400_000
    assert tools.LIVE not in text
    assert "widgets" not in json.loads(text)["metadata"]
    assert not re.search(r"/(home|root|Users|work)/", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_workbench_in_it_is_kept_as_a_page(name):
    shown = [
        output.data
        for cell in code_cells(tools.read(name))
        for output in cell.outputs
        if "data" in output and "text/html" in output.data
    ]
    assert shown, "nothing but text would be seen of it elsewhere"
    assert all("text/plain" in data for data in shown)


@pytest.mark.model
@pytest.mark.servers
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path: Path):
    from nexus_lab.demo.servers import missing_servers

    if missing_servers():
        pytest.skip("the demo's servers are not installed: run nexus-lab demo --setup")
    kept = tools.read(name)
    done = tools.execute(tools.read(name), tmp_path)
    for before, after in zip(code_cells(kept), code_cells(done), strict=True):
        # What is printed comes in one piece or in several, as the machine is busy.
        kinds = [kind for kind, _ in groupby(output.output_type for output in before.outputs)]
        kept_now = (output.output_type for output in after.outputs if tools.is_kept(output))
        assert [kind for kind, _ in groupby(kept_now)] == kinds, after.source
