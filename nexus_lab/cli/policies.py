"""``nexus-lab policies``: the cache policies that can be named, and their knobs."""

from __future__ import annotations

from rich.table import Table

from nexus_lab.cli._output import console, plain

__all__ = ["policies"]

_CAVEAT = (
    "A drop does not undo what the dropped tokens already did to later rows. To have them really forgotten, "
    "edit the text (trim, summarise): what follows is prefilled anew; nexus-lab eval cache tells the cost."
)


def policies() -> None:
    """List the cache policies; write one as NAME or NAME(knob=value,...)."""
    from nexus_lab.policy_text import POLICIES

    table = Table(box=None, pad_edge=False)
    for column in ("policy", "knob", "default", "what it does"):
        table.add_column(column)
    for kind in POLICIES.values():
        table.add_row(plain(kind.name, style="bold"), "", "", plain(kind.about))
        for knob in kind.knobs:
            table.add_row("", plain(knob.name), plain(knob.write(knob.default)), plain(knob.about))
    console.print(table)
    console.print(plain(_CAVEAT, style="dim"))
