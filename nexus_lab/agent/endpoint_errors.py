"""What can go wrong with an endpoint of the OpenAI form; every one says what to do next."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from nexus_lab.agent.endpoint_secrets import Secrets

__all__ = [
    "BadEndpointAnswer",
    "EndpointBrokeOff",
    "EndpointBusy",
    "EndpointError",
    "EndpointFailed",
    "EndpointTimeout",
    "EndpointUnreachable",
    "EndpointUnusable",
    "KeyRefused",
    "ModelNotFound",
    "RequestRejected",
    "RequestTooLong",
    "error_for",
    "words_of",
]

_SHOWN = 240
_SAID = 4_000
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
_REDIRECT, _ERROR, _SERVER_ERROR = 300, 400, 500
_KEY, _MISSING, _WAITED, _LARGE, _MANY = (401, 403), 404, (408, 504), 413, (429, 503)


class EndpointError(NexusError):
    """Something between us and an endpoint went wrong.

    Attributes
    ----------
    status
        HTTP status that it answered with; ``None`` where it did not.
    said
        What it said of the error, in its own words (untrusted), 4,000 characters at most.
    """

    def __init__(
        self, problem: str, *, status: int | None = None, said: str = "", next_step: str = ""
    ) -> None:
        super().__init__(problem, next_step=next_step)
        self.status = status
        self.said = said


class EndpointUnusable(EndpointError):
    """The address or the key cannot be used; nothing was sent."""


class EndpointUnreachable(EndpointError):
    """No connection could be made."""


class KeyRefused(EndpointError):
    """The endpoint wants another key, or one at all."""


class ModelNotFound(EndpointError):
    """The endpoint knows no such model, or there is no endpoint at this address."""


class EndpointBusy(EndpointError):
    """The endpoint takes no more requests for now.

    Attributes
    ----------
    retry_after_s
        Seconds that it asks to wait; ``None`` where it does not say.
    """

    def __init__(
        self,
        problem: str,
        *,
        status: int | None = None,
        said: str = "",
        next_step: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(problem, status=status, said=said, next_step=next_step)
        self.retry_after_s = retry_after_s


class RequestRejected(EndpointError):
    """The endpoint does not take the request as it is."""


class RequestTooLong(RequestRejected):
    """The conversation has outgrown the context of the endpoint's model."""


class EndpointFailed(EndpointError):
    """The endpoint failed by its own account."""


class EndpointTimeout(EndpointError):
    """The endpoint fell silent."""


class EndpointBrokeOff(EndpointError):
    """The connection ended before the answer did."""


class BadEndpointAnswer(EndpointError):
    """What the endpoint answered is not of the OpenAI form."""


def words_of(body: str) -> str:
    """Return what an endpoint says of an error, in its own words; empty where it says nothing."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body
    for _ in range(3):  # {"error": {"message": ...}} is the common form
        if not isinstance(value, dict):
            break
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), "")
    return value if isinstance(value, str) else json.dumps(value)


def error_for(
    status: int, body: str, *, where: str, retry_after: str | None = None, secrets: Secrets | None = None
) -> EndpointError:
    """Return the typed error for an answer that is none.

    Parameters
    ----------
    status
        HTTP status, or the code of an error that came in the middle of a stream.
    body
        What came with it; untrusted, and quoted harmless.
    where
        The endpoint, for the reader.
    secrets
        What was sent and is not to be shown, should it be quoted.
    """
    words = words_of(body)
    words = (words if secrets is None else secrets.cut(words))[:_SAID]
    said = neutralise(" ".join(words.split()), limit=_SHOWN)
    told = f"{where} answered {status}" + (f": {said}" if said else "")
    if status in _MANY:
        return _busy(told, words, status, retry_after)
    kind, step = _kind_of(status, words)
    return kind(told, status=status, said=words, next_step=step)


def _kind_of(status: int, words: str) -> tuple[type[EndpointError], str]:
    """Return the type of an error, and what the reader can do."""
    too_long = status == _LARGE or (status < _SERVER_ERROR and _TOO_LONG.search(words) is not None)
    kinds = (
        (status in _KEY, KeyRefused, "name the environment variable of a key that it takes"),
        (
            status == _MISSING,
            ModelNotFound,
            "check the model's name, and the address, which usually ends in /v1",
        ),
        (status in _WAITED, EndpointTimeout, "try again, or with a shorter conversation"),
        (too_long, RequestTooLong, "start a new conversation, or serve the model with a larger context"),
        (status >= _SERVER_ERROR, EndpointFailed, "look into its log, then ask again"),
        (status >= _ERROR, RequestRejected, "mend what it names, or use another model"),
        (status >= _REDIRECT, BadEndpointAnswer, "give the address that it leads to"),
    )
    return next(
        ((kind, step) for applies, kind, step in kinds if applies), (BadEndpointAnswer, "check the address")
    )


def _busy(told: str, said: str, status: int, retry_after: str | None) -> EndpointBusy:
    try:
        seconds = max(float(retry_after or ""), 0.0)
    except ValueError:  # a date, or nothing
        seconds = math.nan
    known = seconds if math.isfinite(seconds) else None
    step = "ask again later" if known is None else f"ask again in {known:.0f} s"
    return EndpointBusy(told, status=status, said=said, next_step=step, retry_after_s=known)
