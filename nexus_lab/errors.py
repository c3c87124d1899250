"""The root of every error the package raises, and the record of a decline."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cancelled", "Decline", "NexusError"]


class NexusError(Exception):
    """Something could not be done; says what, why, and what to do next.

    Parameters
    ----------
    problem
        What went wrong, with the value that was wrong.
    next_step
        What the reader can do about it; empty only where nothing can be done.
    """

    def __init__(self, problem: str, *, next_step: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.problem}\nNext: {self.next_step}" if self.next_step else self.problem


class Cancelled(NexusError):
    """The user stopped the work; what was half written has been rolled back."""


@dataclass(frozen=True, slots=True)
class Decline:
    """A thing the product will not do here, although the answer can still be right without it.

    Attributes
    ----------
    code
        Stable identifier, for example ``quantized_k``.
    reason
        One sentence for the reader.
    instead
        What happens in its place, for example ``full prefill``.
    """

    code: str
    reason: str
    instead: str = "full prefill"
