"""The agent whose model runs here: its conversation is a cache program, its calls stand under a grammar."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.call_word import Weigher
from nexus_lab.agent.calling import CallWriter, tool_block
from nexus_lab.agent.conversation import Conversation
from nexus_lab.agent.loop import SYSTEM_PROMPT, TurnLoop
from nexus_lab.agent.problems import ConversationFull
from nexus_lab.agent.sidecar import Sidecar
from nexus_lab.agent.splicing import Splicer
from nexus_lab.agent.transcript import join_tokens
from nexus_lab.cache import Append, FunctionPolicy, SequencePool, SnapshotStore, make_policy
from nexus_lab.engine import ContextFull, EngineClosed, SamplerSettings, StopReason
from nexus_lab.errors import Cancelled, NexusError
from nexus_lab.splice import BlockLibrary, LibraryBlocks, typical_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexus_lab.agent.base import Observer
    from nexus_lab.agent.conversation import Mark
    from nexus_lab.agent.loop import Approve, AskBefore
    from nexus_lab.agent.rows import FidelityRow
    from nexus_lab.agent.sidecar import SidecarResult
    from nexus_lab.agent.splicing import Spliced
    from nexus_lab.agent.turn import StageClock, Turn
    from nexus_lab.cache import Policy, SnapshotDisk
    from nexus_lab.engine import Engine, Generation
    from nexus_lab.registry import Toolbox, ToolSpec
    from nexus_lab.routing import Router, RoutingDecision
    from nexus_lab.settings import Profile
    from nexus_lab.splice import BlockContext

__all__ = ["Agent"]

_LOG = logging.getLogger(__name__)

_RESULT_SHARE = 4
_RESULT_TOKENS = 512


class Agent(TurnLoop):
    """Runs turns on one engine, over the tools of running servers.

    A turn that fails or is stopped leaves no trace in the context: the conversation goes on as if it had
    not been asked.

    Parameters
    ----------
    engine
        Runs the model.
    tools
        Running servers and their registry, as `nexus_lab.registry.connect` returns them.
    router
        Chooses the tool; ``None`` makes one over the toolbox's registry.
    profile
        The settings; can be changed between turns.
    observers
        Hear every event, for example a `nexus_lab.trace.SessionRecorder`.
    approve
        Asked before a tool runs, as `ask_before` says; ``None`` refuses those. Returns whether it may, or the
        arguments that it is to run with instead.
    ask_before
        ``writes``: a tool that is not marked read-only; ``every`` tool; or ``never``, which runs them all.
        Can be changed between turns.
    system
        System prompt.
    library
        Compiled blocks; ``None`` takes the model's own folder.
    disk
        Where the cache of finished conversations goes when memory is short, and when the agent is closed; a
        later agent begins with it. It stays the caller's to close.
    """

    def __init__(
        self,
        engine: Engine,
        tools: Toolbox,
        *,
        router: Router | None = None,
        profile: Profile | None = None,
        observers: Sequence[Observer] = (),
        approve: Approve | None = None,
        ask_before: AskBefore = "writes",
        system: str = SYSTEM_PROMPT,
        library: BlockLibrary | None = None,
        disk: SnapshotDisk | None = None,
    ) -> None:
        super().__init__(
            tools,
            router=router,
            profile=profile,
            observers=observers,
            approve=approve,
            ask_before=ask_before,
            system=system,
        )
        self.engine = engine
        self.library = library or BlockLibrary(engine)
        self._splicer = Splicer(engine, self.library, self.emitter)
        self._sidecar = Sidecar(engine, system=system, library=self.library, emitter=self.emitter)
        self._calls = CallWriter(engine, self.emitter, weigher=partial(Weigher.at, engine, self.emitter))
        self._store = SnapshotStore.for_engine(engine, disk=disk)
        self._pool = SequencePool(engine, tree=self._store.tree)
        self._conversation: Conversation | None = None
        self._policy_before: Policy | None = None
        self._holds, self._holding = False, threading.Lock()

    # -- conversations ------------------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation:
        """The conversation that the next turn continues; opened when there is none."""
        if self._conversation is None:
            conversation = Conversation(
                self.engine,
                system=self.system,
                emitter=self.emitter,
                policy=self._policy(),
                blocks=LibraryBlocks(self.library),
                pool=self._pool,
                store=self._store,
            )
            conversation.open()
            self._conversation = conversation
        return self._conversation

    @property
    def live(self) -> Conversation | None:
        """The conversation when there is one; opens none, so that any thread may look."""
        return self._conversation

    def _policy(self) -> Policy:
        profile = self.profile
        policy = make_policy(profile.policy, keep_last=profile.keep_responses, repos=profile.repos)
        if isinstance(policy, FunctionPolicy) and policy.edited_since(self._policy_before):
            note = f"{policy.where} has changed since it last ran; the cache policy is what it says now."
            self.emitter.point(EventKind.STEP, "policy edited", note=note)
        self._policy_before = policy
        return policy

    def return_to(self, mark: Mark, *, n_history: int, turn: int) -> None:
        """Take the conversation back to an earlier point of it, to go on from there under today's settings.

        Parameters
        ----------
        mark
            The point, as `Conversation.mark` gave it or with a longer program of the same messages.
        n_history
            Messages that routing knew of then.
        turn
            Number of the last turn before it; the next one follows on.

        Raises
        ------
        NexusError
            When the state cannot be brought about; the conversation then stays as it is.
        """
        conversation = self.conversation
        conversation.runner.goto(len(mark.program))  # stopped on the way, this leaves the timeline as it is
        conversation.rewind(mark)
        conversation.runner.run(mark.program)
        conversation.policy = self._policy()
        del self._history[n_history:]
        self._turns = turn

    def new_conversation(self, *, turn: int | None = None) -> None:
        """Forget the conversation; its system prompt stays warm for the next.

        Parameters
        ----------
        turn
            Number of the last turn before the next one; ``None`` goes on counting.
        """
        if self._conversation is not None:
            self._conversation.close()
            self._conversation = None
        self._history.clear()
        if turn is not None:
            self._turns = turn

    def compile_block(self, tool: str, *, schema_mode: str = "full") -> int:
        """Compile the block of `tool` behind the system prompt now; returns its length in tokens.

        Raises
        ------
        ToolNotFound, CompileError, SpliceUnavailable
            When there is no such tool, or it cannot be compiled.
        """
        text = tool_block(self.tools.registry[tool], schema_mode)
        opening, block = self.conversation.transcript.preview(text)
        context = self._context() + opening
        with self.engine.turn():  # in which the live cells stay what they are
            self.library.get_or_compile(block, context, live=self.conversation.sequence_behind(context))
        return len(block)

    def _try_candidates(self, decision: RoutingDecision) -> tuple[RoutingDecision, SidecarResult | None]:
        mode = self.profile.schema_mode
        return self._sidecar.route(decision, self.tools.registry, self._history, schema_mode=mode)

    @cached_property
    def _typical(self) -> BlockContext:
        return typical_context(self.engine, system=self.system)

    def _context(self) -> tuple[int, ...]:
        """Tokens of the system prompt, which blocks are compiled behind."""
        first = self.conversation.messages[:1]
        return self.conversation.tokens[: first[0].stop if first and first[0].role == "system" else 0]

    def persist(self) -> int:
        """Write the states that conversations ended in to disk, where there is one; returns how many.

        Runs nothing, so that it can be called when the process ends, and the engine takes no work any more.
        """
        return self._store.persist()

    def close(self) -> None:
        """Give the sequences back, warm ones included. Engine and servers stay as they are.

        Harmless when the engine has been closed before.
        """
        self.new_conversation()
        with suppress(EngineClosed), self.engine.turn():
            self._store.persist()
            self._pool.close()

    # -- the turn -----------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        # Somebody else's turn may hold the engine, while this one waits for it.
        with self._holding:
            if self._holds:
                self.engine.cancel()

    @property
    def _works(self) -> bool:
        return self._holds

    @contextmanager
    def _begun(self, turn: Turn) -> Iterator[None]:
        begun = self._conversation is not None and len(self._conversation.messages) > 1
        try:
            if self._conversation is not None:
                with self._working():
                    self._conversation.rejoin()
            with self._undone_on_failure(), self._working():
                self._continue(turn)
                yield
        except ContextFull as error:
            raise ConversationFull(error, self.engine.n_ctx, begun=begun) from error

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Hold the engine for the block, and be the one that a stop ends."""
        with self.engine.turn():
            with self._holding:
                self._holds = True
            try:
                self._check_stopped()
                yield
            finally:
                with self._holding:
                    self._holds = False

    def _continue(self, turn: Turn) -> None:
        """Go on with the conversation; one that is opened may begin with warm tokens."""
        opened = self._conversation is None
        self.conversation.policy = self._policy()
        if opened:
            turn.reused_tokens += self.conversation.reused

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        """Take back what the block did to the conversation, when it fails; one that it opened is closed.

        Stands outside the engine's turn, since a stopped turn refuses to decode until it is left.
        """
        before = self._conversation
        mark = before.mark() if before is not None else None
        try:
            yield
        except BaseException:
            try:
                if before is None or mark is None:
                    self.new_conversation()
                else:
                    before.rewind(mark)
            except (NexusError, KeyboardInterrupt):
                _LOG.warning("the conversation could not be rewound, and starts anew")
                self.new_conversation()
            raise

    def _hear_request(self, turn: Turn, clock: StageClock) -> None:
        conversation = self.conversation
        with clock.stage("prefill"):
            conversation.append(
                "user", conversation.transcript.user(turn.request), on_progress=self._on_progress
            )

    def _call(self, turn: Turn, spec: ToolSpec, clock: StageClock) -> None:
        """Bring the tool into the context and let the model write its call."""
        conversation, start = self.conversation, self.conversation.n_tokens
        text = tool_block(spec, self.profile.schema_mode)
        pieces = conversation.transcript.user(text, turn.request)
        began, spliced, block_at = clock.elapsed(), None, start
        with clock.stage("prefill"):
            if self.profile.schema_mode.startswith("splice"):
                *opening, block, request = pieces
                context, pieces = self._context() + join_tokens(opening), [request]
                if opening:
                    conversation.step(Append(join_tokens(opening)), note="system")
                block_at = conversation.n_tokens
                spliced = self._splicer.enter(
                    conversation,
                    block.tokens,
                    context=context,
                    typical=lambda: self._typical,
                    tool=spec.name,
                    profile=self.profile,
                )
                turn.reused_tokens += spliced.reused
            conversation.append("user", pieces, before=start, on_progress=self._on_progress)
        if spliced is None:
            self._write_call(turn, spec, clock)
            return
        spliced = replace(spliced, row=replace(spliced.row, ttft_s=clock.elapsed() - began))
        prompt_at, reply_at = block_at + len(spliced.tokens), conversation.n_tokens

        def measure() -> None:
            prompt = conversation.tokens[prompt_at:reply_at]
            turn.splice = self._measured(spliced, prompt, conversation.tokens[reply_at:], clock)

        try:
            self._write_call(turn, spec, clock)
        except Cancelled:
            raise
        except NexusError:
            # What the splice cost and kept does not depend on whether the call is any good.
            measure()
            raise
        measure()

    def _write_call(self, turn: Turn, spec: ToolSpec, clock: StageClock) -> None:
        with clock.stage("arguments"):
            began = clock.elapsed()
            written = self._calls.write(
                self.conversation,
                spec,
                self.profile,
                request=turn.request,
                history=self._history,
                on_token=self._on_call,
            )
            turn.ttft_s = began + written.ttft_s
            turn.generated_tokens += written.n_generated
            turn.arguments, turn.violations = written.arguments, written.violations
            turn.weighed = written.weighed
            if written.weighed_ms is not None:
                turn.times_ms["weighing"] = written.weighed_ms
        if written.problem is not None:
            raise written.problem

    def _measured(
        self, spliced: Spliced, prompt: tuple[int, ...], reply: tuple[int, ...], clock: StageClock
    ) -> FidelityRow:
        """Return what the splice cost and, with the shadow switch on and a reply to read, what it kept."""
        if self.profile.shadow and reply:
            with clock.stage("shadow"):
                return self._splicer.shadow(self.conversation, spliced, prompt, reply)
        self.emitter.point(EventKind.FIDELITY, "splice", spliced.row)
        return spliced.row

    def _hear_result(self, turn: Turn, text: str, clock: StageClock) -> None:  # noqa: ARG002
        conversation = self.conversation
        with clock.stage("result"):
            conversation.append("tool", conversation.transcript.tool(text), on_progress=self._on_progress)

    def _shortened(self, text: str) -> str:
        """Cut a result so that it takes at most a quarter of the context."""
        limit = min(_RESULT_TOKENS, self.engine.n_ctx // _RESULT_SHARE)
        tokens = self.engine.tokenize(text, special=False)
        if len(tokens) <= limit:
            return text
        kept = self.engine.detokenize(tokens[:limit])
        return f"{kept}\n[cut: {len(tokens) - limit} more tokens]"

    def _reply(self, turn: Turn, clock: StageClock, on_token: Callable[[str], None] | None) -> str:
        with clock.stage("answer"):
            began = clock.elapsed()
            generation = self._generate(on_token)
            if turn.ttft_s is None:
                turn.ttft_s = began + generation.ttft_s
            turn.generated_tokens += len(generation.tokens)
            turn.answer_cut = generation.stop_reason is StopReason.MAX_TOKENS
            self.conversation.close_reply(generation.text)
        return generation.text.strip()

    def _generate(self, on_token: Callable[[str], None] | None) -> Generation:
        profile = self.profile
        return self.conversation.generate(
            max_tokens=profile.answer_tokens,
            note="answer",
            sampler=SamplerSettings(temperature=profile.temperature, seed=profile.seed),
            on_token=on_token,
        )

    def _settle(self, turn: Turn) -> None:
        self.conversation.tidy()
        turn.prompt_tokens = int(self.conversation.runner.snapshot.state.active.sum())
