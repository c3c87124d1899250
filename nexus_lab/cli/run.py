"""``nexus-lab run``: the agent over servers of the user's own."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.prompt import Confirm

from nexus_lab.cli._options import Adapter, Model
from nexus_lab.cli._output import console, plain
from nexus_lab.registry.server_names import free_name, name_of_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.agent import Endpoint, Event, Observer, Turn, TurnLoop
    from nexus_lab.cli._turn_line import TurnLine
    from nexus_lab.errors import NexusError
    from nexus_lab.registry import Registry, ServerConfig, ToolSpec

__all__ = ["run"]

_TOO_MANY = "too_many_things"


def run(
    requests: Annotated[
        list[str] | None,
        typer.Argument(help="Requests, one after the other; without any you are asked, until Ctrl-D."),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A client's mcpServers JSON, or a saved registry; see --start."),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Start this server of --servers; repeat."),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="Start this server, quoted: 'uvx mcp-server-time'; repeat."),
    ] = None,
    model: Model = "bundled",
    adapter: Adapter = None,
    n_ctx: Annotated[int, typer.Option(min=1, metavar="N", help="Context of the model, in tokens.")] = 4096,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Named settings; see nexus-lab profile.")
    ] = "default",
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Cache policy in place of the profile's, such as rolling_drop_repos(keep_last=3); "
            "see nexus-lab policies.",
        ),
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME", help="Record a new session, the folder NAME.nexus, for nexus-lab export."
        ),
    ] = None,
    endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="OpenAI-compatible address, ending in /v1, in place of a model of this machine.",
        ),
    ] = "",
    endpoint_model: Annotated[
        str, typer.Option(metavar="NAME", help="The model's name there; needed with --endpoint.")
    ] = "",
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Environment variable of the endpoint's API key; none is sent without."
        ),
    ] = None,
    *,
    contents: Annotated[
        bool,
        typer.Option("--contents", help="Record messages, arguments and results too, without known secrets."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run tools that change things without asking.")] = False,
) -> None:
    """Ask an agent over your own MCP servers.

    Only the servers that you name are started, with --start or --command. A tool that is not marked
    read-only asks before it runs. Exits with 1 when a request that was given had a problem.
    """
    from nexus_lab.agent import Agent, Endpoint, RemoteAgent
    from nexus_lab.cli._turn_line import TurnLine
    from nexus_lab.engine import Engine
    from nexus_lab.policy_text import parse_policy
    from nexus_lab.registry import connect
    from nexus_lab.settings import load_profile
    from nexus_lab.trace import SessionRecorder, insist_new

    remote = _endpoint(endpoint, endpoint_model, key_env, model, adapter)
    settings = load_profile(profile)
    if policy is not None:
        settings = settings.changed(policy=policy)
    code = parse_policy(settings.policy).code
    if policy is None and code is not None:
        console.print(plain(f"profile {profile}: its cache policy imports and runs {code}"))
    chosen = _chosen(servers, start or [], command or [])
    if session is not None:
        insist_new(session)
    with ExitStack() as stack:
        tools = stack.enter_context(connect(*chosen, progress=lambda line: console.print(plain(line))))
        runs = remote or stack.enter_context(
            Engine.load(model, n_ctx=n_ctx, threads=settings.threads, adapter=adapter)
        )
        line = TurnLine()
        observers: list[Observer] = [_Declines(everything=isinstance(runs, Endpoint)), line]
        if session is not None:
            recorder = SessionRecorder(
                session,
                contents=contents,
                model=runs.facts() if isinstance(runs, Endpoint) else runs.info.to_dict(),
                settings=settings.to_dict(),
                host=None if isinstance(runs, Endpoint) else runs.machine,
            )
            observers.append(stack.enter_context(recorder))
        options: dict[str, Any] = {
            "profile": settings,
            "observers": observers,
            "approve": _approve(line, yes=yes),
        }
        agent: TurnLoop
        if isinstance(runs, Endpoint):
            agent = RemoteAgent(runs, tools, **options)
        else:
            agent = Agent(runs, tools, **options)
        well = _converse(stack.enter_context(agent), requests or [], line)
    if session is not None:
        console.print(
            plain(f"recorded in {recorder.path}; nexus-lab export {recorder.path} makes a page of it"),
            soft_wrap=True,
        )
    if not well:
        raise typer.Exit(1)


def _endpoint(
    url: str, name: str, key_variable: str | None, model: str, adapter: Path | None
) -> Endpoint | None:
    """Return the endpoint that the options name; looked at before any server is started."""
    from nexus_lab.agent import Endpoint
    from nexus_lab.errors import NexusError

    if not url:
        if name or key_variable:
            raise NexusError(
                "--endpoint-model and --key-env belong to an endpoint",
                next_step="give its address with --endpoint",
            )
        return None
    if not name:
        raise NexusError("the endpoint's model has no name", next_step="name it with --endpoint-model")
    if model != "bundled":
        raise NexusError("both --model and --endpoint name a model", next_step="give one of them")
    if adapter is not None:
        raise NexusError("an endpoint's model takes no --adapter", next_step="load it on the endpoint")
    return Endpoint(url, name, key_variable=key_variable)


class _Declines:
    """Tells of what an endpoint cannot do, once each, and of a request that asks for too much at once."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._told: set[str] = set()

    def on_event(self, event: Event) -> None:
        said = event.attributes
        if event.status == "declined" and said.get("code") not in self._told:
            if said["code"] != _TOO_MANY:
                if not self._everything:
                    return
                self._told.add(said["code"])
            line = f"! declined ({said['code']}): {said['reason']}. Instead: {said['instead']}"
            console.print(plain(line, style="dim"))


def _chosen(servers: Path | None, start: list[str], commands: list[str]) -> list[ServerConfig]:
    import shlex

    from nexus_lab.errors import NexusError
    from nexus_lab.registry import Registry, ServerConfig, load_registry

    listed = load_registry(servers) if servers else Registry()
    known = {config.name: config for config in listed.servers}
    for name in start:
        if name not in known:
            raise _no_server(name, listed, servers)
    configs = [known[name] for name in start]
    for text in commands:
        try:
            program, *arguments = shlex.split(text)
        except ValueError as error:
            raise NexusError(
                f"--command {text!r} names no program",
                next_step="give a program and its arguments, quotes closed",
            ) from error
        name = free_name(name_of_command([program, *arguments]), [config.name for config in configs])
        configs.append(ServerConfig(name, command=program, args=tuple(arguments)))
    if not configs:
        offered = f" of {', '.join(known)}" if known else " of --servers FILE"
        raise NexusError("no server to start", next_step=f"name one{offered} with --start, or give --command")
    return configs


def _no_server(name: str, listed: Registry, servers: Path | None) -> NexusError:
    """Return why a server cannot be started that is not among those that a file lists."""
    from nexus_lab.errors import NexusError

    if servers is None:
        return NexusError(f"no server {name!r} is known", next_step="pass --servers FILE, which lists it")
    fault = next((problem.message for problem in listed.problems if problem.server == name), None)
    if fault is not None:
        fault = fault.removeprefix("left out: ").removeprefix(f"server {name!r}: ")
        return NexusError(f"server {name!r} of {servers}: {fault}", next_step="mend that entry")
    names = ", ".join(config.name for config in listed.servers)
    return NexusError(
        f"{servers} lists no server {name!r}",
        next_step=f"it lists {names}" if names else f"see what it holds: nexus-lab registry check {servers}",
    )


def _approve(line: TurnLine, *, yes: bool) -> Any:
    from nexus_lab.agent import ApprovalRefused

    def approve(tool: ToolSpec, arguments: Mapping[str, Any]) -> bool:
        if yes:
            return True
        told = json.dumps(arguments, ensure_ascii=False)
        console.print(plain(f"{tool.qualified_name} may change something: {told}"))
        try:
            with line.hidden():
                return Confirm.ask("run it?", console=console, default=False)
        except EOFError:
            raise ApprovalRefused(
                f"{tool.name} may change something, and nobody is there to ask",
                next_step="run this at a terminal, or allow such tools with --yes",
            ) from None

    return approve


def _converse(agent: TurnLoop, requests: list[str], line: TurnLine) -> bool:
    """Ask the requests, or what is typed; whether all that were given came to an end without a problem."""
    well = True
    for request in requests:
        console.print(plain(f"> {request}", style="bold"))
        well &= _ask(agent, request, line)
    if not requests:
        console.print(plain("ask for something; Ctrl-C stops a turn, Ctrl-D ends", style="dim"))
    while not requests:
        try:
            request = console.input("> ").strip()
        except EOFError:
            console.print()
            break
        if request:
            try:
                _ask(agent, request, line)
            except KeyboardInterrupt:  # what the turn did to the conversation has been undone
                console.print(plain("× stopped", style="red"))
    return well


def _ask(agent: TurnLoop, request: str, line: TurnLine) -> bool:
    with line.shown():
        turn = agent.ask(request, on_turn=_show, **line.callbacks)
    _show(turn)
    if turn.left:
        console.print(plain(f"not begun: {'; '.join(turn.left)}", style="yellow"))
    return turn.problem is None


def _show(turn: Turn) -> None:
    from nexus_lab.demo.table import splice_lines

    if turn.decision is not None:
        console.print(plain(turn.decision.reason, style="dim"))
    if turn.tool is not None:
        console.print(plain(f"{turn.tool} {json.dumps(turn.arguments, ensure_ascii=False)}"))
    if turn.result is not None:
        console.print(plain(("× " if turn.result.is_error else "→ ") + turn.result.text, limit=2000))
    _show_problem(turn)
    if turn.splice is not None and turn.splice.n_tokens is not None:
        for line in splice_lines(turn.splice):
            console.print(plain(f"  {line}", style="dim"))
    if "endpoint" in turn.settings and turn.prompt_tokens is not None:
        console.print(
            plain(f"{turn.prompt_tokens} prompt tokens, {turn.generated_tokens} generated", style="dim")
        )
    if turn.answer:
        console.print(plain(turn.answer, style="italic"))
    if turn.answer_cut:
        console.print(
            plain("cut at the answer's limit; a profile with more answer_tokens allows more", style="dim")
        )


def _show_problem(turn: Turn) -> None:
    if turn.problem is None:
        return
    console.print(plain(f"× {turn.problem.problem}", style="red"))
    if turn.result is not None:
        console.print(plain("  the tool had run before; what it did stays done"))
    console.print(plain(f"  next: {turn.problem.next_step}"))
