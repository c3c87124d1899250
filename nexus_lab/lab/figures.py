"""Static charts for notebooks and reports, as plotly figures.

These are plain `plotly.graph_objects.Figure`s: they are drawn once, carry no widget, and look the same in an
exported notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.lab.heat import VIK, VIRIDIS, heat_range
from nexus_lab.lab.splice_parts import TrialError
from nexus_lab.splice import repair_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plotly.graph_objects import Figure

    from nexus_lab.lab.splice_records import SpliceTrial

__all__ = ["drift_heatmap", "margin_histogram", "repair_curve"]

_GREY, _INK, _ACCENT, _RULE = "#9ba1a7", "#4a545d", "#1976d2", "#e0e0e0"


def margin_histogram(margins: Sequence[float], *, tau: float | None = None, bins: int = 40) -> Figure:
    """Draw recorded margins, those under tau apart.

    Parameters
    ----------
    margins
        Distances of the two best scores, one per decision.
    tau
        Margin under which a decision escalates.
    bins
        Number of bars, from 0 to the largest margin.
    """
    from plotly import graph_objects as go

    values = np.asarray([value for value in margins if np.isfinite(value)], np.float64)
    edges = np.linspace(0.0, float(values.max()) if values.size else 1.0, bins + 1)
    figure = go.Figure()
    groups = [("over τ", values >= tau, _GREY), ("under τ", values < tau, _INK)] if tau is not None else []
    for name, chosen, colour in groups or [("decisions", np.ones(len(values), bool), _GREY)]:
        heights, _ = np.histogram(values[chosen], edges)
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2, y=heights, width=np.diff(edges), name=name, marker_color=colour
        )
    if tau is not None:
        figure.add_vline(x=tau, line_color=_ACCENT, line_width=2, annotation_text=f"τ = {tau:.4f}")
    return _styled(figure, "margin of the two best scores", "decisions", barmode="stack")


def repair_curve(
    *,
    k: float = 4.0,
    m: int = 256,
    r_base: float = 0.05,
    n_past: int | None = None,
    depth: int = 2048,
) -> Figure:
    """Draw R(n_past), the fraction of a block that is recomputed at a depth.

    Parameters
    ----------
    k, m, r_base
        Constants of the curve.
    n_past
        Depth to mark.
    depth
        Where the axis ends.

    Raises
    ------
    CurveError
        When a constant leaves the curve undefined.
    """
    from plotly import graph_objects as go

    depths = np.unique([*np.linspace(0, depth, 257).astype(int), m, min(depth, round(k * m))])
    shares = [100 * repair_fraction(int(at), k=k, m=m, r_base=r_base) for at in depths]
    figure = go.Figure(go.Scatter(x=depths, y=shares, mode="lines", line_color=_INK, name="R(n_past)"))
    figure.add_vline(x=m, line_color=_GREY, line_dash="dot", annotation_text=f"M = {m}")
    if n_past is not None:
        share = 100 * repair_fraction(n_past, k=k, m=m, r_base=r_base)
        words = f"n_past {n_past:,}: R = {share:.1f} %"
        figure.add_scatter(
            x=[n_past],
            y=[share],
            mode="markers+text",
            text=[words],
            textposition="top center",
            marker={"color": _ACCENT, "size": 9},
            name="here",
        )
    return _styled(figure, "n_past, tokens", "recomputed, % of the block", yaxis_range=[0, 108])


def drift_heatmap(
    trial: SpliceTrial, *, tensor: str = "k", measure: str = "relative", step: int | None = None
) -> Figure:
    """Draw the drift of a splice trial after one step, layers across and heads down.

    Parameters
    ----------
    tensor
        ``k``, ``v`` or ``attention``.
    measure
        ``relative``, ``absolute`` or ``signed``.
    step
        From 0; the last by default. The range is that of all steps.

    Raises
    ------
    TrialError
        When it was not measured.
    """
    from plotly import graph_objects as go

    frames = trial.frames(tensor, measure)
    if frames is None:
        raise TrialError(
            f"trial {trial.id} has no frames of {tensor}", next_step="run it with the measure on"
        )
    at = len(frames) - 1 if step is None else step
    if not 0 <= at < len(frames):
        raise TrialError(f"there is no step {at}", next_step=f"choose 0 to {len(frames) - 1}")
    signed = measure == "signed"
    low, high = heat_range(frames, signed=signed)
    stops = VIK if signed else VIRIDIS
    scale = [[index / (len(stops) - 1), f"#{stop}"] for index, stop in enumerate(stops)]
    figure = go.Figure(
        go.Heatmap(
            z=frames[at].T,
            zmin=low,
            zmax=high,
            colorscale=scale,
            xgap=1,
            ygap=1,
            hovertemplate="layer %{x}, head %{y}: %{z:.4g}<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", dtick=1)
    head = "query head" if tensor == "attention" else "KV head"
    title = f"{tensor.upper()} drift, {measure}, after step {at + 1} ({trial.steps[at].name})"
    return _styled(figure, "layer", head, title=title)


def _styled(figure: Figure, x: str, y: str, **layout: Any) -> Figure:
    figure.update_layout(
        template="none",
        font={"size": 12},
        margin={"l": 60, "r": 20, "t": 40, "b": 45},
        height=320,
        bargap=0,
        legend={"orientation": "h", "y": 1.12},
        **layout,
    )
    figure.update_xaxes(title=x, gridcolor=_RULE, zeroline=False)
    figure.update_yaxes(title=y, gridcolor=_RULE, zeroline=False)
    return figure
