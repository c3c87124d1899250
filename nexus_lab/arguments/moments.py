"""Dates and times as people say them: ``April 15, 2026``, ``tomorrow``, ``4:30 in the afternoon``."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Moment", "dates_in", "times_in", "today_in"]

_MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()  # noqa: SIM905
_MONTH = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"  # noqa: E501
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?P<iso>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)\b",
        rf"\b(?:the\s+)?{_DAY}(?:\s+of)?\s+{_MONTH}(?:,?\s+(?:of\s+)?{_YEAR})?\b",
        rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b(?:\s*,?\s*(?:of\s+)?{_YEAR}\b)?",
        rf"\b{_YEAR}\s+{_MONTH}\s+{_DAY}\b",
        r"\b(?P<a>\d{1,2})(?P<mark>[/.])(?P<b>\d{1,2})(?P=mark)(?P<year>\d{4})\b",
        r"\b(?P<year>\d{4})[/.](?P<ym>\d{1,2})[/.](?P<yd>\d{1,2})\b",
        r"\b(?P<relative>today|tonight|tomorrow|yesterday|the day (?:after tomorrow|before yesterday))\b",
        r"\b(?P<ago>\d+)\s+days?\s+(?P<way>ago|from now)\b",
        r"\b(?:(?P<which>next|last|this|coming|on)\s+)(?P<weekday>" + "|".join(_DAYS) + r")\b",
    )
)
_TIME = re.compile(
    r"(?<![\w.:/-])(?P<hour>\d{1,2})(?:[:.](?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?)?"
    r"\s?(?:(?P<half>[ap])\.?m\b\.?|(?P<clock>o'?clock)|(?P<part>in the (?:morning|afternoon|evening)))?"
    r"(?:\s+(?P<later>in the (?:morning|afternoon|evening)))?",
    re.IGNORECASE,
)
_TODAY = re.compile(
    r"\b(?:today(?:'s date)?|current date)\b\W{0,3}(?:is|:)?\W{0,3}(?:\w+day,?\s+)?", re.IGNORECASE
)
_RELATIVE = {
    "today": 0,
    "tonight": 0,
    "tomorrow": 1,
    "yesterday": -1,
    "the day after tomorrow": 2,
    "the day before yesterday": -2,
}
_NOON, _HOURS, _WEEK = 12, 24, 7


@dataclass(frozen=True, slots=True)
class Moment:
    """A date or a time of day where it was said.

    Attributes
    ----------
    start, stop
        Character offsets.
    iso
        ``YYYY-MM-DD`` or ``HH:MM``; empty where it takes a year or today's date that nobody gave, and where
        there is no such day.
    """

    start: int
    stop: int
    iso: str


def today_in(text: str) -> dt.date | None:
    """Return the date that `text` gives as today's, if it does."""
    for lead in _TODAY.finditer(text):
        for moment in dates_in(text[lead.end() : lead.end() + 40]):
            if moment.start == 0 and moment.iso:
                return dt.date.fromisoformat(moment.iso[:10])
    return None


def dates_in(text: str, today: dt.date | None = None) -> Iterator[Moment]:
    """Yield the dates in `text`, relative ones by `today`."""
    taken = 0
    found = sorted(
        ((match.start(), -match.end(), match) for pattern in _DATES for match in pattern.finditer(text)),
        key=lambda item: item[:2],
    )
    for start, _, match in found:
        if start < taken:
            continue
        taken = match.end()
        groups = {name: value for name, value in match.groupdict().items() if value}
        weekday = groups.get("which", "").lower() == "on"
        try:
            iso = _iso(groups, today)
        except (ValueError, OverflowError):
            iso = ""
        yield Moment(match.start("weekday") if weekday else start, match.end(), iso)


def _iso(said: dict[str, str], today: dt.date | None) -> str:
    if "iso" in said:
        dt.datetime.fromisoformat(said["iso"])
        return said["iso"]
    if "relative" in said or "ago" in said or "weekday" in said:
        return (today + dt.timedelta(_shift(said, today))).isoformat() if today else ""
    year = int(said.get("year") or (today.year if today else 0))
    if "month" in said:
        month = next(n for n, name in enumerate(_MONTHS, 1) if name.startswith(said["month"][:3].lower()))
        day = int(said["day"])
    elif "ym" in said:
        month, day = int(said["ym"]), int(said["yd"])
    else:
        month, day = int(said["a"]), int(said["b"])
        if said["mark"] == "." or month > _NOON:
            month, day = day, month
    return dt.date(year, month, day).isoformat()


def _shift(said: dict[str, str], today: dt.date) -> int:
    if "relative" in said:
        return _RELATIVE[said["relative"].lower()]
    if "ago" in said:
        days = min(int(said["ago"]), 40_000)
        return -days if said["way"].lower() == "ago" else days
    ahead = (_DAYS.index(said["weekday"].lower()) - today.weekday()) % _WEEK
    return ahead - _WEEK if said["which"].lower() == "last" else ahead or _WEEK


def times_in(text: str) -> Iterator[Moment]:
    """Yield the times of day in `text`, such as ``17:00``, ``5pm`` and ``4:30 in the afternoon``."""
    for match in _TIME.finditer(text):
        half, hour = (match["half"] or "").lower(), int(match["hour"])
        part = (match["part"] or match["later"] or "").lower()
        if not (match["minute"] or half or match["clock"] or part) or hour >= _HOURS:
            continue
        if match["minute"] and match[0][len(match["hour"])] == "." and not (half or part):
            continue
        late = half == "p" or part.endswith(("afternoon", "evening"))
        if late and hour < _NOON:
            hour += _NOON
        elif (half == "a" or part.endswith("morning")) and hour == _NOON:
            hour = 0
        second = f":{match['second']}" if match["second"] else ""
        stop = match.start() + len(match[0].rstrip())
        yield Moment(match.start(), stop, f"{hour:02d}:{match['minute'] or '00'}{second}")
