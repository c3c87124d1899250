"""``nexus-lab eval``: measurements of quality."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from nexus_lab.cli._options import (
    Context,
    Flash,
    Json,
    Model,
    Resume,
    Threads,
    Trajectories,
    Work,
    Workers,
    listed,
    numbers,
    shares,
)
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._progress import bar, told_when_stopped
from nexus_lab.cli._results import show_results, show_sweep

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def splice(
    model: Model = "bundled",
    registry: Annotated[Path | None, typer.Option(help="Tools; a few of our own by default.")] = None,
    cases: Annotated[
        Path | None, typer.Option(help="JSON Lines of query, gold_tool, gold_args: the calls to force.")
    ] = None,
    trajectories: Trajectories = None,
    depths: Annotated[str, typer.Option(help="Tokens before the block, with commas.")] = "256,512,1024,2048",
    strategies: Annotated[
        str, typer.Option(help="Repairs with commas; no_reanchor as an experiment.")
    ] = "none,leading:0.25,carried:0.25,trailing:0.25,trailing:R,profile:0.25,scattered:0.25,full",
    contexts: Annotated[
        str,
        typer.Option(
            help="What blocks are compiled behind, with commas; also history:TOKENS, typical, "
            "and own, which is every other one of --trajectories."
        ),
    ] = "none,system,consensus",
    tools: Annotated[int, typer.Option(help="How many tools, in turn from every server.")] = 20,
    prefixes: Annotated[int, typer.Option(help="Live prefixes for each tool.")] = 5,
    decisions: Annotated[
        str, typer.Option(help="Repairs whose decision is compared, with commas; all, or no.")
    ] = "all",
    workers: Workers = None,
    work: Work = None,
    json: Json = None,
    *,
    resume: Resume = True,
    attention: Annotated[bool, typer.Option(help="Compare attention rows as well.")] = False,
    proxy: Annotated[bool, typer.Option(help="Compare the K-variance proxy with the true drift.")] = False,
    flash_attention: Flash = False,
) -> None:
    """Measure fidelity and speed of splices beside the full prefill and the noise floor.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from nexus_lab.bench.splice import splice_sweep

    repairs = listed(strategies)
    with told_when_stopped("what had been measured is kept"), bar("splicing") as tell:
        sweep = splice_sweep(
            model,
            registry=registry,
            cases=cases,
            trajectories=trajectories,
            depths=numbers(depths),
            strategies=repairs,
            contexts=listed(contexts),
            tools=tools,
            prefixes=prefixes,
            decisions={"all": repairs, "no": []}.get(decisions, listed(decisions)),
            attention=attention,
            proxy=proxy,
            flash_attention=flash_attention,
            workers=workers,
            work=work,
            resume=resume,
            on_progress=tell,
        )
    show_sweep(sweep, json)


@app.command()
def calibrate(
    model: Model = "bundled",
    context: Annotated[Context, typer.Option(help="What blocks are compiled behind.")] = Context.SYSTEM,
    strategy: Annotated[str, typer.Option(help="Repair: leading, carried, profile, trailing.")] = "leading",
    registry: Annotated[Path | None, typer.Option(help="Tools; a few of our own by default.")] = None,
    cases: Annotated[
        Path | None, typer.Option(help="JSON Lines of query, gold_tool, gold_args: the calls to force.")
    ] = None,
    tools: Annotated[int, typer.Option(min=1, help="Tools to measure with, of a registry.")] = 6,
    trajectories: Trajectories = None,
    depths: Annotated[
        str, typer.Option(help="Tokens before the block, with commas.")
    ] = "64,256,512,1024,2048",
    budgets: Annotated[
        str, typer.Option(help="Shares of a block to try, with commas.")
    ] = "0,0.1,0.25,0.5,0.75",
    prefixes: Annotated[int, typer.Option(help="Conversations for each tool; half are kept apart.")] = 10,
    workers: Workers = None,
    out: Annotated[
        Path | None, typer.Option(help="Write here, instead of the package's data folder.")
    ] = None,
    json: Json = None,
    *,
    flash_attention: Flash = False,
) -> None:
    """Measure the bounds that the contract splice(bounded(EPSILON)) of the agent rests on."""
    from nexus_lab.bench.calibration import calibrate_agent
    from nexus_lab.registry import load_registry
    from nexus_lab.splice import save_calibration

    with bar("calibrating") as tell:
        found = calibrate_agent(
            model,
            context=context.value,
            strategy=strategy,
            registry=load_registry(registry) if registry is not None else None,
            calls=cases,
            tools=tools,
            trajectories=trajectories,
            depths=numbers(depths),
            budgets=shares(budgets),
            prefixes=prefixes,
            workers=workers,
            flash_attention=flash_attention,
            on_progress=tell,
        )
    path = save_calibration(found.calibration, folder=out)
    for cell in found.calibration.cells:
        console.print(
            f"depth {cell.depth:5d}  budget {cell.budget:4.0%}  D_KL mean {cell.dkl_mean:.4f}  "
            f"upper {cell.dkl_upper:.4f}  n {cell.n}"
        )
    console.print(f"noise floor {found.calibration.noise_floor:.4f} nats")
    show_results(found.results(), json)
    console.print(plain(f"wrote {path}"))


@app.command()
def routing(
    registry: Annotated[Path, typer.Option(help="The tools.")],
    queries: Annotated[Path, typer.Option(help="JSON Lines of query, context, gold_tool.")],
    negatives: Annotated[Path | None, typer.Option(help="JSON Lines of requests that no tool fits.")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="JSON Lines that the router learns from first.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="Only the first so many tools; repeat.")
    ] = None,
    system: Annotated[list[str] | None, typer.Option(help="Only these systems; repeat.")] = None,
    ids: Annotated[
        Path | None, typer.Option(help="JSON object of lists of ids, reported on by themselves as well.")
    ] = None,
    apart: Annotated[
        float, typer.Option(help="Leave out this share of the requests: what the gate was calibrated on.")
    ] = 0.0,
    embedder: Annotated[str, typer.Option(help="bundled, stock, a folder, or hf:owner/name.")] = "bundled",
    generator: Annotated[
        str | None,
        typer.Option(
            help="Let this model choose among all tools in its prompt: bundled, a GGUF file, hf:..."
        ),
    ] = None,
    oracle: Annotated[int, typer.Option(min=1, help="Requests that the generator is asked.")] = 40,
    context: Annotated[int, typer.Option(min=1, help="Tokens of the generator's context.")] = 8192,
    kv: Annotated[
        str, typer.Option(help="Tokens in the generator's KV cache while the router decides; commas.")
    ] = "0,2048,6144",
    work: Work = None,
    threads: Threads = None,
    json: Json = None,
    *,
    resume: Resume = True,
    known: Annotated[bool, typer.Option(help="Use the requests for known tools in the package.")] = True,
    reader: Annotated[bool, typer.Option(help="Ask the cross-encoder below tau.")] = True,
) -> None:
    """Measure routing beside plain baselines, with intervals."""
    from nexus_lab.bench import routing as bench
    from nexus_lab.bench.routing_model import Generator
    from nexus_lab.engine import Engine
    from nexus_lab.routing import read_id_lists

    loading = nullcontext() if generator is None else Engine.load(generator, n_ctx=context, threads=threads)
    with (
        told_when_stopped("what the generator said is kept"),
        loading as engine,
        Progress(console=console, transient=True) as progress,
    ):
        task = progress.add_task("routing", total=1.0)
        result = bench.run(
            registry,
            queries,
            negatives=negatives,
            examples=examples,
            sizes=size,
            systems=system or bench.SYSTEMS,
            subsets=read_id_lists(ids) if ids is not None else None,
            apart=apart,
            known=known,
            embedder=embedder,
            cross_encoder="bundled" if reader else None,
            generator=None
            if engine is None
            else Generator(engine=engine, queries=oracle, kv_tokens=numbers(kv), work=work, resume=resume),
            threads=threads,
            on_progress=lambda what, done: progress.update(task, description=what, completed=done),
        )
    show_results(result, json)


@app.command()
def arguments(
    cases: Annotated[
        list[Path], typer.Option(help="JSON Lines of query, gold_tool and gold_args, or accepted_args.")
    ],
    registry: Annotated[
        Path | None, typer.Option(help="The tools, where the cases do not bring their own.")
    ] = None,
    model: Model = "bundled",
    modes: Annotated[str, typer.Option(help="What the model sees of a tool; commas.")] = "signature,full",
    systems: Annotated[
        str,
        typer.Option(
            help="full; no_grounding, no_assignment, no_reuse, no_minimum, no_descriptions, no_model; "
            "demonstrations, which adds the other cases' calls of the tool, and scoring, by the model; "
            "commas, or all."
        ),
    ] = "full",
    limit: Annotated[int | None, typer.Option(min=1, help="So many cases, chosen by a hash.")] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="Fit the evidence to the cases not kept apart, and write it here; with --systems scoring "
            "the weight of the model's word as well."
        ),
    ] = None,
    threads: Threads = None,
    json: Json = None,
    *,
    route: Annotated[bool, typer.Option(help="Charge arguments of requests that are routed wrong.")] = True,
) -> None:
    """Measure how many arguments come out right, when the model sees a signature or the full schema.

    With --model none only what the conversation settles is counted, which takes seconds.
    """
    from nexus_lab.bench import arguments as bench
    from nexus_lab.bench.argument_fitting import fit_evidence
    from nexus_lab.bench.argument_scoring import CallScorer
    from nexus_lab.engine import Engine
    from nexus_lab.registry import load_registry
    from nexus_lab.routing import Router

    tools = load_registry(registry) if registry is not None else None
    alone = model == "none"
    every = [name for name in bench.SYSTEMS if not (alone and name in (*bench.NEED_MODEL, "no_model"))]
    chosen = every if systems == "all" else listed(systems)
    alone = alone or chosen == ["no_model"] or (fit is not None and "scoring" not in chosen)
    loading = nullcontext() if alone else Engine.load(model, n_ctx=4096, threads=threads)
    if fit is not None:
        with loading as engine:
            fit_evidence(cases, tools, fit, scorer=CallScorer(engine) if engine is not None else None)
        return
    router = Router(tools, threads=threads) if route and tools is not None else None
    with loading as engine, bar("filling in") as tell:
        result = bench.run(
            engine,
            tools,
            cases,
            modes=listed(modes),
            systems=chosen,
            limit=limit,
            router=router,
            on_progress=tell,
        )
    show_results(result, json)
