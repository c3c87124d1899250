"""The demonstration's servers for a notebook: one call, and something for them to work on."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexus_lab.demo.scratch import make_scratch_database, make_scratch_repository
from nexus_lab.demo.servers import demo_server_commands, install_servers
from nexus_lab.errors import NexusError
from nexus_lab.registry import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexus_lab.registry import Toolbox

__all__ = ["demo_tools"]


def demo_tools(
    *names: str, folder: Path | str | None = None, progress: Callable[[str], None] | None = None
) -> Toolbox:
    """Start MCP servers of the demonstration, with a git repository ``inventory`` and a database to work on.

    Servers that are not installed yet are installed first, each in an environment of its own; that takes a
    minute and a network, once.

    Parameters
    ----------
    names
        Which: ``time``, ``git``, ``sqlite``; the first two when none is named.
    folder
        Where repository and database are made and the servers are started; ``None`` for a temporary folder.
    progress
        Called with one line per stage.

    Returns
    -------
    The running servers; close it to end them.

    Raises
    ------
    NexusError
        When a name is unknown, or a server can be neither installed nor started.
    """
    chosen: Sequence[str] = names or ("time", "git")
    work = Path(folder or tempfile.mkdtemp(prefix="nexus-lab-")).resolve()
    install_servers(progress)
    repository = make_scratch_repository(work / "inventory")
    database = make_scratch_database(work / "shop.db")
    configs = {config.name: config for config in demo_server_commands(repository, database)}
    unknown = sorted(set(chosen) - set(configs))
    if unknown:
        raise NexusError(f"no demo server {unknown[0]!r}", next_step=f"choose from {', '.join(configs)}")
    # Started inside the folder, so that requests can name the repository by a short relative path.
    started = [replace(configs[name], cwd=str(work)) for name in chosen]
    return connect(*started, name="demo", progress=progress)
