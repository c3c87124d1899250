"""Recorded sessions that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import session_story as story
import session_teller as telling

from nexus_lab.trace import Session, SessionRecorder, read_session


def record(path: Path, *, through: int = 6, **options) -> Path:
    """Record the story into a bundle at `path`."""
    facts = {"model": telling.MODEL, "settings": telling.SETTINGS, "host": telling.HOST}
    with SessionRecorder(path, **{**facts, **options}) as recorder:
        story.tell_story(recorder, through=through)
    return recorder.path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """The story, with contents as they were; nothing may write to it."""
    return record(tmp_path_factory.mktemp("recorded") / "ticket-triage", contents=True, redactor=None)


@pytest.fixture(scope="session")
def session(bundle) -> Session:
    return read_session(bundle)


@pytest.fixture(scope="session")
def quiet_session(tmp_path_factory) -> Session:
    """The story, recorded without contents."""
    return read_session(record(tmp_path_factory.mktemp("quiet") / "quiet"))
