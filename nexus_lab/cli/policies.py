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
    """List the cache policies and their knobs.

    One is written as NAME or NAME(knob=value,...), quoted for the shell, for example
    'rolling_drop_repos(keep_last=3)': in nexus-lab run --policy, in a profile and in nexus-lab eval cache.
    """
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
