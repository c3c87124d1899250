"""What is installed: built views that come from their sources, and an extension that JupyterLab finds."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import node_tools
import pytest
from node_tools import LAB, REPOSITORY, npm_run, with_packages

import nexus_lab

EXTENSION = "nexus-lab-extension"
PACKAGES = ("frontend", "extension")


def _tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# -- what is committed was built from what is committed ------------------------------------------------------


@pytest.mark.parametrize(("package", "output"), [("frontend", "static"), ("extension", "labextension")])
def test_a_rebuild_gives_what_is_committed(package, output):
    root = with_packages(*PACKAGES)
    npm_run("build", root / package)
    built, kept = _tree(root / output), _tree(LAB / output)
    assert sorted(built) == sorted(kept), "run `make views`, and commit what it writes"
    different = [name for name in kept if kept[name] != built[name]]
    assert not different, "run `make views`, and commit what it writes"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_types_hold(package):
    npm_run("check", with_packages(*PACKAGES) / package)


def test_the_front_end_passes_its_own_tests():
    npm_run("test", with_packages(*PACKAGES) / "frontend")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_lock_file_names_no_host(package):
    lock = (LAB / package / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    entries = json.loads(lock)["packages"]
    assert len(entries) > 5
    assert all(entry.get("integrity") for path, entry in entries.items() if path.startswith("node_modules/"))


def test_there_is_one_version():
    assert {node_tools.version_of(package) for package in PACKAGES} == {nexus_lab.__version__}
    built = json.loads((LAB / "labextension" / "package.json").read_text(encoding="utf-8"))
    assert (built["name"], built["version"]) == (EXTENSION, nexus_lab.__version__)


def test_a_view_is_small_and_asks_nobody():
    """Each model of a notebook carries the bundle, and nothing may be fetched when it is shown."""
    bundle = (LAB / "static" / "widget.js").read_bytes()
    assert len(bundle) < 150 * 1024
    kept = [*(LAB / "static").iterdir(), *(LAB / "labextension" / "static").glob("*.js")]
    called = re.compile(rb"\b(fetch|importScripts|XMLHttpRequest|WebSocket|EventSource|sendBeacon)\b")
    assert [path.name for path in kept if called.search(_own_code(path))] == []


def _own_code(path: Path) -> bytes:
    """Return a script without the loader of chunks, which the bundler puts into the entry."""
    return b"" if path.name.startswith("remoteEntry") else path.read_bytes()


# -- the wheel ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel that was built where node fails; without the native core, whose compilation takes minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    shims = folder / "shims"
    shims.mkdir()
    for name in ("node", "nodejs", "npm", "npx", "yarn", "jlpm"):
        shim = shims / name
        shim.write_text(f"#!/bin/sh\ntouch '{folder}/node-was-called'\nexit 1\n")
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    command = [
        *(sys.executable, "-m", "pip", "wheel", str(REPOSITORY), "--no-deps", "--no-build-isolation"),
        *("--config-settings", "wheel.cmake=false", "--wheel-dir", str(folder)),
        *("--config-settings", f"build-dir={folder}/build"),
    ]
    path = f"{shims}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert not (folder / "node-was-called").exists()
    (made,) = folder.glob("nexus_lab-*.whl")
    return made


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_carries_the_built_views(names):
    assert {"nexus_lab/lab/static/widget.js", "nexus_lab/lab/static/widget.css"} <= set(names)
    shared = f".data/data/share/jupyter/labextensions/{EXTENSION}/"
    found = {name.split(shared)[1] for name in names if shared in name}
    assert {"package.json", "install.json", f"schemas/{EXTENSION}/plugin.json"} <= found
    assert any(re.fullmatch(r"static/remoteEntry\.\w+\.js", name) for name in found)


def test_the_wheel_carries_no_sources_of_them(names):
    inside = ("/frontend/", "/extension/", "/lab/labextension/", "node_modules")
    assert [
        name for name in names if any(part in name for part in inside) or name.endswith((".ts", ".tsx"))
    ] == []


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A new environment with the wheel in it; everything else it borrows from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return python


def _clean(folder: Path) -> dict[str, str]:
    """Return an environment that points at nobody's Jupyter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    return {
        **kept,
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_NO_CONFIG": "1",
    }


def test_jupyterlab_finds_the_extension(installed, tmp_path):
    listed = subprocess.run(
        [str(installed), "-c", "from jupyterlab.labextensions import main; main()", "list"],
        cwd=tmp_path,
        env=_clean(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said = listed.stdout + listed.stderr
    (line,) = [line for line in said.splitlines() if EXTENSION in line]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    assert re.search(rf"{EXTENSION} v{re.escape(nexus_lab.__version__)} enabled OK", plain), said


def test_the_installed_package_finds_its_views(installed, tmp_path):
    code = (
        "import nexus_lab, pathlib; home = pathlib.Path(nexus_lab.__file__).parent;"
        "assert 'site-packages' in str(home), home;"
        "print((home / 'lab' / 'static' / 'widget.js').stat().st_size)"
    )
    done = subprocess.run(
        [str(installed), "-c", code],
        cwd=tmp_path,
        env=_clean(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) == (LAB / "static" / "widget.js").stat().st_size
