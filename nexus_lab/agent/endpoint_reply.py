"""What an endpoint answers, put together from the pieces of a stream, or from one message."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.endpoint_errors import BadEndpointAnswer, EndpointBrokeOff, error_for
from nexus_lab.agent.endpoint_secrets import Secrets, Stream
from nexus_lab.registry import neutralise, repair_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Assembly", "Kind", "Reply", "Usage"]

_ERROR, _FAILED = 400, 500
_SHOWN = 80
_LONGEST_NAME = 256


class Kind(StrEnum):
    """What a piece of an answer belongs to."""

    TEXT = "text"
    ARGUMENTS = "arguments"
    THINKING = "thinking"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them; ``None`` where it does not say.

    Attributes
    ----------
    prompt, cached, generated
        Of the prompt, those of them that it took from a cache of its own, and of the answer.
    """

    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer.

    Attributes
    ----------
    text
        What the model said beside a call.
    called, arguments
        The tool that it called first, and the text of the arguments; ``None`` where it called none.
    stop_reason
        In the endpoint's words, such as ``stop``, ``length`` or ``tool_calls``.
    ttft_s, seconds
        From the request to the first piece, and to the end.
    """

    text: str
    called: str | None
    arguments: str | None
    stop_reason: str
    usage: Usage
    ttft_s: float
    seconds: float


class Assembly:
    """Puts one answer together.

    Parameters
    ----------
    tell
        Called with each piece; empty where it may be the first part of a secret, and waits for the next.
    began
        When the request was sent, by ``time.perf_counter``.
    secrets
        What was sent with it, and is cut out of every text of the answer.
    """

    def __init__(
        self, tell: Callable[[Kind, str], None], *, began: float, secrets: Secrets | None = None
    ) -> None:
        self._tell = tell
        self._secrets = secrets or Secrets()
        self._streams = {kind: Stream(self._secrets) for kind in Kind}
        self._began = began
        self._first: float | None = None
        self._pieces: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._called = ""
        self._first_call: tuple[Any, Any] | None = None
        self._at: tuple[Any, Any] = (None, None)
        self._has_call = self._heard = self._ended = False
        self._stop_reason = ""
        self._usage = Usage()

    def take(self, data: str, where: str) -> None:
        """Take in an event of the stream, or the whole answer.

        Raises
        ------
        BadEndpointAnswer
            When it is not of the form.
        EndpointError
            When it tells of an error.
        """
        try:
            value = json.loads(data)
            failure = value.get("error")
            if not failure:
                self._usage = _usage(value.get("usage")) or self._usage
                for choice in value.get("choices") or ():
                    if choice.get("index", 0) == 0:
                        self._choice(choice)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _no_completion(where, self._secrets.cut(" ".join(data.split()))) from error
        if failure:
            raise error_for(_status(failure), data, where=where, secrets=self._secrets)

    def finish(self) -> None:
        """Take note of the end."""
        self._ended = True

    def reply(self, where: str) -> Reply:
        """Return the whole answer.

        Raises
        ------
        EndpointBrokeOff, BadEndpointAnswer
            When it has no end, or nothing in it.
        """
        if self._ended and not self._heard:
            raise _no_completion(where, "it has no choices")
        if not (self._ended or self._stop_reason):
            raise EndpointBrokeOff(
                f"{where} broke off in the middle of its answer",
                next_step="look into its log, then ask again",
            )
        for kind, stream in self._streams.items():
            self._tell(kind, repair_text(stream.rest()))
        now = time.perf_counter()
        return Reply(
            text=self._text(Kind.TEXT),
            called=self._secrets.cut(self._called) if self._has_call else None,
            arguments=self._text(Kind.ARGUMENTS) if self._has_call else None,
            stop_reason=self._stop_reason or "stop",
            usage=self._usage,
            ttft_s=(self._first or now) - self._began,
            seconds=now - self._began,
        )

    def _text(self, kind: Kind) -> str:
        return repair_text(self._secrets.cut("".join(self._pieces[kind])))

    def _choice(self, choice: Mapping[str, Any]) -> None:
        self._heard = True
        said: Mapping[str, Any] = choice.get("delta") or choice.get("message") or {}
        self._hear(Kind.THINKING, said.get("reasoning_content") or said.get("reasoning"))
        self._hear(Kind.TEXT, said.get("content"))
        for place, call in enumerate(said.get("tool_calls") or ()):
            self._hear_call(call, call.get("index", place))
        reason = choice.get("finish_reason")
        if reason:
            self._stop_reason = neutralise(self._secrets.cut(str(reason)), limit=_SHOWN)

    def _hear_call(self, call: Mapping[str, Any], index: Any) -> None:
        """Take in a piece of a call; one was asked for, so that any beside the first are left."""
        # Not every server counts them, nor repeats the id; a piece without either goes on with the last.
        which = (index, call.get("id") or self._at[1])
        self._first_call = self._first_call or which
        self._at = which
        if which[0] != self._first_call[0] or (self._first_call[1] and which[1] != self._first_call[1]):
            return
        self._has_call = True
        function = call.get("function") or {}
        name = str(function.get("name") or "")
        if name != self._called:  # some repeat it with each piece
            self._called = (self._called + name)[:_LONGEST_NAME]
        arguments = function.get("arguments")
        # Some give the object in place of its text.
        self._hear(Kind.ARGUMENTS, json.dumps(arguments) if isinstance(arguments, dict) else arguments)

    def _hear(self, kind: Kind, said: Any) -> None:
        if isinstance(said, list):
            said = "".join(str(part.get("text") or "") for part in said)
        if said is None or said == "":
            return
        if not isinstance(said, str):
            raise TypeError("no text")
        if self._first is None:
            self._first = time.perf_counter()
        self._pieces[kind].append(said)
        self._tell(kind, repair_text(self._streams[kind].take(said)))


def _no_completion(where: str, why: str) -> BadEndpointAnswer:
    return BadEndpointAnswer(
        f"{where} answered what is no chat completion: {neutralise(why, limit=_SHOWN)}",
        next_step="check the address, which usually ends in /v1, and what serves it",
    )


def _status(error: Any) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and code >= _ERROR else _FAILED


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    return Usage(
        prompt=_count(value.get("prompt_tokens")),
        cached=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        generated=_count(value.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if known else None
