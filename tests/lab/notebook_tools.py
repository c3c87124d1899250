"""Runs the notebooks and brings them into the form in which they are kept.

As a program (``make notebooks``) it runs those it is given, or all, and writes them back with their outputs.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from own_home import environment_apart

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LIVE = "application/vnd.jupyter.widget-view+json"
# What differs from machine to machine without saying anything.
_SCRUBBED = (
    (re.compile(re.escape(tempfile.gettempdir()) + r"/nexus-lab-[\w-]+(/home)?"), "~/nexus-lab"),
    (re.compile(re.escape(sys.prefix) + r"(?=/)"), "~/.venv"),
    (re.compile(re.escape(str(Path.home())) + r"(?=/)"), "~"),
)


def names() -> list[str]:
    """Return the names of the notebooks, in order."""
    return sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def read(name: str) -> Any:
    """Return a notebook as it is kept."""
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def execute(notebook: Any, folder: Path) -> Any:
    """Run a notebook from top to bottom in `folder`, and return it with its outputs."""
    client = NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory(prefix="nexus-lab-home-") as home:
        client.execute(env=environment_apart(Path(home) / "home"))
    return notebook


def kept_form(notebook: Any) -> Any:
    """Strip what need not be kept: live views without state, paths of a machine, details of a kernel."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [_scrubbed(output) for output in cell.outputs if is_kept(output)]
    return notebook


def is_kept(output: Any) -> bool:
    """Whether an output belongs to what is kept; warnings do not."""
    return not (output.output_type == "stream" and output.name == "stderr")


def _scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return nbformat.from_dict({key: _scrubbed(item) for key, item in value.items() if key != LIVE})
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    if isinstance(value, str):
        for pattern, plain in _SCRUBBED:
            value = pattern.sub(plain, value)
    return value


def main(chosen: list[str]) -> None:
    """Run notebooks and write them back."""
    for name in chosen or names():
        with tempfile.TemporaryDirectory(prefix="nexus-lab-") as folder:
            done = kept_form(execute(read(name), Path(folder)))
        nbformat.write(done, NOTEBOOKS / name)
        sys.stdout.write(f"{name}: {(NOTEBOOKS / name).stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
