"""What a view gets, and when: changed parts, at most twenty times a second, never one ahead of another."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError
from nexus_lab.lab.part_lists import Kept, SentLists
from nexus_lab.lab.wire import BadRequest, Reply, error_info, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nexus_lab.lab.desk import Desk

    Send = Callable[[dict[str, Any], list[Any]], None]

__all__ = ["Pump", "ViewLink", "answer_where_asked"]

logger = logging.getLogger(__name__)
_STEP_S = 1 / 20
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def answer_where_asked(comm: Any) -> None:
    """Let each message of a view go to the shell that it names.

    ipykernel 7.4 sends all that arrives on a comm to the shell that last wrote on it. That is the main shell
    when a cell waits for a turn and the turn's parts are sent meanwhile, so neither Stop, an approval nor an
    acknowledgement would get through. Forgetting that shell after each message is too late: the view may have
    answered already.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, named: named  # noqa: SLF001 - there is no public way


class _Again:
    """What failed, and when it is tried again: after a pause that doubles, up to half a minute."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}

    def note(self, name: str, *, made: bool, now: float) -> None:
        """Take note of how a try went."""
        if made:
            self._pauses.pop(name, None)
            return
        before, _ = self._pauses.get(name, (_FIRST_PAUSE_S / 2, 0.0))
        pause = min(2 * before, _LONGEST_PAUSE_S)
        self._pauses[name] = (pause, now + pause)

    @property
    def next(self) -> float | None:
        """When the next try is due."""
        return min((when for _, when in self._pauses.values()), default=None)

    def due(self, now: float) -> set[str]:
        """Return what is to be tried now."""
        return {name for name, (_, when) in self._pauses.items() if when <= now}


class ViewLink:
    """The kernel's end of one view.

    What changes while a message is unacknowledged is gathered by part, and of each part only the newest
    state is ever sent. A view that never acknowledges, because its page is gone, gets nothing more.

    The first message after a ``hello`` has every part as a whole, and no ``kept``. In those that follow,
    ``kept`` says by part and field which items of a list the view has from the message before; a view that
    has missed that message says hello again.

    A part that could not be made is tried again when it changes, and after a pause that grows; a message that
    could not be sent is made up for by a whole one, likewise.

    Parameters
    ----------
    desk
        The session.
    send
        Sends a message and its buffers; from any thread.
    """

    def __init__(self, desk: Desk, send: Send) -> None:
        self._desk = desk
        self._send = send
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._revision = 0
        self._awaited: int | None = None
        self._greeted = False
        self._last = -1.0
        self._pause = _STEP_S
        self._again = _Again()
        self._sent: SentLists | None = None
        desk.pump.add(self)

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take a message of the view: ``hello``, ``ack`` or ``request``."""
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "hello":
            self._greet()
        elif kind == "ack":
            self._acknowledge(message.get("revision"))
        elif kind == "request":
            self._request(message)
        else:
            logger.warning("a view sent a message of unknown kind %.40r", kind)

    @property
    def greeted(self) -> bool:
        """Whether a view has ever been there."""
        return self._greeted

    def mark(self, names: Iterable[str]) -> None:
        """Note that parts have changed."""
        with self._lock:
            self._dirty.update(names)

    def due(self, now: float) -> float | None:
        """Seconds until something may be sent, ``None`` when there is nothing to wait for."""
        with self._lock:
            if not self._greeted or self._awaited is not None:
                return None
            again = now if self._dirty else self._again.next
            return None if again is None else max(0.0, again - now, self._last + self._pause - now)

    def flush(self) -> None:
        """Send the parts that have changed, and those that could not be made before; the pump's business."""
        now = time.monotonic()
        with self._lock:
            names, self._dirty = sorted(self._dirty | self._again.due(now)), set()
            self._revision += 1
            revision = self._awaited = self._revision
            self._last = now
            # A hello that comes meanwhile puts nothing in its place, so that the next message is whole.
            whole, sent = self._sent is None, self._sent or SentLists()
            self._sent = sent
        message: dict[str, Any] = {"kind": "parts", "revision": revision, "parts": {}}
        kept: dict[str, Kept] = {}
        made = self._desk.parts(names)
        for name, part in made.items():
            message["parts"][name], ends = sent.shorten(name, part)
            if ends:
                kept[name] = ends
        with self._lock:
            for name in names:
                self._again.note(name, made=name in made, now=time.monotonic())
        self._send(message if whole else {**message, "kept": kept}, [])
        self._pause = _STEP_S

    def take_back(self) -> float:
        """Have a message that did not go out followed by a whole one.

        Returns
        -------
        Seconds until then; they grow from failure to failure.
        """
        with self._lock:
            self._awaited = self._sent = None
            self._dirty.update(self._desk.part_names)
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            return self._pause

    def close(self) -> None:
        """Send nothing more."""
        self._desk.pump.remove(self)

    def _greet(self) -> None:
        with self._lock:
            self._greeted = True
            self._awaited = None
            self._sent = None
            self._dirty.update(self._desk.part_names)
        self._desk.pump.wake()

    def _acknowledge(self, revision: object) -> None:
        with self._lock:
            if revision != self._awaited:
                return
            self._awaited = None
        self._desk.pump.wake()

    def _request(self, message: Mapping[str, Any]) -> None:
        number = message.get("id")

        def reply(answer: object) -> None:
            self._post(*_reply(number, answer))

        method, params = message.get("method"), message.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict):
            reply(BadRequest("a request names a method and its parameters", next_step="report this"))
        else:
            self._desk.handle(method, params, reply)

    def _post(self, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        try:
            self._send(message, list(buffers))
        except Exception:
            logger.exception("a message could not be sent to a view")


def _reply(number: object, answer: object) -> tuple[dict[str, Any], Sequence[Any]]:
    buffers: Sequence[Any] = ()
    if isinstance(answer, Reply):
        buffers = answer.buffers
        answer = answer.result
    if not isinstance(answer, BaseException):
        try:
            return {"kind": "reply", "id": number, "ok": True, "result": to_json(answer)}, buffers
        except NexusError as error:
            answer = error
    return {"kind": "reply", "id": number, "ok": False, "error": error_info(answer)}, ()


class Pump:
    """One thread that sends to all views of a desk what is due."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._links: list[ViewLink] = []
        self._woken = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nexus-views", daemon=True)
        self._thread.start()

    def add(self, link: ViewLink) -> None:
        """Serve a view."""
        with self._condition:
            self._links.append(link)

    def remove(self, link: ViewLink) -> None:
        """Serve a view no longer."""
        with self._condition:
            self._links = [other for other in self._links if other is not link]

    def mark(self, names: Iterable[str]) -> None:
        """Note for all views that parts have changed."""
        names = tuple(names)
        with self._condition:
            links = tuple(self._links)
        for link in links:
            link.mark(names)
        self.wake()

    def wake(self) -> None:
        """Look again what is due."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        wait: float | None = None
        while True:
            with self._condition:
                if not self._woken and not self._closed:
                    self._condition.wait(wait)
                if self._closed:
                    return
                self._woken = False
                links = tuple(self._links)
            wait = _serve(links)


def _serve(links: Iterable[ViewLink]) -> float | None:
    """Send what is due now; returns the seconds until the next is."""
    waits = []
    for link in links:
        wait = link.due(time.monotonic())
        if wait is None:
            continue
        if wait > 0:
            waits.append(wait)
            continue
        try:
            link.flush()
        except Exception:
            logger.exception("a view could not be served")
            waits.append(link.take_back())
        else:
            # What could not be made is due by itself, when the view has acknowledged what was.
            waits += [wait for wait in [link.due(time.monotonic())] if wait is not None]
    return min(waits, default=None)
