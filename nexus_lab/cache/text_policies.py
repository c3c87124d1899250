"""Policies that edit the text of a conversation: what follows the first change has to be prefilled anew.

They are what cache engineering is compared with, and the way to forget for good: a drop leaves behind what
the dropped tokens already did to later rows, a prefill of the edited text does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.cache.base import Edit, TextMessage
from nexus_lab.cache.policies import RollingDropPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.cache.base import MessageSpan, Moment

__all__ = ["SUMMARY", "TRIMMED", "SummarisePolicy", "TrimPolicy"]

TRIMMED = "[trimmed]"
"""What stands in the place of a trimmed tool response."""
SUMMARY = "Summary of the conversation so far:\n"
"""How the message that holds a summary begins."""

_ASK = (
    "Summarise the conversation so far for yourself, so that you can go on without it: who the user is, what "
    "they want, every identifier, name, number and date that matters, what was done, and what is left to do. "
    "Answer with the summary only."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPolicy:
    """Replace the text of all but the last tool responses by a stub.

    Attributes
    ----------
    keep_last
        Tool responses that stay.
    min_tokens
        Responses of fewer tokens stay.
    """

    keep_last: int = 2
    min_tokens: int = 0

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "trim"

    def decide(self, moment: Moment) -> Edit:
        """Return the texts with the stubs that are due; nothing when all are there."""
        messages = moment.messages
        drops = RollingDropPolicy(keep_last=self.keep_last, min_tokens=self.min_tokens)
        gone = set(drops.responses_due(messages))
        texts = _unchanged(messages)
        for i in gone:
            texts[i] = TextMessage("tool", TRIMMED, source=i)
        changed = any(text.text != message.text for text, message in zip(texts, messages, strict=True))
        return Edit(texts=tuple(texts)) if changed else Edit()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarisePolicy:
    """Let the model summarise all but the last messages once too many tokens are active.

    Attributes
    ----------
    above
        Active tokens from which on it acts.
    keep_last
        Messages that stay as they are; more where a tool response would lose its call.
    max_tokens
        Longest summary.
    """

    above: int = 3072
    keep_last: int = 4
    max_tokens: int = 160

    @property
    def name(self) -> str:
        """Name in settings and results."""
        return "summarise"

    def decide(self, moment: Moment) -> Edit:
        """Return system prompt, summary and last messages when it is time."""
        messages = moment.messages
        head = int(bool(messages) and messages[0].role == "system")
        tail = _tail(messages, self.keep_last)
        if moment.host is None or moment.state.n_active <= self.above or tail <= head + 1:
            return Edit()
        with moment.host.aside() as aside:
            aside.say(_ASK)
            summary = aside.answer(max_tokens=self.max_tokens).strip()
        texts = _unchanged(messages)
        said = TextMessage("user", SUMMARY + summary)
        return Edit(texts=(*texts[:head], said, *texts[tail:]))


def _unchanged(messages: Sequence[MessageSpan]) -> list[TextMessage]:
    return [TextMessage(message.role, message.text, source=i) for i, message in enumerate(messages)]


def _tail(messages: Sequence[MessageSpan], keep: int) -> int:
    """Return where the last `keep` messages begin, moved forward to the call that a response answers."""
    start = max(0, len(messages) - keep)
    while start > 0 and messages[start].role == "tool":
        start -= 1
    return start
