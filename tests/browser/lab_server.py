"""A real JupyterLab on this machine, with the extension as it stands in the tree."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nexus_lab

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

import node_tools
from own_home import environment_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

EXTENSION = "nexus-lab-extension"
LONG_MS = 420_000
"""What a page may wait for a kernel, or for the model."""
LAB = Path(nexus_lab.__file__).parent / "lab"


@dataclass(frozen=True)
class LabServer:
    """A running server."""

    url: str
    token: str
    root: Path
    log: Path

    def address(self, path: str = "") -> str:
        """Return the address of a file, in a workspace that nothing is restored into."""
        where = f"/tree/{path}" if path else ""
        return f"{self.url}/lab/workspaces/w{secrets.token_hex(4)}{where}?token={self.token}&reset"


@contextmanager
def running_lab(folder: Path, *, theme: str = "JupyterLab Light") -> Iterator[LabServer]:
    """Start JupyterLab below `folder`, whose ``files`` it shows; end it with the block."""
    root = folder / "files"
    root.mkdir(parents=True, exist_ok=True)
    _write_settings(folder / "settings", theme)
    extensions = folder / "labextensions"
    extensions.mkdir()
    # A link, so that what was built last is what is tested, and not the copy of an earlier install.
    (extensions / EXTENSION).symlink_to(LAB / "labextension")
    port, token = _free_port(), secrets.token_hex(16)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": root,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": token,
        "LabApp.user_settings_dir": folder / "settings",
        "LabApp.workspaces_dir": folder / "workspaces",
        "LabApp.extra_labextensions_path": extensions,
        "LabApp.expose_app_in_browser": True,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = folder / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", *arguments],
            cwd=root,
            env=_environment(folder),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        server = LabServer(f"http://127.0.0.1:{port}", token, root, log)
        try:
            _wait_for(server, process)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(folder: Path) -> dict[str, str]:
    return {
        **environment_apart(folder / "home"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter-config"),
        "JUPYTER_DATA_DIR": str(folder / "jupyter-data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter-runtime"),
        "JUPYTER_PLATFORM_DIRS": "1",
    }


def _write_settings(folder: Path, theme: str) -> None:
    chosen = {
        "notification": {"fetchNews": "false", "checkForUpdates": False},
        "themes": {"theme": theme},
    }
    for name, values in chosen.items():
        path = folder / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(server: LabServer, process: subprocess.Popen[bytes], *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{server.url}/api/status?token={server.token}", timeout=2):  # noqa: S310
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start in {seconds} s:\n{server.log.read_text()[-4000:]}")


def open_file(page: Page, server: LabServer, path: str = "") -> None:
    """Open a file of the server in a fresh Lab, and wait until the application is there."""
    page.goto(server.address(path), wait_until="domcontentloaded")
    page.wait_for_function("() => window.jupyterapp && window.jupyterapp.restored", timeout=180_000)
    page.evaluate("() => window.jupyterapp.restored")
    page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=180_000)


def run_all(page: Page) -> None:
    """Wait for the kernel of the notebook in sight, and begin to run all its cells."""
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
        timeout=LONG_MS,
    )
    begin(page, "notebook:run-all-cells")


def execute(page: Page, command: str, **arguments: object) -> None:
    """Execute a command of the application, and wait until it is done."""
    page.evaluate(
        "([command, args]) => window.jupyterapp.commands.execute(command, args).then(() => null)",
        [command, arguments],
    )


def begin(page: Page, command: str) -> None:
    """Execute a command of the application without waiting for its end."""
    page.evaluate("command => void window.jupyterapp.commands.execute(command)", command)


def assert_accessible(page: Page, selector: str) -> None:
    """Hold a part of the page to what axe-core calls serious or critical."""
    if not page.evaluate("() => 'axe' in window"):
        folder = node_tools.installed(Path(__file__).parent)
        page.add_script_tag(path=folder / "browser" / "node_modules" / "axe-core" / "axe.min.js")
    found = page.evaluate(
        "selector => axe.run(selector, { resultTypes: ['violations'] }).then(({ violations }) => violations)",
        selector,
    )
    serious = [
        f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
    assert not serious, "\n".join(serious)


def copy_notebook(name: str, server: LabServer) -> str:
    """Copy a notebook of the tree to the server; returns its name there."""
    source = Path(nexus_lab.__file__).parents[1] / "notebooks" / name
    target = server.root / name
    shutil.copy(source, target)
    return target.name
