"""How a turn goes, whoever writes: routed, filled in, allowed, called, and its result read out."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from nexus_lab.agent.ahead import DecisionsAhead
from nexus_lab.agent.base import Emitter, EventKind
from nexus_lab.agent.deadline import Deadline
from nexus_lab.agent.escalation import escalates, routing_row
from nexus_lab.agent.parts import parts_of
from nexus_lab.agent.problems import ApprovalRefused, TurnTooLong, refused, told, too_many
from nexus_lab.agent.rows import MessageRow
from nexus_lab.agent.turn import StageClock, Turn, TurnOutcome
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.registry import repair_text
from nexus_lab.routing import Router
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from nexus_lab.agent.base import Observer
    from nexus_lab.agent.sidecar import SidecarResult
    from nexus_lab.registry import Toolbox, ToolResult, ToolSpec
    from nexus_lab.routing import RoutingDecision

    Approve = Callable[[ToolSpec, Mapping[str, Any]], bool | Mapping[str, Any]]
    AskBefore = Literal["writes", "every", "never"]

__all__ = ["SYSTEM_PROMPT", "ApprovalRefused", "TurnLoop", "TurnTooLong"]

SYSTEM_PROMPT = "You turn a request into one tool call. Copy every value from the request."
"""Default system prompt; the shipped calibration of splices was measured behind it."""

_CANCEL_STEP_S = 0.05
_COUNTED = 64  # things that a request asks for, at most, where they are only counted


class TurnLoop(ABC):
    """Turns over the tools of running servers; who writes the calls and the answers is a subclass's matter.

    A turn that fails or is stopped leaves no trace in the conversation: it goes on as if it had not been
    asked.

    Parameters
    ----------
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
        arguments that it is to run with instead; may raise `ApprovalRefused` to say why not.
    ask_before
        ``writes``: a tool that is not marked read-only; ``every`` tool; or ``never``, which runs them all.
        Can be changed between turns.
    system
        System prompt.
    """

    def __init__(
        self,
        tools: Toolbox,
        *,
        router: Router | None = None,
        profile: Profile | None = None,
        observers: Sequence[Observer] = (),
        approve: Approve | None = None,
        ask_before: AskBefore = "writes",
        system: str = SYSTEM_PROMPT,
    ) -> None:
        self.tools = tools
        self.profile = profile or Profile()
        self.router = router or Router(tools.registry, tau=self.profile.tau, top_k=self.profile.top_k)
        self.emitter = Emitter(*observers)
        self.system = system
        self.ask_before: AskBefore = ask_before
        self._approve = approve
        self._turns = 0
        self._asking = self._stopped = False
        self._deadline = Deadline(None, self.stop)
        self._on_progress: Callable[[int, int], None] | None = None
        self._on_call: Callable[[str], None] | None = None
        self._history: list[dict[str, Any]] = []
        self._ahead = DecisionsAhead()
        self._running: ToolSpec | None = None
        self._declined: Decline | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- who writes ---------------------------------------------------------------------------------------

    @abstractmethod
    def _begun(self, turn: Turn) -> AbstractContextManager[None]:
        """Open the conversation for a turn; what fails inside leaves it as it was before."""

    @abstractmethod
    def _hear_request(self, turn: Turn, clock: StageClock) -> None:
        """Take in a request that no tool is called for."""

    @abstractmethod
    def _call(self, turn: Turn, spec: ToolSpec, clock: StageClock) -> None:
        """Take in the request with its tool and write the call, into the turn; raise when it is not fit."""

    @abstractmethod
    def _hear_result(self, turn: Turn, text: str, clock: StageClock) -> None:
        """Take in what the tool returned."""

    @abstractmethod
    def _reply(self, turn: Turn, clock: StageClock, on_token: Callable[[str], None] | None) -> str:
        """Write the answer to what was taken in last."""

    @abstractmethod
    def _shortened(self, text: str) -> str:
        """Cut a tool's result to what the context has room for, and say so in it."""

    @abstractmethod
    def _settle(self, turn: Turn) -> None:
        """Tidy up behind a turn that went well, and count its tokens."""

    @abstractmethod
    def _cancel(self) -> None:
        """Stop what is being written, from any thread."""

    def _try_candidates(self, decision: RoutingDecision) -> tuple[RoutingDecision, SidecarResult | None]:
        """Let the model confirm or change a close decision; declined where none runs here."""
        reason = "the calls are written elsewhere, where candidates cannot be tried"
        self.emitter.decline("sidecar", Decline("sidecar_no_engine", reason, "the router's order stands"))
        return decision, None

    def _facts(self) -> Mapping[str, Any]:
        """Return what the record of a turn says beside its settings."""
        return {}

    @abstractmethod
    def new_conversation(self, *, turn: int | None = None) -> None:
        """Forget the conversation.

        Parameters
        ----------
        turn
            Number of the last turn before the next one; ``None`` goes on counting.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the agent holds; servers stay as they are."""

    # -- the turn -----------------------------------------------------------------------------------------

    @property
    def history(self) -> tuple[Mapping[str, Any], ...]:
        """The messages of the conversation, as routing sees them."""
        return tuple(self._history)

    def stop(self) -> None:
        """Stop the running turn, from any thread: prefill, generation and tool calls.

        A turn that waits for the engine ends when it gets it; what holds the engine meanwhile is left alone,
        tool calls included.
        """
        stopping, self._stopped = self._stopped, self._asking
        self._cancel()
        self._cancel_tools()
        if self._stopped and not stopping:
            threading.Thread(target=self._keep_cancelling, args=(self._turns,), daemon=True).start()

    def _keep_cancelling(self, turn: int) -> None:
        """Cancel tool calls until `turn` has ended, since one may begin in the very moment of the stop."""
        while self._stopped and self._asking and self._turns == turn:
            self._cancel_tools()
            time.sleep(_CANCEL_STEP_S)

    def _cancel_tools(self) -> None:
        if self._works:
            self.tools.cancel()

    @property
    def _works(self) -> bool:
        """Whether a turn of this agent runs, and does not wait for another's."""
        return True

    def ask(
        self,
        request: str,
        *,
        on_token: Callable[[str], None] | None = None,
        on_call: Callable[[str], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        whole: bool = False,
    ) -> Turn:
        """Run one turn and return what came of it; blocks, and can be stopped or interrupted.

        Parameters
        ----------
        request
            What the user says.
        on_token
            Called with each piece of the answer as it comes.
        on_call
            Called with each piece of the tool call as it is written. A second attempt begins anew, behind the
            announcement of its ``arguments`` span.
        on_progress
            Called during each prefill with the tokens done and all tokens.
        on_turn
            Called with each turn but the last, once it has ended.
        whole
            Make one turn of the request, whatever it asks for.

        Returns
        -------
        Turn
            Failures are in its ``problem``; the turn is in the record either way. A request that asks for
            several things, one after the other, each of which a tool fits, is as many turns: the last that
            ran is returned, with those before it in ``earlier`` and what was not come to in ``left``.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C, after the turn has been undone and recorded.
        """
        self._on_progress, self._on_call = on_progress, on_call
        self._asking, self._stopped, self._declined = True, False, None
        done: list[Turn] = []
        try:
            request = repair_text(request)
            parts = (request,) if whole else self._parts(request)
            for part in parts:
                if done:
                    if on_turn is not None:
                        on_turn(done[-1])
                    if self._stopped:
                        break
                done.append(self._ask(part, on_token))
                if done[-1].problem is not None:
                    break
        finally:
            self._asking = False
            self._ahead.clear()
        done[-1].earlier, done[-1].left = tuple(done[:-1]), parts[len(done) :]
        return done[-1]

    def _parts(self, request: str) -> tuple[str, ...]:
        """Return what a request asks for, one after the other, where each is a tool's work; else itself."""
        most = self.profile.max_calls
        parts = parts_of(request, most=most)
        asked = parts_of(request, most=_COUNTED) if most > 1 and len(parts) == 1 else parts
        if len(asked) > most:
            self._declined = too_many(len(asked), most)
        try:
            if len(parts) > 1 and all(self._fits(part) for part in parts):
                return parts
        except NexusError:  # the turn will say what is wrong with the router
            pass
        return (request,)

    def _fits(self, request: str) -> bool:
        return self._ahead.make(self.router, request, self._history).tool is not None

    def _ask(self, request: str, on_token: Callable[[str], None] | None) -> Turn:
        self._turns += 1
        self._running = None
        turn = Turn(
            number=self._turns,
            request=request,
            schema_mode=self.profile.schema_mode,
            settings={**self.profile.to_dict(), **self._facts(), "ask_before": self.ask_before},
        )
        clock = StageClock(turn)
        with self.emitter.span(
            EventKind.TURN,
            f"turn {turn.number}",
            contents={"request": request},
            turn=turn.number,
            **self._facts(),
        ) as span:
            if self._declined is not None:
                self.emitter.decline("parts", self._declined)
            try:
                with self._forgotten_on_failure(), self._begun(turn), self._in_time():
                    self._run(turn, clock, on_token)
            except NexusError as error:
                turn.problem = told(error, self._running)
                if isinstance(error, Cancelled):
                    turn.outcome = TurnOutcome.CANCELLED
                elif turn.outcome is not TurnOutcome.REFUSED:
                    turn.outcome = TurnOutcome.FAILED  # also where the tool had run before
                span.fail(error)
            except KeyboardInterrupt:
                turn.outcome = TurnOutcome.CANCELLED
                raise
            finally:
                turn.times_ms["total"] = clock.elapsed() * 1e3
                span.add(turn.to_row())
                span.set(outcome=turn.outcome.value, tool=turn.tool)
        return turn

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Stop the turn when its time is over, and say so; waiting for others is none of its time."""
        self._deadline = Deadline(self.profile.turn_seconds, self.stop)
        try:
            with self._deadline:
                yield
        except Cancelled as error:
            if not self._deadline.over:
                raise
            raise TurnTooLong(
                f"the turn took more than {self.profile.turn_seconds:g} s",
                next_step="ask for less, or allow more turn_seconds in the profile",
            ) from error

    def _check_stopped(self) -> None:
        if self._stopped:
            raise Cancelled("the turn was stopped", next_step="ask again")

    @contextmanager
    def _forgotten_on_failure(self) -> Iterator[None]:
        remembered = len(self._history)
        try:
            yield
        except BaseException:
            del self._history[remembered:]
            raise

    def _run(self, turn: Turn, clock: StageClock, on_token: Callable[[str], None] | None) -> None:
        with clock.stage("route"):
            turn.decision = self._route(turn, clock)
        self._check_stopped()
        tool = turn.decision.tool
        if tool is None:
            self._answer_alone(turn, clock, on_token)
            turn.outcome = TurnOutcome.ABSTAINED
        else:
            spec = self.tools.registry[tool]
            turn.tool, turn.server = spec.name, spec.server
            self._call(turn, spec, clock)
            self._remember_call(turn, tool)
            turn.result = self._execute(turn, spec, clock)
            turn.outcome = TurnOutcome.CALLED
            self._read_result(turn, turn.result, clock, on_token)
        self._settle(turn)

    def _route(self, turn: Turn, clock: StageClock) -> RoutingDecision:
        with self.emitter.span(EventKind.RETRIEVAL, "route", contents={"query": turn.request}) as span:
            decision = self._ahead.take(self.router, turn.request, self._history)
            if decision is None:
                decision = self.router.route(turn.request, self._history)
            else:  # what it took is a part of the turn all the same
                clock.spent("route", decision.total_ms)
                span.set(ahead_ms=decision.total_ms)
            if self.profile.sidecar == "escalated" and escalates(decision):
                decision, turn.tried = self._try_candidates(decision)
            span.add(routing_row(decision, turn.tried))
            span.set_contents(matched=decision.matched)
            span.set(
                margin=decision.margin,
                tau=decision.tau,
                decision=decision.outcome.value,
                fit=decision.fit,
                threshold=decision.threshold,
            )
        self.emitter.point(
            EventKind.GATE,
            decision.outcome.value,
            margin=decision.margin,
            tau=decision.tau,
            decision=decision.outcome.value,
        )
        return decision

    def _answer_alone(self, turn: Turn, clock: StageClock, on_token: Callable[[str], None] | None) -> None:
        self._hear_request(turn, clock)
        turn.answer = self._reply(turn, clock, on_token)
        self._remember("user", turn.request)
        self._remember("assistant", turn.answer)

    def _remember_call(self, turn: Turn, tool: str) -> None:
        """Remember the call of a tool by what decisions call it, which tells two of one name apart."""
        self._remember("user", turn.request)
        self._history.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"name": tool, "arguments": turn.arguments or {}}],
            }
        )

    def _execute(self, turn: Turn, spec: ToolSpec, clock: StageClock) -> ToolResult:
        edited = False
        if self.ask_before == "every" or (self.ask_before == "writes" and not spec.read_only):
            with clock.stage("approval"), self._deadline.paused():
                edited = self._ask_approval(turn, spec)
        self._check_stopped()
        arguments = turn.arguments or {}
        with (
            clock.stage("tool"),
            self.emitter.span(
                EventKind.TOOL,
                spec.name,
                server=spec.server,
                contents={"arguments": arguments},
                edited=edited,
            ) as span,
        ):
            self._running = spec
            result = self.tools.call(spec, arguments)
            self._running = None
            span.set(is_error=result.is_error, truncated=result.truncated, bytes=result.size_bytes)
            span.set_contents(result=result.text)
            return result

    def _ask_approval(self, turn: Turn, spec: ToolSpec) -> bool:
        """Ask whether the tool may run; returns whether its arguments were changed in that.

        The context keeps the call as the model wrote it; what is remembered of the turn is what was sent.
        """
        arguments = turn.arguments or {}
        try:
            answer = self._approve(spec, arguments) if self._approve is not None else False
            if not isinstance(answer, Mapping) and not answer:
                raise refused(spec, asked=self._approve is not None)
        except ApprovalRefused:
            turn.outcome = TurnOutcome.REFUSED
            raise
        if isinstance(answer, Mapping):
            turn.arguments = dict(answer)
            self._history[-1]["tool_calls"][0]["arguments"] = turn.arguments
            return turn.arguments != arguments
        return False

    def _read_result(
        self, turn: Turn, result: ToolResult, clock: StageClock, on_token: Callable[[str], None] | None
    ) -> None:
        shown = self._shortened(result.text)
        self._hear_result(turn, shown, clock)
        self._remember("tool", shown, tool=turn.tool)
        turn.answer = self._reply(turn, clock, on_token)
        self._remember("assistant", turn.answer)

    def _remember(self, role: str, text: str, *, tool: str | None = None) -> None:
        self._history.append({"role": role, "content": text})
        self.emitter.point(EventKind.MESSAGE, role, MessageRow(role=role, text=text, tool=tool))
