"""A policy that is a function of the user's: whatever it does, the cache is left as it was, or as it said.

What it returns is checked before anything is run. A function that does not return is ended when the turn is
stopped, or after a minute; what the model says meanwhile is not counted. Python can end it between two of its
own steps only, so that one that waits inside a library ends when that returns.
"""

from __future__ import annotations

import ctypes
import reprlib
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from nexus_lab.cache.base import Edit, TextMessage
from nexus_lab.cache.ops import Append, Drop, ProgramError, Repair, Repos, Splice
from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from nexus_lab.cache.base import Aside, Moment, PolicyHost
    from nexus_lab.cache.ops import CacheOp, Range

    UserFunction: TypeAlias = Callable[[Moment], Edit | CacheOp | Iterable[CacheOp | Range] | None]

__all__ = ["MOST_SECONDS", "FunctionPolicy", "UserFunction"]

MOST_SECONDS = 60.0
"""Longest that a function may take by itself."""

_OPS = (Append, Splice, Repair, Drop, Repos)
_ROLES = ("system", "user", "assistant", "tool")
_MOST_OPS = 10_000
_STEP_S = 0.05
_MEND = "mend the function, or choose another policy"


@dataclass(frozen=True, slots=True)
class FunctionPolicy:
    """A policy that the user wrote as a function.

    Attributes
    ----------
    function
        Takes a `Moment`; returns an `Edit`, or an operation, or several in order, in which a pair
        (start, stop) stands for a drop of these logical tokens; or None for nothing.
    name
        Name in settings and results.
    where
        File or module and function, where it was named so.
    digest
        SHA-256 (hex) of the source that it was made from; empty where that is not known.
    """

    function: UserFunction
    name: str = "python"
    where: str = ""
    digest: str = ""

    def edited_since(self, before: object) -> bool:
        """Whether this is the function `before`, from another source."""
        return (
            isinstance(before, FunctionPolicy)
            and bool(self.where)
            and self.where == before.where
            and self.digest != before.digest
        )

    def decide(self, moment: Moment) -> Edit:
        """Return what the function says.

        Raises
        ------
        ProgramError
            When it fails, takes longer than `MOST_SECONDS`, or returns something else.
        Cancelled
            When the turn was stopped meanwhile.
        """
        ops, texts = self._said(moment)
        for item in texts or ():
            self._check_text(item)
        if texts is not None and not texts:
            raise ProgramError(
                f"the policy {self.name} returned no texts at all", next_step="return None to leave them"
            )
        return Edit(ops=tuple(self._op(item) for item in ops), texts=texts)

    def _said(self, moment: Moment) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
        """Run the function, and what it returns where that is a generator."""
        watch = _Watch(moment.host)
        try:
            with watch.watching():
                said = self.function(replace(moment, host=watch.host))
                wanted, edited = (said.ops, said.texts) if isinstance(said, Edit) else (_several(said), None)
                ops: tuple[Any, ...] = tuple(islice(wanted, _MOST_OPS + 1))
                texts = None if edited is None else tuple(islice(edited, _MOST_OPS + 1))
        except Cancelled:
            raise  # stopped in a word with the model
        except _Ended as error:
            watch.end()
            raise watch.reason(self.name) from error
        except (Exception, SystemExit, GeneratorExit) as error:
            raise ProgramError(
                f"the policy {self.name} failed: {type(error).__name__}: {_shown(error)}", next_step=_MEND
            ) from error
        if max(len(ops), len(texts or ())) > _MOST_OPS:
            raise ProgramError(
                f"the policy {self.name} returned more than {_MOST_OPS} operations or texts", next_step=_MEND
            )
        return ops, texts

    def _op(self, item: Any) -> CacheOp:
        if isinstance(item, _OPS):
            return item
        try:
            return Drop((item,))
        except Exception as error:
            raise ProgramError(
                f"the policy {self.name} returned {reprlib.repr(item)}",
                next_step="return operations, or pairs (start, stop) to drop",
            ) from error

    def _check_text(self, item: Any) -> None:
        if not isinstance(item, TextMessage) or not isinstance(item.text, str) or item.role not in _ROLES:
            raise ProgramError(
                f"the policy {self.name} returned {reprlib.repr(item)} for a text",
                next_step=f"return TextMessage with a text, and a role of {', '.join(_ROLES)}",
            )
        if item.source is not None and type(item.source) is not int:
            raise ProgramError(
                f"the policy {self.name} returned a text with the source {reprlib.repr(item.source)}",
                next_step="name the place of a message, from 0, or None for a new one",
            )


def _several(said: Any) -> Iterable[Any]:
    """Return what a function said, in order."""
    if said is None:
        return ()
    return (said,) if isinstance(said, _OPS) else iter(said)


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error of the user's own, which cannot say what it is
        return "it does not say what"


# -- one that does not return -------------------------------------------------------------------------------


class _Ended(BaseException):
    """Raised in the thread of a function that is to end; no ``except Exception`` keeps it."""


class _Watch:
    """Ends what runs in `watching` when the host says that it was stopped, or when its time is over."""

    def __init__(self, host: PolicyHost | None) -> None:
        self._real = host
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._done = threading.Event()
        self._aside = False
        self._left = MOST_SECONDS
        self.host: PolicyHost | None = None if host is None else _Host(host, self)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the block, which the calling thread runs."""
        watcher = threading.Thread(target=self._watch, name="nexus-policy-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Watch no more; what was to be raised, and was not yet, is taken back."""
        with self._lock:
            self._done.set()
            _raise_in(self._thread, None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block alone: the engine ends what it does by itself."""
        with self._lock:
            self._aside = True
        try:
            yield
        finally:
            with self._lock:
                self._aside = False

    def reason(self, name: str) -> Cancelled | ProgramError:
        """Return why it was ended."""
        if self._stopped:
            return Cancelled(f"stopped in the policy {name}", next_step="ask again")
        return ProgramError(
            f"the policy {name} did not return within {MOST_SECONDS:.0f} s",
            next_step="end its loop, or choose another policy",
        )

    @property
    def _stopped(self) -> bool:
        return bool(getattr(self._real, "stopped", False))

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._done.wait(_STEP_S):
            with self._lock:
                now = time.monotonic()
                self._left -= 0.0 if self._aside else now - before
                before = now
                if not self._aside and not self._done.is_set() and (self._left <= 0 or self._stopped):
                    _raise_in(self._thread, _Ended)


class _Host:
    """The host of a watched function: a word with the model is none of its time."""

    def __init__(self, host: PolicyHost, watch: _Watch) -> None:
        self._host = host
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def aside(self) -> AbstractContextManager[Aside]:
        """Open a word with the model; what it says is gone from the cache when the block ends."""
        return self._aside()

    @contextmanager
    def _aside(self) -> Iterator[Aside]:
        with self._watch.paused(), self._host.aside() as opened:
            yield opened


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have `error` raised in a thread before its next step of Python; None takes back what was not yet."""
    raised = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
