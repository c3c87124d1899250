"""What a replay of conversations under cache policies found: figures with intervals, a table and a chart."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile, bootstrap
from nexus_lab.bench.clusters import cluster_ratio, percentile_interval, resampled_clusters
from nexus_lab.bench.sweep import JOURNAL, SweepError, read_journal
from nexus_lab.bench.tables import html_table
from nexus_lab.cache.costs import Costs, Prices
from nexus_lab.trace.text import plural

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray
    from plotly.graph_objects import Figure

__all__ = ["PEERS", "SETTINGS", "CacheSweep"]

SETTINGS = "cache.json"
"""Settings of a sweep and the keys of its tasks, in its folder."""
PEERS = ("full", "trim", "summarise")
"""Policies that the others are set against."""

_COUNTS = ("tokens_prefilled", "tokens_decoded", "cells_attended", "cells_scanned", "peak_cells")
_P95 = 0.95
Row = dict[str, Any]


@dataclass(frozen=True)
class CacheSweep:
    """Rows of a replay, and what they say; shows itself as a table in a notebook.

    Attributes
    ----------
    settings
        How it was measured.
    raw
        A row for each conversation and policy, JSON values.
    prices
        What a unit costs.
    restores
        Figures of the restore of programs with drops, where it was measured.
    """

    settings: Mapping[str, Any]
    raw: Sequence[Row] = field(repr=False)
    prices: Prices = field(default_factory=Prices)
    restores: Sequence[Result] = ()

    @classmethod
    def read(cls, folder: Path, *, prices: Prices | None = None) -> CacheSweep:
        """Read the folder of a replay, finished or not.

        Raises
        ------
        SweepError
            When there is none.
        """
        try:
            facts = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            found = read_journal(folder / JOURNAL)
            rows = [row for key in facts["keys"] if key in found for row in found[key].rows]
            kept = [row for key in facts.get("restores", ()) if key in found for row in found[key].rows]
            restores = tuple(Result(**row) for row in kept)
            return cls(facts["settings"], rows, prices or Prices(), restores)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SweepError(
                f"{folder} holds no replay of policies: {error}",
                next_step="give the folder that was named with --work",
            ) from error

    @property
    def policies(self) -> list[str]:
        """The policies, as text, in the order they were given."""
        return list(dict.fromkeys(row["policy"] for row in self.raw))

    @cached_property
    def finished(self) -> dict[str, dict[str, Row]]:
        """Rows that went through to the end, by policy and conversation, each with its cost."""
        rows: dict[str, dict[str, Row]] = {policy: {} for policy in self.policies}
        for row in self.raw:
            if row["declined"] is None:
                costs = Costs(**{name: row[name] for name in _COUNTS})
                rows[row["policy"]][row["trajectory"]] = {**row, "cost": costs.price(self.prices)}
        return rows

    @cached_property
    def figures(self) -> list[Result]:
        """Every figure; intervals are over conversations.

        The first are each policy's own, over what it went through to the end. A ratio is over the
        conversations that both went through, and names its peer.
        """
        results = [result for policy in self.policies for result in self._own(policy)]
        peers = [policy for name in PEERS for policy in self.policies if policy.split("(")[0] == name]
        for policy in self.policies:
            for peer in peers:
                if policy != peer:
                    results += self._against(policy, peer)
        # A ratio to what cost nothing says nothing.
        return [result for result in (*results, *self.restores) if math.isfinite(result.value)]

    @property
    def _dry(self) -> bool:
        return bool(self.settings.get("dry"))

    @property
    def _means(self) -> list[str]:
        return [metric for metric in _MEANS if not self._dry or metric != "wall_s"]

    @property
    def _times(self) -> Mapping[str, tuple[str, Statistic]]:
        return {} if self._dry else _TIMES

    def _own(self, policy: str) -> list[Result]:
        case, rows = {"policy": policy}, list(self.finished[policy].values())
        told = sum(row["policy"] == policy for row in self.raw)
        results = [
            Result(case=case, metric="declined", value=float(told - len(rows)), n=told, unit="conversations")
        ]
        if not rows:
            return results
        names = [row["trajectory"] for row in rows]
        if not self._dry:
            nll, scored = _values(rows, "nll"), _values(rows, "scored")
            results.append(cluster_ratio(nll, scored, names, case=case, metric="nll_per_token", unit="nat"))
        again = [row["tokens_prefilled"] - row["input_tokens"] for row in rows]
        results.append(
            bootstrap(
                again, np.mean, case=case, metric="tokens_prefilled_again", unit="tokens a conversation"
            )
        )
        for metric in self._means:
            unit = _MEANS[metric]
            results.append(bootstrap(_values(rows, metric), np.mean, case=case, metric=metric, unit=unit))
        for metric, (column, statistic) in self._times.items():
            results.append(_over_turns([row[column] for row in rows], statistic, case=case, metric=metric))
        return results

    def _against(self, policy: str, peer: str) -> list[Result]:
        mine, theirs = self.finished[policy], self.finished[peer]
        both = [name for name in mine if name in theirs]
        if not both:
            return []
        case = {"policy": policy, "peer": peer}
        own, other = [mine[name] for name in both], [theirs[name] for name in both]
        results = [] if self._dry else [_nll_ratio(own, other, both, case)]
        results += [
            cluster_ratio(
                _values(own, metric), _values(other, metric), both, case=case, metric=f"{metric}_ratio"
            )
            for metric in self._means
        ]
        for metric, (column, statistic) in self._times.items():
            left, right = ([row[column] for row in rows] for rows in (own, other))
            results.append(_turns_ratio(left, right, statistic, case=case, metric=f"{metric[:-2]}_ratio"))
        return results

    def results(self) -> ResultFile:
        """Return the figures in the one form of a result file."""
        settings = {**self.settings, "prices": self.prices.to_dict(), "declined": self.declined()}
        return ResultFile.now(
            "eval cache", self.figures, settings=settings, threads=self.settings.get("threads")
        )

    def declined(self) -> list[dict[str, str]]:
        """Return which conversations a policy could not go through, and why."""
        return [
            {name: row[name] for name in ("policy", "trajectory", "declined_code", "declined")}
            for row in self.raw
            if row["declined"] is not None
        ]

    def figure_of(self, metric: str, policy: str, peer: str | None = None) -> Result | None:
        """Return one figure; None when it was not measured."""
        case = {"policy": policy} | ({} if peer is None else {"peer": peer})
        return next((item for item in self.figures if item.metric == metric and item.case == case), None)

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each conversation and policy; lists such as ``turn_s`` hold its turns."""
        import polars as pl

        return pl.DataFrame(list(self.raw), infer_schema_length=None)

    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of a table, a policy each.

        The figures are over the conversations that every policy went through to the end, so that they can be
        read against each other; where there is none, each policy has its own. `figures` has both.
        """
        head = ["policy", "finished", *(title for title, _, _ in _COLUMNS)]
        return head, [self._line(policy) for policy in self.policies]

    @cached_property
    def shared(self) -> frozenset[str]:
        """The conversations that every policy went through that went through any."""
        through = [frozenset(rows) for rows in self.finished.values() if rows]
        return frozenset.intersection(*through) if through else frozenset()

    @cached_property
    def compared(self) -> CacheSweep:
        """The same over the shared conversations alone, so that policies can be set against each other."""
        if not self.shared:
            return self
        return replace(self, raw=[row for row in self.raw if row["trajectory"] in self.shared])

    def told(self) -> str:
        """Return what the figures of the table are over, in words."""
        if self.shared:
            told = plural(len(self.shared), "conversation")
            return f"Means over {told} that every policy with any went through."
        return "No conversation went through under every policy: each has means over its own."

    def _line(self, policy: str) -> list[str]:
        def shown(metric: str, form: str) -> str:
            found = self.compared.figure_of(metric, policy)
            if found is None:
                return "-"
            interval = "" if found.low is None else f" [{found.low:{form}}, {found.high:{form}}]"
            return f"{found.value:{form}}{interval if metric in _WITH_INTERVAL else ''}"

        told = sum(row["policy"] == policy for row in self.raw)
        n = len(self.finished[policy])
        return [
            policy,
            f"{n}" if n == told else f"{n} of {told}",
            *(shown(m, form) for _, m, form in _COLUMNS),
        ]

    def _repr_html_(self) -> str:
        prices = ", ".join(f"{name} {price:g}" for name, price in self.prices.to_dict().items())
        told = f"{self.told()} Intervals of 95 %; prices: {prices}"
        return f"<p>{html.escape(told)}</p>{html_table(*self.overview())}"

    def figure(self) -> Figure:
        """Return a chart over the same conversations: likelihood of the real replies against cost."""
        from plotly import graph_objects as go

        figure = go.Figure()
        for policy in self.policies:
            cost = self.compared.figure_of("cost", policy)
            nll = self.compared.figure_of("nll_per_token", policy)
            if cost is None or nll is None:
                continue
            figure.add_scatter(
                x=[cost.value],
                y=[nll.value],
                error_x=_bars(cost),
                error_y=_bars(nll),
                mode="markers+text",
                text=[policy],
                textposition="top center",
                name=policy,
            )
        figure.update_xaxes(title="cost of a conversation (prefilled tokens)")
        figure.update_yaxes(title="NLL of the real replies (nat per token)")
        figure.update_layout(template="plotly_white", height=440, showlegend=False)
        return figure


_MEANS = {
    "tokens_prefilled": "tokens",
    "tokens_decoded": "tokens",
    "cells_attended": "cells",
    "cells_scanned": "cells",
    "peak_cells": "cells",
    "cost": "prefilled tokens",
    "wall_s": "s",
}


def _mean(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of each resample, [n_resamples]; `counts` says how often a value is in it."""
    means: NDArray[np.float64] = counts @ values / counts.sum(axis=1)
    return means


def _p95(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the smallest value that 95 % of each resample do not exceed, [n_resamples]."""
    order = np.argsort(values)
    reached = np.cumsum(counts[:, order], axis=1)
    places = np.argmax(reached >= _P95 * reached[:, -1:], axis=1)
    found: NDArray[np.float64] = values[order][places]
    return found


Statistic = Callable[["NDArray[np.float64]", "NDArray[np.int64]"], "NDArray[np.float64]"]
_TIMES: Mapping[str, tuple[str, Statistic]] = {
    "turn_mean_s": ("turn_s", _mean),
    "turn_p95_s": ("turn_s", _p95),
    "ttft_s": ("ttft_s", _mean),
    "ttft_p95_s": ("ttft_s", _p95),
}
_WITH_INTERVAL = frozenset({"nll_per_token", "cost"})
_COLUMNS = (
    ("NLL/token", "nll_per_token", ".4f"),
    ("prefilled", "tokens_prefilled", ".0f"),
    ("again", "tokens_prefilled_again", ".0f"),
    ("decoded", "tokens_decoded", ".0f"),
    ("attended", "cells_attended", ".3g"),
    ("scanned", "cells_scanned", ".3g"),
    ("peak", "peak_cells", ".0f"),
    ("cost", "cost", ".0f"),
    ("wall s", "wall_s", ".1f"),
    ("turn s", "turn_mean_s", ".2f"),
    ("P95", "turn_p95_s", ".2f"),
    ("TTFT s", "ttft_s", ".2f"),
)


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _nll_ratio(
    own: Sequence[Row], other: Sequence[Row], names: Sequence[str], case: Mapping[str, Any]
) -> Result:
    """Compare the same replies; the sums are over the same tokens, so that their number cancels out."""
    return cluster_ratio(_values(own, "nll"), _values(other, "nll"), names, case=case, metric="nll_ratio")


def _over_turns(
    turns: Sequence[Sequence[float]], statistic: Statistic, *, case: Mapping[str, Any], metric: str
) -> Result:
    """Return a statistic over all turns, with an interval over conversations."""
    low = high = None
    if len(turns) > 1:
        low, high = percentile_interval(_resampled(turns, statistic))
    return Result(
        case=case,
        metric=metric,
        value=_whole(turns, statistic),
        low=low,
        high=high,
        n=sum(map(len, turns)),
        unit="s",
    )


def _turns_ratio(
    own: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    statistic: Statistic,
    *,
    case: Mapping[str, Any],
    metric: str,
) -> Result:
    low = high = None
    if len(own) > 1:
        low, high = percentile_interval(_resampled(own, statistic) / _resampled(other, statistic))
    value = _whole(own, statistic) / _whole(other, statistic)
    return Result(case=case, metric=metric, value=value, low=low, high=high, n=len(own))


def _whole(turns: Sequence[Sequence[float]], statistic: Statistic) -> float:
    values = np.concatenate([np.asarray(item) for item in turns])
    return float(statistic(values, np.ones((1, len(values)), np.int64))[0])


def _resampled(turns: Sequence[Sequence[float]], statistic: Statistic) -> NDArray[np.float64]:
    """Return the statistic of each resample of conversations, [n_resamples]; the draws never differ."""
    counts = resampled_clusters(len(turns))
    values = np.concatenate([np.asarray(item) for item in turns])
    place = np.repeat(np.arange(len(turns)), [len(item) for item in turns])
    return statistic(values, counts[:, place])


def _bars(result: Result) -> dict[str, Any]:
    if result.low is None or result.high is None:
        return {}
    return {
        "type": "data",
        "symmetric": False,
        "array": [result.high - result.value],
        "arrayminus": [result.value - result.low],
        "thickness": 1,
    }
