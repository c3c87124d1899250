"""What the bottom line of the terminal says while a turn runs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from nexus_lab.agent import EventKind
from nexus_lab.cli import _turn_line
from nexus_lab.cli._turn_line import TurnLine


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    written = io.StringIO()
    monkeypatch.setattr(_turn_line, "console", Console(file=written, force_terminal=True, width=40))
    return written


def shown_by(terminal: io.StringIO, line: TurnLine) -> str:
    assert line._status is not None
    terminal.truncate(0)
    terminal.seek(0)
    line._status._live.refresh()
    return terminal.getvalue()


def begun(kind: EventKind, name: str = "") -> SimpleNamespace:
    return SimpleNamespace(kind=kind, name=name, attributes={}, duration_ns=None)


def test_the_line_follows_a_turn_and_shows_the_end_of_what_is_written(terminal):
    line = TurnLine()
    with line.shown():
        line.on_event(begun(EventKind.RETRIEVAL))
        assert "routing" in shown_by(terminal, line)
        line.callbacks["on_progress"](1200, 3400)
        assert "reading 1,200 of 3,400 tokens" in shown_by(terminal, line)
        line.on_event(begun(EventKind.TOOL, "git\x1b[2Jlog"))
        said = shown_by(terminal, line)
        assert "waiting for git [2Jlog" in said
        line.on_event(begun(EventKind.GENERATE))
        for piece in ("The first words ", "[bold]are[/bold] ", "gone by then, ", "the last stay."):
            line.callbacks["on_token"](piece)
        said = shown_by(terminal, line)
        assert "the last stay." in said
        assert "The first" not in said
        with line.hidden():
            assert not line._status._live.is_started
        assert line._status._live.is_started
    line.callbacks["on_token"]("after the turn nothing is shown")


def test_nothing_is_written_where_there_is_no_terminal(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(_turn_line, "console", Console(file=written, force_terminal=False))
    line = TurnLine()
    with line.shown():
        line.callbacks["on_token"]("words")
        with line.hidden():
            pass
    assert written.getvalue().strip() == ""
