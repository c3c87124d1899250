"""What a turn says about itself: events, the observers that hear them, and the emitter of nested spans.

Times are nanoseconds since the Unix epoch. They come from one reading of the wall clock plus a monotonic
clock, so they never run backwards inside a process, also when the wall clock is set.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nexus_lab.agent.rows import (
    Candidate,
    DriftFrame,
    FidelityRow,
    Json,
    MessageRow,
    OpKind,
    OpRow,
    RoutingRow,
    Row,
    TurnRow,
    content_fields,
)
from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nexus_lab.errors import Decline

__all__ = [
    "Candidate",
    "DriftFrame",
    "Emitter",
    "Event",
    "EventKind",
    "FidelityRow",
    "MessageRow",
    "Observer",
    "OpKind",
    "OpRow",
    "RoutingRow",
    "Row",
    "Span",
    "Status",
    "TurnRow",
    "content_fields",
    "now_ns",
    "reserve_event_ids",
]

logger = logging.getLogger(__name__)

_NOTHING: Mapping[str, Json] = MappingProxyType({})


class EventKind(StrEnum):
    """What happened. A turn is the root of its spans; the others nest inside it, or stand alone.

    Attributes are free, but these are understood: the report shows them, and exports give them the name that
    the GenAI conventions have for them.

    ==============  ======================================================================================
    ``turn``        ``turn`` (number), ``agent``, ``conversation``; contents ``request``, ``answer``
    ``embeddings``  ``model``, ``dimensions``, ``input_tokens``
    ``retrieval``   ``registry``, ``top_k``, ``kernel``; contents ``query``,
                    ``matched`` (by tool, the nearest of the texts that stand for it)
    ``generate``    ``model``, ``input_tokens``, ``cached_tokens``, ``output_tokens`` (or ``tokens``),
                    ``ttft_s``, ``stop_reason``, ``temperature``, ``top_p``, ``top_k``, ``seed``,
                    ``max_tokens``, ``provider``; contents ``prompt``, ``text``
    ``arguments``   ``schema_mode``, ``attempt``, ``violations``, ``weighed`` (calls that were close) and
                    ``overruled`` where the model chose among them, ``settled``; contents
                    ``text``, ``grounds`` (where each argument comes from)
    ``tool``        ``tool`` (else its name), ``server``, ``call_id``, ``bytes``, ``is_error``,
                    ``truncated``; contents ``arguments``, ``result``
    ``decline``     ``code``, ``reason``, ``instead``, as also on any declined span
    ``step``        a stage of a record that another program wrote, or a remark on the turn: ``note``
    the others      ``tokens``, ``n_past``, ``reused``, ``path``
    ==============  ======================================================================================

    The name of a ``cache_op`` begins with its operation. A failed span carries ``error_type`` and, in its
    contents, ``error``.
    """

    TURN = "turn"
    EMBEDDINGS = "embeddings"
    RETRIEVAL = "retrieval"
    GATE = "gate"
    RERANK = "rerank"
    ARGUMENTS = "arguments"
    PREFILL = "prefill"
    SPLICE = "splice"
    REPAIR = "repair"
    GENERATE = "generate"
    TOOL = "tool"
    CACHE_OP = "cache_op"
    FIDELITY = "fidelity"
    MESSAGE = "message"
    DECLINE = "decline"
    CORRECTION = "correction"
    STEP = "step"


class Status(StrEnum):
    """How a span ended.

    ``running`` is seen only by observers, while the span is open; ``interrupted`` only in a record, on
    spans that were open when their process died.
    """

    OK = "ok"
    ERROR = "error"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    RUNNING = "running"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One span, or a point in time (duration 0).

    A span is announced when it opens (``status`` running, ``duration_ns`` None, no rows) and reported
    again under the same id, complete, when it ends.

    Attributes
    ----------
    id
        Unique in the process, ascending in the order spans open.
    parent
        Id of the enclosing span.
    start_ns, duration_ns
        Nanoseconds since the epoch, and length.
    attributes
        Facts without anybody's text: names, counts, scores, settings, reasons of ours.
    contents
        What a user, a model or a tool wrote; recorded only when the user asked for it.
    rows
        Typed rows for the bundle's tables.
    """

    id: int
    parent: int | None
    kind: EventKind
    name: str
    start_ns: int
    duration_ns: int | None
    status: Status
    attributes: Mapping[str, Json] = field(default_factory=dict)
    contents: Mapping[str, Json] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()


@runtime_checkable
class Observer(Protocol):
    """Hears events. Called in the thread that does the work, possibly from several at a time."""

    def on_event(self, event: Event) -> None:
        """Take note of `event`; return soon, and never touch the engine."""


_WALL_NS = time.time_ns()
_MONOTONIC_NS = time.perf_counter_ns()


def now_ns() -> int:
    """Nanoseconds since the Unix epoch, monotonic inside the process."""
    return _WALL_NS + time.perf_counter_ns() - _MONOTONIC_NS


class _Ids:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = itertools.count(1)

    def take(self) -> int:
        with self._lock:
            return next(self._count)

    def reserve(self, last: int) -> None:
        with self._lock:
            self._count = itertools.count(max(next(self._count), last + 1))


_ids = _Ids()
_current: ContextVar[Span | None] = ContextVar("nexus_lab_span", default=None)


def reserve_event_ids(last: int) -> None:
    """Make all later event ids greater than `last`, so that a record can be continued."""
    _ids.reserve(last)


@dataclass(slots=True, kw_only=True)
class Span:
    """An open span; the emitter hands it out, the code inside fills it."""

    id: int
    parent: int | None
    kind: EventKind
    name: str
    start_ns: int
    emitter: Emitter
    status: Status = Status.OK
    attributes: dict[str, Json] = field(default_factory=dict)
    contents: dict[str, Json] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def set(self, **attributes: Json) -> None:
        """Add attributes."""
        self.attributes.update(attributes)

    def set_contents(self, **contents: Json) -> None:
        """Add contents: texts of users, models and tools."""
        self.contents.update(contents)

    def add(self, *rows: Row) -> None:
        """Attach typed rows."""
        self.rows.extend(rows)

    def decline(self, decline: Decline) -> None:
        """Mark the span declined, with the reason and what happened in its place."""
        self.status = Status.DECLINED
        self.set(**_decline_attributes(decline))

    def fail(self, error: BaseException) -> None:
        """Mark the span failed; the error's text is content, its type is not."""
        self.status = Status.CANCELLED if isinstance(error, Cancelled | KeyboardInterrupt) else Status.ERROR
        self.set(error_type=type(error).__name__)
        self.set_contents(error=str(error))


def _decline_attributes(decline: Decline) -> dict[str, Json]:
    return {"code": decline.code, "reason": decline.reason, "instead": decline.instead}


class Emitter:
    """Opens spans and tells observers.

    The enclosing span is taken from the context of the calling code, so that nesting follows threads and
    tasks; work handed to another thread names its parent.

    Parameters
    ----------
    observers
        Whom to tell. An observer that raises is logged, and the turn goes on.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers: tuple[Observer, ...] = observers

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those who are told, in order."""
        return self._observers

    def add(self, observer: Observer) -> None:
        """Tell `observer` from now on."""
        self._observers = (*self._observers, observer)

    def remove(self, observer: Observer) -> None:
        """Tell `observer` no longer."""
        self._observers = tuple(item for item in self._observers if item is not observer)

    @contextmanager
    def span(
        self,
        kind: EventKind,
        name: str,
        *,
        parent: int | None = None,
        contents: Mapping[str, Json] = _NOTHING,
        **attributes: Json,
    ) -> Iterator[Span]:
        """Open a span around the code of the ``with`` block; what it raises passes through.

        Parameters
        ----------
        parent
            Id of the enclosing span, where it is not the one open in this context.
        contents, attributes
            First entries; more can be set on the span until it closes.
        """
        span = Span(
            id=_ids.take(),
            parent=self._parent(parent),
            kind=kind,
            name=name,
            start_ns=now_ns(),
            emitter=self,
            attributes=attributes,
            contents=dict(contents),
        )
        self._tell(_report(span, duration_ns=None))
        token = _current.set(span)
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            _current.reset(token)
            self._tell(_report(span, duration_ns=max(0, now_ns() - span.start_ns)))

    def point(
        self,
        kind: EventKind,
        name: str,
        *rows: Row,
        parent: int | None = None,
        status: Status = Status.OK,
        start_ns: int | None = None,
        duration_ns: int = 0,
        contents: Mapping[str, Json] = _NOTHING,
        **attributes: Json,
    ) -> Event:
        """Report something that is already over: a moment, or a stage that was timed elsewhere.

        Without `start_ns` a stage of `duration_ns` is taken to have ended just now.
        """
        event = Event(
            id=_ids.take(),
            parent=self._parent(parent),
            kind=kind,
            name=name,
            start_ns=now_ns() - duration_ns if start_ns is None else start_ns,
            duration_ns=duration_ns,
            status=status,
            attributes=attributes,
            contents=contents,
            rows=rows,
        )
        self._tell(event)
        return event

    def decline(
        self,
        name: str,
        decline: Decline,
        *rows: Row,
        parent: int | None = None,
        contents: Mapping[str, Json] = _NOTHING,
    ) -> Event:
        """Report that `name` was declined."""
        return self.point(
            EventKind.DECLINE,
            name,
            *rows,
            parent=parent,
            status=Status.DECLINED,
            contents=contents,
            **_decline_attributes(decline),
        )

    def _parent(self, explicit: int | None) -> int | None:
        if explicit is not None:
            return explicit
        span = _current.get()
        return span.id if span is not None and span.emitter is self else None

    def _tell(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer.on_event(event)
            except Exception:
                logger.exception("observer %r failed on event %d (%s)", observer, event.id, event.name)


def _report(span: Span, *, duration_ns: int | None) -> Event:
    ended = duration_ns is not None
    return Event(
        id=span.id,
        parent=span.parent,
        kind=span.kind,
        name=span.name,
        start_ns=span.start_ns,
        duration_ns=duration_ns,
        status=span.status if ended else Status.RUNNING,
        attributes=dict(span.attributes),
        contents=dict(span.contents),
        rows=tuple(span.rows) if ended else (),
    )
