"""Starting and ending MCP servers on the user's word; nothing else starts one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexus_lab.lab.sources import ToolSource
from nexus_lab.registry import (
    McpServer,
    RegistryError,
    RegistryFormatError,
    ServerConfig,
    load_registry,
    load_registry_text,
    neutralise,
)
from nexus_lab.registry.config import split_line
from nexus_lab.registry.server_names import free_name, name_of_command, name_of_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nexus_lab.lab.desk import Desk
    from nexus_lab.registry import Registry

__all__ = ["chosen", "config_of", "end_server", "read_source", "start_servers"]


def read_source(*, path: str | None, text: str | None) -> Registry:
    """Read a registry from a file or from a text, whichever is given; starts nothing.

    Raises
    ------
    RegistryFormatError
        When neither is given, or it cannot be read.
    """
    if text is not None:
        return load_registry_text(text, name="pasted" if path is None else Path(path).stem)
    if not path:
        raise RegistryFormatError("no file and no text was given", next_step="give one of them")
    return load_registry(path)


def config_of(
    name: str, *, command: str | None, url: str | None, taken: Collection[str] = ()
) -> ServerConfig:
    """Return the configuration of a server that the user typed.

    Without a name it is called by its program or host, by one that is not `taken`.

    Raises
    ------
    RegistryFormatError
        When it names neither a command nor an address, or the command line is not closed.
    """
    if url:
        return ServerConfig(name or free_name(name_of_url(url), taken), url=url)
    words = split_line(command or "")
    name = name or free_name(name_of_command(words), taken)
    return ServerConfig(name, command=words[0], args=tuple(words[1:]))


def chosen(configs: Sequence[ServerConfig], names: Iterable[str]) -> list[ServerConfig]:
    """Return the configurations of these names.

    Raises
    ------
    RegistryFormatError
        When one of them is not listed.
    """
    known = {config.name: config for config in configs}
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in known]
    if missing or not wanted:
        listed = ", ".join(neutralise(name, limit=60) for name in known) or "none"
        what = f"no server {neutralise(missing[0], limit=60)!r}" if missing else "no server was chosen"
        raise RegistryFormatError(what, next_step=f"listed there: {listed}")
    return [known[name] for name in wanted]


def start_servers(desk: Desk, configs: Sequence[ServerConfig]) -> list[str]:
    """Start servers side by side and take their tools over; for the engine's lane.

    Returns
    -------
    What went wrong, one sentence per server; each also stands in its source, with the typed error.

    Raises
    ------
    RegistryFormatError
        When one of them runs already.
    """
    for config in configs:
        known = desk.sources.get(config.name)
        if known is not None and known.server is not None and known.server.running:
            raise RegistryFormatError(
                f"server {neutralise(config.name, limit=60)!r} runs already", next_step="stop it first"
            )
    for config in configs:
        desk.sources.put(ToolSource(name=config.name, state="starting", config=config))
    desk.changed("registry")
    desk.driver.progress(f"starting {len(configs)} servers")
    with ThreadPoolExecutor(max_workers=max(1, len(configs))) as pool:
        problems = [problem for problem in pool.map(lambda config: _start(desk, config), configs) if problem]
    desk.crew.compose()
    desk.crew.fit()
    return problems


def end_server(desk: Desk, name: str) -> None:
    """End a server; its tools leave the registry. For the engine's lane.

    Raises
    ------
    RegistryFormatError
        When there is none of that name.
    """
    source = desk.sources.get(name)
    if source is None or source.config is None:
        raise RegistryFormatError(
            f"there is no server {neutralise(name, limit=60)!r}", next_step="choose one that is listed"
        )
    if source.server is not None:
        source.server.close()
    desk.sources.put(replace(source, state="stopped", tools=(), problems=(), server=None, error=None))
    desk.crew.compose()
    desk.crew.fit()


def _start(desk: Desk, config: ServerConfig) -> str | None:
    server = McpServer(config)
    desk.crew.starting.append(server)
    try:
        tools, problems = server.start().read_tools()
    except RegistryError as error:
        server.close()
        stopped = desk.driver.state.stopping
        desk.sources.update(
            config.name, state="stopped" if stopped else "failed", error=None if stopped else error
        )
        desk.changed("registry")
        return f"server {config.name!r}: its start was stopped" if stopped else error.problem
    finally:
        desk.crew.starting.remove(server)
    desk.sources.update(config.name, state="ready", tools=tools, problems=problems, server=server, error=None)
    desk.changed("registry")
    return None
