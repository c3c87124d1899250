"""The agent whose model runs behind an endpoint: the same turns, over text alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.loop import SYSTEM_PROMPT, TurnLoop
from nexus_lab.agent.remote_asking import Asker
from nexus_lab.agent.remote_calling import NO_GRAMMAR, RemoteCalls, Said, rendered, spoken
from nexus_lab.agent.rows import FidelityRow
from nexus_lab.errors import Decline, NexusError
from nexus_lab.policy_text import parse_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nexus_lab.agent.base import Observer
    from nexus_lab.agent.endpoint import Endpoint
    from nexus_lab.agent.endpoint_reply import Reply
    from nexus_lab.agent.loop import Approve, AskBefore
    from nexus_lab.agent.remote_asking import Offers
    from nexus_lab.agent.turn import StageClock, Turn
    from nexus_lab.registry import Toolbox, ToolSpec
    from nexus_lab.routing import Router
    from nexus_lab.settings import Profile

__all__ = ["RemoteAgent", "RemoteUnavailable"]

_RESULT_CHARS = 2048

_DECLINES: Mapping[str, Decline] = MappingProxyType(
    {
        "splice": Decline(
            "remote_no_splice",
            "an endpoint takes text alone, so that no compiled block can enter its cache",
            "the full schema as text",
        ),
        "cache": Decline(
            "remote_no_cache_ops",
            "the endpoint's KV cache is its own, so that nothing can be dropped or moved in it",
            "the whole conversation as text",
        ),
        "grammar": NO_GRAMMAR,
        "logits": Decline(
            "remote_no_logits", "an endpoint gives no logits to compare", "no fidelity for this turn"
        ),
        "usage": Decline(
            "remote_no_usage", "the endpoint does not say how many tokens it read", "no prompt tokens"
        ),
    }
)


class RemoteUnavailable(NexusError):
    """Something that only a model on this machine can do.

    Attributes
    ----------
    decline
        Why.
    """

    def __init__(self, decline: Decline) -> None:
        super().__init__(decline.reason, next_step="use nexus_lab.Agent, with a model of this machine")
        self.decline = decline


class RemoteAgent(TurnLoop):
    """Runs turns on a model behind an endpoint of the OpenAI form, over the tools of running servers.

    Routing, grounding, approval and the record are those of `Agent`. What needs the model's cache, its
    tokens or its logits is declined, with a reason in the record; see `declines`. The routed tool alone is
    shown to the model, and a call that the conversation settles is not asked for, so that most of the prompt
    tokens of a large registry are saved; the record has them as the endpoint counts them. No endpoint tells
    how far its prefill is, so that the `on_progress` of `ask` is not called.

    Parameters
    ----------
    endpoint
        Runs the model.
    tools, router, profile, observers, approve, ask_before, system
        As of `Agent`.

    Examples
    --------
    >>> endpoint = Endpoint("http://localhost:8080/v1", "qwen2.5-14b")  # doctest: +SKIP
    >>> turn = RemoteAgent(endpoint, tools).ask("Which branches are there in .?")  # doctest: +SKIP
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tools: Toolbox,
        *,
        router: Router | None = None,
        profile: Profile | None = None,
        observers: Sequence[Observer] = (),
        approve: Approve | None = None,
        ask_before: AskBefore = "writes",
        system: str = SYSTEM_PROMPT,
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
        self.endpoint = endpoint
        self._asker = Asker(endpoint, self.emitter)
        self._calls = RemoteCalls(self._asker, self.emitter)
        self._said: list[Said] = []
        self._turn = threading.Lock()

    @property
    def declines(self) -> Mapping[str, Decline]:
        """What cannot be done over an endpoint, by name, and why."""
        return _DECLINES

    @property
    def offers(self) -> Offers:
        """What the endpoint is known to offer; all is tried until it refuses."""
        return self._asker.offers

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the endpoint gets it."""
        return rendered(self._said, as_tools=self.offers.as_tools)

    def compile_block(self, _tool: str, **_options: object) -> int:
        """Raise `RemoteUnavailable`: there is no cache of ours that a block could enter."""
        raise RemoteUnavailable(_DECLINES["splice"])

    def new_conversation(self, *, turn: int | None = None) -> None:
        """Forget the conversation; what was learned of the endpoint stays.

        Parameters
        ----------
        turn
            Number of the last turn before the next one; ``None`` goes on counting.
        """
        self._said.clear()
        self._history.clear()
        if turn is not None:
            self._turns = turn

    def close(self) -> None:
        """Forget the conversation; there is nothing to give back."""
        self.new_conversation()

    # -- the turn -----------------------------------------------------------------------------------------

    def _facts(self) -> Mapping[str, Any]:
        return {
            "provider": "openai_compatible",
            "model": self.endpoint.model,
            "endpoint": self.endpoint.url,
        }

    def _cancel(self) -> None:
        self._asker.give_up()

    @contextmanager
    def _begun(self, turn: Turn) -> Iterator[None]:
        with self._turn:
            self._asker.begin()
            self._check_stopped()
            before = len(self._said)
            if not before and self.system:
                self._said.append(Said(role="system", text=self.system))
            try:
                yield
            except BaseException:
                del self._said[before:]
                raise
            finally:
                self._count(turn)

    def _count(self, turn: Turn) -> None:
        """Take the tokens of the turn from what the endpoint said, also of a turn that failed later."""
        usages = [reply.usage for reply in self._asker.replies]
        known = [usage.prompt for usage in usages if usage.prompt is not None]
        if len(known) < len(usages):
            self.emitter.decline("usage", _DECLINES["usage"])
        elif known:
            turn.prompt_tokens = sum(known)
        turn.reused_tokens = sum(usage.cached or 0 for usage in usages)
        turn.generated_tokens = sum(usage.generated or 0 for usage in usages)

    def _hear_request(self, turn: Turn, clock: StageClock) -> None:  # noqa: ARG002
        self._said.append(Said(role="user", text=turn.request))

    def _call(self, turn: Turn, spec: ToolSpec, clock: StageClock) -> None:
        if self.profile.schema_mode.startswith("splice"):
            self._decline_splice(turn, spec)
        with clock.stage("arguments"):
            began = clock.elapsed()
            written = self._calls.write(
                self._said,
                spec,
                self.profile,
                request=turn.request,
                history=self._history,
                on_token=self._on_call,
            )
            turn.ttft_s = began + written.ttft_s
            turn.arguments, turn.violations = written.arguments, written.violations
        if written.problem is not None:
            raise written.problem
        self._said.append(Said(role="user", text=turn.request))

    def _decline_splice(self, turn: Turn, spec: ToolSpec) -> None:
        decline = _DECLINES["splice"]
        with self.emitter.span(EventKind.SPLICE, "splice", tool=spec.name) as span:
            span.decline(decline)
        turn.splice = FidelityRow(
            path="prefill", tool=spec.name, contract=self.profile.schema_mode, decline=decline
        )
        self.emitter.point(EventKind.FIDELITY, "splice", turn.splice)
        if self.profile.shadow:
            self.emitter.decline("shadow", _DECLINES["logits"])

    def _hear_result(self, turn: Turn, text: str, clock: StageClock) -> None:  # noqa: ARG002
        # What ran, which the user may have edited since it was written.
        self._said += [
            Said(role="assistant", tool=turn.tool, arguments=turn.arguments or {}, call=turn.number),
            Said(role="tool", text=text, tool=turn.tool, call=turn.number),
        ]

    def _reply(self, turn: Turn, clock: StageClock, on_token: Callable[[str], None] | None) -> str:
        with clock.stage("answer"):
            reply = self._answer(on_token)
            if not spoken(reply.text) and self._said[-1].tool and self._asker.now.as_tools:
                self._asker.unread()
                reply = self._answer(on_token)
            if turn.ttft_s is None:
                turn.ttft_s = clock.elapsed() - reply.seconds + reply.ttft_s
        turn.answer_cut = reply.stop_reason == "length"
        self._said.append(Said(role="assistant", text=spoken(reply.text)))
        return reply.text.strip()

    def _answer(self, on_token: Callable[[str], None] | None) -> Reply:
        return self._asker.ask(
            lambda offers: {"messages": rendered(self._said, as_tools=offers.as_tools)},
            note="answer",
            profile=self.profile,
            max_tokens=self.profile.answer_tokens,
            on_text=on_token,
        )

    def _shortened(self, text: str) -> str:
        """Cut a result to about the tokens that a local model would get."""
        more = len(text) - _RESULT_CHARS
        return text if more <= 0 else f"{text[:_RESULT_CHARS]}\n[cut: {more} more characters]"

    def _settle(self, turn: Turn) -> None:  # noqa: ARG002
        if parse_policy(self.profile.policy).name != "full":
            self.emitter.decline("policy", _DECLINES["cache"])
