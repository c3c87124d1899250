"""How much of a session a report shows; whatever is left out is counted where it would have stood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Limits", "Shown"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of a report; the defaults keep any session well under 10 MB.

    Attributes
    ----------
    turns, spans_per_turn, programs, plain_programs, ops, splices, drift_frames, problems
        Rows of each kind; programs that only append are told in a line.
    text
        Characters of one text.
    """

    turns: int = 200
    spans_per_turn: int = 60
    programs: int = 6
    plain_programs: int = 40
    ops: int = 120
    splices: int = 24
    drift_frames: int = 6
    problems: int = 100
    text: int = 4000


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """The first items of a list, and how many there are in all."""

    items: tuple[T, ...]
    total: int

    @classmethod
    def first(cls, items: Sequence[T], limit: int, total: int | None = None) -> Shown[T]:
        """Take at most `limit` of `items`; `total` where they are themselves a part."""
        return cls(tuple(items[:limit]), len(items) if total is None else total)

    @property
    def cut(self) -> bool:
        """Some are left out."""
        return self.total > len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
