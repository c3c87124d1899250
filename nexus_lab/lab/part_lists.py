"""Lists of a part that a view has already: of these only what is new is sent.

Operations, turns, runs and decisions are lists that grow at one end, and lose items at the other where only
the newest are sent. A message leaves out what the ends of a list share with the message before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Kept", "SentLists"]

Kept = dict[str, tuple[int, int, int, int]]
"""By field of a part ``skip, head, tail, drop``: what of the view's own list goes around the items that come.

Before them go its `head` items after the first `skip`, behind them its `tail` items before the last `drop`.
"""


class SentLists:
    """The lists that a view was sent last; not for several threads at a time."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, list[Any]]] = {}

    def shorten(self, name: str, part: Any) -> tuple[Any, Kept]:
        """Take note of a part, and return it without the items that the view has.

        Parameters
        ----------
        name
            Name of the part.
        part
            JSON values as `to_json` gives them; stays as it is.

        Returns
        -------
        tuple
            The part to send, and what it leaves out; empty where it is whole.
        """
        if not isinstance(part, dict):
            return part, {}
        before = self._lists.get(name, {})
        now = {field: value for field, value in part.items() if isinstance(value, list)}
        self._lists[name] = now
        kept = {field: _ends(before[field], value) for field, value in now.items() if field in before}
        kept = {field: ends for field, ends in kept.items() if ends[1] or ends[2]}
        return {**part, **_middles(now, kept)}, kept


def _middles(lists: Mapping[str, list[Any]], kept: Kept) -> dict[str, list[Any]]:
    return {
        field: lists[field][head : len(lists[field]) - tail] for field, (_, head, tail, _) in kept.items()
    }


def _ends(before: Sequence[Any], now: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return `skip`, `head`, `tail` and `drop` with which `before` gives the most of `now`."""
    skip, head = _shared(before, now)
    drop, tail = _shared(before[::-1], now[: head - len(now) - 1 : -1])
    return skip, head, tail, drop


def _shared(before: Sequence[Any], now: Sequence[Any]) -> tuple[int, int]:
    """Return where in `before` the first item of `now` stands, and how many are the same from there on."""
    skip = before.index(now[0]) if now and now[0] in before else 0
    pairs = zip(before[skip:], now, strict=False)
    return skip, next(
        (at for at, (old, new) in enumerate(pairs) if old != new), min(len(before) - skip, len(now))
    )
