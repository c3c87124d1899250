"""``nexus-lab route``: which tool a request goes to, and calibrating the gate."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from nexus_lab.cli._options import STDOUT, json_option
from nexus_lab.cli._output import console, print_written
from nexus_lab.cli._progress import stage_bar, told_when_stopped
from nexus_lab.errors import NexusError
from nexus_lab.paths import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nexus_lab.routing import Router, RouterCalibration, RoutingDecision

__all__ = ["app"]

_DEFAULT = "request"


class Source(StrEnum):
    """What the probability that no tool fits is fitted to."""

    FILES = "files"
    PACKAGE = "package"
    ALL = "all"


class _RequestByDefault(TyperGroup):
    """Lets ``route REGISTRY TEXT`` stand for ``route request REGISTRY TEXT``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(no_args_is_help=True, cls=_RequestByDefault)

_STYLES = {"auto": "green", "escalated": "cyan", "escalation_unavailable": "yellow", "no_tool": "magenta"}
_VIEW_WIDTH = 100

Registry = Annotated[
    Path, typer.Argument(help="MCP, OpenAI or Anthropic tool list, OpenAPI, or a saved registry.")
]
Embedder = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="bundled (tuned for tools), stock (as it came), a sentence-transformers folder, or "
        "hf:owner/name.",
    ),
]


@app.command(_DEFAULT)
def request(
    registry: Registry,
    text: Annotated[list[str] | None, typer.Argument(help="Requests, each quoted.")] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", metavar="FILE", help='Requests, a line each: {"query", "context"}.'),
    ] = None,
    top_k: Annotated[int, typer.Option(metavar="N", help="Candidates shown.", min=1)] = 3,
    tau: Annotated[
        float | None,
        typer.Option(
            metavar="MARGIN",
            help="Lead over the second tool under which a decision escalates; calibrated by default.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="SCORE",
            help="Fit under which a request is told to have no tool; calibrated by default.",
        ),
    ] = None,
    embedder: Embedder = "bundled",
    lines: Annotated[
        Path | None, json_option("Write a line of JSON for each request here; - prints them, without tables.")
    ] = None,
) -> None:
    """Route requests over REGISTRY; nothing is run.

    The word "request" may be left out: nexus-lab route tools.json "List my issues".
    """
    from nexus_lab.routing import Router

    router = Router(registry, embedder, tau=tau, threshold=threshold, top_k=top_k)
    pairs = list(_requests(text or [], rows))
    _warm(router)
    told = []
    for query, context in pairs:
        decision = router.route(query, context)
        line = json.dumps(decision.to_dict(), ensure_ascii=False)
        if lines == STDOUT:
            # Written as they come, for another program: no wrapping, no styles.
            typer.echo(line)
        else:
            told.append(line)
            _show(decision)
    if lines is not None and lines != STDOUT:
        atomic_write(lines, "".join(f"{line}\n" for line in told).encode())
        print_written(lines)


@app.command()
def calibrate(
    pairs: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help='Requests that are easily confused, a line each: {"query", "context", "right"}; those for '
            "train-gate will do.",
        ),
    ],
    registry: Annotated[Path, typer.Option(metavar="FILE", help="The tools that the requests are for.")],
    negatives: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help='Requests that no tool fits, a line each: {"query"}; repeat.'),
    ] = None,
    percentile: Annotated[
        float,
        typer.Option(min=0, max=100, metavar="0-100", help="Percentile of the margins that becomes tau."),
    ] = 20.0,
    risk: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="In place of a percentile: the least tau whose accuracy is this near to escalating all.",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of the requests to use, 0 to 1; the others are kept apart.",
        ),
    ] = 1.0,
    held: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of the package's requests, not learned from, that takes part.",
        ),
    ] = 0.0,
    learn_from: Annotated[
        Source, typer.Option(help='What "no tool fits" is fitted to: the files, the package, or all.')
    ] = Source.FILES,
    unknown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Requests for tools nobody knows, a line each: {"query", "gold_tool"}; what reading counts '
            "over tools without examples.",
        ),
    ] = None,
    unknown_registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tools that --unknown is for.")
    ] = None,
    kept_apart: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Of --unknown, only what train-gate --kept-apart left out.",
        ),
    ] = 0.0,
    target: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="SHARE", help="Share of answerable requests that may be refused."),
    ] = 0.05,
    embedder: Embedder = "bundled",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write; by default the one that your routers read."),
    ] = None,
) -> None:
    """Calibrate the gate and the abstention on your own requests.

    Says how often they err. Routers use what was found from then on.
    """
    from nexus_lab.registry import load_registry
    from nexus_lab.routing import Router, calibrate_router, save_calibration
    from nexus_lab.routing.calibrate_seen import Unknown

    if (unknown is None) != (unknown_registry is None):
        raise NexusError(
            "--unknown and --unknown-registry go together", next_step="give both of them, or none"
        )
    with told_when_stopped("the calibration is as it was", next_step="give the command again"):
        router = Router(registry, embedder)
        _warm(router)
        with stage_bar("routing") as tell:
            found = calibrate_router(
                router,
                pairs,
                negatives=negatives or (),
                percentile=percentile,
                risk=risk,
                target=target,
                share=share,
                held=held,
                learn_from=learn_from.value,
                unknown=Unknown(load_registry(unknown_registry), unknown, kept_apart)
                if unknown is not None and unknown_registry is not None
                else None,
                on_progress=tell,
            )
        _show_calibration(found)
        print_written(save_calibration(found, out))


def _requests(texts: Iterable[str], rows: Path | None) -> Iterator[tuple[str, Any]]:
    from nexus_lab.routing import read_rows

    yield from ((text, ()) for text in texts)
    if rows is not None:
        yield from ((row["query"], row.get("context") or ()) for row in read_rows(rows))
    elif not texts:
        raise NexusError(
            "no request to route", next_step='add one: nexus-lab route REGISTRY "List my issues"'
        )


def _warm(router: Router) -> None:
    with console.status("loading the embedder") as status:
        router.warm_up(lambda stage, fraction: status.update(f"{stage} ({fraction:.0%})"))


def _show(decision: RoutingDecision) -> None:
    from nexus_lab.registry import neutralise

    console.print(_safe(decision.request, style="bold", limit=300))
    table = Table(box=None, pad_edge=True)
    for column in ("", "tool"):
        table.add_column(column)
    for column in ("score", "dense", "lexical", "example", "reader"):
        table.add_column(column, justify="right")
    for place, candidate in enumerate(decision.candidates, start=1):
        chosen = candidate.tool == decision.tool
        table.add_row(
            str(place),
            _safe(candidate.tool, style="bold" if chosen else "", limit=64),
            f"{candidate.score:.3f}",
            f"{candidate.dense:.3f}",
            f"{candidate.lexical:.3f}",
            _number(candidate.example),
            _number(candidate.cross_encoder),
        )
    console.print(table)
    # Not columns: of a narrow terminal they would leave none of it readable.
    for place, candidate in enumerate(decision.candidates, start=1):
        matched = [] if candidate.view is None else [neutralise(str(candidate.view), limit=_VIEW_WIDTH)]
        console.print(_safe(f"  {place} by {'; '.join([*matched, *candidate.notes])}", style="dim"))
    outcome = decision.outcome.value
    line = _safe(f"  {outcome}", style=_STYLES[outcome])
    console.print(line.append(f": {_safe(decision.reason)}", style="default"))
    times = ", ".join(f"{stage} {value:.2f}" for stage, value in decision.times_ms.items())
    facts = (
        f"  margin {decision.margin:.4f} (dense {decision.dense_margin:.4f}), tau {decision.tau:.4f} "
        f"({decision.settings['tau_from']}), fit {decision.fit:.3f} of {decision.threshold:.3f}"
        f"{', with what was said before' if decision.used_context else ''}"
    )
    console.print(_safe(facts, style="dim"))
    console.print(_safe(f"  {decision.total_ms:.1f} ms: {times}", style="dim"))
    console.print()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _show_calibration(found: RouterCalibration) -> None:
    gate, abstention = found.gate, found.abstention
    if found.curve:
        first, last = found.curve[0], found.curve[-1]
        console.print(
            _safe(f"top-1 {first['top1']:.1%} without reading, {last['top1']:.1%} with all of them read")
        )
        counts = f"{found.reader_weight:g}"
        if found.reader_weight_unknown is not None:
            counts += f", over tools without examples {found.reader_weight_unknown:g}"
        console.print(_safe(f"one unit of the cross-encoder's score counts {counts}"))
    console.print(_safe(f"tau = {gate.tau:.4f}: percentile {gate.percentile:g} of {gate.n} margins"))
    line = (
        f"threshold = {abstention.threshold:.4f} at {abstention.n_tools} tools, {abstention.slope:+.4f} for"
    )
    console.print(_safe(f"{line} e times as many: refuses {abstention.target:.0%} of the answerable"))
    if found.no_tool is not None:
        told = f"no tool fits: refused from {found.no_tool.limit:.1%} on"
        if found.no_tool_read is not None:
            told += f", read from {found.no_tool_read.limit:.1%} on"
        console.print(_safe(f"{told}; fitted to {found.no_tool.source}"))
    console.print(_safe(f"from {gate.source}", style="dim"))
    folds = {rate.get("folds", 1) for rate in abstention.rates}
    apart = "the very requests it was fitted to" if folds == {1} else "requests kept apart, part by part"
    console.print(_safe(f"rates on {apart}:", style="dim"))
    table = Table(box=None)
    for column in ("over", "group"):
        table.add_column(column)
    for column in ("n", "refused", "share", "AUROC"):
        table.add_column(column, justify="right")
    for rate in abstention.rates:
        score = f"{rate['auroc']:.3f}" if "auroc" in rate else ""
        table.add_row(
            _safe(rate["over"]),
            _safe(rate["group"]),
            str(rate["n"]),
            str(rate["refused"]),
            f"{rate['share']:.1%}",
            score,
        )
    console.print(table)


def _safe(value: object, *, style: str = "", limit: int | None = None) -> Any:
    """Return text of unknown origin without markup, control characters shown as escapes."""
    from rich.text import Text

    from nexus_lab.registry import neutralise

    return Text(neutralise(str(value), limit=limit), style=style)
