"""What a splice sweep found: a frame of its cells, figures with intervals, a table and a chart."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile
from nexus_lab.bench.clusters import cluster_ratio
from nexus_lab.bench.splice_figures import all_figures, quality
from nexus_lab.bench.sweep import JOURNAL, SweepError, read_journal
from nexus_lab.bench.tables import html_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from plotly.graph_objects import Figure

__all__ = ["SETTINGS", "SpliceSweep"]

SETTINGS = "sweep.json"
"""Settings of a sweep and the keys of its tasks, in its folder."""

_FLOORS = ("permuted", "split")
_COLOURS = ("#4b3fb5", "#b35c00", "#00708c", "#b3261e", "#1b5e20", "#8a5a83", "#5f6b76")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
Row = dict[str, Any]


@dataclass(frozen=True)
class SpliceSweep:
    """Rows of a splice sweep, and what they say; shows itself as a table in a notebook.

    Attributes
    ----------
    settings
        How it was measured.
    raw
        Rows of all tasks, JSON values.
    """

    settings: Mapping[str, Any]
    raw: Sequence[Row] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> SpliceSweep:
        """Read the folder of a sweep, finished or not.

        Raises
        ------
        SweepError
            When there is no sweep.
        """
        try:
            facts = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            found = read_journal(folder / JOURNAL)
            rows = [row for key in facts["keys"] if key in found for row in found[key].rows]
            return cls(facts["settings"], rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SweepError(
                f"{folder} holds no splice sweep: {error}",
                next_step="give the folder that was named with --work",
            ) from error

    @cached_property
    def cells(self) -> list[Row]:
        """A row for each cell and repair, with the noise floor of the same cell beside it.

        ``floor_permuted`` and ``floor_split`` are the mean D_KL of the cell's own exact runs; ``floor`` is
        the one of them that is larger over the whole sweep, and ``excess`` what D_KL has beyond it.
        """
        floors: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
        for row in self.floors:
            floors[_cell(row)][row["budget"]] = row["dkl_mean"]
        larger = self.floor_schedule
        rows = []
        for row in self._of("cells"):
            floor = floors[_cell(row)]
            beside = {f"floor_{name}": floor[name] for name in _FLOORS}
            found = {**row, **beside, "floor": floor[larger], "excess": row["dkl_mean"] - floor[larger]}
            rows.append(found)
        return rows

    @cached_property
    def floors(self) -> list[Row]:
        """Rows of the noise floor: the same tokens with the prefix in permuted cells, or split otherwise."""
        return self._of("floor")

    @cached_property
    def floor_schedule(self) -> str:
        """The floor with the larger mean over all cells, ``permuted`` or ``split``."""
        means = {name: [row["dkl_mean"] for row in self.floors if row["budget"] == name] for name in _FLOORS}
        return max(_FLOORS, key=lambda name: float(np.mean(means[name] or [0.0])))

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each cell and repair.

        Columns are those of `cells`; ``dkl`` holds D_KL at each position, ``attention_heads`` the moved
        share of attention by layer and head.
        """
        import polars as pl

        return pl.DataFrame(self.cells, infer_schema_length=None)

    def summary(self) -> pl.DataFrame:
        """Return every figure with its interval, one a row: depth, repair, compile context, metric."""
        import polars as pl

        rows = [
            {
                **{str(key): str(value) for key, value in result.case.items()},
                "metric": result.metric,
                "value": result.value,
                "low": result.low,
                "high": result.high,
                "n": result.n,
                "unit": result.unit,
            }
            for result in self.figures
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @cached_property
    def figures(self) -> list[Result]:
        """Every figure of the sweep; intervals over cells are clustered by tool."""
        return all_figures(self.cells, self.floors, self._of)

    def results(self) -> ResultFile:
        """Return the figures in the one form of a result file."""
        settings = {**self.settings, "noise_floor": self.floor_schedule}
        return ResultFile.now(
            "eval splice", self.figures, settings=settings, threads=self.settings.get("threads")
        )

    def excess_ratio(
        self,
        repair: tuple[str, str],
        peer: tuple[str, str],
        *,
        depths: Sequence[int] | None = None,
    ) -> Result:
        """Return the excess over the noise floor of one repair as a share of another's, paired by cell.

        Parameters
        ----------
        repair, peer
            Repair and compile context, for example ``("leading:0.25", "history")``; ``trailing:R`` is the
            paper's curve.
        depths
            Depths to count; all of them by default.

        Raises
        ------
        SweepError
            When the sweep did not measure one of them.
        """
        chosen = [row for row in self.cells if depths is None or row["depth"] in depths]
        first, second = (
            {_cell(row): row["excess"] for row in chosen if (repair_text(row), row["context"]) == wanted}
            for wanted in (repair, peer)
        )
        shared = [cell for cell in first if cell in second]
        if not shared:
            raise SweepError(
                f"no cell has both {repair} and {peer}",
                next_step="name what was measured",
            )
        case = {
            "repair": repair[0],
            "compile_context": repair[1],
            "peer": f"{peer[0]} behind {peer[1]}",
            "depths": sorted({cell[2] for cell in shared}),
        }
        return cluster_ratio(
            [first[cell] for cell in shared],
            [second[cell] for cell in shared],
            [cell[0] for cell in shared],
            case=case,
            metric="excess_ratio",
        )

    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of a table: mean D_KL by depth, and what holds over all depths."""
        depths = sorted({row["depth"] for row in self.cells})
        head = ["compiled behind", "repair", *(f"D_KL at {depth}" for depth in depths)]
        head += ["excess", "top-1", "first", "greedy", "tool", "arguments", "TTFT"]
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in [*self.floors, *self.cells]:
            name = f"noise floor, {row['budget']}" if row["strategy"] == "floor" else repair_text(row)
            groups[row["context"], name].append(row)
        return head, [self._line(key, rows, depths) for key, rows in groups.items()]

    def _line(self, key: tuple[str, str], rows: list[Row], depths: Sequence[int]) -> list[str]:
        figures = {figure.metric: figure for figure in quality(rows, {})}

        def shown(metric: str, form: str) -> str:
            found = figures.get(metric)
            if found is None:
                return ""
            interval = "" if found.low is None else f" [{found.low:{form}}, {found.high:{form}}]"
            return f"{found.value:{form}}{interval}"

        at = [[row["dkl_mean"] for row in rows if row["depth"] == depth] for depth in depths]
        return [
            *key,
            *(f"{np.mean(values):.4f}" if values else "" for values in at),
            shown("dkl_excess", ".4f"),
            *(shown(metric, ".3f") for metric in ("top1_agreement", "top1_first", "greedy_match")),
            *(shown(metric, ".3f") for metric in ("tool_match", "arguments_match")),
            f"{figures['ttft_ratio'].value:.1f}x" if "ttft_ratio" in figures else "",
        ]

    def _repr_html_(self) -> str:
        tools, n = len({row["tool"] for row in self.cells}), len({_cell(row) for row in self.cells})
        told = f"{n} cells of {tools} tools, {self.settings.get('model', '')}; means, 95 % intervals by tool"
        return f"<p>{html.escape(told)}</p>{html_table(*self.overview())}"

    def figure(self) -> Figure:
        """Return a chart: mean D_KL by depth for every repair, a panel for each compile context."""
        from plotly.subplots import make_subplots

        contexts = list(dict.fromkeys(row["context"] for row in self.cells))
        repairs = list(dict.fromkeys(repair_text(row) for row in self.cells if row["strategy"] != "full"))
        titles = [f"compiled behind {context}" for context in contexts]
        figure = make_subplots(1, max(1, len(contexts)), shared_yaxes=True, subplot_titles=titles)
        found: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in self.figures:
            case = result.case
            if result.metric == "dkl_mean" and case.get("depth") != "all" and "strategy" in case:
                found[case["compile_context"], _text(case["strategy"], case["budget"])].append(result)
        floors = found["", _text("floor", self.floor_schedule)]
        for column, context in enumerate(contexts, start=1):
            for number, repair in enumerate(repairs):
                style = {"color": _COLOURS[number % len(_COLOURS)], "dash": _DASHES[number % len(_DASHES)]}
                _draw(figure, found[context, repair], repair, style, column)
            _draw(figure, floors, "noise floor", {"color": "#888888", "dash": "dot"}, column)
        depths = sorted({row["depth"] for row in self.cells})
        figure.update_xaxes(type="log", tickvals=depths, ticktext=[str(d) for d in depths], title="depth")
        figure.update_yaxes(type="log", exponentformat="power")
        figure.update_yaxes(title="mean D_KL (nat)", col=1)
        figure.update_layout(template="plotly_white", height=420, legend={"orientation": "h", "y": -0.25})
        return figure

    def _of(self, kind: str) -> list[Row]:
        return [row for row in self.raw if row["kind"] == kind]


def _cell(row: Row) -> tuple[str, str, int]:
    return row["tool"], row["prefix"], row["depth"]


def repair_text(row: Mapping[str, Any]) -> str:
    """Return a row's repair as it was asked for."""
    return _text(row["strategy"], row["budget"])


def _text(strategy: str, budget: object) -> str:
    if strategy in {"none", "full", "no_reanchor"}:
        return strategy
    told = str(budget)
    return f"{strategy}:R" if told.startswith("R(") else f"{strategy}:{told}"


def _draw(figure: Figure, results: list[Result], name: str, style: dict[str, str], column: int) -> None:
    if not results:
        return
    above = [result.value if result.high is None else result.high for result in results]
    below = [result.value if result.low is None else result.low for result in results]
    values = [result.value for result in results]
    bars = {"array": np.subtract(above, values), "arrayminus": np.subtract(values, below)}
    figure.add_scatter(
        x=[result.case["depth"] for result in results],
        y=values,
        error_y={"type": "data", "symmetric": False, "thickness": 1, **bars},
        name=name,
        legendgroup=name,
        showlegend=column == 1,
        line=style,
        row=1,
        col=column,
    )
