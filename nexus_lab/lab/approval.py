"""Asking the user before a tool runs: the turn waits on the engine's lane, the answer comes from a view."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments import ArgumentsRejected, validate
from nexus_lab.errors import Cancelled
from nexus_lab.lab.wire import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexus_lab.registry import ToolSpec

    Answer = bool | Mapping[str, Any]
    Approve = Callable[[ToolSpec, Mapping[str, Any]], Answer]

__all__ = ["Approval", "Pending"]

_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for the user."""

    id: int
    tool: ToolSpec
    arguments: Mapping[str, Any]


class Approval:
    """What an agent asks before it runs a tool.

    Parameters
    ----------
    on_change
        Called when a call begins or ends to wait.
    stopping
        Says whether the running job was asked to stop, so that no stop is missed, however early it came.

    Attributes
    ----------
    answerer
        Answers in the place of the user, when there is one.
    """

    def __init__(self, *, on_change: Callable[[], None], stopping: Callable[[], bool]) -> None:
        self._on_change = on_change
        self._stopping = stopping
        self._condition = threading.Condition()
        self._ids = itertools.count(1)
        self._pending: Pending | None = None
        self._answer: Answer | None = None
        self._withdrawn = False
        self._allowed: list[ToolSpec] = []
        self.answerer: Approve | None = None

    @property
    def pending(self) -> Pending | None:
        """The call that waits now."""
        return self._pending

    def __call__(self, tool: ToolSpec, arguments: Mapping[str, Any]) -> Answer:
        """Wait for the user's answer: no, yes, or the arguments to run with instead.

        Raises
        ------
        Cancelled
            When the turn is stopped meanwhile.
        """
        # The same in every part: a tool that was changed since is asked about again.
        if tool in self._allowed:
            return True
        if self.answerer is not None:
            return self._checked(tool, self.answerer(tool, arguments))
        with self._condition:
            self._answer, self._withdrawn = None, False
            self._pending = Pending(next(self._ids), tool, dict(arguments))
        self._on_change()
        try:
            return self._wait()
        finally:
            with self._condition:
                self._pending = None
            self._on_change()

    def _wait(self) -> Answer:
        with self._condition:
            while self._answer is None and not self._withdrawn and not self._stopping():
                self._condition.wait(_STEP_S)
            if self._answer is None:
                raise Cancelled("the turn was stopped; the approval was withdrawn", next_step="ask again")
            return self._answer

    def answer(
        self,
        *,
        allow: bool,
        remember: bool = False,
        arguments: Mapping[str, Any] | None = None,
        number: int | None = None,
    ) -> None:
        """Let the waiting call run, or refuse it.

        Parameters
        ----------
        remember
            Do not ask again about this very tool, as long as the workbench is open.
        arguments
            What to run with instead; checked against the tool's schema.
        number
            Id of the call that is meant; ``None`` takes the one that waits.

        Raises
        ------
        BadRequest
            When nothing waits, or another call does.
        ArgumentsRejected
            When the arguments break the schema; the call goes on waiting.
        """
        pending = self._pending
        if pending is None or number not in (None, pending.id):
            raise BadRequest("nothing waits for approval", next_step="it was answered or stopped already")
        if allow and arguments is not None:
            self._checked(pending.tool, arguments)
        with self._condition:
            if self._pending is not pending:
                raise BadRequest("nothing waits for approval", next_step="it was answered or stopped already")
            if allow and remember:
                self._allowed.append(pending.tool)
            self._answer = dict(arguments) if allow and arguments is not None else allow
            self._condition.notify_all()

    @staticmethod
    def _checked(tool: ToolSpec, answer: Answer) -> Answer:
        if isinstance(answer, Mapping):
            violations = validate(dict(answer), tool.input_schema)
            if violations:
                raise ArgumentsRejected(tuple(violations), tool=tool.name)
        return answer

    def withdraw(self) -> None:
        """End the wait without an answer."""
        with self._condition:
            self._withdrawn = True
            self._condition.notify_all()
