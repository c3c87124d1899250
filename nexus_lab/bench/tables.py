"""Tables of results as a notebook shows them."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["html_table"]


def html_table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; every name and every cell is escaped."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
