"""The lab room: what does the user see?

`Workbench` is a widget over a `Desk`, which owns the session and works on threads of its own; each panel is
one module. The front end is in ``frontend/``, its built output in ``static/`` and ``labextension/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.panel import Panel
    from nexus_lab.lab.workbench import PanelView, WidgetNotBuilt, Workbench

__all__ = ["Desk", "Panel", "PanelView", "WidgetNotBuilt", "Workbench"]

_HOMES = {
    "Desk": "desk",
    "Panel": "panel",
    "PanelView": "workbench",
    "WidgetNotBuilt": "workbench",
    "Workbench": "workbench",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
