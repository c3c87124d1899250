"""An endpoint that speaks the OpenAI chat API: its address, its key, and one request at a time.

The address is looked at before anything is sent; the key comes from the environment at each request, and goes
to that address alone. It and what own headers hold are cut out of the texts that come back.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nexus_lab.agent.endpoint_errors import (
    BadEndpointAnswer,
    EndpointBrokeOff,
    EndpointTimeout,
    EndpointUnreachable,
    EndpointUnusable,
    error_for,
)
from nexus_lab.agent.endpoint_reply import Assembly, Kind, Reply
from nexus_lab.agent.endpoint_secrets import is_secret, secrets_of
from nexus_lab.errors import Cancelled
from nexus_lab.registry import neutralise
from nexus_lab.registry.http import is_loopback
from nexus_lab.registry.loop import background_loop

if TYPE_CHECKING:
    from concurrent.futures import Future

    import httpx2

    from nexus_lab.agent.endpoint_secrets import Secrets

__all__ = ["Endpoint", "Exchange"]

_CONNECT_S = 10.0
_ERROR_BYTES = 65_536
_ANSWER_BYTES = 16_000_000
_OK = 200
_STREAM = "text/event-stream"
_PATH = "/chat/completions"

Tell = Callable[[Kind, str], None]


class Exchange:
    """What is being asked for one turn; whoever holds it can give it up, from any thread, once for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._future: Future[Reply] | None = None
        self._given_up = False

    def begin(self, future: Future[Reply]) -> None:
        """Take note of a request on its way; it ends at once when this was given up before."""
        with self._lock:
            self._future = future
            given_up = self._given_up
        if given_up:
            future.cancel()

    def give_up(self) -> None:
        """Close the connection of the request on its way, and of any later one."""
        with self._lock:
            self._given_up = True
            future = self._future
        if future is not None:
            future.cancel()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model behind an endpoint that speaks the OpenAI chat API, for example vLLM or llama-server.

    Attributes
    ----------
    url
        Such as ``http://localhost:8080/v1``; http or https, and no key in it.
    model
        Its name there.
    key_variable
        Environment variable of the API key; ``None`` sends none. It is read at each request, and sent over
        https or to this machine only. A key of at least 8 characters is cut out of the answer and of errors.
    timeout_s
        Longest silence, in seconds: until the answer begins, and between any two pieces of it.
    headers
        Sent with each request; not in what the endpoint shows of itself or is recorded with. All but those
        that say who asks and what is taken (such as ``User-Agent``) are as secret as the key: they are sent
        where it is, and cut out likewise.

    Raises
    ------
    EndpointUnusable
        When the address is none, or the key or a header cannot be sent there.
    """

    url: str
    model: str
    key_variable: str | None = None
    timeout_s: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.strip().rstrip("/").removesuffix(_PATH))
        _check_address(self.url)
        if not self.model.strip():
            raise EndpointUnusable("the endpoint's model has no name", next_step="name one")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise EndpointUnusable(f"timeout_s = {self.timeout_s!r}", next_step="choose seconds above 0")
        _check_headers(self.headers)
        secret = [f"the header {name}" for name in self.headers if is_secret(name)]
        if self.key_variable is not None:
            secret.insert(0, "the key")
        if secret and not self.is_private:
            raise EndpointUnusable(
                f"{self.url} is plain http, over which anybody on the way could read {secret[0]}",
                next_step="use https, or an endpoint of this machine, or leave it out",
            )
        self._key()

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.url)

    @property
    def is_private(self) -> bool:
        """Whether a key can be sent there without others reading it on the way."""
        return self.is_loopback or self.url.startswith("https://")

    def facts(self) -> dict[str, Any]:
        """Return what a record says of it; the key and the headers are not in it."""
        return {"name": self.model, "endpoint": self.url, "key_variable": self.key_variable}

    def ask(
        self,
        body: Mapping[str, Any],
        *,
        on_text: Callable[[str], None] | None = None,
        on_arguments: Callable[[str], None] | None = None,
        exchange: Exchange | None = None,
    ) -> Reply:
        """Ask for one chat completion, and return it whole; a stream where the body asks for one.

        Parameters
        ----------
        body
            The request's JSON, without the model's name.
        on_text, on_arguments
            Called in this thread with each piece of the text, and of a tool call's arguments.
        exchange
            Lets others give the request up.

        Raises
        ------
        EndpointError
            When there is no answer, or none of this form.
        Cancelled
            When it was given up.
        """
        pieces: queue.SimpleQueue[tuple[Kind, str] | None] = queue.SimpleQueue()
        hear = {Kind.TEXT: on_text, Kind.ARGUMENTS: on_arguments}
        future = background_loop().start(self._talk(dict(body), lambda *piece: pieces.put(piece)))
        future.add_done_callback(lambda _done: pieces.put(None))
        try:
            if exchange is not None:
                exchange.begin(future)
            while (piece := pieces.get()) is not None:
                listener = hear.get(piece[0])
                if listener is not None:
                    listener(piece[1])
            return future.result()
        except CancelledError:
            raise Cancelled("the turn was stopped", next_step="ask again") from None
        finally:
            future.cancel()

    # -- on the loop's thread -----------------------------------------------------------------------------

    async def _talk(self, body: dict[str, Any], tell: Tell) -> Reply:
        import httpx2

        key = self._key()
        secrets = secrets_of(key, self.headers)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_s) as silence:

                def heard(kind: Kind, text: str) -> None:
                    silence.reschedule(asyncio.get_running_loop().time() + self.timeout_s)
                    if text:
                        tell(kind, text)

                async with (
                    self._client() as client,
                    client.stream(
                        "POST",
                        self.url + _PATH,
                        content=json.dumps({"model": self.model, **body}).encode(),
                        headers=self._headers(key),
                    ) as response,
                ):
                    return await self._read(response, Assembly(heard, began=began, secrets=secrets), secrets)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise EndpointUnreachable(
                f"no connection to {self.url}: {_why(error, secrets)}",
                next_step="see whether it is running, and check the address",
            ) from error
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise EndpointTimeout(
                f"{self.url} was silent for {self.timeout_s:g} s",
                next_step="see whether it is loading or busy, or allow a longer time",
            ) from error
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise EndpointUnusable(
                f"{self.url} cannot be asked: {_why(error, secrets)}", next_step="check address and headers"
            ) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise EndpointBrokeOff(
                f"{self.url} broke off: {_why(error, secrets)}", next_step="look into its log, then ask again"
            ) from error

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        return httpx2.AsyncClient(
            # Silence is bounded above; a redirect could lead the key elsewhere.
            timeout=httpx2.Timeout(None, connect=min(_CONNECT_S, self.timeout_s)),
            follow_redirects=False,
            # What is meant for this machine does not go through a proxy.
            trust_env=not self.is_loopback,
        )

    def _headers(self, key: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": f"{_STREAM}, application/json"}
        headers |= {"Accept-Encoding": "identity", **self.headers}
        return headers | ({"Authorization": f"Bearer {key}"} if key else {})

    def _key(self) -> str:
        """Return the key, empty where none is asked for; its errors do not show it."""
        if self.key_variable is None:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        shown = neutralise(self.key_variable, limit=80)
        if not key:
            raise EndpointUnusable(
                f"the environment variable {shown} holds no key", next_step="set it, or name another"
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise EndpointUnusable(
                f"the key in {shown} has characters that no HTTP header carries", next_step="set it anew"
            )
        return key

    async def _read(self, response: httpx2.Response, assembly: Assembly, secrets: Secrets) -> Reply:
        if response.status_code != _OK:
            raise error_for(
                response.status_code,
                await _beginning(response, _ERROR_BYTES, secrets),
                where=self.url,
                retry_after=response.headers.get("retry-after"),
                secrets=secrets,
            )
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise BadEndpointAnswer(
                f"{self.url} compressed its answer ({neutralise(secrets.cut(encoding), limit=20)}) unasked",
                next_step="turn compression off there",
            )
        if response.headers.get("content-type", "").partition(";")[0].strip().lower() == _STREAM:
            await self._read_stream(response, assembly)
        else:
            assembly.take(await _whole(response, _ANSWER_BYTES), self.url)
            assembly.finish()
        return assembly.reply(self.url)

    async def _read_stream(self, response: httpx2.Response, assembly: Assembly) -> None:
        import httpx2

        size = 0
        async for event in httpx2.EventSource(response):
            size += len(event.data)
            if size > _ANSWER_BYTES:
                raise _too_large(self.url)
            if event.data.strip() == "[DONE]":
                assembly.finish()
                return
            if event.data.strip():
                assembly.take(event.data, self.url)


async def _whole(response: httpx2.Response, limit: int) -> str:
    body = await _bytes(response, limit)
    if len(body) > limit:
        raise _too_large(str(response.request.url))
    return body.decode(errors="replace")


async def _beginning(response: httpx2.Response, limit: int, secrets: Secrets) -> str:
    body = await _bytes(response, limit)
    text = body[:limit].decode(errors="replace")
    # Half a secret at the cut would be found by nobody.
    return text if len(body) <= limit else text[: secrets.open_end(text)]


async def _bytes(response: httpx2.Response, limit: int) -> bytes:
    """Return the body, or more than `limit` bytes of it."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


def _too_large(where: str) -> BadEndpointAnswer:
    return BadEndpointAnswer(
        f"{where} answered with more than {_ANSWER_BYTES:,} bytes", next_step="use another endpoint"
    )


def _why(error: Exception, secrets: Secrets) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return neutralise(secrets.cut(said), limit=160)


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not (name and name.isascii() and name.isprintable() and not {" ", ":"} & set(name)) or not (
            value.isascii() and value.isprintable()
        ):
            raise EndpointUnusable(
                f"the header {neutralise(name, limit=80)!r} has characters that no HTTP header carries",
                next_step="set it anew",
            )


def _check_address(url: str) -> None:
    shown = neutralise(url, limit=160)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is none raises
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in url):
        # Not quoted where it might hold a password.
        raise EndpointUnusable(
            "that is no HTTP address" if "@" in url else f"{shown} is no HTTP address",
            next_step="give one such as http://localhost:8080/v1",
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise EndpointUnusable(
            f"the address at {neutralise(host, limit=80)} has more to it than host and path",
            next_step="name an environment variable for the key, and leave it out of the address",
        )
