"""What a cache program costs: tokens computed, KV cells read, cells held, at prices of the user's own.

A decode reads the cells that its queries *attend* to, yet llama.cpp *scans* more: every cell up to the
highest in use, those of other sequences and free ones among them. Both are counted, call by call, where they
happen.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.engine import DecodeCall

__all__ = ["CostMeter", "Costs", "CostsError", "Prices"]


class CostsError(NexusError):
    """Prices that mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What each unit costs; the default unit is the price of one prefilled token.

    The defaults are a plain API's: a decoded token costs four times a prefilled one, and reading a cell so
    little that a token behind 2,000 of them costs twice as much.

    Attributes
    ----------
    prefilled, decoded
        Per token.
    attended, scanned
        Per KV cell read for one token.
    peak
        Per cell of the largest cache held.
    """

    prefilled: float = 1.0
    decoded: float = 4.0
    attended: float = 0.0005
    scanned: float = 0.0
    peak: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Read prices such as ``decoded=5,attended=0``; those not named keep their defaults.

        Raises
        ------
        CostsError
            When a name or a number means nothing.
        """
        known = [field.name for field in fields(cls)]
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (word.strip() for word in part.partition("="))
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if name not in known or not 0 <= number < float("inf"):
                raise CostsError(
                    f"{part!r} is no price", next_step=f"write name=number with one of {', '.join(known)}"
                )
            found[name] = number
        return cls(**found)

    def to_dict(self) -> dict[str, float]:
        """Return the prices by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was spent.

    Attributes
    ----------
    tokens_prefilled
        Tokens computed as input, those computed again included.
    tokens_decoded
        Tokens that the model said, or would have, where a reply was known.
    cells_attended, cells_scanned
        KV cells read, summed over the tokens.
    peak_cells
        Most cells in use at a time, all sequences of the context together.
    """

    tokens_prefilled: int = 0
    tokens_decoded: int = 0
    cells_attended: int = 0
    cells_scanned: int = 0
    peak_cells: int = 0

    def price(self, prices: Prices) -> float:
        """Return the sum at `prices`."""
        return (
            prices.prefilled * self.tokens_prefilled
            + prices.decoded * self.tokens_decoded
            + prices.attended * self.cells_attended
            + prices.scanned * self.cells_scanned
            + prices.peak * self.peak_cells
        )

    def to_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class CostMeter:
    """Adds up the calls of an engine: ``with engine.metered(meter)``."""

    def __init__(self) -> None:
        self.costs = Costs()
        self._said = False

    def __call__(self, call: DecodeCall) -> None:
        """Take note of one call."""
        spent, decoded = self.costs, call.generated or self._said
        self.costs = replace(
            spent,
            tokens_prefilled=spent.tokens_prefilled + (0 if decoded else call.tokens),
            tokens_decoded=spent.tokens_decoded + (call.tokens if decoded else 0),
            cells_attended=spent.cells_attended + call.attended,
            cells_scanned=spent.cells_scanned + call.scanned,
            peak_cells=max(spent.peak_cells, call.used),
        )

    @contextmanager
    def replying(self) -> Iterator[None]:
        """Count what is computed in the block as decoded: a reply that is known is computed at once."""
        self._said = True
        try:
            yield
        finally:
            self._said = False
