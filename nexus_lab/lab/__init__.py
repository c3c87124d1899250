"""The lab room: what does the user see?

`Workbench` is a widget over a `Desk`, which owns the session and works on threads of its own; each panel is
one module. The front end is in ``frontend/``, its built output in ``static/`` and ``labextension/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.lab.attention_figure import AttentionFigure
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.panel import Panel
    from nexus_lab.lab.pareto import ParetoFront
    from nexus_lab.lab.residency_view import ResidencyView
    from nexus_lab.lab.tree_drawing import TreeDrawing
    from nexus_lab.lab.workbench import PanelView, WidgetNotBuilt, Workbench

__all__ = [
    "AttentionFigure",
    "Desk",
    "Panel",
    "PanelView",
    "ParetoFront",
    "ResidencyView",
    "TreeDrawing",
    "WidgetNotBuilt",
    "Workbench",
]

_HOMES = {
    "AttentionFigure": "attention_figure",
    "Desk": "desk",
    "Panel": "panel",
    "PanelView": "workbench",
    "ParetoFront": "pareto",
    "ResidencyView": "residency_view",
    "TreeDrawing": "tree_drawing",
    "WidgetNotBuilt": "workbench",
    "Workbench": "workbench",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
