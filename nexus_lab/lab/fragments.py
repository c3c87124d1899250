"""Static HTML of the panels: fragments that escape what they are given and need no JavaScript."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["fragment"]


def fragment(template: str, **values: Any) -> str:
    """Fill a template; text of unknown origin in `values` is escaped.

    Parameters
    ----------
    template
        Jinja2 source, ours. The filters ``number``, ``ms`` and ``bytes`` write values with their units, and a
        missing one as "–".
    """
    return _environment().from_string(template).render(**values).strip()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"number": _number, "ms": _ms, "bytes": _bytes}
    return made


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    text = f"{value:,.{digits}f}" if digits is not None else f"{value:,}"
    return text.replace("-", "−")


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1e3:,.2f} s" if value >= 1e3 else f"{value:.1f} ms"  # noqa: PLR2004 - ms in a second


def _bytes(value: int | None) -> str:
    if value is None:
        return "–"
    size = float(value)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - the factor between units
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
