"""Cache policies: pure functions from the messages so far to the next operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.cache.ops import CacheOp, Drop, ProgramError, Repos, ranges_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.cache.base import MessageSpan, Policy
    from nexus_lab.cache.state import CacheState

__all__ = ["FullPolicy", "RollingDropPolicy", "make_policy"]


@dataclass(frozen=True, slots=True)
class FullPolicy:
    """Keep everything."""

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "full"

    def next_ops(self, messages: Sequence[MessageSpan], state: CacheState) -> tuple[CacheOp, ...]:  # noqa: ARG002 - the contract
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingDropPolicy:
    """Drop all but the last tool responses.

    Responses that no assistant message follows yet are always kept: dropping them would hide from the model
    what it has asked for. They count among the last ones.

    Attributes
    ----------
    keep_last
        Tool responses that stay.
    repos
        Re-pack positions after a drop.
    """

    keep_last: int = 2
    repos: bool = True

    def __post_init__(self) -> None:
        if self.keep_last < 0:
            raise ProgramError(
                f"a rolling drop cannot keep {self.keep_last} responses", next_step="choose 0 or more"
            )

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "rolling_drop_repos" if self.repos else "rolling_drop"

    def next_ops(self, messages: Sequence[MessageSpan], state: CacheState) -> tuple[CacheOp, ...]:
        """Return a drop of the responses that are due, and a repos behind it; nothing when none is."""
        due = [
            index
            for message in _due(messages, self.keep_last)
            for index in range(message.start, message.stop)
            if state.active[index]
        ]
        if not due:
            return ()
        drop = Drop(ranges_of(due))
        return (drop, Repos()) if self.repos else (drop,)


def _due(messages: Sequence[MessageSpan], keep_last: int) -> list[MessageSpan]:
    answered = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
    responses = [i for i, message in enumerate(messages) if message.role == "tool"]
    kept = max(keep_last, sum(i > answered for i in responses))
    return [messages[i] for i in responses[: len(responses) - kept]]


def make_policy(name: str, *, keep_last: int = 2, repos: bool = True) -> Policy:
    """Return the policy that the settings of a session name.

    Parameters
    ----------
    name
        ``full``, ``rolling_drop`` or ``rolling_drop_repos``.
    keep_last, repos
        Of a rolling drop; the name ``rolling_drop_repos`` implies `repos`.

    Raises
    ------
    ProgramError
        When there is no such policy.
    """
    if name == "full":
        return FullPolicy()
    if name in ("rolling_drop", "rolling_drop_repos"):
        return RollingDropPolicy(keep_last=keep_last, repos=repos or name.endswith("repos"))
    raise ProgramError(f"unknown cache policy {name!r}", next_step="choose full or rolling_drop")
