"""The agent's panel: turns, what waits for the user, and the settings of the next turn."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.agent import Event, EventKind
from nexus_lab.lab.approval import Approval
from nexus_lab.lab.crew import NotReady
from nexus_lab.lab.fork import refuse_code
from nexus_lab.lab.fragments import fragment
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.provenance import sources_of
from nexus_lab.lab.turn_cards import TurnCard, TurnLog
from nexus_lab.lab.wire import BadRequest, error_info, instant, job, to_json
from nexus_lab.policy_text import POLICIES as NAMED_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from nexus_lab.agent import Turn
    from nexus_lab.lab.approval import Approve
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.driver import Ticket

__all__ = ["POLICIES", "SCHEMA_MODES", "AgentPanel"]

SCHEMA_MODES = (
    "signature",
    "full",
    "splice(exact)",
    "splice(bounded(0.02))",
    "splice(paper)",
    "splice(fixed)",
)
# A rolling drop has a switch of its own for repos, and a function has to be named.
POLICIES = tuple(name for name in NAMED_POLICIES if name not in {"rolling_drop_repos", "python"})
_SETTINGS = (
    "schema_mode",
    "policy",
    "keep_responses",
    "repos",
    "repair",
    "repair_budget",
    "k",
    "tau",
    "top_k",
    "shadow",
    "temperature",
    "max_tokens",
    "answer_tokens",
    "max_calls",
    "turn_seconds",
)
_TURNS_SENT = 24
_TEMPLATE = """
<section class="nl-agent"><h2>Agent</h2>
{% if not cards %}<p>No turn yet.{{ " " ~ missing if missing else "" }}</p>{% endif %}
{% for card in cards %}
<article><h3>Turn {{ card.number }}: {{ card.state }}</h3>
<p><b>{% for text, names in card.marked or [[card.request, none]] %}{% if names
%}<mark title="{{ names }}">{{ text }}</mark>{% else %}{{ text }}{% endif %}{% endfor %}</b></p>
{% if card.tool %}<p><code>{{ card.tool }}</code>{{ " on " ~ card.server if card.server else "" }}
<code>{{ card.arguments | tojson if card.arguments is not none else card.call }}</code></p>{% endif %}
{% if card.grounds %}<ul>{% for name, where in card.grounds.items()
%}<li><code>{{ name }}</code> {{ where }}</li>{% endfor %}</ul>{% endif %}
{% if card.result is not none %}
<pre>{{ "× " if card.result_is_error else "" }}{{ card.result[:2000] }}</pre>
{% endif %}
{% if card.problem %}<p>× {{ card.problem.message }} {{ card.problem.next_step or "" }}
{{ "The tool had run before; what it did stays done." if card.result is not none }}</p>{% endif %}
{% if card.answer %}<p class="answer">{{ card.answer }}</p>{% endif %}
{% if card.cut_at %}<p>cut at {{ card.cut_at | number }} tokens, the answer's limit</p>{% endif %}
<p>{{ card.total_ms | ms }}, first token after {{ card.ttft_ms | ms }},
{{ card.prompt_tokens | number }} tokens in the context</p>
</article>
{% endfor %}
</section>
"""


class AgentPanel(Panel):
    """Asks, approves, and shows what came of each turn."""

    name: ClassVar[str] = "agent"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.approval = Approval(
            on_change=self._approval_changed, stopping=lambda: desk.driver.state.stopping
        )
        self._lock = threading.RLock()
        self._logs: list[TurnLog] = []
        self._queue: list[tuple[Ticket[Turn], str]] = []
        self._conversation = 1
        self._waiting = 0
        self._sources: tuple[int, dict[str, str]] = (0, {})

    def __repr__(self) -> str:
        ready = "ready" if self.desk.missing is None else self.desk.missing
        return f"AgentPanel({len(self._logs)} turns, {len(self._queue)} queued, {ready})"

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the newest turns, what waits, and the settings of the next turn."""
        with self._lock:
            waiting = self.approval.pending is not None
            cards = [log.sent(waiting=waiting) for log in self._logs[-_TURNS_SENT:]]
            before = max(0, len(self._logs) - _TURNS_SENT)
            queue = [text for _, text in self._queue]
        missing = self.desk.missing
        return {
            "turns": cards,
            "turns_before": before,
            "approval": self._pending(),
            "queue": queue,
            "settings": self.settings,
            "schema_modes": SCHEMA_MODES,
            "policies": tuple(dict.fromkeys((*POLICIES, self.desk.profile.policy))),
            "ready": missing is None,
            "missing": missing,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What the next turn runs with."""
        profile = self.desk.profile.to_dict()
        return {**{name: profile[name] for name in _SETTINGS}, "ask_before": self.desk.ask_before}

    @property
    def turns(self) -> tuple[TurnCard, ...]:
        """The turns so far, oldest first."""
        with self._lock:
            waiting = self.approval.pending is not None
            return tuple(log.card(waiting=waiting) for log in self._logs)

    def _pending(self) -> dict[str, Any] | None:
        pending = self.approval.pending
        if pending is None:
            return None
        with self._lock:
            number = self._logs[-1].number if self._logs else 0
            if self._sources[0] != pending.id:
                said = [log.said() for log in self._logs if log.conversation == self._conversation]
                self._sources = (pending.id, sources_of(pending.arguments, pending.tool, said))
            sources = self._sources[1]
        return {
            "id": pending.id,
            "turn": number,
            "tool": pending.tool.name,
            "server": pending.tool.server or "",
            "arguments": pending.arguments,
            "sources": sources,
        }

    # -- what it hears ------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Gather the running turn."""
        with self._lock:
            if event.kind is EventKind.TURN and event.duration_ns is None:
                self._begin(event)
            elif not self._logs or self._logs[-1].ended is not None:
                return
            else:
                self._logs[-1].hear(event)
        self.changed()

    def _begin(self, event: Event) -> None:
        number = int(event.attributes.get("turn") or len(self._logs) + 1)
        # Who goes on from an earlier turn, or with another model, leaves the later ones behind.
        self._logs = [log for log in self._logs if log.number < number]
        request = str(event.contents.get("request", ""))
        self._logs.append(TurnLog(number, request, self._conversation, event.start_ns))

    def on_turn(self, turn: Turn) -> None:
        """Complete the turn that has ended."""
        with self._lock:
            for log in reversed(self._logs):
                if log.number == turn.number:
                    log.end(turn)
                    break

    def on_token(self, piece: str) -> None:
        """Show a piece of the answer as it comes."""
        with self._lock:
            if self._logs and self._logs[-1].ended is None:
                self._logs[-1].answer.append(piece)
        self.changed()

    def on_call(self, piece: str) -> None:
        """Show a piece of the tool call as it is written."""
        with self._lock:
            if self._logs and self._logs[-1].ended is None:
                self._logs[-1].call.append(piece)
        self.changed()

    def on_progress(self, done: int, total: int) -> None:
        """Show how far the running prefill has come."""
        self.desk.driver.progress("prefill", done, total)

    def withdraw_approval(self) -> None:
        """End the wait for an answer; the turn is being stopped."""
        self.approval.withdraw()

    def _approval_changed(self) -> None:
        pending = self.approval.pending
        with self._lock:
            if self._logs and pending is not None:
                self._logs[-1].wait(pending.id, pending.tool.name)
                self._waiting = pending.id
            elif self._logs:
                self._logs[-1].waited(self._waiting)
        self.desk.bar.waiting = self.approval.pending is not None
        self.desk.changed("agent", "bar")

    # -- what it is asked ---------------------------------------------------------------------------------

    def post(
        self,
        text: str,
        on_done: Callable[[Ticket[Turn]], None] | None = None,
        *,
        approve: Approve | None = None,
        whole: bool = False,
    ) -> Ticket[Turn]:
        """Post a turn behind what runs and waits, and show it in the queue until it begins.

        Parameters
        ----------
        text
            The request.
        on_done
            Called on the engine's lane with the ticket, when the turn has ended.
        approve
            Who is asked before a tool runs in this turn; ``None`` asks in the views.
        whole
            Make one turn of the request, whatever it asks for.
        """
        ticket: Ticket[Turn]

        def work() -> Turn:
            self._unqueue(ticket)
            self.approval.answerer = approve
            try:
                return self.desk.crew.turn(text, whole=whole)
            finally:
                self.approval.answerer = None

        with self._lock:
            # Under the lock, so that the job cannot begin before it is in the queue.
            ticket = self.desk.driver.submit("turn", work, on_done)
            if not ticket.done:
                self._queue.append((ticket, text))
        self.changed()
        return ticket

    def _unqueue(self, ticket: Ticket[Turn]) -> None:
        with self._lock:
            self._queue = [entry for entry in self._queue if entry[0] is not ticket]
        self.changed()

    @instant
    def ask(self, text: str) -> dict[str, int]:
        """Ask; the turn shows in the panel while it runs."""
        if not text.strip():
            raise BadRequest("the message is empty", next_step="write what you want")
        state = self.desk.driver.state
        if self.desk.missing is not None and state.label is None and not state.queue:
            raise NotReady(self.desk.missing, next_step="see Models and Registry")

        def told(ticket: Ticket[Turn]) -> None:
            self._unqueue(ticket)
            if ticket.error is not None:
                self.desk.bar.tell("bad", error_info(ticket.error)["message"])

        self.post(text, told)
        return {"waiting": len(self._queue)}

    @instant
    def approve(
        self,
        *,
        allow: bool,
        remember: bool = False,
        arguments: dict[str, Any] | None = None,
        id: int | None = None,  # noqa: A002 - the wire's
    ) -> None:
        """Answer the call that waits; edited arguments are checked against the tool's schema first.

        With the call's id the answer is for that call alone, and not for another that waits by now.
        """
        self.approval.answer(allow=allow, remember=remember, arguments=arguments, number=id)

    @instant
    def apply(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Change settings of the next turn; all of them or none.

        Raises
        ------
        BadRequest, SettingsError
            When there is no such setting or value, or the policy is code that the profile does not name.
        """
        unknown = sorted(set(settings) - {*_SETTINGS, "ask_before"})
        if unknown:
            raise BadRequest(f"no setting {unknown[0]!r}", next_step=f"choose of {', '.join(_SETTINGS)}")
        refuse_code(settings, self.desk.profile)
        self.desk.change_profile(**settings)
        return self.settings

    @instant
    def unqueue(self, index: int) -> dict[str, bool]:
        """Take a waiting message out of the queue."""
        with self._lock:
            if not 0 <= index < len(self._queue):
                raise BadRequest(f"no message {index + 1} waits", next_step="look at the queue again")
            ticket = self._queue[index][0]
        withdrawn = self.desk.driver.withdraw(ticket)
        self._unqueue(ticket)
        return {"withdrawn": withdrawn}

    @instant
    def turns_(self, start: int, stop: int) -> dict[str, Any]:
        """Return turns by place, oldest first; the part has the newest only."""
        return {"turns": self.turns[max(0, start) : max(0, stop)]}

    @job("new conversation")
    def new_conversation(self) -> None:
        """Forget the conversation; the next turn begins another."""
        if self.desk.agent is not None:
            self.desk.agent.new_conversation()
            self.desk.bar.used = self.desk.agent.engine.used_cells()
        with self._lock:
            self._conversation += 1
        self.desk.changed(*self.desk.part_names)

    # -- plain Python -------------------------------------------------------------------------------------

    def to_frame(self) -> pl.DataFrame:
        """Return one row per turn: request, outcome, call, answer, times and settings (as JSON)."""
        import polars as pl

        schema = {
            "turn": pl.Int64,
            "request": pl.String,
            "outcome": pl.String,
            "tool": pl.String,
            "server": pl.String,
            "arguments": pl.String,
            "grounds": pl.String,
            "result": pl.String,
            "answer": pl.String,
            "problem": pl.String,
            "total_ms": pl.Float64,
            "ttft_ms": pl.Float64,
            "prefill_ms": pl.Float64,
            "prompt_tokens": pl.Int64,
            "dkl": pl.Float64,
            "settings": pl.String,
        }
        return pl.DataFrame([_row(card) for card in self.turns], schema=schema, orient="row")

    def to_html(self) -> str:
        """Return the turns as a static fragment."""
        return fragment(_TEMPLATE, cards=[to_json(card) for card in self.turns], missing=self.desk.missing)


def _row(card: TurnCard) -> tuple[Any, ...]:
    return (
        card.number,
        card.request,
        card.state,
        card.tool,
        card.server,
        None if card.arguments is None else json.dumps(to_json(card.arguments), ensure_ascii=False),
        json.dumps(to_json(card.grounds), ensure_ascii=False),
        card.result,
        card.answer,
        card.problem["type"] if card.problem else None,
        card.total_ms,
        card.ttft_ms,
        card.prefill_ms,
        card.prompt_tokens,
        card.splice["dkl"] if card.splice else None,
        json.dumps(to_json(card.settings), ensure_ascii=False),
    )
