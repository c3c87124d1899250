"""``nexus-lab registry``: show, check and extend a registry of tools."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from nexus_lab.cli._output import console
from nexus_lab.registry import (
    Registry,
    RegistryError,
    RegistryFormatError,
    ServerConfig,
    Severity,
    SignatureDetail,
    ToolSpec,
    check_registry_schemas,
    connect,
    estimate_tokens,
    load_registry,
    neutralise,
    schema_text,
    signature,
)
from nexus_lab.registry.server_names import free_name, name_of_command, name_of_url
from nexus_lab.trace.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.registry import Problem

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_SHOWN_PROBLEMS = 5

File = Annotated[
    Path,
    typer.Argument(
        help="MCP, OpenAI or Anthropic tool list, OpenAPI, a client's mcpServers, a saved registry."
    ),
]


def _safe(value: object, *, style: str = "", limit: int | None = None) -> Text:
    """Return text of unknown origin without markup, control characters shown as escapes."""
    return Text(neutralise(str(value), limit=limit), style=style)


@app.command()
def show(
    file: File,
    schema: Annotated[str | None, typer.Option(help="Show all of this one tool.", metavar="NAME")] = None,
    server: Annotated[str | None, typer.Option(metavar="NAME", help="Only tools of this server.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Show at most N tools; 0 for all.", min=0)] = 0,
) -> None:
    """Show the tools of FILE, or one of them with its schema.

    Starts nothing.
    """
    registry = load_registry(file)
    if schema is not None:
        _show_tool(registry[schema])
        return
    tools = registry.of_server(server) if server else registry.tools
    if server and not tools:
        known = ", ".join(neutralise(name, limit=40) for name in registry.server_names) or "none named"
        raise RegistryError(
            f"no tools of server {neutralise(server, limit=60)!r}", next_step=f"servers: {known}"
        )
    shown = tools[:limit] if limit else tools
    if tools:
        console.print(_tool_table(shown))
    if len(shown) < len(tools):
        console.print(_safe(f"… and {len(tools) - len(shown)} more; use --limit 0 for all", style="dim"))
    if registry.servers:
        console.print(_server_table(registry.servers))
    _summarise(registry)


def _tool_table(tools: Iterable[ToolSpec]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tool", overflow="fold", max_width=36)
    table.add_column("server", overflow="fold", max_width=20)
    table.add_column("≈tokens", justify="right")
    table.add_column("≈full", justify="right")
    table.add_column("signature and description", overflow="fold", ratio=1)
    for tool in tools:
        line = signature(tool, detail=SignatureDetail.LINE)
        said = signature(tool).removeprefix(line)
        table.add_row(
            _safe(tool.name, style="cyan"),
            _safe(tool.server or "", style="dim"),
            str(estimate_tokens(line)),
            str(estimate_tokens(schema_text(tool))),
            _safe(line.removeprefix(tool.name)).append_text(_safe(said, style="dim")),
        )
    return table


def _server_table(servers: Iterable[ServerConfig]) -> Table:
    table = Table(
        box=None, header_style="bold", pad_edge=False, title="servers, not started", title_justify="left"
    )
    table.add_column("server", overflow="fold")
    table.add_column("transport")
    table.add_column("command or address", overflow="fold", ratio=1)
    for config in servers:
        table.add_row(_safe(config.name, style="cyan"), str(config.transport), _safe(config.shown()))
    return table


def _show_tool(tool: ToolSpec) -> None:
    console.print(_safe(signature(tool, detail=SignatureDetail.LINE), style="cyan"))
    facts = [
        ("server", tool.server or "none"),
        ("source", tool.source or "unknown"),
        ("read only", "yes" if tool.read_only else "not said"),
        (
            "≈tokens",
            f"{estimate_tokens(signature(tool))} as signature, {estimate_tokens(schema_text(tool))} in full",
        ),
    ]
    for key, value in facts:
        console.print(_safe(f"{key}: ", style="bold").append_text(_safe(value)))
    console.print(Text(neutralise(tool.description, keep_newlines=True)))
    text = json.dumps(tool.input_schema, ensure_ascii=False, indent=2)
    console.print(
        Syntax(neutralise(text, keep_newlines=True), "json", word_wrap=True, background_color="default")
    )


def _summarise(registry: Registry) -> None:
    counts = {severity: sum(p.severity is severity for p in registry.problems) for severity in Severity}
    console.print(
        _safe(
            f"{registry.name}: {plural(len(registry), 'tool')}, "
            f"{plural(len(registry.servers), 'server')} listed, "
        ).append_text(_safe(", ".join(plural(count, str(severity)) for severity, count in counts.items())))
    )
    _print_problems([p for p in registry.problems if p.severity is Severity.ERROR], limit=_SHOWN_PROBLEMS)


def _print_problems(problems: list[Problem], *, limit: int | None = None) -> None:
    for problem in problems[:limit]:
        console.print(_safe(problem, style=_STYLES[problem.severity]))
    if limit is not None and len(problems) > limit:
        console.print(_safe(f"… and {len(problems) - limit} more: nexus-lab registry check", style="dim"))


@app.command()
def check(
    file: File,
    deep: Annotated[bool, typer.Option(help="Check schemas against the JSON Schema metaschema too.")] = True,
) -> None:
    """List what is wrong with the tools of FILE.

    Exits with 1 when there are errors. Starts nothing.
    """
    registry = load_registry(file)
    problems = [*registry.problems, *(check_registry_schemas(registry) if deep else ())]
    order = list(Severity)
    _print_problems(sorted(problems, key=lambda problem: order.index(problem.severity)))
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    counts = [(len(registry), "tool"), (len(problems), "problem"), (errors, "error")]
    console.print(_safe(f"{registry.name}: {', '.join(plural(*pair) for pair in counts)}"))
    if errors:
        raise typer.Exit(1)


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="Registry to extend; made when it does not exist.")],
    server: Annotated[
        str | None, typer.Option(help="Command to start, quoted: 'uvx mcp-server-time'.", metavar="COMMAND")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a streamable HTTP server.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="File to merge: tools, OpenAPI, or a client's servers."),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(help="Start this server that --file or FILE lists; repeat.", metavar="NAME"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the server; by default made of its command.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Environment variable for the server; KEY alone passes yours on; repeat.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds that a server gets to start.", min=0.1)
    ] = 30.0,
) -> None:
    """Add the tools of a server or of another file to FILE.

    A server that you name is started, asked for its tools and ended.
    """
    if not (server or url or source or start):
        raise RegistryError("nothing to add", next_step="give --server COMMAND, --url ADDRESS or --file FILE")
    before = load_registry(file) if file.exists() else Registry.of((), name=file.stem)
    after = before.merge(load_registry(source, server=name)) if source else before
    configs = [_config(after, server=server, url=url, name=name, env=env)] if server or url else []
    configs += [_listed(after, wanted) for wanted in start or ()]
    if configs:
        with connect(*configs, timeout=timeout, progress=lambda line: console.print(_safe(line))) as box:
            for config in configs:
                after = after.remove_server(config.name)
            after = after.merge(box.registry)
    after.save(file)
    console.print(_safe(f"{plural(len(before), 'tool')} before, {len(after)} now, in {file}"))
    new = [problem for problem in after.problems if problem not in before.problems]
    _print_problems(new, limit=_SHOWN_PROBLEMS)


def _config(
    registry: Registry, *, server: str | None, url: str | None, name: str | None, env: list[str] | None
) -> ServerConfig:
    if server and url:
        raise RegistryError("a server has a command or an address, not both", next_step="give one of them")
    try:
        words = shlex.split(server) if server else []
    except ValueError as error:
        raise RegistryError(f"--server cannot be read: {error}", next_step="close its quotes") from error
    if server is not None and not words:
        raise RegistryError("--server is empty", next_step="give the command to start")
    pairs = [text.partition("=") for text in env or ()]
    return ServerConfig(
        name or free_name(name_of_url(url) if url else name_of_command(words), registry.server_names),
        command=words[0] if words else "",
        args=tuple(words[1:]),
        env={key: value if separator else None for key, separator, value in pairs},
        url=url,
    )


def _listed(registry: Registry, name: str) -> ServerConfig:
    known = {config.name: config for config in registry.servers}
    if name not in known:
        names = ", ".join(neutralise(other, limit=40) for other in known) or "none"
        raise RegistryFormatError(
            f"no server {neutralise(name, limit=60)!r} is listed", next_step=f"listed are: {names}"
        )
    return known[name]
