"""The line at the bottom of the terminal: what a running turn does, and what it has written so far."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nexus_lab.agent import EventKind
from nexus_lab.cli._output import console, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

    from nexus_lab.agent import Event

__all__ = ["TurnLine"]

_STAGES = {EventKind.RETRIEVAL: "routing", EventKind.RERANK: "reading the candidates"}
_MARGIN = 12


class TurnLine:
    """Says what a turn does as long as it runs; nothing where the output is no terminal.

    An observer of the agent; `callbacks` is for `TurnLoop.ask`.
    """

    def __init__(self) -> None:
        self._status: Status | None = None
        self._text = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the line during the block; what is printed in it stands above."""
        with console.status(plain("beginning")) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line away during the block, in which something is asked."""
        status = self._status
        if status is not None:
            status.stop()
        try:
            yield
        finally:
            if status is not None:
                status.start()

    @property
    def callbacks(self) -> dict[str, Any]:
        """What `TurnLoop.ask` tells as it goes."""
        return {"on_progress": self._read, "on_call": self._call, "on_token": self._answer}

    def on_event(self, event: Event) -> None:
        """Name the stage that begins."""
        if event.duration_ns is not None:
            return
        self._text = ""
        if event.kind in _STAGES:
            self._say(_STAGES[event.kind])
        elif event.kind is EventKind.TOOL:
            self._say(f"waiting for {event.attributes.get('tool', event.name)}")

    def _read(self, done: int, total: int) -> None:
        self._say(f"reading {done:,} of {total:,} tokens")

    def _call(self, piece: str) -> None:
        self._written("call", piece)

    def _answer(self, piece: str) -> None:
        self._written("answer", piece)

    def _written(self, what: str, piece: str) -> None:
        self._text += piece
        room = max(_MARGIN, console.width - len(what) - _MARGIN)
        end = self._text[-room:]
        self._say(f"{what}: {'' if end == self._text else '…'}{end}")

    def _say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(plain(text, style="dim", limit=max(_MARGIN, console.width - 4)))
