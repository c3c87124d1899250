"""A home of the package for one test: sessions, profiles and marks apart from the user's, servers shared."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nexus_lab.paths import home

if TYPE_CHECKING:
    from pathlib import Path


def environment_apart(folder: Path) -> dict[str, str]:
    """Return an environment whose package home is in `folder`; installed servers are linked in."""
    data = folder / "data"
    data.mkdir(parents=True)
    if (home() / "servers").is_dir():
        (data / "servers").symlink_to(home() / "servers")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    return {**kept, "NEXUS_LAB_HOME": str(folder), "IPYTHONDIR": str(folder / "ipython")}
