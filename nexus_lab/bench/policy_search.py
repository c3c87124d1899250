"""A search for cache policies: proposed, tried on real conversations, and set against each other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import Result, ResultFile, ResultsError, insist_positive
from nexus_lab.bench.cache import engine_settings, measure, policy_tasks
from nexus_lab.bench.cache_report import CacheSweep
from nexus_lab.bench.policy_proposers import OWN_CODE, BadAnswer, ProposerError, Trial, front_of
from nexus_lab.bench.sweep import Finished, Journal, run_tasks
from nexus_lab.bench.tables import html_table
from nexus_lab.bench.trajectories import read_trajectories
from nexus_lab.cache.costs import Prices
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.policy_text import PolicySpec, PolicyTextError, parse_policies, parse_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    import polars as pl
    from plotly.graph_objects import Figure

    from nexus_lab.bench.cache import CacheTask
    from nexus_lab.bench.policy_proposers import Proposer
    from nexus_lab.bench.trajectories import Trajectory

__all__ = ["PolicySearch", "search_policies"]

_ATTEMPTS = 8
_OTHER_PROPOSER = "the search ends here; another proposer can go on over the same folder"
GIVEN = "given"
"""Who proposed the policies that a search begins with."""
FAILED = "proposer_failed"
"""Code of the decline of a proposer that had proposed, and then could not any more."""
REPEATS = "proposer_repeats"
"""Code of the decline of a proposer that has nothing new."""
NO_POLICY = "proposer_no_policy"
"""Code of the decline of a proposer whose answers are no policies."""


@dataclass(frozen=True)
class PolicySearch:
    """What a search found; shows itself as a table in a notebook.

    Attributes
    ----------
    settings
        How it was made.
    trials
        All trials in order.
    prices
        What a unit costs.
    declined
        Why it ended before its time.
    """

    settings: Mapping[str, Any]
    trials: Sequence[Trial] = field(repr=False)
    prices: Prices = field(default_factory=Prices)
    declined: Decline | None = None

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in both NLL and cost, cheapest first."""
        return front_of(self.trials)

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each trial, with ``on_front``."""
        import polars as pl

        chosen = {trial.number for trial in self.front}
        rows = [{**asdict(trial), "on_front": trial.number in chosen} for trial in self.trials]
        return pl.DataFrame(rows, infer_schema_length=None)

    def results(self) -> ResultFile:
        """Return the trials in the one form of a result file."""
        chosen, results = {trial.number for trial in self.front}, []
        for trial in self.trials:
            case = {
                "policy": trial.policy,
                "trial": trial.number,
                "proposer": trial.proposer,
                "on_front": trial.number in chosen,
            }
            values = {"nll_per_token": trial.nll, "cost": trial.cost, "declined": float(trial.declined)}
            n = len(self.settings["conversations"])
            results += [
                Result(case=case, metric=metric, value=value, n=n)
                for metric, value in values.items()
                if value is not None
            ]
        settings = {**self.settings, "prices": self.prices.to_dict()}
        return ResultFile.now("search policy", results, settings=settings, threads=self.settings["threads"])

    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of a table: the front first, cheapest first, then the others."""
        front = self.front
        chosen = {trial.number for trial in front}
        rest = [trial for trial in self.trials if trial.number not in chosen]
        head = ["policy", "front", "NLL/token", "cost", "proposer", "why"]
        return head, [
            [
                trial.policy,
                "yes" if trial.number in chosen else "",
                "-" if trial.nll is None else f"{trial.nll:.4f}",
                f"declined {trial.declined}" if trial.cost is None else f"{trial.cost:.0f}",
                trial.proposer,
                trial.why,
            ]
            for trial in (*front, *rest)
        ]

    def _repr_html_(self) -> str:
        return html_table(*self.overview())

    def figure(self) -> Figure:
        """Return a chart: NLL against cost, a point for each trial, the Pareto front as a line."""
        from plotly import graph_objects as go

        figure, front = go.Figure(), self.front
        for proposer in dict.fromkeys(trial.proposer for trial in self.trials):
            own = [trial for trial in self.trials if trial.proposer == proposer and trial.nll is not None]
            figure.add_scatter(
                x=[trial.cost for trial in own],
                y=[trial.nll for trial in own],
                mode="markers",
                name=proposer,
                hovertext=[trial.policy for trial in own],
            )
        figure.add_scatter(
            x=[trial.cost for trial in front],
            y=[trial.nll for trial in front],
            mode="lines+text",
            line={"shape": "hv", "color": "#4b3fb5"},
            text=[trial.policy for trial in front],
            textposition="top right",
            name="Pareto front",
        )
        figure.update_xaxes(title="cost of a conversation (prefilled tokens)")
        figure.update_yaxes(title="NLL of the real replies (nat per token)")
        figure.update_layout(template="plotly_white", height=460, legend={"orientation": "h", "y": -0.2})
        return figure


def search_policies(
    trajectories: Path | Sequence[Trajectory],
    proposer: Proposer,
    *,
    n_trials: int = 20,
    first: str | Sequence[PolicySpec] = "full,rolling_drop_repos",
    model: str | Path = "bundled",
    limit: int | None = None,
    n_turns: int | None = None,
    prices: Prices | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    work: Path,
    on_trial: Callable[[Trial], None] | None = None,
) -> PolicySearch:
    """Search for policies that are cheap and keep the real replies likely.

    Parameters
    ----------
    trajectories
        Conversations, or a file of them; a search tunes on them, so report on others.
    proposer
        Writes the next policy; see `OptunaProposer` and `ModelProposer`.
    n_trials
        Trials in all, those of an earlier call over the same folder included.
    first
        Policies to begin with.
    limit, n_turns
        Only the first so many conversations, and replies of each.
    prices
        What a unit costs; may differ from an earlier call's, whose trials are then priced anew.
    work
        Folder of the trials, which a later call takes up again.
    on_trial
        Called with each trial, those of an earlier call included.

    Raises
    ------
    ResultsError, TrajectoryError, ProposerError
        When there is nothing to try, or nobody to propose; when a trial of the folder cannot be read, or runs
        a function that is not among `first`. A proposer that fails after it has proposed ends the search, and
        what was found until then is returned.
    SweepError
        When a task failed, or the folder is in use or cannot be written.
    """
    insist_positive(n_trials=n_trials, limit=limit, n_turns=n_turns)
    found = read_trajectories(trajectories) if isinstance(trajectories, Path) else list(trajectories)
    chosen = found[:limit]
    if not chosen:
        raise ResultsError("there is nothing to try", next_step="give at least one conversation")
    specs = parse_policies(first) if isinstance(first, str) else tuple(first)
    loaded = engine_settings(model, chosen, flash_attention=False, threads=threads)
    settings = {
        "model_sha256": loaded.sha256,
        "threads": loaded.threads,
        "proposer": proposer.name,
        "conversations": [trajectory.name for trajectory in chosen],
        "n_turns": n_turns,
    }
    priced = prices or Prices()
    with Journal(work) as journal:

        def tasks_of(spec: PolicySpec) -> list[CacheTask]:
            return policy_tasks(loaded, chosen, [spec], n_turns)

        def tried(number: int, spec: PolicySpec, who: str, why: str) -> Trial:
            finished = run_tasks(tasks_of(spec), measure, journal, executor=executor, workers=1)
            rows = [row for task in finished for row in task.rows]
            return _folded(number, spec, who, why, CacheSweep(settings, rows, priced))

        def keys_of(spec: PolicySpec) -> list[str]:
            return [task.key for task in tasks_of(spec)]

        search = _Search(journal, _run_key(settings), proposer, tried, on_trial, keys_of=keys_of)
        search.go_on(specs, n_trials)
    return PolicySearch(settings, search.trials, priced, search.declined)


class _RunsCode(ProposerError):
    """A proposal that is not tried, whatever came before it."""


class _Search:
    def __init__(
        self,
        journal: Journal,
        key: str,
        proposer: Proposer,
        tried: Callable[[int, PolicySpec, str, str], Trial],
        on_trial: Callable[[Trial], None] | None,
        *,
        keys_of: Callable[[PolicySpec], list[str]] = lambda _spec: [],
    ) -> None:
        self._keys_of = keys_of
        self._journal, self._key, self._proposer, self._tried = journal, key, proposer, tried
        self._on_trial = on_trial or (lambda _trial: None)
        self.trials: list[Trial] = []
        self.declined: Decline | None = None
        self._answered = False

    def go_on(self, first: Sequence[PolicySpec], n_trials: int) -> None:
        """Take up what the journal has, then try what was given, then what is proposed."""
        while len(self.trials) < n_trials:
            number = len(self.trials)
            kept = self._journal.finished.get(f"{self._key} {number}")
            began = perf_counter()
            if kept is not None:
                spec, who, why = self._taken_up(number, kept, first)
            elif number < len(first):
                spec, who, why = first[number], GIVEN, ""
            else:
                proposed = self._proposed()
                if proposed is None:
                    return
                (spec, why), who = proposed, self._proposer.name
            # What an earlier call measured is in the journal, and is only priced again.
            trial = self._tried(number, spec, who, why)
            if kept is None:
                row = {"policy": trial.policy, "proposer": who, "why": why, "tasks": self._keys_of(spec)}
                self._journal.add(f"{self._key} {number}", Finished([row], perf_counter() - began))
            self.trials.append(trial)
            self._on_trial(trial)

    def _taken_up(
        self, number: int, kept: Finished, first: Sequence[PolicySpec]
    ) -> tuple[PolicySpec, str, str]:
        """Return the policy of an earlier call's trial, who proposed it and why."""
        try:
            row = kept.rows[0]
            spec, who, why = parse_policy(row["policy"]), str(row["proposer"]), str(row["why"])
        except (IndexError, KeyError, TypeError, PolicyTextError) as error:
            raise ResultsError(
                f"trial {number} in {self._journal.path} cannot be read: {error}",
                next_step="name another folder with --work",
            ) from error
        # A folder may come from anywhere; what runs code has to be named by who calls.
        if spec.name == OWN_CODE and spec.text not in {own.text for own in first}:
            raise ResultsError(
                f"trial {number} in {self._journal.path} is {spec.text}, which runs code",
                next_step="name it among the first policies if it is yours, or another folder with --work",
            )
        return spec, who, why

    def _proposed(self) -> tuple[PolicySpec, str] | None:
        """Return another policy and why, or nothing when the search is to end here."""
        try:
            found = self._new_policy()
        except NexusError as error:
            if not self._answered or isinstance(error, Cancelled | _RunsCode):
                raise
            self.declined = Decline(
                FAILED, f"{self._proposer.name} proposes no more: {error.problem}", _OTHER_PROPOSER
            )
            return None
        self._answered = self._answered or found is not None
        return found

    def _new_policy(self) -> tuple[PolicySpec, str] | None:
        known, bad = {trial.policy for trial in self.trials}, 0
        for attempt in range(_ATTEMPTS):
            try:
                spec, why = self._proposer.propose(self.trials, attempt=attempt)
            except BadAnswer:
                bad += 1
                continue
            if spec.name == OWN_CODE:
                raise _RunsCode(
                    f"{self._proposer.name} proposed {spec.text}, which runs code",
                    next_step="try a function of your own by naming it among the first policies",
                )
            if spec.text not in known:
                return spec, why
        said = "only what had been tried" if not bad else "nothing new"
        wrong = f"; {bad} of its answers were no policy" if bad else ""
        self.declined = Decline(
            NO_POLICY if bad == _ATTEMPTS else REPEATS,
            f"{self._proposer.name} proposed {said}, {_ATTEMPTS} times in a row{wrong}",
            _OTHER_PROPOSER,
        )
        return None


def _folded(number: int, spec: PolicySpec, who: str, why: str, sweep: CacheSweep) -> Trial:
    declined = len(sweep.declined())
    nll, cost = (sweep.figure_of(metric, spec.text) for metric in ("nll_per_token", "cost"))
    whole = not declined and nll is not None and cost is not None
    return Trial(
        number=number,
        policy=spec.text,
        proposer=who,
        why=why,
        nll=nll.value if whole and nll is not None else None,
        cost=cost.value if whole and cost is not None else None,
        declined=declined,
    )


def _run_key(settings: Mapping[str, Any]) -> str:
    """Return what names the trials of one search; another proposer goes on with them."""
    facts = {key: value for key, value in settings.items() if key != "proposer"}
    return "trial " + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
