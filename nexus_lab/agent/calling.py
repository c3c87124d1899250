"""Letting the model write a tool call: the text it sees, the grammar it writes under, one retry."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.problems import MAKE_ROOM
from nexus_lab.arguments import (
    ArgumentsError,
    ArgumentsRejected,
    CutOff,
    MissingValues,
    ProjectionKind,
    parse_arguments,
    plan_call,
    repair_message,
    tool_text,
    validate,
)
from nexus_lab.cache import Append
from nexus_lab.engine import GrammarMask, SamplerSettings, StopReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.call_word import Weigher
    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.arguments import GrammarPlan, Violation
    from nexus_lab.arguments.scoring import Weighed
    from nexus_lab.engine import Engine
    from nexus_lab.errors import NexusError
    from nexus_lab.registry import ToolSpec
    from nexus_lab.settings import Profile

__all__ = ["CallWriter", "Written", "call_opening", "complaint", "tool_block"]

_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A call that the model wrote.

    Attributes
    ----------
    arguments
        Its arguments; ``None`` when they could not be read.
    violations
        What is wrong with them, one sentence each.
    problem
        The typed error, when the call is not fit to be sent.
    ttft_s
        Seconds from the start of the writing to the first generated token.
    n_generated
        Tokens generated, a retry's included.
    weighed, weighed_ms
        What the model was asked of whole calls, and the milliseconds that took; ``None`` where it was not.
    """

    arguments: dict[str, Any] | None
    violations: tuple[str, ...]
    problem: NexusError | None
    ttft_s: float
    n_generated: int
    weighed: Weighed | None = None
    weighed_ms: float | None = None


def tool_block(spec: ToolSpec, schema_mode: str) -> str:
    """Return what the model sees of a tool, up to where the request follows."""
    shown = tool_text(spec, mode="signature" if schema_mode == "signature" else "full")
    return f"Tool: {shown}\n\nRequest: "


def call_opening(tool: str) -> str:
    """Return how a call of `tool` begins; the model writes on from here."""
    return f'{{"name": {json.dumps(tool)}, "arguments": '


def complaint(problem: ArgumentsError, spec: ToolSpec) -> str:
    """Return the user turn that asks for a call of `spec` again, and says what was wrong with it."""
    if isinstance(problem, ArgumentsRejected):
        return repair_message(problem.violations, tool=spec)
    if isinstance(problem, CutOff):
        return f"{problem.problem}. Write it again, shorter."
    return problem.problem


class CallWriter:
    """Writes calls with one engine, under a grammar made for each request.

    Parameters
    ----------
    engine
        Runs the model.
    emitter
        Hears of every attempt, and of what a grammar had to leave out of a schema.
    planner
        Makes the grammar from the tool, the request and the turns before it; ``None`` for `plan_call`.
    weigher
        Gives what weighs calls at the cursor of a conversation, if anything does, for `plan_call`.
    """

    def __init__(
        self,
        engine: Engine,
        emitter: Emitter,
        *,
        planner: Callable[..., GrammarPlan] | None = None,
        weigher: Callable[[Conversation], Weigher | None] | None = None,
    ) -> None:
        self._engine = engine
        self._emitter = emitter
        self._planner = planner
        self._weigher = weigher
        self._reported: set[tuple[ToolSpec, str, str, ProjectionKind]] = set()

    def write(
        self,
        conversation: Conversation,
        spec: ToolSpec,
        profile: Profile,
        *,
        request: str,
        history: Sequence[Mapping[str, Any]] = (),
        on_token: Callable[[str], None] | None = None,
    ) -> Written:
        """Let the model write the call at the cursor; one that breaks the schema or off is tried once more.

        The retry sees the first call and what is wrong with it; there is none where the context has no room
        for another call.

        Parameters
        ----------
        request, history
            What the user says and the messages before it. Values come from there, and optional arguments
            that they do not speak of are left out.
        on_token
            Called with each piece of the call as it is written, what opens and closes it included.
        """
        began = time.perf_counter()
        weigher = self._weigher(conversation) if self._weigher is not None else None
        plan = self._plan(spec, request, history, weigher)
        weighed_ms = None if weigher is None else weigher.ms
        self._report(spec, plan)
        if plan.missing:
            return Written(
                arguments=None,
                violations=(),
                problem=MissingValues(plan.missing, tool=spec.name),
                ttft_s=time.perf_counter() - began,
                n_generated=0,
                weighed=plan.weighed,
                weighed_ms=weighed_ms,
            )
        ttft_s, n_generated = None, 0
        for attempt in range(_ATTEMPTS):
            with self._emitter.span(EventKind.ARGUMENTS, spec.name, attempt=attempt + 1) as span:
                call = self._attempt(conversation, spec, plan, profile, on_token)
                ttft_s = call.first - began if ttft_s is None else ttft_s
                n_generated += call.n_tokens
                arguments, problem = _read(call, spec, profile)
                violations = problem.violations if isinstance(problem, ArgumentsRejected) else ()
                span.set(valid=problem is None, violations=len(violations), settled=plan.settled is not None)
                if plan.weighed is not None:
                    span.set(weighed=len(plan.weighed.calls), overruled=plan.weighed.chosen > 0)
                span.set_contents(text=call.text, grounds=[one.to_dict() for one in plan.grounds])
            # What the conversation settles would come out the same again.
            if problem is None or attempt + 1 == _ATTEMPTS or plan.settled is not None:
                break
            again = complaint(problem, spec)
            if isinstance(problem, CutOff) and not self._has_room(conversation, again, profile):
                break
            conversation.append("user", conversation.transcript.user(again))
        return Written(
            arguments=arguments,
            violations=tuple(map(str, violations)),
            problem=problem,
            ttft_s=ttft_s or 0.0,
            n_generated=n_generated,
            weighed=plan.weighed,
            weighed_ms=weighed_ms,
        )

    def _plan(
        self, spec: ToolSpec, request: str, history: Sequence[Mapping[str, Any]], weigher: Weigher | None
    ) -> GrammarPlan:
        if self._planner is not None:
            return self._planner(spec, request, history)
        if weigher is None:
            return plan_call(spec, request, history)
        return plan_call(spec, request, history, scorer=weigher, scoring=weigher.scoring)

    def _attempt(
        self,
        conversation: Conversation,
        spec: ToolSpec,
        plan: GrammarPlan,
        profile: Profile,
        on_token: Callable[[str], None] | None,
    ) -> _Call:
        """Write one call."""
        tell = on_token or (lambda _piece: None)
        opening = call_opening(spec.name)
        if plan.settled is not None:
            text = f"{opening}{plan.settled}}}"
            conversation.step(Append(tuple(self._engine.tokenize(text, special=False))), note="call settled")
            first = time.perf_counter()
            tell(text)
            conversation.close_reply(text, calls=True)
            return _Call(plan.settled, first)
        mask = GrammarMask(self._engine, plan.grammar)
        conversation.step(Append(tuple(self._engine.tokenize(opening, special=False))), note="call opened")
        tell(opening)
        opened = time.perf_counter()
        generation = conversation.generate(
            max_tokens=profile.max_tokens,
            note="arguments",
            mask=mask,
            sampler=SamplerSettings(temperature=profile.temperature, seed=profile.seed),
            on_token=on_token,
        )
        if generation.stop_reason is StopReason.CONTEXT_FULL:
            raise CutOff(
                "the context is full, so that the call breaks off",
                next_step=MAKE_ROOM,
            )
        conversation.step(Append(tuple(self._engine.tokenize("}", special=False))), note="call closed")
        tell("}")
        conversation.close_reply(f"{opening}{generation.text}}}", calls=True)
        return _Call(
            generation.text,
            opened + generation.ttft_s,
            len(generation.tokens),
            at_limit=generation.stop_reason is StopReason.MAX_TOKENS,
        )

    def _has_room(self, conversation: Conversation, more: str, profile: Profile) -> bool:
        """Whether a text and the longest call fit behind what is active."""
        n_active = conversation.runner.snapshot.state.n_active
        n_more = len(self._engine.tokenize(more, special=False))
        return n_active + n_more + profile.max_tokens <= self._engine.n_ctx

    def _report(self, spec: ToolSpec, plan: GrammarPlan) -> None:
        """Tell once per tool what its schema lost to the grammar; what a request narrows is not a loss."""
        for part in plan.unchecked:
            key = (spec, part.path, part.keyword, part.kind)
            if key in self._reported:
                continue
            self._reported.add(key)
            self._emitter.point(
                EventKind.ARGUMENTS,
                "schema keyword projected",
                departure=part.kind.value,
                contents={"tool": spec.name, "path": part.path, "keyword": part.keyword},
            )


@dataclass(frozen=True, slots=True)
class _Call:
    """What one attempt wrote: the arguments' text, the clock at its first token, the tokens generated."""

    text: str
    first: float
    n_tokens: int = 0
    at_limit: bool = False


def _read(
    call: _Call, spec: ToolSpec, profile: Profile
) -> tuple[dict[str, Any] | None, ArgumentsError | None]:
    try:
        arguments = parse_arguments(call.text)
    except CutOff as error:
        return None, _over_limit(profile) if call.at_limit else error
    except ArgumentsError as error:
        return None, error
    violations: list[Violation] = validate(arguments, spec.input_schema)
    if violations:
        return arguments, ArgumentsRejected(tuple(violations), tool=spec.name)
    return arguments, None


def _over_limit(profile: Profile) -> CutOff:
    return CutOff(
        f"the call was cut off after {profile.max_tokens} tokens, the most that it may take",
        next_step="ask for less, or allow more max_tokens in the profile",
    )
