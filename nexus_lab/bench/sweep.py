"""Running many independent measurements on any executor, so that a kill loses only what was under way.

A task is a value that can be pickled; its key is a digest of everything that determines its rows. Rows of
finished tasks go to a journal at once, and a later run over the same folder measures only what is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from nexus_lab.errors import NexusError
from nexus_lab.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

__all__ = [
    "JOURNAL",
    "Finished",
    "Journal",
    "SweepBusy",
    "SweepError",
    "SweepFailed",
    "Task",
    "run_tasks",
    "sweep_folder",
]

_LOG = logging.getLogger(__name__)

JOURNAL = "tasks.jsonl"
"""File of the finished tasks in a sweep's folder."""

Row = dict[str, Any]


class SweepError(NexusError):
    """A sweep that cannot be run, or a folder that holds none."""


class SweepBusy(SweepError):
    """Another process runs a sweep in that folder."""


class SweepFailed(SweepError):
    """Some tasks failed; the others are in the journal."""


class Task(Protocol):
    """What a sweep runs."""

    @property
    def key(self) -> str:
        """Digest of everything that determines the rows."""
        ...

    @property
    def alone(self) -> bool:
        """Whether nothing else may run beside it, as for a clock."""
        ...


TaskT = TypeVar("TaskT", bound=Task)


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished task: its rows, JSON values, and the seconds it took."""

    rows: list[Row]
    seconds: float


class Journal:
    """The finished tasks of a folder, one JSON object a line; held by one process at a time.

    A record is on the disk before `add` returns. A last line that a killed process left unfinished is cut
    off, and a line that cannot be read counts as not there.

    Parameters
    ----------
    folder
        The sweep's folder; made when it is not there.
    resume
        Take up what is in it; otherwise it begins empty.

    Raises
    ------
    SweepBusy
        When another process has it open.
    SweepError
        When it cannot be written.
    """

    def __init__(self, folder: Path, *, resume: bool = True) -> None:
        self.path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SweepError(
                f"the folder {folder} cannot be written: {error.strerror or error}",
                next_step="name another with --work",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise SweepBusy(
                f"another process runs a sweep in {folder}", next_step="wait for it, or name another folder"
            ) from error
        if not resume:  # only now: until here it may be another process's
            os.ftruncate(self._file, 0)
        self.finished = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._file)

    def add(self, key: str, finished: Finished) -> None:
        """Append a task's rows."""
        record = {"key": key, "seconds": finished.seconds, "rows": finished.rows}
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.finished[key] = finished

    def _read(self) -> dict[str, Finished]:
        found = read_journal(self.path)
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
        return found


def read_journal(path: Path) -> dict[str, Finished]:
    """Return the finished tasks of a journal by key; a line that cannot be read is left out, and logged."""
    found: dict[str, Finished] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            found[str(record["key"])] = Finished(list(record["rows"]), float(record["seconds"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _LOG.warning("line %d of %s is no record and counts as not there: %s", number, path, error)
    return found


def sweep_folder(tasks: Sequence[Task]) -> Path:
    """Return where the finished tasks of a sweep are kept by default: another folder for other tasks."""
    digest = hashlib.sha256("".join(task.key for task in tasks).encode()).hexdigest()
    return cache_dir() / "sweeps" / digest[:16]


def run_tasks(
    tasks: Sequence[TaskT],
    work: Callable[[TaskT], list[Row]],
    journal: Journal,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Finished]:
    """Run the tasks that the journal does not have yet.

    Parameters
    ----------
    tasks
        Tasks, keys unique.
    work
        Module-level function from a task to its rows, which are JSON values.
    executor
        Where to run; it is not shut down. By default a pool of spawned processes that ends with the call.
    workers
        Processes of that pool; the cores by default.
    on_progress
        Called with the tasks done and all of them, those of the journal included.

    Returns
    -------
    list of Finished
        In the order of `tasks`.

    Raises
    ------
    SweepFailed
        When a task failed, once all others are done.
    KeyboardInterrupt
        On Ctrl-C, at once; what had finished is in the journal. A foreign executor may go on for a while
        with the tasks that it has begun.
    """
    missing = [task for task in tasks if task.key not in journal.finished]
    report = on_progress or (lambda _done, _total: None)
    report(len(tasks) - len(missing), len(tasks))
    if missing:
        count = min(workers or os.cpu_count() or 1, len(missing))
        with _borrowed(executor) if executor is not None else _pool(count) as pool:
            run = _Run(pool, work, journal, done=len(tasks) - len(missing), total=len(tasks), report=report)
            run.batch([task for task in missing if not task.alone])
            for task in missing:
                if task.alone:
                    run.batch([task])
        run.settle()
    return [journal.finished[task.key] for task in tasks]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a task failed, in words that survive any pickle."""

    problem: str
    next_step: str
    details: str = ""


def _guarded(work: Callable[[TaskT], list[Row]], task: TaskT) -> Finished | _Failure:
    started = perf_counter()
    try:
        return Finished(work(task), perf_counter() - started)
    except NexusError as error:
        return _Failure(error.problem, error.next_step, traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - the next task may do better, and all are told at the end
        return _Failure(f"{type(error).__name__}: {error}", "report this", traceback.format_exc())


class _Run(Generic[TaskT]):
    def __init__(
        self,
        pool: Executor,
        work: Callable[[TaskT], list[Row]],
        journal: Journal,
        *,
        done: int,
        total: int,
        report: Callable[[int, int], None],
    ) -> None:
        self._pool, self._work, self._journal = pool, work, journal
        self._done, self._total, self._report = done, total, report
        self._failures: list[_Failure] = []

    def batch(self, tasks: Sequence[TaskT]) -> None:
        """Run tasks beside each other, each journalled when it is done."""
        ready: SimpleQueue[Future[Finished | _Failure]] = SimpleQueue()
        waiting: dict[Any, str] = {}
        try:
            for task in tasks:
                future = self._pool.submit(_guarded, self._work, task)
                waiting[future] = task.key
                future.add_done_callback(ready.put)
            while waiting:
                future = ready.get()
                self._take(future, waiting[future])
                del waiting[future]
        except BaseException:
            for future, key in waiting.items():
                # What came in meanwhile is finished work, too.
                if not future.cancel() and future.done():
                    self._take(future, key)
            raise

    def _take(self, future: Future[Finished | _Failure], key: str) -> None:
        try:
            outcome = future.result()
        except Exception as error:  # noqa: BLE001 - whatever the executor lost it for
            outcome = _lost(error)
        if isinstance(outcome, _Failure):
            _LOG.error("a task of the sweep failed: %s\n%s", outcome.problem, outcome.details)
            self._failures.append(outcome)
            return
        self._journal.add(key, outcome)
        self._done += 1
        self._report(self._done, self._total)

    def settle(self) -> None:
        """Raise the first failure, with their number."""
        if self._failures:
            first = self._failures[0]
            raise SweepFailed(
                f"{len(self._failures)} of {self._total} tasks failed; the first: {first.problem}",
                next_step=first.next_step or "run again over the same folder: only these are repeated",
            )


def _lost(error: BaseException) -> _Failure:
    if isinstance(error, BrokenProcessPool):
        return _Failure(
            "a worker process ended before its task was done",
            "give fewer workers if memory is short; in a script, start the sweep below "
            "'if __name__ == \"__main__\":'; then run again over the same folder",
        )
    return _Failure(f"{type(error).__name__}: {error}", "look at the executor's own log")


@contextmanager
def _borrowed(executor: Executor) -> Iterator[Executor]:
    yield executor


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """Spawned processes; killed when the block is left by an exception, since nobody waits for them."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_settle_in)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raise
    pool.shutdown()


def _settle_in() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="nexus-parent", daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
