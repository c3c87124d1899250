"""``nexus-lab search``: looking for better settings by trying them."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nexus_lab.cli._options import Json, Limit, Model, PriceList, Talks, Threads, Turns, listed
from nexus_lab.cli._output import console, plain
from nexus_lab.cli._progress import told_when_stopped
from nexus_lab.cli._results import show_sweep
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from nexus_lab.bench.policy_proposers import Proposer, Trial

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def search() -> None:
    """Look for better settings by trying them."""


class ProposedBy(StrEnum):
    """Who writes the next policy."""

    OPTUNA = "optuna"
    MODEL = "model"
    ENDPOINT = "endpoint"


@app.command()
def policy(
    trajectories: Talks,
    work: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder that keeps the trials, which the next run goes on from."),
    ],
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="Trials in all, those of earlier runs included.")
    ] = 20,
    proposer: Annotated[
        ProposedBy,
        typer.Option(
            help="Who writes the next policy: optuna (extra search), the model --writer, or --endpoint."
        ),
    ] = ProposedBy.OPTUNA,
    policies: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Names of policies to choose from; all by default."),
    ] = "",
    first: Annotated[
        str, typer.Option(metavar="POLICY,...", help="Policies to try first.")
    ] = "full,rolling_drop_repos",
    endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL", help="OpenAI-compatible address, ending in /v1, for --proposer endpoint."
        ),
    ] = "",
    endpoint_model: Annotated[str, typer.Option(metavar="NAME", help="The model's name there.")] = "",
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Environment variable of the endpoint's API key; none is sent without."
        ),
    ] = None,
    writer: Annotated[
        str, typer.Option(metavar="MODEL", help="The model that proposes, for --proposer model.")
    ] = "bundled",
    model: Model = "bundled",
    limit: Limit = None,
    turns: Turns = None,
    prices: PriceList = "",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the proposer.")] = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Search for cheap cache policies that keep real replies likely.

    Each is tried on the conversations, which --model reads; those that nothing beats in both cost and
    likelihood are the Pareto front.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from nexus_lab.bench.policy_proposers import (
        SEARCHED,
        EndpointWriter,
        LocalWriter,
        ModelProposer,
        OptunaProposer,
    )
    from nexus_lab.bench.policy_search import search_policies
    from nexus_lab.cache.costs import Prices
    from nexus_lab.engine import Engine

    names = tuple(listed(policies)) or SEARCHED
    unknown = [name for name in names if name not in SEARCHED]
    if unknown:
        raise NexusError(f"{unknown[0]!r} is not searched", next_step="choose among " + ", ".join(SEARCHED))

    if proposer is not ProposedBy.ENDPOINT and (endpoint or endpoint_model or key_env):
        raise NexusError(
            f"{proposer} proposes, and no endpoint is asked", next_step="give --proposer endpoint"
        )

    def tell(trial: Trial) -> None:
        told = "declined" if trial.nll is None else f"NLL {trial.nll:.4f}  cost {trial.cost:.0f}"
        console.print(plain(f"{trial.number:3d}  {told}  {trial.policy}  ({trial.proposer})"))

    with ExitStack() as stack:
        chosen: Proposer
        if proposer is ProposedBy.OPTUNA:
            chosen = OptunaProposer(names, seed)
        elif proposer is ProposedBy.ENDPOINT:
            if not endpoint or not endpoint_model:
                raise NexusError("no endpoint", next_step="give --endpoint and --endpoint-model")
            asked = EndpointWriter(endpoint, endpoint_model, key_variable=key_env)
            chosen = ModelProposer(asked, names, seed)
        else:
            engine = stack.enter_context(Engine.load(writer, n_ctx=4096, threads=threads))
            chosen = ModelProposer(LocalWriter(engine), names, seed)
        with told_when_stopped("what had been tried is kept"):
            found = search_policies(
                trajectories,
                chosen,
                n_trials=trials,
                first=first,
                model=model,
                limit=limit,
                n_turns=turns,
                prices=Prices.parse(prices),
                threads=threads,
                work=work,
                on_trial=tell,
            )
    show_sweep(found, json, title="search policy")
    if found.declined is not None:
        console.print(plain(found.declined.reason, style="dim"))
