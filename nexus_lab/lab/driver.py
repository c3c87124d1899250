"""The threads of a desk: jobs one after another, a queue one can see, and a stop that works at once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Driver", "DriverState", "Progress", "Ticket", "wait_for_all"]

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the running job has come; `total` is ``None`` where nobody knows."""

    label: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class DriverState:
    """What a driver is doing.

    Attributes
    ----------
    label
        The running job, ``None`` when there is none.
    queue
        Labels of the jobs that wait, next first.
    stopping
        The running job was asked to stop and has not ended yet.
    """

    label: str | None = None
    queue: tuple[str, ...] = ()
    stopping: bool = False
    progress: Progress | None = None


class Ticket(Generic[T]):
    """A job that was posted: wait for its result, or withdraw it while it waits."""

    def __init__(
        self, label: str, work: Callable[[], T], on_done: Callable[[Ticket[T]], None] | None
    ) -> None:
        self.label = label
        self.parent: Ticket[Any] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self._work = work
        self._on_done = on_done
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not, or was withdrawn."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; returns whether it has."""
        return self._ended.wait(timeout)

    def get(self) -> T:
        """Wait for the result and return it, or raise what the job raised."""
        # In short steps, so that an interrupt of the waiting thread arrives.
        while not self._ended.wait(0.1):
            pass
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # set, since the job has ended without an error

    def run(self) -> None:
        """Do the work and tell; the driver's business."""
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self.error = error
        self.finish()

    def finish(self) -> None:
        """Tell that it has ended; the driver's business."""
        self._ended.set()
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception:
                logger.exception("the end of job %r could not be told", self.label)


class Driver:
    """One daemon thread that does jobs in the order they were posted, and survives whatever they raise.

    Parameters
    ----------
    name
        Name of the thread.
    on_change
        Called when the state is another one, from any thread.
    on_stop
        Called in the thread that asks for a stop; makes the running job end soon.
    """

    def __init__(
        self,
        name: str,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_change = on_change
        self._on_stop = on_stop
        self._condition = threading.Condition()
        self._queue: deque[Ticket[Any]] = deque()
        self._running: Ticket[Any] | None = None
        self._stopping = False
        self._progress: Progress | None = None
        self._closed = False
        self._posted = 0
        self._thread = threading.Thread(target=self._work_off, name=name, daemon=True)
        self._thread.start()

    @property
    def state(self) -> DriverState:
        """What it is doing now; never waits for a job."""
        with self._condition:
            return DriverState(
                self._running.label if self._running else None,
                tuple(ticket.label for ticket in self._queue),
                self._stopping,
                self._progress,
            )

    @property
    def posted(self) -> int:
        """How many jobs were ever posted."""
        with self._condition:
            return self._posted

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs and nothing waits here; returns whether that is so."""
        with self._condition:
            return self._condition.wait_for(lambda: self._running is None and not self._queue, timeout)

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the driver's own."""
        return threading.current_thread() is self._thread

    def submit(
        self, label: str, work: Callable[[], T], on_done: Callable[[Ticket[T]], None] | None = None
    ) -> Ticket[T]:
        """Post a job; returns at once.

        Parameters
        ----------
        label
            What the bar shows.
        work
            The job. What it posts itself is withdrawn when it is stopped.
        on_done
            Called on the driver's thread when it has ended, with the ticket.
        """
        ticket = Ticket(label, work, on_done)
        with self._condition:
            if not self._closed:
                ticket.parent = self._running if self.is_mine else None
                self._queue.append(ticket)
                self._posted += 1
                self._condition.notify_all()
        if self._closed:
            self._drop(ticket, "the workbench is closed")
        self._on_change()
        return ticket

    def withdraw(self, ticket: Ticket[Any]) -> bool:
        """Take a waiting job out of the queue; returns whether it was still waiting."""
        with self._condition:
            waiting = ticket in self._queue
            if waiting:
                self._queue.remove(ticket)
                self._condition.notify_all()
        if waiting:
            self._drop(ticket, "it was withdrawn")
            self._on_change()
        return waiting

    def progress(self, label: str, done: int = 0, total: int | None = None) -> None:
        """Say how far the running job has come; from any thread."""
        with self._condition:
            self._progress = Progress(label, done, total) if self._running else None
        self._on_change()

    def forget_progress(self) -> None:
        """Say that what `progress` told is over; from any thread."""
        with self._condition:
            self._progress = None

    def stop(self) -> bool:
        """Make the running job end, from any thread, at once; returns whether there was one.

        What the job has posted is withdrawn with it; what others have posted stays in the queue.
        """
        with self._condition:
            running = self._running
            self._stopping = running is not None
            orphans = [ticket for ticket in self._queue if running is not None and ticket.parent is running]
            for ticket in orphans:
                self._queue.remove(ticket)
        if running is not None:
            self._on_stop()
        for ticket in orphans:
            self._drop(ticket, "the job that asked for it was stopped")
        self._on_change()
        return running is not None

    def close(self, timeout: float = 10.0) -> None:
        """Stop the running job, withdraw the others, and end the thread."""
        with self._condition:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._condition.notify_all()
        self.stop()
        for ticket in waiting:
            self._drop(ticket, "the workbench is closed")
        if not self.is_mine:
            self._thread.join(timeout)

    @staticmethod
    def _drop(ticket: Ticket[Any], why: str) -> None:
        ticket.error = Cancelled(f"{ticket.label}: {why}", next_step="ask again")
        ticket.finish()

    def _work_off(self) -> None:
        while (ticket := self._next()) is not None:
            self._on_change()
            ticket.run()
            with self._condition:
                self._running, self._stopping, self._progress = None, False, None
                self._condition.notify_all()
            self._on_change()

    def _next(self) -> Ticket[Any] | None:
        with self._condition:
            while not self._queue and not self._closed:
                self._condition.wait()
            if not self._queue:
                return None
            self._running = self._queue.popleft()
            return self._running


def wait_for_all(drivers: Sequence[Driver]) -> None:
    """Wait until everything is done that was posted to any of them, and what those jobs have posted too."""
    before = None
    # Each was idle once since `before` was counted; where nothing was posted since, all are still.
    while before != (before := sum(driver.posted for driver in drivers)):
        for driver in drivers:
            # In short steps, so that an interrupt of the waiting thread arrives.
            while not driver.wait_idle(0.1):
                pass
