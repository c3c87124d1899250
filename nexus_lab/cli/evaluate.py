"""``nexus-lab eval``: measurements of quality."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from nexus_lab.cli._options import (
    Adapter,
    Context,
    Flash,
    ForcedCalls,
    Json,
    Model,
    Resume,
    SomeTools,
    Threads,
    Trajectories,
    Work,
    Workers,
    listed,
    numbers,
    shares,
)
from nexus_lab.cli._output import console, print_written
from nexus_lab.cli._progress import bar, stage_bar, told_when_stopped
from nexus_lab.cli._results import show_results, show_sweep

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def splice(
    model: Model = "bundled",
    adapter: Adapter = None,
    registry: SomeTools = None,
    cases: ForcedCalls = None,
    trajectories: Trajectories = None,
    depths: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens before the block.")
    ] = "256,512,1024,2048",
    strategies: Annotated[
        str,
        typer.Option(
            metavar="REPAIR,...",
            help="Repairs, with the share of the block that is recomputed: none, full, leading:0.25, "
            "carried:0.25, trailing:0.25, trailing:R (the papers' curve), profile:0.25, scattered:0.25; "
            "no_reanchor as an experiment.",
        ),
    ] = "none, leading:0.25, carried:0.25, trailing:0.25, trailing:R, profile:0.25, scattered:0.25, full",
    contexts: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="What blocks are compiled behind: none, system, history, history:TOKENS, typical, "
            "consensus, and own, which is every other one of --trajectories.",
        ),
    ] = "none, system, consensus",
    tools: Annotated[int, typer.Option(min=1, metavar="N", help="Tools, in turn from every server.")] = 20,
    prefixes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Conversations that each tool is put behind.")
    ] = 5,
    decisions: Annotated[
        str,
        typer.Option(
            metavar="REPAIR,...", help="Repairs for which the call that comes of it is compared; all, or no."
        ),
    ] = "all",
    workers: Workers = None,
    work: Work = None,
    json: Json = None,
    *,
    resume: Resume = True,
    attention: Annotated[
        bool, typer.Option(help="Compare the attention of the last prompt token as well.")
    ] = False,
    proxy: Annotated[
        bool, typer.Option(help="Compare the variance of the keys, as a proxy, with the true drift.")
    ] = False,
    flash_attention: Flash = False,
) -> None:
    """Measure fidelity and speed of splices beside the full prefill.

    Fidelity is D_KL, in nats, and the agreement of the likeliest token, over a forced answer; the noise
    floor is the D_KL between two schedules of the plain prefill.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from nexus_lab.bench.splice import splice_sweep

    repairs = listed(strategies)
    with told_when_stopped("what had been measured is kept"), bar("splicing") as tell:
        sweep = splice_sweep(
            model,
            adapter=adapter,
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
    adapter: Adapter = None,
    context: Annotated[
        Context, typer.Option(help="What blocks are compiled behind; as for nexus-lab blocks build.")
    ] = Context.SYSTEM,
    strategy: Annotated[
        str, typer.Option(metavar="REPAIR", help="Repair: leading, carried, profile or trailing.")
    ] = "leading",
    registry: SomeTools = None,
    cases: ForcedCalls = None,
    tools: Annotated[int, typer.Option(min=1, metavar="N", help="Tools of --registry to measure with.")] = 6,
    trajectories: Trajectories = None,
    depths: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens before the block.")
    ] = "64,256,512,1024,2048",
    budgets: Annotated[
        str, typer.Option(metavar="SHARE,...", help="Shares of a block to recompute, 0 to 1.")
    ] = "0,0.1,0.25,0.5,0.75",
    prefixes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Conversations for each tool; half are kept apart.")
    ] = 10,
    n_ctx: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Context to measure in, in tokens; by default what the deepest conversation takes. A model "
            "with LongRoPE has another rotation in a larger one.",
        ),
    ] = None,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to write to; by default where the agent looks."),
    ] = None,
    work: Work = None,
    json: Json = None,
    *,
    flash_attention: Flash = False,
) -> None:
    """Measure the bounds of the schema mode splice(bounded(EPSILON)).

    The agent then repairs as much of a block as keeps its D_KL under EPSILON nats, by these bounds. A run
    that was stopped goes on where it was when the same command is given again.
    """
    from nexus_lab.bench.calibration import calibrate_agent
    from nexus_lab.registry import load_registry
    from nexus_lab.splice import save_calibration

    with told_when_stopped("what had been measured is kept"), bar("calibrating") as tell:
        found = calibrate_agent(
            model,
            adapter=adapter,
            context=context.value,
            strategy=strategy,
            registry=load_registry(registry) if registry is not None else None,
            calls=cases,
            tools=tools,
            trajectories=trajectories,
            depths=numbers(depths),
            budgets=shares(budgets),
            prefixes=prefixes,
            n_ctx=n_ctx,
            workers=workers,
            work=work,
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
    print_written(path)


@app.command()
def routing(
    registry: Annotated[Path, typer.Option(metavar="FILE", help="The tools, in any form that is loaded.")],
    queries: Annotated[
        Path,
        typer.Option(metavar="FILE", help='Requests, a line each: {"query", "context", "gold_tool"}.'),
    ],
    negatives: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Requests that no tool fits, a line each: {"query"}.')
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Requests in the form of --queries that the router learns from first."
        ),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="N", help="Only the first N tools; repeat; all by default."),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this system: full, always_read, no_reader, no_lexical, no_examples, dense_tuned, "
            "dense, bm25, rrf or no_prefixes; repeat.",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Parts that are reported on by themselves as well: {"part": ["id", ...]}, ids of --queries.',
        ),
    ] = None,
    apart: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Leave out what the gate was calibrated on: the --share of nexus-lab route calibrate.",
        ),
    ] = 0.0,
    tools_apart: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Ask only for tools that training left out: the --kept-apart of nexus-lab train-gate.",
        ),
    ] = 0.0,
    server: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only tools of this server; repeat.")
    ] = None,
    embedder: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="bundled (tuned for tools), stock (as it came), a sentence-transformers folder, or "
            "hf:owner/name.",
        ),
    ] = "bundled",
    generator: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Let this model choose among all tools in its prompt as well: bundled, a GGUF file, or "
            "hf:owner/repo/file.gguf.",
        ),
    ] = None,
    oracle: Annotated[int, typer.Option(min=1, metavar="N", help="Requests that --generator is asked.")] = 40,
    context: Annotated[
        int,
        typer.Option("--n-ctx", "--context", min=1, metavar="N", help="Context of --generator, in tokens."),
    ] = 8192,
    kv: Annotated[
        str,
        typer.Option(metavar="N,...", help="Tokens in --generator's KV cache while the router is timed."),
    ] = "0,2048,6144",
    work: Work = None,
    threads: Threads = None,
    json: Json = None,
    *,
    resume: Resume = True,
    known: Annotated[bool, typer.Option(help="Use the package's example requests for known tools.")] = True,
    reader: Annotated[bool, typer.Option(help="Let the cross-encoder read decisions below tau.")] = True,
) -> None:
    """Measure routing beside plain baselines, with intervals.

    Told are top-1 to top-10, MRR, how many requests escalate, how well those without a tool are told, and
    milliseconds.
    """
    from nexus_lab.bench import routing as bench
    from nexus_lab.bench.routing_model import Generator
    from nexus_lab.engine import Engine
    from nexus_lab.routing import read_id_lists

    loading = nullcontext() if generator is None else Engine.load(generator, n_ctx=context, threads=threads)
    with (
        told_when_stopped("what the generator said is kept"),
        loading as engine,
        stage_bar("routing") as tell,
    ):
        result = bench.run(
            registry,
            queries,
            negatives=negatives,
            examples=examples,
            sizes=size,
            systems=system or bench.SYSTEMS,
            subsets=read_id_lists(ids) if ids is not None else None,
            apart=apart,
            tools_apart=tools_apart,
            servers=server or (),
            known=known,
            embedder=embedder,
            cross_encoder="bundled" if reader else None,
            generator=None
            if engine is None
            else Generator(engine=engine, queries=oracle, kv_tokens=numbers(kv), work=work, resume=resume),
            threads=threads,
            on_progress=tell,
        )
    show_results(result, json)


@app.command()
def arguments(
    cases: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help='Calls, a line each: {"query", "gold_tool", "gold_args" or "accepted_args"}; repeat.',
        ),
    ],
    registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tools, where the cases do not bring their own.")
    ] = None,
    model: Model = "bundled",
    adapter: Adapter = None,
    modes: Annotated[
        str,
        typer.Option(
            metavar="MODE,...",
            help="What the model sees, compared turn by turn: signature, full, a schema mode such as "
            "splice(exact), concatenated(N), which is the first N tools in full; or all.",
        ),
    ] = "signature,full",
    systems: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="full; what is left out: no_grounding, no_assignment, no_reuse, no_minimum, "
            "no_descriptions, no_model; what is added: demonstrations (the other cases' calls of the tool), "
            "scoring (whole calls, by the model); or all.",
        ),
    ] = "full",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most N cases of each file, chosen by a hash; all by default."
        ),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Measure nothing: fit the evidence to the cases not kept apart, and write it here; with "
            "--systems scoring the weight of the model's word as well.",
        ),
    ] = None,
    threads: Threads = None,
    json: Json = None,
    *,
    route: Annotated[bool, typer.Option(help="Charge arguments of requests that are routed wrong.")] = True,
) -> None:
    """Measure how many arguments of a call come out right.

    The right tool is given, and the model sees its signature or its full schema; with --modes all also its
    spliced block, and ten tools in a row, and what each of these costs and saves is told.
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
    used = bench.ALL_MODES if modes == "all" else listed(modes)
    n_ctx = bench.context_for(used)
    loading = nullcontext() if alone else Engine.load(model, n_ctx=n_ctx, threads=threads, adapter=adapter)
    if fit is not None:
        with loading as engine:
            fit_evidence(cases, tools, fit, scorer=CallScorer(engine) if engine is not None else None)
        print_written(fit)
        return
    router = Router(tools, threads=threads) if route and tools is not None else None
    with loading as engine, bar("filling in") as tell:
        result = bench.run(
            engine,
            tools,
            cases,
            modes=used,
            systems=chosen,
            limit=limit,
            router=router,
            on_progress=tell,
        )
    show_results(result, json)
