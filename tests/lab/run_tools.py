"""Runs to show in the session panel: the story of the trace tests, recorded as often as wanted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from nexus_lab.trace import SessionRecorder

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))
import session_story as story
import session_teller as telling

CALL = {"id": "c1", "type": "function", "function": {"name": "read_issue", "arguments": '{"number": 482}'}}
MESSAGES = [
    {"role": "system", "content": "You help."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Read 482."}, {"type": "image_url", "image_url": {}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": telling.HOSTILE},
    {"role": "assistant", "content": "It says so."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Gladly."},
]


def record(path, *, through=6, contents=True, **options):
    facts = {"model": telling.MODEL, "settings": telling.SETTINGS, "host": telling.HOST}
    with SessionRecorder(path, contents=contents, **{**facts, **options}) as recorder:
        story.tell_story(Later(recorder), through=through)
    return recorder.path


class Later:
    """Passes events on under ids that no earlier run has."""

    def __init__(self, observer):
        self.observer = observer
        self.first = max(10_000 * int(observer.run.removeprefix("r-")), 0)

    def on_event(self, event):
        parent = None if event.parent is None else event.parent + self.first
        self.observer.on_event(replace(event, id=event.id + self.first, parent=parent))
