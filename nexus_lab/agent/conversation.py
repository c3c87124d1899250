"""A conversation as a live cache program: messages in, operations and tokens out, every step told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.rows import OpKind, OpRow
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.cache import Append, MessageSpan, ProgramRunner, Splice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.transcript import Piece
    from nexus_lab.cache import (
        BlockSource,
        CacheOp,
        CacheProgram,
        OpRecord,
        Policy,
        RunResult,
        SequencePool,
        SnapshotStore,
    )
    from nexus_lab.engine import Engine, Generation

__all__ = ["Conversation", "Mark"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the conversation that one can come back to."""

    program: CacheProgram
    transcript: tuple[int, int, str]
    messages: int


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
    ) -> None:
        self._engine = engine
        self._emitter = emitter
        self.policy = policy
        self.transcript = Transcript(engine, system=system)
        self.runner = ProgramRunner(engine, blocks=blocks, on_op=self._tell_op, pool=pool, store=store)
        self.messages: list[MessageSpan] = []
        self.reused = 0
        self._note = ""
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
            self.messages.append(MessageSpan("system", 0, self.n_tokens))

    @property
    def n_tokens(self) -> int:
        """Logical tokens so far, dropped ones included."""
        return len(self.runner.snapshot.state)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Logical tokens so far."""
        return tuple(self.runner.snapshot.state.tokens.tolist())

    @property
    def is_plain(self) -> bool:
        """Whether every token was computed behind all those before it, and none is dropped."""
        return self.runner.program.plain_tokens() == self.tokens

    def append(
        self,
        role: str,
        pieces: Sequence[Piece],
        *,
        before: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> RunResult:
        """Prefill a message and what opens the reply behind it, as one append.

        Parameters
        ----------
        before
            First logical token of the message, where part of it is in the cache already.
        """
        start = self.n_tokens if before is None else before
        tokens = join_tokens(pieces)
        header = join_tokens(self.transcript.open_reply())
        with self._emitter.span(EventKind.PREFILL, role, tokens=len(tokens) + len(header)):
            result = self.step(Append(tokens + header), note=role, on_progress=on_progress)
        self.messages.append(MessageSpan(role, start, self.n_tokens - len(header)))
        return result

    def close_reply(self, text: str) -> None:
        """Close the assistant's reply; its message spans what opened it, what was generated, and this."""
        self.step(Append(join_tokens(self.transcript.close_reply(text))), note="assistant")
        self.messages.append(MessageSpan("assistant", self.messages[-1].stop, self.n_tokens))

    def end_turn(self) -> None:
        """Let the policy decide what leaves the cache."""
        ops = self.policy.next_ops(tuple(self.messages), self.runner.snapshot.state)
        if ops:
            self.step(*ops, note=f"policy {self.policy.name}")

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
        return Mark(self.runner.program, self.transcript.mark(), len(self.messages))

    def rewind(self, mark: Mark) -> None:
        """Undo everything since `mark`, in the cache as well."""
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
            note=self._note,
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
