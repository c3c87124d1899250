"""A conversation as a live cache program: messages in, operations and tokens out, every step told."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.aside import ModelAside
from nexus_lab.agent.base import EventKind
from nexus_lab.agent.rows import OpKind, OpRow
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.cache import (
    Append,
    CacheProgram,
    MessageSpan,
    Moment,
    ProgramError,
    ProgramRunner,
    Repair,
    Splice,
)
from nexus_lab.cache.compaction import compact, compaction_pays
from nexus_lab.engine import ContextFull
from nexus_lab.errors import Cancelled, Decline, NexusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.transcript import Piece
    from nexus_lab.cache import (
        BlockSource,
        CacheOp,
        OpRecord,
        Policy,
        RunResult,
        SequencePool,
        SnapshotStore,
        TextMessage,
    )
    from nexus_lab.cache.ops import Range
    from nexus_lab.engine import Engine, Generation

__all__ = ["Conversation", "Mark", "op_note"]

_LOG = logging.getLogger(__name__)
_THOUGHT_ENDS = "</think>"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the conversation that one can come back to."""

    program: CacheProgram
    transcript: tuple[int, int, str]
    messages: int
    before: tuple[Transcript, tuple[MessageSpan, ...]] | None = None


def op_note(op: CacheOp, note: str) -> str:
    """Return the note of an operation's row, in which a repair that carries always says so."""
    if not (isinstance(op, Repair) and op.carry) or "carried" in note:
        return note
    return f"{note}, carried repair" if note else "carried repair"


class Conversation:
    """Messages on one sequence of the engine.

    Parameters
    ----------
    engine
        Runs the model.
    system
        System prompt.
    emitter
        Hears of every operation.
    policy
        Decides what is dropped between turns.
    blocks
        Where splices find compiled blocks.
    pool, store
        Sequences and snapshots, shared between the conversations of an engine.
    runner
        Executes the operations in place of a runner of the conversation's own, such as one that only counts.

    Attributes
    ----------
    runner
        Executes the operations; one can step back and forth with it between turns.
    messages
        Which logical tokens each message occupies, in order.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        system: str,
        emitter: Emitter,
        policy: Policy,
        blocks: BlockSource | None = None,
        pool: SequencePool | None = None,
        store: SnapshotStore | None = None,
        runner: ProgramRunner | None = None,
    ) -> None:
        self._engine = engine
        self._emitter = emitter
        self.policy = policy
        self.transcript = Transcript(engine, system=system)
        self.runner = runner or ProgramRunner(
            engine, blocks=blocks, on_op=self._tell_op, pool=pool, store=store
        )
        self.messages: list[MessageSpan] = []
        self.reused = 0
        self._note = ""
        self._beside = ""
        self._anchored: bool | None = None

    def open(self) -> None:
        """Bring the system prompt about, from a warm sequence where one begins with it."""
        tokens = join_tokens(self.transcript.open())
        if tokens:
            self._note = "system"
            with self._emitter.span(EventKind.PREFILL, "system prompt", tokens=len(tokens)) as span:
                result = self.runner.run(self.runner.program.then(Append(tokens)))
                self.reused = result.start.tokens
                span.set(reused=self.reused, start=result.start.kind.value)
            self.messages.append(MessageSpan("system", 0, self.n_tokens, self.transcript.text(0)))

    @property
    def n_tokens(self) -> int:
        """Logical tokens so far, dropped ones included."""
        return len(self.runner.snapshot.state)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Logical tokens so far."""
        return tuple(self.runner.snapshot.state.tokens.tolist())

    @property
    def stopped(self) -> bool:
        """Whether the turn that runs was asked to stop; a policy of the user's is ended then."""
        return self._engine.cancelled

    @property
    def is_plain(self) -> bool:
        """Whether every token was computed behind all those before it, and none is dropped."""
        return self.runner.program.plain_tokens() == self.tokens

    def sequence_behind(self, tokens: tuple[int, ...]) -> int | None:
        """Return the sequence, where its first cells are those of `tokens` and computed as a prefill does."""
        return self.runner.seq if self.is_plain and self.tokens[: len(tokens)] == tokens else None

    def append(
        self,
        role: str,
        pieces: Sequence[Piece],
        *,
        before: int | None = None,
        reply: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> RunResult:
        """Prefill a message and what opens the reply behind it, as one append.

        Parameters
        ----------
        before
            First logical token of the message, where part of it is in the cache already.
        reply
            ``False`` leaves the reply to be opened later, with `open_reply`.
        """
        start = self.n_tokens if before is None else before
        tokens, text = join_tokens(pieces), self.transcript.text(-1)
        header = join_tokens(self.transcript.open_reply()) if reply else ()
        with self._emitter.span(EventKind.PREFILL, role, tokens=len(tokens) + len(header)):
            result = self.step(Append(tokens + header), note=role, on_progress=on_progress)
        self.messages.append(MessageSpan(role, start, self.n_tokens - len(header), text))
        return result

    def open_reply(self) -> None:
        """Prefill what opens the assistant's reply."""
        self.step(Append(join_tokens(self.transcript.open_reply())), note="reply opened")

    def close_reply(self, text: str, *, calls: bool = False) -> None:
        """Close the assistant's reply; its message spans what opened it, what was generated, and this.

        Parameters
        ----------
        text
            What the assistant said; thinking in it ends with ``</think>``.
        calls
            Whether that is a tool call.
        """
        self.step(Append(join_tokens(self.transcript.close_reply(text))), note="assistant")
        start = self.messages[-1].stop
        self.messages.append(
            MessageSpan("assistant", start, self.n_tokens, text, calls, self._thought(start, text))
        )

    def _thought(self, start: int, text: str) -> tuple[int, int] | None:
        """Return the logical range up to the end of the thinking in the newest message; None without any."""
        if _THOUGHT_ENDS not in text:
            return None
        tokens = self.tokens[start:]
        for count in range(1, len(tokens) + 1):
            if _THOUGHT_ENDS in self._engine.detokenize(tokens[:count]):
                return start, start + count
        return None

    def force(self, text: str, *, thought: str = "", calls: bool = False) -> NDArray[np.float32]:
        """Put a reply that is known into the cache, opened before, in one prefill.

        Parameters
        ----------
        text
            What the assistant says; begins with `thought`.
        thought
            The part of it that is thinking, or prose beside a call.

        Returns
        -------
        float32 [n + 1, n_vocab]
            Logits before each token of the reply, its closing markup included, and behind the last.
        """
        start, first = self.messages[-1].stop, self.n_tokens
        parts = (thought, text[len(thought) :])
        said = [self._engine.tokenize(part, special=False) if part else [] for part in parts]
        closing = join_tokens(self.transcript.close_reply(text))
        self._note = "assistant"
        with self._emitter.span(EventKind.PREFILL, "assistant"):
            logits, _ = self.runner.force((*said[0], *said[1], *closing))
        thinking = (first, first + len(said[0])) if said[0] else None
        self.messages.append(MessageSpan("assistant", start, self.n_tokens, text, calls, thinking))
        return logits

    def tidy(self) -> Decline | None:
        """Apply the policy; where it fails the conversation stays as it was, and the record says so.

        A tool that has run cannot be taken back, so that the model has to know of it however its cache is
        tidied behind it.
        """
        mark = self.mark()
        try:
            self.apply_policy()
        except Cancelled:
            raise
        except NexusError as error:
            _LOG.warning("the cache policy %s was not applied: %s", self.policy.name, error)
            self.rewind(mark)
            decline = Decline(
                code="policy_failed",
                reason=f"the cache policy {self.policy.name} failed with {type(error).__name__}",
                instead="the cache stays as it is",
            )
            self._emitter.decline("policy", decline, contents={"error": str(error)})
            return decline
        return None

    def apply_policy(self) -> None:
        """Let the policy decide what becomes of the cache; stands between two messages.

        Raises
        ------
        NexusError
            When the policy fails, or what it wants cannot be done; it may have been done in part.
        """
        edit = self.policy.decide(
            Moment(messages=tuple(self.messages), program=self.runner.program, host=self)
        )
        if edit.texts is not None:
            self.rewrite(edit.texts)
        if edit.ops:
            self.step(*edit.ops, note=f"policy {self.policy.name}")
            self._compact()

    def _compact(self) -> None:
        """Move the rows into the holes of a drop, where what is no longer scanned is worth it."""
        if not isinstance(self.runner, ProgramRunner):
            return
        used, rows = self._engine.used_cells(), self.runner.snapshot.state.n_active
        if compaction_pays(scanned=self._engine.scanned_cells(), used=used, rows=rows):
            with suppress(ContextFull):
                compact(self._engine, self.runner)

    @contextmanager
    def aside(self) -> Iterator[ModelAside]:
        """Let the model be asked something that is no part of the conversation, and leaves nothing behind.

        The notes of its operations begin as those of the policy do.
        """
        mark, beside = self.mark(), self._beside
        self._beside = f"policy {self.policy.name}: "
        try:
            yield ModelAside(self, self._engine)
        finally:
            try:
                self.rewind(mark)
            finally:
                self._beside = beside

    def rewrite(self, texts: Sequence[TextMessage]) -> RunResult:
        """Let the conversation stand as `texts`, and prefill what follows the first change.

        Nothing that was dropped before is in the cache afterwards, nor what it did to later rows.

        Raises
        ------
        ProgramError
            When a text names a source that is no message; nothing has changed then.
        """
        transcript, tokens = self.transcript.restarted(), list[int]()
        spans: list[MessageSpan] = []
        for item in texts:
            start, was, thought = len(tokens), self._source(item), None
            rendered = join_tokens(transcript.message(item.role, item.text))
            if was is not None and was.text == item.text:
                # What was generated need not be what its text tokenises to.
                kept, thought = self._still_active(was, start)
                tokens += kept
            else:
                tokens += rendered
            calls = was is not None and was.calls
            spans.append(MessageSpan(item.role, start, len(tokens), item.text, calls, thought))
        self._note = f"policy {self.policy.name}"
        with self._emitter.span(EventKind.PREFILL, "rewritten", tokens=len(tokens)) as span:
            result = self.runner.run(CacheProgram((Append(tuple(tokens)),)))
            span.set(reused=result.start.tokens)
        self.transcript, self.messages = transcript, spans
        return result

    def _still_active(self, was: MessageSpan, start: int) -> tuple[list[int], Range | None]:
        """Return the active tokens of a message, and the range of its thinking once they begin at `start`."""
        state = self.runner.snapshot.state
        active = state.active[was.start : was.stop]
        kept = state.tokens[was.start : was.stop][active].tolist()
        if was.thought is None:
            return kept, None
        first, last = (start + int(active[: at - was.start].sum()) for at in was.thought)
        return kept, (first, last) if first < last else None

    def _source(self, item: TextMessage) -> MessageSpan | None:
        """Return the message that a text is, or edits."""
        if item.source is None:
            return None
        if item.source not in range(len(self.messages)):
            raise ProgramError(
                f"a text has the source {item.source!r}, and there are {len(self.messages)} messages",
                next_step="name the place of a message, from 0, or None for a new one",
            )
        return self.messages[item.source]

    def step(
        self,
        *ops: CacheOp,
        note: str,
        anchored: bool | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> RunResult:
        """Execute operations at the cursor.

        Parameters
        ----------
        note
            A few words for the record.
        anchored
            Of a splice: whether the block stands behind the tokens it was compiled behind.
        """
        self._note, self._anchored = note, anchored
        return self.runner.step(*ops, on_progress=on_progress)

    def generate(self, *, max_tokens: int, note: str, **options: Any) -> Generation:
        """Generate at the cursor; what came is an append of the program."""
        self._note = note
        with self._emitter.span(EventKind.GENERATE, note, max_tokens=max_tokens) as span:
            generation, _ = self.runner.generate(max_tokens=max_tokens, **options)
            span.set(
                tokens=len(generation.tokens),
                stop_reason=generation.stop_reason.value,
                ttft_s=generation.ttft_s,
                decode_s=generation.decode_s,
            )
            span.set_contents(text=generation.text)
            return generation

    def mark(self) -> Mark:
        """Return a mark to come back to with :meth:`rewind`."""
        held = (self.transcript, tuple(self.messages))
        return Mark(self.runner.program, self.transcript.mark(), len(self.messages), held)

    def rewind(self, mark: Mark) -> None:
        """Undo everything since `mark`, in the cache as well; also where the text was rewritten since."""
        if mark.before is not None and mark.before[0] is not self.transcript:
            self.transcript, self.messages = mark.before[0], list(mark.before[1])
        self.transcript.rewind(mark.transcript)
        del self.messages[mark.messages :]
        if self.runner.program != mark.program:
            self._note = "rewind"
            self.runner.run(mark.program)

    def rejoin(self) -> None:
        """Return to the newest operation, where somebody had stepped back to look at an earlier one."""
        runner = self.runner
        if runner.cursor < len(runner.timeline):
            self._note = "return"
            runner.goto(len(runner.timeline))

    def close(self) -> None:
        """Give the sequence back; its plain prefix stays warm for other conversations."""
        self.runner.close()

    def _tell_op(self, record: OpRecord) -> None:
        op = record.executed or record.op
        splice = op if isinstance(op, Splice) else None
        row = OpRow(
            op=OpKind(op.kind.value),
            state_id=record.state_id,
            parent_state_id=record.parent_id,
            tokens=record.tokens,
            ranges=record.ranges,
            positions=record.positions,
            active_tokens=int(record.state.active.sum()),
            logical_tokens=len(record.state),
            next_position=record.state.next_position,
            block=splice.block_id if splice else None,
            anchored=self._anchored if splice else None,
            note=op_note(op, self._beside + self._note),
            token_ids=op.tokens if isinstance(op, Append | Splice) else None,
        )
        self._emitter.point(
            EventKind.CACHE_OP,
            row.op.value,
            row,
            duration_ns=round(record.seconds * 1e9),
            tokens=record.tokens,
            reused=record.reused,
            cells_used=record.cells_used,
            snapshot_ms=record.snapshot_seconds * 1e3,
        )
        if record.declined is not None:
            self._emitter.decline(record.kind.value, record.declined)
