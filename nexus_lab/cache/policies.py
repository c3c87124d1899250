"""Cache policies that drop KV: pure functions from messages and program so far to the next operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache.base import Edit
from nexus_lab.cache.ops import Drop, ProgramError, Repos, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexus_lab.cache.base import MessageSpan, Moment
    from nexus_lab.cache.ops import CacheOp, Range
    from nexus_lab.cache.program import CacheProgram

__all__ = ["FullPolicy", "RollingDropPolicy", "dropping"]


@dataclass(frozen=True, slots=True)
class FullPolicy:
    """Keep everything."""

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "full"

    def decide(self, moment: Moment) -> Edit:  # noqa: ARG002 - the contract
        """Return nothing."""
        return Edit()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingDropPolicy:
    """Drop all but the last tool responses, or all but the last reasoning, or both.

    What the assistant has not read yet is always kept, and counts among the last: a response that no
    assistant message follows, and the call that it answers.

    Attributes
    ----------
    keep_last
        Tool responses that stay; None for all.
    keep_reasoning
        Assistant messages with a call whose reasoning stays; None for all.
    scope
        What reasoning is: ``calls`` for the whole message, ``thoughts`` for its thinking and prose.
    repos
        Re-pack positions after drops.
    repos_every
        Drops that share one repos: it moves every row behind the first of them.
    min_tokens
        Messages of fewer tokens stay.
    keep_head
        First tokens of each dropped message that stay.
    """

    keep_last: int | None = 2
    keep_reasoning: int | None = None
    scope: str = "calls"
    repos: bool = True
    repos_every: int = 1
    min_tokens: int = 0
    keep_head: int = 0

    def __post_init__(self) -> None:
        kept = (self.keep_last, self.keep_reasoning)
        if kept == (None, None) or any(number is not None and number < 0 for number in kept):
            raise ProgramError(
                f"a rolling drop cannot keep {self.keep_last} responses and {self.keep_reasoning} calls",
                next_step="choose 0 or more of one of them",
            )
        if self.repos_every < 1 or self.min_tokens < 0 or self.keep_head < 0:
            raise ProgramError(
                f"repos every {self.repos_every}, min_tokens {self.min_tokens}, keep_head {self.keep_head}",
                next_step="choose at least 1, 0 and 0",
            )

    @property
    def name(self) -> str:
        """Name in settings and results."""
        if self.keep_reasoning is None:
            return "rolling_drop_repos" if self.repos else "rolling_drop"
        return "drop_reasoning" if self.keep_last is None else "drop_both"

    def decide(self, moment: Moment) -> Edit:
        """Return a drop of what is due, and a repos behind it when that is due too."""
        return Edit(
            ops=dropping(
                moment.program, list(self._due(moment.messages)), repos_every=self.repos_every * self.repos
            )
        )

    def responses_due(self, messages: Sequence[MessageSpan]) -> list[int]:
        """Return which messages are tool responses that are due."""
        if self.keep_last is None:
            return []
        read = _last_read(messages)
        responses = [i for i, message in enumerate(messages) if message.role == "tool"]
        due = _all_but(responses, self.keep_last, unread=sum(i > read for i in responses))
        return [i for i in due if messages[i].stop - messages[i].start >= self.min_tokens]

    def _due(self, messages: Sequence[MessageSpan]) -> Iterator[Range]:
        for i in self.responses_due(messages):
            yield from self._range(messages[i].start, messages[i].stop)
        if self.keep_reasoning is not None:
            read = _last_read(messages)
            calls = [i for i, message in enumerate(messages) if message.calls]
            for i in _all_but(calls, self.keep_reasoning, unread=sum(i == read for i in calls)):
                yield from self._reasoning(messages[i])

    def _reasoning(self, message: MessageSpan) -> Iterator[Range]:
        if self.scope == "calls":
            yield from self._range(message.start, message.stop)
        elif message.thought is not None:
            yield from self._range(*message.thought)

    def _range(self, start: int, stop: int) -> Iterator[Range]:
        if stop - start >= self.min_tokens and start + self.keep_head < stop:
            yield start + self.keep_head, stop


def dropping(program: CacheProgram, ranges: Sequence[Range], *, repos_every: int) -> tuple[CacheOp, ...]:
    """Return a drop of what is still active in `ranges`, and a repos where one is due.

    Parameters
    ----------
    ranges
        Half-open logical ranges.
    repos_every
        Drops from which on a repos is due; 0 for never.
    """
    active = program.layout.active
    due = [start + np.flatnonzero(active[start:stop]) for start, stop in ranges]
    gone = ranges_of(np.concatenate(due).tolist()) if due else ()
    if not gone:
        return ()
    waiting = 1 + _drops_since_repos(program)
    return (Drop(gone), Repos()) if repos_every and waiting >= repos_every else (Drop(gone),)


def _drops_since_repos(program: CacheProgram) -> int:
    count = 0
    for op in reversed(program.ops):
        if isinstance(op, Repos):
            break
        count += isinstance(op, Drop)
    return count


def _last_read(messages: Sequence[MessageSpan]) -> int:
    return max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)


def _all_but(places: list[int], keep: int, *, unread: int) -> list[int]:
    return places[: max(0, len(places) - max(keep, unread))]
