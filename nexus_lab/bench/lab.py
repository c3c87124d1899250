"""How quick and how large the workbench is: sliders, heatmaps, an HTML export, a saved notebook.

Figures of views come from a headless Chromium that runs the views' own drawing code; what an export and a
notebook weigh is counted on files that were really written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import nexus_lab
from nexus_lab.bench.base import Result, ResultFile, ResultsError, median_interval
from nexus_lab.bench.lab_session import record_long_session
from nexus_lab.trace import read_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["run"]

FILMS = ((30, 3, 60), (48, 40, 60), (30, 3, 200))
"""Layers, heads and frames of the heatmaps that are timed: the default model, a large one, a film."""

_FRONTEND = Path(nexus_lab.__file__).parent / "lab" / "frontend"
_BROWSERS = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
_BROWSER_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_WIDGET_CELL = "import nexus_lab as nl\nworkbench = nl.Workbench()\nworkbench"
_EMPTY_CELL = "import nexus_lab as nl\nworkbench = None\nworkbench"
_PAGE_TIMEOUT_MS = 120_000


def run(
    *,
    events: int = 100_000,
    repeats: int = 5,
    points: int = 60,
    tell: Callable[[str], None] = lambda _line: None,
) -> ResultFile:
    """Measure all.

    Parameters
    ----------
    events
        Spans of the session whose HTML export is opened.
    repeats
        Times that films and openings are repeated.
    points
        Positions that the slider is moved to.
    tell
        Called with one line per stage.

    Raises
    ------
    ResultsError
        When playwright, Chromium or the benchmark page's bundle is missing.
    """
    page = _bench_page()
    results: list[Result] = []
    with _chromium() as browser, tempfile.TemporaryDirectory(prefix="nexus-lab-") as name:
        tell("views: slider and heatmaps")
        results += _views(browser, page, repeats=repeats, points=points)
        tell(f"HTML export of a session of {events:,} events")
        results += _html(browser, Path(name), events=events, repeats=repeats)
        tell("a notebook with a workbench in it")
        results += _notebook(Path(name))
    settings = {"events": events, "repeats": repeats, "points": points}
    return ResultFile.now("bench lab", results, settings=settings)


# -- the browser -------------------------------------------------------------------------------------------


@contextmanager
def _chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ResultsError(
            "playwright is not installed", next_step="pip install 'nexus_lab[test]', which brings it"
        ) from error
    path = os.environ.get("NEXUS_CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        raise ResultsError(
            "no Chromium was found",
            next_step="install it (apt install chromium), or name it in NEXUS_CHROMIUM",
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_BROWSER_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def _bench_page() -> Path:
    """Return the page that times the views, its bundle made anew where node and the packages are there."""
    page, bundle = _FRONTEND / "dev" / "bench.html", _FRONTEND / "dev" / "out" / "bench.js"
    if not page.exists():
        raise ResultsError(
            "the views' sources are not installed", next_step="run this from a checkout of the repository"
        )
    node = shutil.which("node")
    if node is not None and (_FRONTEND / "node_modules").is_dir():
        made = subprocess.run(  # noqa: S603 - our own script, by the node on the path
            [node, "dev/build_bench.mjs"], cwd=_FRONTEND, capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise ResultsError(
                f"the benchmark page cannot be built: {made.stderr.strip()[-300:]}",
                next_step="run `make views`",
            )
    if not bundle.exists():
        raise ResultsError(
            "the benchmark page is not built",
            next_step="run `make views` with node 20.19 or newer on the path, then this again",
        )
    return page


# -- views -------------------------------------------------------------------------------------------------


def _views(browser: Any, page_path: Path, *, repeats: int, points: int) -> Iterator[Result]:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(_PAGE_TIMEOUT_MS)
    page.goto(page_path.as_uri())
    page.wait_for_function("() => window.nexusBench !== undefined")
    moved = page.evaluate("points => window.nexusBench.slider({ points })", points)
    for until, key in (("frame", "ms"), ("drawn", "drawn_ms")):
        moves = {"control": "k", "until": until}
        yield median_interval(moved[key], case=moves, metric="slider_to_redraw_ms", unit="ms")
        slowest = Result(
            case={**moves, "statistic": "max"},
            metric="slider_to_redraw_ms",
            value=max(moved[key]),
            n=len(moved[key]),
            unit="ms",
        )
        yield slowest
    for rows, cols, frames in FILMS:
        case: dict[str, Any] = {"rows": rows, "cols": cols, "frames": frames}
        films = [
            page.evaluate(
                "film => window.nexusBench.heatmap(film)", {"rows": rows, "cols": cols, "frames": frames}
            )
            for _ in range(repeats)
        ]
        rates = [film["fps"] for film in films]
        yield median_interval(rates, case=case, metric="heatmap_fps", unit="frames/s")
        drawings = [ms for film in films for ms in film["draw_ms"]]
        yield median_interval(drawings, case=case, metric="heatmap_draw_ms", unit="ms")
    page.close()


# -- an HTML export ----------------------------------------------------------------------------------------


def _html(browser: Any, folder: Path, *, events: int, repeats: int) -> Iterator[Result]:
    bundle = record_long_session(folder / "long", events=events)
    path = read_session(bundle).export("html", folder / "long.html")
    case = {"events": events}
    yield Result(case=case, metric="html_bytes", value=path.stat().st_size, n=1, unit="bytes")
    opened = [_open_seconds(browser, path) for _ in range(repeats)]
    yield median_interval(opened, case=case, metric="html_open_s", unit="s")


def _open_seconds(browser: Any, path: Path) -> float:
    """Seconds until the page is loaded and has been drawn, in a context of its own."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    page.set_default_timeout(_PAGE_TIMEOUT_MS)
    began = perf_counter()
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
    )
    seconds = perf_counter() - began
    context.close()
    return seconds


# -- a notebook --------------------------------------------------------------------------------------------


def _notebook(folder: Path) -> Iterator[Result]:
    for kept in (True, False):
        added = _saved_bytes(_WIDGET_CELL, folder, kept) - _saved_bytes(_EMPTY_CELL, folder, kept)
        case = {"widget_state": "saved" if kept else "not saved"}
        yield Result(case=case, metric="notebook_bytes_added", value=added, n=1, unit="bytes")


def _saved_bytes(source: str, folder: Path, keep_state: bool) -> int:  # noqa: FBT001 - read at one place
    """Run a notebook of one cell and return its size as it would be saved."""
    import nbformat as untyped
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    nbformat: Any = untyped
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        store_widget_state=keep_state,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
        raise ResultsError(
            f"the workbench does not run in a notebook: {said[-1]}", next_step="report this"
        ) from error
    return len(nbformat.writes(notebook).encode())
