"""``nexus-lab blocks``: the compiled blocks of tools, ahead of their use and on disk."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nexus_lab.cli._options import Adapter, Context, Flash, Model, Threads
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._progress import bar, told_when_stopped
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.splice import BlockReport

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

_N_CTX = 4096
_SIZE = re.compile(r"(?P<count>\d+(\.\d+)?)\s*(?P<unit>[kMGT]?)(?P<binary>i?)B?", re.IGNORECASE)
_UNITS = "kmgt"
_LEAST_DIGITS = 6
_MOST_BYTES = 2.0**63
_SHOWN = 40

Tools = Annotated[
    Path | None, typer.Option("--registry", metavar="FILE", help="Tools, to say which block is whose.")
]
MaybeModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Say what does not fit this model, named as for build; with --registry it is bundled.",
    ),
]
NCtx = Annotated[
    int,
    typer.Option(
        "--n-ctx",
        min=1,
        metavar="N",
        help="Context of the agent, in tokens; some models turn their keys by it (LongRoPE).",
    ),
]
System = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The system prompt itself; the agent's by default.")
]


@app.command()
def build(
    file: Annotated[Path, typer.Argument(help="Tools: a saved registry, a tool list or OpenAPI.")],
    model: Model = "bundled",
    adapter: Adapter = None,
    context: Annotated[
        Context, typer.Option(help="Compile behind nothing, the system prompt, or typical conversations.")
    ] = (Context.SYSTEM),
    system: System = None,
    conversations: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Your own conversations, a line each: {"id", "messages"}. Half of them are kept as the '
            "typical ones from now on; the word samples goes back to the samples.",
        ),
    ] = None,
    quota: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Room for the blocks of all models, such as 500MB; none is no limit."
        ),
    ] = "4GiB",
    n_ctx: NCtx = _N_CTX,
    threads: Threads = None,
    *,
    flash_attention: Flash = False,
) -> None:
    """Compile the blocks of the tools in FILE.

    What is there is kept, and a stopped build goes on when the same command is given again.
    """
    from nexus_lab.agent.blocks import block_recipes
    from nexus_lab.engine import Engine
    from nexus_lab.registry import RegistryError, load_registry
    from nexus_lab.splice import BlockLibrary, build_blocks

    room, tools = _quota(quota), load_registry(file).tools
    if not tools:
        raise RegistryError(f"{file} lists no tools", next_step="add some with nexus-lab registry add")
    if conversations is not None:
        _take_conversations(conversations, context)
    loading = Engine.load(
        model, n_ctx=n_ctx, threads=threads, flash_attention=flash_attention, adapter=adapter
    )
    with loading as engine:
        library = BlockLibrary(engine, quota=room)
        recipes = block_recipes(engine, tools, system=_system(system), context=context.value)
        with told_when_stopped("the blocks compiled so far are kept"), bar("compiling") as tell:
            done = build_blocks(library, recipes, on_progress=tell)
        console.print(
            plain(
                f"{len(done.compiled)} compiled, {len(done.found)} there before; "
                f"{_bytes(done.nbytes)} in {library.folder}"
            )
        )


def _take_conversations(given: str, context: Context) -> None:
    """Make the conversations of a file, or the samples, those that typical blocks are compiled behind."""
    from nexus_lab.bench.trajectories import read_trajectories, trajectory_messages
    from nexus_lab.splice import for_compiling, forget_conversations, keep_conversations

    if context is not Context.TYPICAL:
        raise NexusError(
            f"--conversations has no part in blocks behind {context.value}",
            next_step="add --context typical",
        )
    if given == "samples":
        forget_conversations()
        return
    chosen = for_compiling(read_trajectories(Path(given)))
    path = keep_conversations([list(trajectory_messages(trajectory)) for trajectory in chosen])
    console.print(plain(f"{len(chosen)} conversations of {given} are kept in {path}"), soft_wrap=True)


@app.command("list")
def list_(
    registry: Tools = None,
    model: MaybeModel = None,
    adapter: Adapter = None,
    n_ctx: NCtx = _N_CTX,
    threads: Threads = None,
) -> None:
    """List the blocks of all models, the one used last first."""
    reports = _survey(registry, model, adapter, n_ctx, threads, verify=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    if registry is not None:
        table.add_column("tool", overflow="fold")
    for heading in ("tokens", "anchor", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("last use", no_wrap=True)
    table.add_column("block", overflow="fold")
    for report in reversed(reports):
        named = [plain(report.tool or "")] if registry is not None else []
        table.add_row(
            *named,
            _number(report.n_tokens),
            _number(report.anchor),
            _bytes(report.nbytes),
            plain(report.label),
            _moment(report.used_ns),
            plain(_marked(report)),
        )
    if reports:
        console.print(table)
    console.print(plain(_total(reports)))


@app.command()
def check(
    registry: Tools = None,
    model: MaybeModel = None,
    adapter: Adapter = None,
    n_ctx: NCtx = _N_CTX,
    threads: Threads = None,
) -> None:
    """Read every block whole, and name those that are of no use.

    Exits with 1 when one is damaged.
    """
    from nexus_lab.splice import BlockState

    reports = _survey(registry, model, adapter, n_ctx, threads, verify=True)
    for report in reports:
        if report.state is not BlockState.WHOLE:
            tool = f" ({report.tool})" if report.tool else ""
            console.print(
                plain(f"{report.state.value}: {report.path}{tool}: {report.detail}"), soft_wrap=True
            )
    counts = Counter(report.state for report in reports)
    named = ", ".join(f"{counts[state]} {state.value}" for state in BlockState if counts[state])
    console.print(plain(f"{_total(reports)}{': ' if named else ''}{named}"))
    if counts[BlockState.DAMAGED]:
        raise typer.Exit(1)


@app.command()
def clean(
    of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Remove the blocks of this model, named as list does or by their folder's name; repeat.",
        ),
    ] = None,
    quota: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove those used longest ago, down to this size.")
    ] = None,
    registry: Tools = None,
    model: MaybeModel = None,
    adapter: Adapter = None,
    n_ctx: NCtx = _N_CTX,
    threads: Threads = None,
    *,
    damaged: Annotated[bool, typer.Option("--damaged", help="Remove damaged and unfinished files.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Remove what no tool of --registry needs.")] = False,
    foreign: Annotated[bool, typer.Option("--foreign", help="Remove what does not fit --model.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove blocks that you say.

    They are compiled again when they are asked for.
    """
    from nexus_lab.splice import BlockState
    from nexus_lab.splice.shelf import unlink

    if not (of or quota or damaged or stale or foreign):
        raise NexusError(
            "nothing to remove was named", next_step="give --of, --damaged, --stale, --foreign or --quota"
        )
    if stale and registry is None:
        raise NexusError("--stale needs the tools", next_step="give --registry FILE")
    room = _quota(quota) if quota else None
    wanted = {BlockState.DAMAGED, BlockState.UNFINISHED} if damaged else set()
    wanted |= {BlockState.STALE} if stale else set()
    wanted |= {BlockState.FOREIGN} if foreign else set()
    reports = _survey(registry, model, adapter, n_ctx, threads, verify=damaged)
    _insist_on_one(of or (), reports)
    gone = [report for report in reports if report.state in wanted or _is_of(report, of or ())]
    if room is not None:
        gone += _beyond(room, [report for report in reports if report not in gone])
    for report in gone:
        if not dry_run:
            unlink(report.path)
        console.print(plain(f"{report.path}: {report.state.value}, {report.label}"), soft_wrap=True)
    freed = _bytes(sum(report.nbytes for report in gone))
    console.print(plain(f"{'would remove' if dry_run else 'removed'} {_count(len(gone))}, {freed}"))


def _survey(
    registry: Path | None,
    model: str | None,
    adapter: Path | None,
    n_ctx: int,
    threads: int | None,
    *,
    verify: bool,
) -> tuple[BlockReport, ...]:
    from nexus_lab.splice import library_root, survey

    with _compared(registry, model, adapter, n_ctx, threads) as (engine, tools), bar("reading") as tell:
        return survey(library_root(), engine=engine, tools=tools, verify=verify, on_progress=tell)


@contextmanager
def _compared(
    registry: Path | None, model: str | None, adapter: Path | None, n_ctx: int, threads: int | None
) -> Iterator[tuple[Engine | None, dict[tuple[int, ...], str] | None]]:
    """Lend the model and the tools that blocks are told by, where there are any."""
    if registry is None and model is None and adapter is None:
        yield None, None
        return
    from nexus_lab.agent.blocks import block_recipes
    from nexus_lab.engine import Engine
    from nexus_lab.registry import load_registry

    listed = load_registry(registry).tools if registry is not None else None
    with Engine.load(model or "bundled", n_ctx=n_ctx, threads=threads, adapter=adapter) as engine:
        if listed is None:
            yield engine, None
            return
        recipes = block_recipes(engine, listed, system=_system(None))
        yield engine, {recipe.tokens: recipe.tool for recipe in recipes}


def _system(text: str | None) -> str:
    from nexus_lab.agent import SYSTEM_PROMPT

    return SYSTEM_PROMPT if text is None else text


def _insist_on_one(models: Sequence[str], reports: Sequence[BlockReport]) -> None:
    """Refuse a name that several models have, such as one with an adapter and without."""
    for name in models:
        named = sorted({report.model for report in reports if _is_of(report, (name,))})
        if len(named) > 1:
            raise NexusError(
                f"{len(named)} models are called {name}, with other adapters or builds of llama.cpp",
                next_step=f"give a fingerprint: {', '.join(named)}",
            )


def _is_of(report: BlockReport, models: Sequence[str]) -> bool:
    return any(
        name == report.label or (len(name) >= _LEAST_DIGITS and report.model.startswith(name))
        for name in models
    )


def _beyond(quota: int, reports: Sequence[BlockReport]) -> list[BlockReport]:
    """Return the reports, used longest ago first, whose files must go so that the rest fits."""
    total, gone = sum(report.nbytes for report in reports), []
    for report in sorted(reports, key=lambda report: report.used_ns):
        if total <= quota:
            break
        gone.append(report)
        total -= report.nbytes
    return gone


def _quota(text: str) -> int | None:
    """Read a size such as ``4GiB``, ``500 MB`` or plain bytes; ``none`` is no limit."""
    if text.strip().lower() == "none":
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise NexusError(f"{text!r} is no size", next_step="give one such as 4GiB, 500MB, or none")
    power = _UNITS.find(match["unit"].lower()) + 1 if match["unit"] else 0
    size = float(match["count"]) * (1024 if match["binary"] else 1000) ** power
    if size > _MOST_BYTES:
        raise NexusError(f"{text[:_SHOWN]!r} is more than any disk has", next_step="give none for no limit")
    return int(size)


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004 - the step of the units
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _moment(used_ns: int) -> str:
    return datetime.fromtimestamp(used_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M")


def _marked(report: BlockReport) -> str:
    from nexus_lab.splice import BlockState

    name = report.path.stem[:8] if report.path.suffix == ".atb" else report.path.name
    return name if report.state is BlockState.WHOLE else f"{name} {report.state.value}"


def _count(n_blocks: int) -> str:
    return f"{n_blocks} block{'' if n_blocks == 1 else 's'}"


def _total(reports: Sequence[BlockReport]) -> str:
    return f"{_count(len(reports))}, {_bytes(sum(report.nbytes for report in reports))}"
