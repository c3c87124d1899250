"""Events reach observers nested, complete and in any weather."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading

import pytest

from nexus_lab.agent.base import (
    DriftFrame,
    Emitter,
    EventKind,
    MessageRow,
    Observer,
    OpRow,
    RoutingRow,
    Status,
    TurnRow,
    content_fields,
    now_ns,
    reserve_event_ids,
)
from nexus_lab.errors import Cancelled, Decline


class Notebook:
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    @property
    def ended(self):
        return [event for event in self.events if event.status is not Status.RUNNING]


class Clumsy:
    def on_event(self, event):
        raise RuntimeError(f"cannot draw event {event.id}")


@pytest.fixture
def notebook():
    return Notebook()


def test_a_span_is_announced_then_reported_under_the_same_id(notebook):
    with Emitter(notebook).span(EventKind.TURN, "turn 1", contents={"request": "hi"}, turn=1) as span:
        span.set(agent="a")
        span.set_contents(answer="ho")
        span.add(MessageRow(role="user", text="hi"))
    opened, closed = notebook.events
    assert opened.id == closed.id == span.id
    assert (opened.status, opened.duration_ns, opened.rows) == (Status.RUNNING, None, ())
    assert opened.attributes == {"turn": 1}
    assert opened.contents == {"request": "hi"}
    assert closed.status is Status.OK
    assert closed.duration_ns >= 0
    assert closed.start_ns == opened.start_ns
    assert closed.attributes == {"turn": 1, "agent": "a"}
    assert closed.contents == {"request": "hi", "answer": "ho"}
    assert closed.rows == (MessageRow(role="user", text="hi"),)


def test_spans_nest_and_siblings_share_their_parent(notebook):
    emitter = Emitter(notebook)
    with emitter.span(EventKind.TURN, "turn") as turn:
        with emitter.span(EventKind.SPLICE, "splice") as splice:
            inner = emitter.point(EventKind.CACHE_OP, "splice")
        later = emitter.point(EventKind.CACHE_OP, "append")
    outside = emitter.point(EventKind.MESSAGE, "note")
    assert (turn.parent, splice.parent) == (None, turn.id)
    assert (inner.parent, later.parent, outside.parent) == (splice.id, turn.id, None)
    assert turn.id < splice.id < inner.id < later.id < outside.id


def test_children_end_inside_their_parent(notebook):
    emitter = Emitter(notebook)
    with emitter.span(EventKind.TURN, "turn"), emitter.span(EventKind.TOOL, "tool"):
        pass
    tool, turn = notebook.ended
    assert turn.start_ns <= tool.start_ns
    assert tool.start_ns + tool.duration_ns <= turn.start_ns + turn.duration_ns


def test_two_emitters_do_not_mix_their_spans(notebook):
    with Emitter(notebook).span(EventKind.TURN, "mine"):
        event = Emitter(notebook).point(EventKind.MESSAGE, "somebody else's")
    assert event.parent is None


def test_threads_and_tasks_keep_their_own_nesting(notebook):
    emitter = Emitter(notebook)
    barrier = threading.Barrier(4)

    def turn(name):
        with emitter.span(EventKind.TURN, name) as span:
            barrier.wait()
            assert emitter.point(EventKind.MESSAGE, name).parent == span.id

    async def tasks():
        async def one(name):
            with emitter.span(EventKind.TURN, name) as span:
                await asyncio.sleep(0)
                assert emitter.point(EventKind.MESSAGE, name).parent == span.id

        await asyncio.gather(*(one(f"task {n}") for n in range(4)))

    threads = [threading.Thread(target=turn, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(tasks())
    assert len({event.id for event in notebook.ended}) == len(notebook.ended) == 16
    names = {event.id: event.name for event in notebook.ended}
    assert all(names[event.parent] == event.name for event in notebook.ended if event.parent)


def test_work_on_another_thread_names_its_parent(notebook):
    emitter = Emitter(notebook)
    with emitter.span(EventKind.TURN, "turn") as turn:
        thread = threading.Thread(target=lambda: emitter.point(EventKind.TOOL, "tool", parent=turn.id))
        thread.start()
        thread.join()
    assert notebook.ended[0].parent == turn.id


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("bad date"), Status.ERROR),
        (Cancelled("stopped"), Status.CANCELLED),
        (KeyboardInterrupt(), Status.CANCELLED),
    ],
)
def test_what_a_span_raises_passes_and_its_text_is_content(notebook, error, status):
    with pytest.raises(type(error)), Emitter(notebook).span(EventKind.TOOL, "tool"):
        raise error
    (event,) = notebook.ended
    assert event.status is status
    assert event.attributes == {"error_type": type(error).__name__}
    assert event.contents == {"error": str(error)}


def test_an_observer_that_raises_is_logged_and_the_others_still_hear(notebook, caplog):
    emitter = Emitter(Clumsy(), notebook)
    with caplog.at_level(logging.ERROR), emitter.span(EventKind.TURN, "turn"):
        emitter.point(EventKind.MESSAGE, "user")
    assert [event.name for event in notebook.ended] == ["user", "turn"]
    assert len([r for r in caplog.records if "Clumsy" in r.getMessage()]) == 3


def test_a_decline_says_why_and_what_instead(notebook):
    emitter = Emitter(notebook)
    decline = Decline("quantized_k", "K is quantized.", "full prefill")
    with emitter.span(EventKind.SPLICE, "block") as span:
        span.decline(decline)
    emitter.decline("block", decline)
    for event in notebook.ended:
        assert event.status is Status.DECLINED
        assert event.attributes == {
            "code": "quantized_k",
            "reason": "K is quantized.",
            "instead": "full prefill",
        }


def test_a_stage_timed_elsewhere_ends_now_unless_it_says_when(notebook):
    emitter = Emitter(notebook)
    before = now_ns()
    event = emitter.point(EventKind.EMBEDDINGS, "embed", duration_ns=5_000_000)
    assert before <= event.start_ns + event.duration_ns <= now_ns()
    assert emitter.point(EventKind.EMBEDDINGS, "embed", start_ns=7, duration_ns=2).start_ns == 7


def test_observers_come_and_go(notebook):
    emitter = Emitter()
    emitter.point(EventKind.MESSAGE, "unheard")
    emitter.add(notebook)
    emitter.point(EventKind.MESSAGE, "heard")
    emitter.remove(notebook)
    emitter.point(EventKind.MESSAGE, "unheard")
    assert [event.name for event in notebook.events] == ["heard"]
    assert isinstance(notebook, Observer)


def test_reserved_ids_are_not_given_again(notebook):
    last = Emitter(notebook).point(EventKind.MESSAGE, "one").id
    reserve_event_ids(last + 1000)
    assert Emitter(notebook).point(EventKind.MESSAGE, "two").id > last + 1000
    reserve_event_ids(3)
    assert Emitter(notebook).point(EventKind.MESSAGE, "three").id > last + 1001


@pytest.mark.parametrize(
    ("row", "contents"),
    [
        (RoutingRow, {"query"}),
        (OpRow, {"token_ids"}),
        (MessageRow, {"text", "arguments"}),
        (TurnRow, {"request", "answer", "arguments", "result"}),
        (DriftFrame, set()),
    ],
)
def test_rows_say_which_of_their_fields_are_contents(row, contents):
    assert content_fields(row) == contents
    assert dataclasses.fields(row)
