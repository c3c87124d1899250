"""What the tests with a browser have in common: the browser, a JupyterLab, and a notebook that runs in it."""

from __future__ import annotations

import os
import shutil

import lab_server as lab
import pytest
from playwright.sync_api import expect, sync_playwright

# Page, server, kernel and other tests share the machine: what is expected may take far longer than usual.
expect.set_options(timeout=60_000)

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("NEXUS_CHROMIUM") or next(
        (found for name in NAMES if (found := shutil.which(name))), None
    )
    if path is None:
        if os.environ.get("NEXUS_NO_BROWSER") == "1":
            pytest.skip("no Chromium, and NEXUS_NO_BROWSER=1 says that this is known")
        pytest.fail("no Chromium found: install it (apt-get install chromium), or set NEXUS_NO_BROWSER=1")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab, with the demo's servers at hand."""
    from nexus_lab.demo.servers import missing_servers

    if missing_servers():
        pytest.skip("the demo's servers are not installed: run nexus-lab demo --setup")
    with lab.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """What went wrong in the page of the module, so far."""
    return []


@pytest.fixture(scope="module")
def page(browser, server, complaints, notebook):
    """A page with the module's `notebook`, which was told to run from top to bottom."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    lab.open_file(page, server, notebook)
    lab.run_all(page)
    yield page
    context.close()
