"""Letting a model behind an endpoint write a call: what it is asked, what is made of it, one retry.

What the conversation settles is put into the call whatever the model wrote, as the grammar of a local model
would have it; a call that is settled as a whole is not asked for at all.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.calling import Written, call_opening, complaint, tool_block
from nexus_lab.agent.remote_asking import CallForm
from nexus_lab.arguments import (
    ArgumentsError,
    ArgumentsRejected,
    CutOff,
    MissingValues,
    NotJson,
    breaks_off,
    ground,
    parse_arguments,
    tool_text,
    validate,
)
from nexus_lab.arguments.grounding import plan_grounded
from nexus_lab.errors import Decline
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.endpoint_reply import Reply
    from nexus_lab.agent.remote_asking import Asker, Offers
    from nexus_lab.arguments import GrammarPlan, Grounding, Violation
    from nexus_lab.registry import ToolSpec
    from nexus_lab.settings import Profile

__all__ = ["NO_GRAMMAR", "RemoteCalls", "Said", "rendered", "spoken"]

NO_GRAMMAR = Decline(
    "remote_no_grammar",
    "the endpoint samples by itself, so that no grammar of ours can mask its tokens",
    "what it offers itself; the call is checked against the schema",
)

_ATTEMPTS = 2
_OPEN_KEYWORDS = frozenset({"type", "properties", "required", "additionalProperties", "$defs"})
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_BRACES = 64  # of a text, that are tried
_ALLOW_MORE = "allow more max_tokens in the profile, or ask for less"
_THOUGHT_ENDS = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of the conversation, in no endpoint's form.

    Attributes
    ----------
    role
        ``system``, ``user``, ``assistant`` or ``tool``.
    tool, arguments
        Of a call: the tool, and what it was called with; of a result: the tool.
    call
        Number of the call, of both.
    """

    role: str
    text: str = ""
    tool: str | None = None
    arguments: Mapping[str, Any] | None = None
    call: int = 0


def rendered(said: Sequence[Said], *, as_tools: bool) -> list[dict[str, Any]]:
    """Return the messages as an endpoint takes them; calls and results as text where it has no tools."""
    return [_as_tools(one) if one.tool and as_tools else _as_text(one) for one in said]


def _as_tools(one: Said) -> dict[str, Any]:
    name = f"call{one.call:05d}"  # nine letters and digits, which the strictest want
    if one.arguments is None:
        return {"role": "tool", "tool_call_id": name, "content": one.text}
    function = {"name": _wire_name(one.tool or ""), "arguments": _compact(one.arguments)}
    return {
        "role": "assistant",
        "content": "",  # one takes no null, another wants the key
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def _as_text(one: Said) -> dict[str, Any]:
    if one.tool and one.arguments is not None:
        return {"role": "assistant", "content": f"{call_opening(one.tool)}{_compact(one.arguments)}}}"}
    if one.tool:
        return {"role": "user", "content": f"Result of {one.tool}:\n{one.text}"}
    return {"role": one.role, "content": one.text}


def spoken(text: str) -> str:
    """Return what a model said behind its thinking."""
    return text.rpartition(_THOUGHT_ENDS)[2].strip()


class RemoteCalls:
    """Writes calls through one endpoint.

    Parameters
    ----------
    asker
        Asks it.
    emitter
        Hears of every attempt, and of what could not be done.
    """

    def __init__(self, asker: Asker, emitter: Emitter) -> None:
        self._asker = asker
        self._emitter = emitter

    def write(
        self,
        said: Sequence[Said],
        spec: ToolSpec,
        profile: Profile,
        *,
        request: str,
        history: Sequence[Mapping[str, Any]] = (),
        on_token: Callable[[str], None] | None = None,
    ) -> Written:
        """Let the model write a call that answers `request`; one that breaks the schema is tried once more.

        Parameters
        ----------
        said
            The conversation before the request.
        request, history
            What the user says and the messages before it. Values come from there, and optional arguments
            that they do not speak of are left out.
        on_token
            Called with each piece of the call as it is written.

        Raises
        ------
        EndpointError
            When the endpoint does not answer.
        """
        began = time.perf_counter()
        found = ground(spec, request, history)
        wanted = _Wanted(spec, profile.schema_mode, plan_grounded(spec, found), found, request)
        tell = on_token or (lambda _piece: None)
        if found.missing:
            problem = MissingValues(found.missing, tool=spec.name)
            return _written(None, problem, ttft_s=time.perf_counter() - began)
        if wanted.plan.settled is not None:
            return self._settled(wanted, wanted.plan.settled, began, tell)
        return self._asked(wanted, said, profile, began, tell)

    def _settled(self, wanted: _Wanted, text: str, began: float, tell: Callable[[str], None]) -> Written:
        with self._emitter.span(EventKind.ARGUMENTS, wanted.spec.name, attempt=1, settled=True) as span:
            tell(f"{call_opening(wanted.spec.name)}{text}}}")
            first = time.perf_counter()
            arguments, problem = wanted.checked(text)
            span.set(valid=problem is None, violations=len(_violations(problem)))
            span.set_contents(text=text)
        return _written(arguments, problem, ttft_s=first - began)

    def _asked(
        self,
        wanted: _Wanted,
        said: Sequence[Said],
        profile: Profile,
        began: float,
        tell: Callable[[str], None],
    ) -> Written:
        self._emitter.decline("grammar", NO_GRAMMAR)
        more: list[dict[str, Any]] = []
        ttft_s, n_generated, attempt, left = None, 0, 0, _ATTEMPTS
        while left:
            attempt += 1
            with self._emitter.span(EventKind.ARGUMENTS, wanted.spec.name, attempt=attempt) as span:
                reply = self._ask(wanted, said, more, profile, tell)
                first = time.perf_counter() - reply.seconds + reply.ttft_s
                form = self._asker.offers.form
                text, arguments, problem = self._read(wanted, reply)
                span.set(valid=problem is None, violations=len(_violations(problem)))
                span.set_contents(text=text)
            ttft_s = first - began if ttft_s is None else ttft_s
            n_generated += reply.usage.generated or 0
            if problem is None:
                break
            if self._asker.offers.form is form:
                left -= 1
                more = [{"role": "assistant", "content": text}] if text else []
                more += [{"role": "user", "content": wanted.complaint(problem)}]
            else:
                more, left = [], _ATTEMPTS  # the next form asks otherwise
        return _written(arguments, problem, ttft_s=ttft_s or 0.0, n_generated=n_generated)

    def _ask(
        self,
        wanted: _Wanted,
        said: Sequence[Said],
        more: Sequence[Mapping[str, Any]],
        profile: Profile,
        tell: Callable[[str], None],
    ) -> Reply:
        tell(call_opening(wanted.spec.name))
        reply = self._asker.ask(
            lambda offers: wanted.composed(said, offers, more),
            note="arguments",
            profile=profile,
            max_tokens=profile.max_tokens,
            # What is said beside a call is no part of it.
            on_text=lambda piece: None if self._asker.form.has_tools else tell(piece),
            on_arguments=tell,
        )
        tell("}")
        return reply

    def _read(
        self, wanted: _Wanted, reply: Reply
    ) -> tuple[str, dict[str, Any] | None, ArgumentsError | None]:
        """Return the text of the arguments, what they are, and what is wrong with them."""
        form = self._asker.form
        problem: ArgumentsError | None
        if reply.called is not None and reply.called != wanted.name:
            shown = neutralise(reply.called, limit=80)
            problem = NotJson(f"the endpoint called {shown!r}", next_step=f"call {wanted.name}")
            return reply.arguments or "", None, problem
        text = _json_in(spoken(reply.text)) if reply.arguments is None else reply.arguments or "{}"
        if (form.has_tools and reply.called is None) or (
            form.has_schema and not wanted.holds(text, cut=reply.stop_reason == "length")
        ):
            self._asker.ignored()
        arguments, problem = wanted.checked(text)
        if isinstance(problem, NotJson) and reply.stop_reason == "length":
            problem = CutOff("the call was cut off: no more tokens were allowed", next_step=_ALLOW_MORE)
        return text, arguments, problem


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A call that is wanted of an endpoint."""

    spec: ToolSpec
    schema_mode: str
    plan: GrammarPlan
    found: Grounding
    request: str

    @property
    def name(self) -> str:
        """Name of the tool as endpoints take it."""
        return _wire_name(self.spec.name)

    @property
    def fixed(self) -> dict[str, Any]:
        """What the conversation settles, and the model cannot change."""
        properties = self.plan.schema_used.get("properties", {})
        values = self.found.values.items()
        return {name: value for name, value in values if properties.get(name) == {"enum": [value]}}

    def composed(
        self, said: Sequence[Said], offers: Offers, more: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the messages, and what asks for the call."""
        form = offers.form
        text = self.request if form.has_tools else self._prompt()
        body: dict[str, Any] = {
            "messages": [*rendered(said, as_tools=offers.as_tools), {"role": "user", "content": text}, *more]
        }
        if form.has_tools:
            named = {"type": "function", "function": {"name": self.name}}
            body["tools"] = [{"type": "function", "function": self._function()}]
            body["tool_choice"] = named if form is CallForm.NAMED else "required"
        elif form is CallForm.SCHEMA:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": self.name, "schema": self.schema()},
            }
        elif form is CallForm.OBJECT:
            body["response_format"] = {"type": "json_object", "schema": self.schema()}
        return body

    def schema(self) -> dict[str, Any]:
        """Return the schema that is narrowed to what the conversation speaks of."""
        used = dict(self.plan.schema_used)
        properties = used.get("properties", {})
        used["properties"] = {name: part for name, part in properties.items() if part is not False}
        if used.keys() <= _OPEN_KEYWORDS and properties:
            used["required"] = list(used["properties"])
            used["additionalProperties"] = False
        return used

    def holds(self, text: str, *, cut: bool) -> bool:
        """Whether a text is under the schema, as far as it goes."""
        try:
            return not validate(parse_arguments(text), self.schema())
        except ArgumentsError:
            return cut

    def checked(self, text: str) -> tuple[dict[str, Any] | None, ArgumentsError | None]:
        """Return the arguments with what the conversation settles, and what is wrong with them."""
        try:
            arguments = self._grounded(self._unwrapped(parse_arguments(text)))
            violations = validate(arguments, self._completed())
        except ArgumentsError as error:
            return None, error
        if violations:
            return arguments, ArgumentsRejected(tuple(violations), tool=self.spec.name)
        return arguments, None

    def complaint(self, problem: ArgumentsError) -> str:
        """Return the message that asks for the call again."""
        return complaint(problem, self.spec)

    def _prompt(self) -> str:
        lines = [f"{tool_block(self.spec, self.schema_mode)}{self.request}", ""]
        if self.fixed:
            lines.append(f"These arguments are known: {_compact(self.fixed)}")
        lines.append(f"Answer with the arguments of {self.spec.name} as one JSON object, and nothing else.")
        return "\n".join(lines)

    def _function(self) -> dict[str, Any]:
        if self.schema_mode == "signature":
            shown, parameters = tool_text(self.spec), self.schema()
        else:
            shown, parameters = self.spec.description, self._full_schema()
        return {
            "name": self.name,
            "description": shown,
            "parameters": {"type": "object", "properties": {}, **parameters},
        }

    def _full_schema(self) -> dict[str, Any]:
        """Return the schema in its author's words, with what the conversation settles as only choice."""
        fixed = self.fixed
        properties = {
            name: {**schema, "enum": [fixed[name]]} if name in fixed and isinstance(schema, dict) else schema
            for name, schema in self.spec.properties.items()
        }
        return {**self.spec.input_schema, "properties": properties}

    def _unwrapped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a whole call, which many models write when asked for its arguments."""
        inner = arguments.get("arguments", arguments.get("parameters"))
        known = self.spec.properties.keys() & {"name", "arguments", "parameters"}
        whole = arguments.get("name") in (self.spec.name, self.name) and isinstance(inner, dict)
        return inner if whole and not known and isinstance(inner, dict) else arguments

    def _grounded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        properties = self.plan.schema_used.get("properties", {})
        kept = {name: value for name, value in arguments.items() if properties.get(name) is not False}
        merged = {**kept, **self.fixed}
        order = [*(name for name in self.spec.properties if name in merged), *merged]
        return {name: merged[name] for name in dict.fromkeys(order)}

    def _completed(self) -> dict[str, Any]:
        """Return the tool's schema, with the patterns of values that the model is to complete."""
        properties = {
            name: {**schema, "pattern": self.found.completed[name]}
            if name in self.found.completed
            else schema
            for name, schema in self.spec.properties.items()
        }
        return {**self.spec.input_schema, **({"properties": properties} if properties else {})}


def _written(
    arguments: dict[str, Any] | None, problem: ArgumentsError | None, *, ttft_s: float, n_generated: int = 0
) -> Written:
    return Written(
        arguments=arguments,
        violations=tuple(map(str, _violations(problem))),
        problem=problem,
        ttft_s=ttft_s,
        n_generated=n_generated,
    )


def _violations(problem: ArgumentsError | None) -> tuple[Violation, ...]:
    return problem.violations if isinstance(problem, ArgumentsRejected) else ()


def _json_in(text: str) -> str:
    """Return the first JSON object in a text, which may stand in a fence or behind words; else the text."""
    starts = [match.start() for match in islice(re.finditer(r"\{", text), _BRACES)]
    for start in starts:
        try:
            _, stop = json.JSONDecoder().raw_decode(text, start)
        except json.JSONDecodeError as error:
            if breaks_off(error):
                return text[start:]  # it breaks off; what is whole in it is not the call
        except (ValueError, RecursionError):
            return text[start:]
        else:
            return text[start:stop]
    return text[starts[0] :] if starts else text


def _wire_name(name: str) -> str:
    """Return the name of a tool in the letters that endpoints take."""
    return _ODD.sub("_", name)[:_LONGEST_NAME]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
