"""``nexus-lab eval cache`` and ``eval attention``: cache policies on real conversations."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_lab.cli._options import (
    Flash,
    Json,
    Limit,
    Model,
    PriceList,
    Resume,
    Talks,
    Threads,
    Turns,
    Work,
    numbers,
)
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._progress import bar, told_when_stopped
from nexus_lab.cli._results import show_sweep

__all__ = ["attention", "cache"]


def cache(
    trajectories: Talks,
    policies: Annotated[
        str,
        typer.Option(
            metavar="POLICY,...",
            help="Policies to compare, such as full,trim(keep_last=1); all of nexus-lab policies by default.",
        ),
    ] = "",
    model: Model = "bundled",
    limit: Limit = None,
    turns: Turns = None,
    prices: PriceList = "",
    threads: Threads = None,
    work: Work = None,
    json: Json = None,
    *,
    resume: Resume = True,
    restore: Annotated[
        bool, typer.Option(help="Time the restore of states that have dropped something.")
    ] = True,
    dry: Annotated[
        bool,
        typer.Option(
            "--dry", help="Only count tokens, cells and cost; nothing is computed, which takes seconds."
        ),
    ] = False,
    flash_attention: Flash = False,
) -> None:
    """Replay real conversations under cache policies.

    Tells how likely each policy leaves the real replies (NLL per token, in nats), its cost and its latency.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from nexus_lab.bench.cache import ASKING, DEFAULT_POLICIES, cache_sweep
    from nexus_lab.cache.costs import Prices

    priced, named = Prices.parse(prices), policies or DEFAULT_POLICIES
    if dry and not policies:
        named = ",".join(name for name in named.split(",") if name not in ASKING)
    with told_when_stopped("what had been measured is kept"), bar("replaying") as tell:
        sweep = cache_sweep(
            trajectories,
            policies=named,
            model=model,
            limit=limit,
            n_turns=turns,
            prices=priced,
            restore=restore and not dry,
            dry=dry,
            flash_attention=flash_attention,
            threads=threads,
            work=work,
            resume=resume,
            on_progress=tell,
        )
    show_sweep(sweep, json, title="eval cache")
    console.print(plain(sweep.told()))
    for row in sweep.declined():
        console.print(plain(f"{row['policy']} declined {row['trajectory']}: {row['declined']}", style="dim"))


def attention(
    trajectories: Talks,
    policy: Annotated[
        str,
        typer.Option(metavar="POLICY", help="Cache policy while they are replayed; see nexus-lab policies."),
    ] = "full",
    model: Model = "bundled",
    limit: Limit = None,
    turns: Turns = None,
    layers: Annotated[
        str,
        typer.Option(metavar="N,...", help="Layers to look at, from 0; five, evenly spread, by default."),
    ] = "",
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Measure what messages real replies pay attention to.

    The attention is captured from the model and summed by the role and the age of each message.
    """
    from nexus_lab.bench.attention import study_attention
    from nexus_lab.bench.cache_replay import load_for
    from nexus_lab.bench.trajectories import read_trajectories

    captured, chosen = numbers(layers), read_trajectories(trajectories)[:limit]
    with load_for(model, chosen, threads=threads) as engine, bar("looking") as tell:
        study = study_attention(
            engine,
            chosen,
            policy=policy,
            layers=captured or None,
            n_turns=turns,
            on_progress=tell,
        )
    show_sweep(study, json, title="eval attention")
    console.print(plain(study.told()))
