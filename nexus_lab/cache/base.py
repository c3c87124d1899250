"""Contracts of the cache room: what it needs from others, and the records it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.cache.ops import CacheOp, OpKind, Range
    from nexus_lab.cache.program import CacheProgram
    from nexus_lab.cache.state import CacheState
    from nexus_lab.engine import SequenceState
    from nexus_lab.errors import Decline

__all__ = [
    "Aside",
    "BatchSchedule",
    "BlockSource",
    "DecodeBatch",
    "DecodeKind",
    "Edit",
    "MessageSpan",
    "Moment",
    "OpRecord",
    "Policy",
    "PolicyHost",
    "Restored",
    "RunResult",
    "RunnerError",
    "Start",
    "StartKind",
    "TextMessage",
]


class RunnerError(NexusError):
    """The runner was asked for something it has no state for."""


@runtime_checkable
class BlockSource(Protocol):
    """Where a splice finds its rows."""

    def tokens(self, block_id: str) -> Sequence[int]:
        """Return the token ids of the block.

        Raises
        ------
        NexusError
            When there is no such block, or it does not fit the running model; the runner then prefills.
        """
        ...

    def state_at(self, block_id: str, position: int) -> SequenceState:
        """Return the rows of the block, rotated once from where it was compiled to start at `position`."""
        ...


class DecodeKind(Enum):
    """How rows came to be computed."""

    PREFILL = "prefill"
    GENERATE = "generate"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Tokens that went through the model in one call, or one after another in a generation.

    Attributes
    ----------
    kind
        Why they were computed; ``GENERATE`` is a call per token.
    start
        Logical index of the first.
    count
        Number of tokens.
    """

    kind: DecodeKind
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """How the tokens of a state were batched; apart from the program, since it moves only the last bits.

    Attributes
    ----------
    batches
        Calls to the model in order.
    """

    batches: tuple[DecodeBatch, ...] = ()

    def then(self, kind: DecodeKind, start: int, count: int) -> BatchSchedule:
        """Return the schedule followed by one batch."""
        return BatchSchedule((*self.batches, DecodeBatch(kind, start, count)))

    def first(self, n_tokens: int) -> BatchSchedule:
        """Return the batches that computed the first `n_tokens` logical tokens.

        The last of them may be cut. It went through the model with more tokens than it says here, so that
        repeating the result gives the same rows but for their last bits.
        """
        kept = (
            DecodeBatch(batch.kind, batch.start, min(batch.count, n_tokens - batch.start))
            for batch in self.batches
            if batch.start < n_tokens
        )
        return BatchSchedule(tuple(kept))

    def cuts(self, start: int, stop: int) -> tuple[int, ...]:
        """Return `start`, `stop`, and the logical indices between them where a forward batch began."""
        inner = {
            index
            for batch in self.batches
            if batch.kind is not DecodeKind.REPAIR
            for index in range(batch.start, batch.start + (batch.kind is DecodeKind.PREFILL or batch.count))
        }
        return (start, *sorted(index for index in inner if start < index < stop), stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One executed operation, for traces and views; immutable.

    Attributes
    ----------
    index
        Number of operations before it in the executed program.
    op
        The operation that was asked for.
    executed
        What ran in its place; None when it was declined without a replacement. Equal to `op` unless
        `declined` says otherwise.
    state_id, parent_id
        Program ids after and before.
    state
        The state after it.
    ranges
        Logical half-open ranges that it touched: appended, spliced, recomputed, dropped, or moved.
    positions
        Half-open ranges of the positions these tokens have afterwards; empty for a drop.
    tokens
        Number of tokens in `ranges`.
    reused
        How many of them were copied from another sequence instead of computed.
    rotations
        Most often that a moved row has been rounded by a rotation since it was computed; 0 when none moved.
    seconds
        Wall time of the operation.
    snapshot_seconds
        Wall time spent on keeping a snapshot of it, not part of `seconds`.
    cells_used
        Cells in use in the whole context afterwards, all sequences together.
    declined
        Why the operation was not done as asked.
    snapshot_declined
        Why its state was not kept; stepping back to it computes again.
    """

    index: int
    op: CacheOp
    executed: CacheOp | None
    state_id: str
    parent_id: str
    state: CacheState
    ranges: tuple[Range, ...]
    positions: tuple[Range, ...]
    tokens: int
    reused: int = 0
    rotations: int = 0
    seconds: float
    snapshot_seconds: float = 0.0
    cells_used: int
    declined: Decline | None = None
    snapshot_declined: Decline | None = None

    @property
    def kind(self) -> OpKind:
        """The kind of operation that was asked for."""
        return self.op.kind


class StartKind(Enum):
    """What a run continued from."""

    LIVE = "live"
    SNAPSHOT = "snapshot"
    SLOT = "slot"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run began, so that only the rest had to be executed.

    Attributes
    ----------
    kind
        The live sequence, a snapshot, another sequence with the same leading tokens, or nothing.
    tokens
        Logical tokens that were there already.
    program_id
        Id of the program that led to them.
    seconds
        Wall time of bringing that state onto the sequence.
    """

    kind: StartKind
    tokens: int
    program_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Restored:
    """How missing state was computed again at once.

    Attributes
    ----------
    passes
        Prefills that took several operations each.
    tokens
        Tokens they computed, those included that had been dropped at the end.
    declined
        Why some operations had to be done one by one all the same.
    """

    passes: int = 0
    tokens: int = 0
    declined: Decline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run left behind.

    Attributes
    ----------
    seq
        Engine sequence that holds the state.
    program
        The program that was executed; it differs from the one asked for only where `declined` says so.
    state
        Its fold.
    logits
        float32[n_vocab] behind the newest token. None when that token was spliced or dropped, or nothing was
        computed yet; also when the state was reached by cutting off later tokens, no snapshot of it was kept,
        and the newest token could not be computed again (tokens were dropped since, or the turn was stopped).
    schedule
        How the tokens of the state were batched.
    start
        What the run continued from.
    records
        One record per operation executed by this run.
    seconds
        Wall time, snapshots included.
    restored
        Of a run at once, how it went.
    """

    seq: int
    program: CacheProgram
    state: CacheState
    logits: NDArray[np.float32] | None
    schedule: BatchSchedule
    start: Start
    records: tuple[OpRecord, ...]
    seconds: float
    restored: Restored | None = None

    @property
    def declined(self) -> tuple[Decline, ...]:
        """Declines of the operations of this run."""
        return tuple(record.declined for record in self.records if record.declined is not None)


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Which logical tokens a message of the conversation occupies.

    Attributes
    ----------
    role
        ``system``, ``user``, ``assistant`` or ``tool``.
    start, stop
        Half-open logical range, markup of the message included.
    text
        What it says, without markup.
    calls
        Whether the assistant called a tool in it.
    thought
        Logical range of the assistant's thinking in it, or of its prose beside a call; None without any.
    """

    role: str
    start: int
    stop: int
    text: str = ""
    calls: bool = False
    thought: Range | None = None


@dataclass(frozen=True, slots=True)
class TextMessage:
    """A message of a conversation whose text is edited.

    Attributes
    ----------
    source
        Which of the messages so far it was; None for a new one. With the text of its source it keeps those
        of the very tokens that are active, and its thinking stays known.
    """

    role: str
    text: str
    source: int | None = None


@runtime_checkable
class Aside(Protocol):
    """A word with the model beside the conversation: it sees the cache, and leaves nothing there."""

    def say(self, text: str) -> None:
        """Tell the model something, as a user would."""
        ...

    def answer(self, *, max_tokens: int, schema: Mapping[str, object] | None = None) -> str:
        """Let the model answer, under a JSON schema where one is given."""
        ...


@runtime_checkable
class PolicyHost(Protocol):
    """What a policy can ask of the conversation that it looks after."""

    def aside(self) -> AbstractContextManager[Aside]:
        """Open a word with the model; what it says is gone from the cache when the block ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a policy decides on: a point between two messages.

    Attributes
    ----------
    messages
        All messages so far, in order.
    program
        What led to the cache that holds them.
    host
        Gives the model a word; without one a policy that needs the model does nothing.
    """

    messages: tuple[MessageSpan, ...]
    program: CacheProgram
    host: PolicyHost | None = None

    @property
    def state(self) -> CacheState:
        """The state of the cache."""
        return self.program.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What a policy decided.

    Attributes
    ----------
    ops
        Operations to run now.
    texts
        The conversation as its text is to stand from now on; what follows the first change is prefilled anew,
        without anything that was dropped before: it is no part of the logical tokens any more. None leaves
        the text.
    """

    ops: tuple[CacheOp, ...] = ()
    texts: tuple[TextMessage, ...] | None = None


@runtime_checkable
class Policy(Protocol):
    """Decides what happens to the cache between messages."""

    @property
    def name(self) -> str:
        """Name under which settings and results know the policy."""
        ...

    def decide(self, moment: Moment) -> Edit:
        """Return what is to be done now; an empty edit for nothing."""
        ...
