"""A git repository and a database for the demonstration's servers to work on, the same every time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ScratchError", "make_scratch_database", "make_scratch_repository"]

_AUTHOR = ("Ada Example", "ada@example.org")
_START = 1_767_225_600  # 2026-01-01T00:00:00Z
_COMMITS = (
    (
        "Start the inventory",
        {
            "README.md": "# Inventory\n\nCounts what is in the shed.\n",
            "inventory.py": "ITEMS = {\n    'spade': 2,\n    'rake': 1,\n}\n",
        },
    ),
    (
        "Count the buckets too",
        {"inventory.py": "ITEMS = {\n    'spade': 2,\n    'rake': 1,\n    'bucket': 5,\n}\n"},
    ),
    (
        "Add a total",
        {"total.py": "from inventory import ITEMS\n\nprint(sum(ITEMS.values()))\n"},
    ),
)
_BRANCH = ("add-prices", "Give every item a price", {"prices.py": "PRICES = {'spade': 19.5, 'rake': 12.0}\n"})
_UNCOMMITTED = {"README.md": "# Inventory\n\nCounts what is in the shed, and in the garage.\n"}

_TABLES = """
CREATE TABLE products (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL NOT NULL, stock INTEGER NOT NULL
);
INSERT INTO products (name, price, stock) VALUES
  ('spade', 19.5, 2), ('rake', 12.0, 1), ('bucket', 4.25, 5), ('hose', 24.0, 0);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, product_id INTEGER NOT NULL REFERENCES products (id),
  quantity INTEGER NOT NULL, ordered_on TEXT NOT NULL
);
INSERT INTO orders (product_id, quantity, ordered_on) VALUES
  (1, 1, '2026-01-05'), (3, 2, '2026-01-06'), (3, 1, '2026-01-09');
"""


class ScratchError(NexusError):
    """The scratch repository could not be made."""


def make_scratch_repository(folder: Path) -> Path:
    """Make a git repository with three commits, a second branch and an uncommitted change.

    Authors and dates are fixed, so that commit ids are the same everywhere; no configuration outside the
    repository is read or written.

    Parameters
    ----------
    folder
        Where it is made; a repository that stands there is replaced.

    Returns
    -------
    The folder of the repository, its ``main`` branch checked out.

    Raises
    ------
    ScratchError
        When git is not installed or fails, or `folder` holds something else.
    """
    if shutil.which("git") is None:
        raise ScratchError(
            "git was not found", next_step="install git; the demonstration's repository needs it"
        )
    if folder.exists():
        if any(folder.iterdir()) and not (folder / ".git").is_dir():
            raise ScratchError(f"{folder} holds other files", next_step="name an empty folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", _AUTHOR[0]), ("user.email", _AUTHOR[1]), ("commit.gpgsign", "false")):
        _git(folder, "config", key, value)
    for number, (message, files) in enumerate(_COMMITS):
        _commit(folder, message, files, number)
    branch, message, files = _BRANCH
    _git(folder, "switch", "--quiet", "--create", branch)
    _commit(folder, message, files, len(_COMMITS))
    _git(folder, "switch", "--quiet", "main")
    _write(folder, _UNCOMMITTED)
    return folder


def make_scratch_database(path: Path) -> Path:
    """Make a SQLite database with the tables ``products`` (4 rows) and ``orders`` (3 rows).

    Parameters
    ----------
    path
        File of the database; replaced when it exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_TABLES)
    return path


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _commit(folder: Path, message: str, files: dict[str, str], number: int) -> None:
    _write(folder, files)
    _git(folder, "add", "--all")
    date = f"{_START + 3600 * number} +0000"
    _git(folder, "commit", "--quiet", "--no-verify", f"--message={message}", date=date)


def _git(folder: Path, *arguments: str, date: str = "") -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    nowhere = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date} if date else {}
    done = subprocess.run(  # noqa: S603 - git, with arguments of this module
        ["git", *arguments],  # noqa: S607 - the user's git, wherever it is
        cwd=folder,
        env={**kept, **nowhere, **dates},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ScratchError(
            f"git {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}",
            next_step="git 2.28 or newer is needed",
        )
