"""How numbers and states are written, in texts and in reports alike: a unit on each, "−" as minus."""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = [
    "STATUS_SIGNS",
    "clip",
    "count",
    "duration",
    "from_json",
    "mapping_of",
    "nats",
    "number",
    "plural",
    "ratio",
    "sentence",
    "short_id",
    "sign",
    "size",
    "status_word",
    "visible",
]

STATUS_SIGNS = {
    "ok": "✓",
    "error": "×",
    "declined": "!",
    "cancelled": "×",
    "running": "…",
    "interrupted": "×",
}
_WORDS = {"ok": "done", "error": "failed"}
# Controls but tab and line feed; marks, embeddings, overrides and isolates of direction; lone surrogates.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HEX_ID = re.compile("[0-9a-f]{20,}")
_MS = 1e6
_SECOND = 1e9
_MINUTE = 60 * _SECOND


def sign(status: str) -> str:
    """Return the sign of a status."""
    return STATUS_SIGNS.get(status, "?")


def status_word(status: str) -> str:
    """Return the word of a status."""
    return _WORDS.get(status, status or "unknown")


def duration(nanoseconds: float | None) -> str:
    """Return a length of time to three digits: ``17.6 µs``, ``284 ms``, ``3.48 s``, ``2 min 05 s``."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return "–"
    if nanoseconds >= 2 * _MINUTE:
        minutes, rest = divmod(round(nanoseconds / _SECOND), 60)
        return f"{minutes} min {rest:02d} s"
    for unit, scale in (("s", _SECOND), ("ms", _MS), ("µs", 1e3)):
        if nanoseconds >= 0.9995 * scale:
            return f"{_three(nanoseconds / scale)} {unit}"
    return f"{nanoseconds:.0f} ns" if nanoseconds else "0"


def _three(value: float) -> str:
    """Return `value` to three significant digits, without an exponent."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2  # noqa: PLR2004 - where rounding adds a digit
    return f"{value:,.{digits}f}"


def number(value: float | None, digits: int = 4) -> str:
    """Return `value` with a fixed number of digits."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.{digits}f}".replace("-", "−")


def nats(value: float | None) -> str:
    """Return a D_KL: four decimals, an exact 0 as such, and what four decimals cannot show as a power."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 0.00005:  # noqa: PLR2004 - half of the last decimal
        return number(value, 4)
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e−{abs(int(exponent))}"


def count(value: float | None) -> str:
    """Return a whole number with thousands apart."""
    return "–" if value is None else f"{value:,.0f}".replace("-", "−")


def plural(value: float | None, word: str) -> str:
    """Return a count of things, for example ``1 token`` or ``431 tokens``."""
    return f"{count(value)} {word}{'' if value == 1 else 's'}"


def short_id(text: str) -> str:
    """Return a long hexadecimal identifier by its first digits, and any other name as it is."""
    return f"{text[:12]}…" if _HEX_ID.fullmatch(text) else text


def sentence(text: str) -> str:
    """Return `text` as a sentence: a capital at its start, a point at its end."""
    text = text.strip()
    return text if not text else f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?…' else '.'}"


def ratio(value: float, other: float) -> str:
    """Return how many times `value` is of `other`, for example ``1.6×``."""
    if not other > 0 or not math.isfinite(value):
        return "–"
    times = value / other
    return f"{times:,.0f}×" if times >= 99.5 else f"{_three(times)}×"  # noqa: PLR2004 - three digits


def size(n_bytes: float | None) -> str:
    """Return a size in bytes, KiB, MiB or GiB."""
    if n_bytes is None:
        return "–"
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= scale:
            return f"{_three(n_bytes / scale)} {unit}"
    return f"{n_bytes:.0f} bytes"


def visible(text: str) -> str:
    """Return `text` with control and direction-changing characters spelled out, so that none can mislead."""
    return _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text)


def clip(text: str, limit: int) -> str:
    """Return at most `limit` characters of `text`, saying how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def from_json(text: str | None) -> Any:
    """Return the value of a text in a JSON column; one that is no JSON counts as none."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def mapping_of(text: str | None) -> dict[str, Any]:
    """Return the mapping that a text in a JSON column holds; an empty one where it holds none."""
    value = from_json(text)
    return value if isinstance(value, dict) else {}
