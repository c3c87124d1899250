"""Asking an endpoint with what it offers: what it refuses is left out, and the record says so."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.endpoint import Exchange
from nexus_lab.agent.endpoint_errors import EndpointFailed, ModelNotFound, RequestRejected, RequestTooLong
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.endpoint import Endpoint
    from nexus_lab.agent.endpoint_errors import EndpointError
    from nexus_lab.agent.endpoint_reply import Reply
    from nexus_lab.settings import Profile

    Compose = Callable[["Offers"], Mapping[str, Any]]

__all__ = ["Asker", "CallForm", "Offers"]


class CallForm(StrEnum):
    """How an endpoint is brought to write a call, best first.

    ``tools``: one tool, and a call is required; ``named_tool``: the same, with the tool named, which older
    vLLM and llama-cpp-python take and llama-server does not; ``json_schema``: an answer under the schema;
    ``json_object``: the same in an older form; ``plain``: the prompt asks for JSON. The arguments are checked
    in each.
    """

    TOOLS = "tools"
    NAMED = "named_tool"
    SCHEMA = "json_schema"
    OBJECT = "json_object"
    PLAIN = "plain"

    @property
    def has_tools(self) -> bool:
        """Whether the endpoint is shown a tool."""
        return self in (CallForm.TOOLS, CallForm.NAMED)

    @property
    def has_schema(self) -> bool:
        """Whether the answer is to be under the schema."""
        return self in (CallForm.SCHEMA, CallForm.OBJECT)

    @property
    def next(self) -> CallForm:
        """The form that takes less of an endpoint."""
        forms = list(CallForm)
        return forms[min(forms.index(self) + 1, len(forms) - 1)]


@dataclass(frozen=True, slots=True)
class Offers:
    """What an endpoint is taken to offer, until it refuses.

    Attributes
    ----------
    form
        How it writes calls.
    refused
        Parameters that it does not take.
    tool_messages
        Whether calls and their results are messages of their own, not text.
    """

    form: CallForm = CallForm.TOOLS
    refused: frozenset[str] = frozenset()
    tool_messages: bool = True

    @property
    def as_tools(self) -> bool:
        """Whether a conversation is shown with messages of tools."""
        return self.form.has_tools and self.tool_messages


# By what endpoints say when they refuse a parameter.
_PARAMETERS = {
    "max_tokens": re.compile(r"max_completion_tokens"),
    "stream_options": re.compile(r"stream_options|include_usage"),
    "stream": re.compile(r"\bstream(?:ing)?\b", re.IGNORECASE),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "temperature": re.compile(r"\btemperature\b", re.IGNORECASE),
}
_CHOICE = re.compile(r"tool_choice(?! param requires)|\brequired\b")
_TOOL_WORDS = re.compile(r"\btools?\b|tool[_ ]?(?:call|choice|use)|function|jinja", re.IGNORECASE)
_SCHEMA_WORDS = re.compile(r"response_format|schema|grammar|guided|structured", re.IGNORECASE)
_MESSAGE_WORDS = re.compile(r"\brole\b|\bmessages\b|tool_call_id|template", re.IGNORECASE)
_FORM_WORDS = {
    CallForm.TOOLS: _TOOL_WORDS,
    CallForm.NAMED: _TOOL_WORDS,
    CallForm.SCHEMA: _SCHEMA_WORDS,
    CallForm.OBJECT: _SCHEMA_WORDS,
}
# What is wrong with the schema of one tool says nothing about another's. Every repeat is bounded, since an
# endpoint may say anything.
_SCHEMA_FAULT = re.compile(
    r"(?:invalid|unsupported|bad|compil|pars|convert)[^.]{0,50}(?:schema|grammar|pattern|regex)"
    r"|(?:schema|grammar)[^.]{0,40}(?:invalid|unsupported|is not valid|not permitted)",
    re.IGNORECASE,
)
_CLIENT_ERRORS = range(400, 500)
_AS_TEXT = "calls and their results as text"
_INSTEAD = {
    CallForm.NAMED: "the tool is named (tool_choice)",
    CallForm.SCHEMA: "an answer under the schema (response_format)",
    CallForm.OBJECT: "an answer under the schema (response_format json_object)",
    CallForm.PLAIN: "the prompt asks for JSON, which is checked",
}


class Asker:
    """Asks one endpoint, and learns what it offers.

    Parameters
    ----------
    endpoint
        Whom to ask.
    emitter
        Hears of every request, and of what was refused.

    Attributes
    ----------
    offers
        What it is known to offer.
    now
        What it is asked with in this turn; less where a failure of the server, which may pass, refused some.
    form
        What it was asked with last; less than it offers where it did not take one tool's schema.
    replies
        The answers of this turn.
    """

    def __init__(self, endpoint: Endpoint, emitter: Emitter) -> None:
        self._endpoint = endpoint
        self._emitter = emitter
        self._exchange = Exchange()
        self.offers = self.now = Offers()
        self.form = self.offers.form
        self.replies: list[Reply] = []

    def begin(self) -> None:
        """Begin a turn; only from now on can it be given up."""
        self._exchange, self.replies = Exchange(), []
        self.now = self.offers

    def give_up(self) -> None:
        """Close the connection, and let this turn ask no more; from any thread."""
        self._exchange.give_up()

    def ask(
        self,
        compose: Compose,
        *,
        note: str,
        profile: Profile,
        max_tokens: int,
        on_text: Callable[[str], None] | None = None,
        on_arguments: Callable[[str], None] | None = None,
    ) -> Reply:
        """Ask, again where the endpoint refuses what it can do without, and return the answer.

        Once a piece of an answer was told, nothing is asked again: half of it would stand before the next.
        What a failure of the server seems to refuse is left out in this turn alone.

        Parameters
        ----------
        compose
            Makes the messages, and what asks for a call, for what the endpoint is taken to offer.

        Raises
        ------
        EndpointError
            When it does not answer.
        Cancelled
            When the turn was given up.
        """
        offers, now, known = self.now, self.now, self.offers
        refused, told = list[Decline](), _Told()
        while True:
            self.form = offers.form
            body = _body(compose(offers), offers, profile, max_tokens)
            try:
                reply = self._ask(body, note, offers.form, told.by(on_text), told.by(on_arguments))
            except (RequestRejected, EndpointFailed, ModelNotFound) as error:
                fewer = None if told.any else _fewer(offers, body, error)
                if fewer is None:
                    raise
                refused.append(_decline(offers, fewer, error.status))
                if error.status in _CLIENT_ERRORS:
                    known = _learned(known, offers, fewer, error)
                now, offers = _learned(now, offers, fewer, error), fewer
            else:
                # Only an answer shows that it was this that had been refused.
                self.settle_for(known, *refused)
                self.now = now
                return reply

    def settle_for(self, offers: Offers, *declines: Decline) -> None:
        """Take the endpoint to offer no more than `offers`, and record why."""
        self.offers = self.now = offers
        for decline in declines:
            self._emitter.decline("endpoint", decline)

    def ignored(self) -> None:
        """Take note that the endpoint took the form, and did not hold to it."""
        form = self.form
        if form is self.offers.form and form is not CallForm.PLAIN:
            reason = f"the endpoint takes {form.value}, and answers as if it had not been asked"
            code = f"endpoint_ignores_{form.value}"
            self.settle_for(replace(self.offers, form=form.next), Decline(code, reason, _INSTEAD[form.next]))

    def unread(self) -> None:
        """Take note that the model said nothing to a tool's result, which its template may not show it."""
        reason = "the model said nothing to a tool's result"
        decline = Decline("endpoint_ignores_tool_messages", reason, _AS_TEXT)
        self.settle_for(replace(self.offers, tool_messages=False), decline)

    def _ask(
        self,
        body: dict[str, Any],
        note: str,
        form: CallForm,
        on_text: Callable[[str], None] | None,
        on_arguments: Callable[[str], None] | None,
    ) -> Reply:
        with self._emitter.span(
            EventKind.GENERATE,
            note,
            contents={"prompt": body["messages"]},
            model=self._endpoint.model,
            provider="openai_compatible",
            form=form.value,
            **{key: body.get(key) for key in ("temperature", "seed")},
            max_tokens=body.get("max_tokens", body.get("max_completion_tokens")),
        ) as span:
            reply = self._endpoint.ask(
                body, on_text=on_text, on_arguments=on_arguments, exchange=self._exchange
            )
            span.set(
                input_tokens=reply.usage.prompt,
                cached_tokens=reply.usage.cached,
                output_tokens=reply.usage.generated,
                stop_reason=reply.stop_reason,
                ttft_s=reply.ttft_s,
                decode_s=reply.seconds - reply.ttft_s,
            )
            span.set_contents(text=reply.text if reply.arguments is None else reply.arguments)
        self.replies.append(reply)
        return reply


class _Told:
    """Passes pieces on, and knows whether there were any.

    Attributes
    ----------
    any
        Whether somebody has heard a piece.
    """

    def __init__(self) -> None:
        self.any = False

    def by(self, listener: Callable[[str], None] | None) -> Callable[[str], None] | None:
        """Return a listener that passes pieces on to `listener`; none where there is none."""
        if listener is None:
            return None

        def hear(piece: str) -> None:
            self.any = True
            listener(piece)

        return hear


def _body(composed: Mapping[str, Any], offers: Offers, profile: Profile, max_tokens: int) -> dict[str, Any]:
    options = {
        "max_tokens": max_tokens,
        "temperature": profile.temperature,
        "seed": profile.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    kept = {name: value for name, value in options.items() if name not in offers.refused}
    if "max_tokens" in offers.refused:
        kept["max_completion_tokens"] = max_tokens
    if "stream" in offers.refused:
        kept.pop("stream_options", None)  # a whole answer has the usage in it
    return {**composed, **kept}


def _fewer(offers: Offers, body: Mapping[str, Any], error: EndpointError) -> Offers | None:
    """Return what to try without what `error` refuses; ``None`` when it refuses something else."""
    if isinstance(error, RequestTooLong):
        return None
    rejected = isinstance(error, RequestRejected)
    if rejected:
        for name, pattern in _PARAMETERS.items():
            if name in body and pattern.search(error.said):
                return replace(offers, refused=offers.refused | {name})
    shown = any(message["role"] == "tool" for message in body["messages"])
    asked = "tools" in body or "response_format" in body
    if (shown and _MESSAGE_WORDS.search(error.said)) or (shown and not asked and rejected):
        return replace(offers, tool_messages=False)
    words = _FORM_WORDS.get(offers.form)
    if asked and words is not None and (rejected or words.search(error.said)):
        form = offers.form.next
        if form is CallForm.NAMED and not _CHOICE.search(error.said):
            form = CallForm.SCHEMA  # one that takes no tools takes none by name either
        return replace(offers, form=form)
    if rejected and "stream_options" in body:
        return replace(offers, refused=offers.refused | {"stream_options"})
    return None


def _learned(known: Offers, offers: Offers, fewer: Offers, error: EndpointError) -> Offers:
    """Return what is left of what was known, once the endpoint refused `offers` and is asked for `fewer`."""
    of_all = offers.form is known.form and not _SCHEMA_FAULT.search(error.said)
    return Offers(
        form=fewer.form if of_all else known.form,
        refused=fewer.refused,
        tool_messages=known.tool_messages and (fewer.tool_messages or not offers.tool_messages),
    )


def _decline(offers: Offers, fewer: Offers, status: int | None) -> Decline:
    what, instead = "tool_messages", _AS_TEXT
    if fewer.form is not offers.form:
        what, instead = offers.form.value, _INSTEAD[fewer.form]
    for what in fewer.refused - offers.refused:
        instead = "max_completion_tokens" if what == "max_tokens" else f"no {what}"
    return Decline(f"endpoint_refuses_{what}", f"the endpoint refuses {what}, with {status}", instead)
