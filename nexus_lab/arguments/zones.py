"""Time zones by what people call them: ``Tokyo`` is ``Asia/Tokyo``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import available_timezones

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_zone_name", "zones_said"]

# Areas of the IANA database that hold cities; the others are old names and offsets.
_AREAS = frozenset(
    {
        "Africa",
        "America",
        "Antarctica",
        "Arctic",
        "Asia",
        "Atlantic",
        "Australia",
        "Europe",
        "Indian",
        "Pacific",
    }
)


def is_zone_name(text: str) -> bool:
    """Whether `text` is the name of a time zone; without a zone database on the machine any text may be."""
    known = _names()
    return text in known or not known


def zones_said(parts: Iterable[str]) -> list[str]:
    """Return the IANA names among `parts`, which may name a zone (``Asia/Tokyo``, ``UTC``) or its city.

    In the order of `parts`, each once. Without a zone database on the machine nothing is recognised.
    """
    known = _by_name()
    return list(dict.fromkeys(known[key] for part in parts if (key := _key(part)) in known))


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


@cache
def _by_name() -> dict[str, str]:
    zones = sorted(_names())
    cities = {
        _key(zone.rsplit("/", 1)[1]): zone for zone in reversed(zones) if zone.partition("/")[0] in _AREAS
    }
    return cities | {_key(zone): zone for zone in zones if "/" in zone or zone == "UTC"}


def _key(name: str) -> str:
    return name.replace("_", " ").casefold()
