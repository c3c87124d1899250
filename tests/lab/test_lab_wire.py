"""What goes over the wire: values, errors, requests, and messages that wait for a slow view."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from desk_tools import View, eventually

from nexus_lab.errors import Decline, NexusError
from nexus_lab.lab import views
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.views import Pump, ViewLink, _Again
from nexus_lab.lab.wire import (
    BadRequest,
    Lane,
    Reply,
    UnknownMethod,
    WireError,
    call,
    error_info,
    handling_of,
    instant,
    job,
    methods_of,
    to_json,
)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    value: float
    where: Path


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    rows: tuple[Inner, ...]
    decline: Decline | None = None


def test_records_arrays_and_missing_numbers_become_json():
    record = Outer(
        "a", Inner(float("nan"), Path("/x")), (Inner(float("inf"), Path("y")),), Decline("c", "r", "i")
    )
    made = to_json({"record": record, Colour.RED: np.array([[1.5, np.nan]]), "n": np.int64(3), "t": np.True_})
    assert made == {
        "record": {
            "name": "a",
            "inner": {"value": None, "where": "/x"},
            "rows": [{"value": None, "where": "y"}],
            "decline": {"code": "c", "reason": "r", "instead": "i"},
        },
        "red": [[1.5, None]],
        "n": 3,
        "t": True,
    }
    json.dumps(made, allow_nan=False)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "</style>\u202eevil", "a\x00b\x1b[31m"])
def test_hostile_text_stays_the_text_it_is(text):
    assert to_json({"text": text, text: [text]}) == {"text": text, text: [text]}


def test_lone_surrogates_never_reach_an_encoder():
    made = to_json({"\ud800": "a\udfffb"})
    json.dumps(made, ensure_ascii=False).encode()


def test_numbers_that_javascript_would_round_become_text():
    assert to_json([2**53, 2**53 + 1, -(2**60)]) == [2**53, str(2**53 + 1), str(-(2**60))]


def test_what_cannot_be_said_is_a_typed_error():
    with pytest.raises(WireError):
        to_json(object())
    with pytest.raises(WireError):
        to_json(b"bytes go as buffers")
    endless: list = []
    endless.append(endless)
    with pytest.raises(WireError):
        to_json(endless)


def test_errors_say_type_message_and_next_step():
    made = error_info(NexusError("no \x1b[2J file", next_step="look"))
    assert made == {"type": "NexusError", "message": "no \\x1b[2J file", "next_step": "look"}
    assert error_info(ValueError("plain"))["next_step"] is None
    assert error_info(ZeroDivisionError())["message"] == "ZeroDivisionError"


class Sample(Panel):
    name = "sample"

    @instant
    def look(self, text: str, n: int = 1, *, share: float | None = None, flags: list[str] | None = None):
        return (text, n, share, flags)

    @job("importing")
    def import_(self, path: str) -> str:
        return path

    @job("beside", lane=Lane.SIDE)
    def beside(self) -> Reply:
        return Reply({"n": 1}, (np.zeros(2, np.float32),))

    def unmarked(self) -> None:
        raise AssertionError


def test_handlers_are_the_marked_methods_under_their_wire_names():
    panel = Sample.__new__(Sample)
    methods = methods_of(panel)
    assert set(methods) == {"look", "import", "beside"}
    assert handling_of(methods["look"]).lane is None
    assert handling_of(methods["import"]) == handling_of(Sample.import_)
    assert handling_of(methods["beside"]).lane is Lane.SIDE


def test_parameters_are_checked_by_name_and_json_type():
    look = Sample.__new__(Sample).look
    assert call(look, {"text": "a", "share": 2}) == ("a", 1, 2, None)
    for wrong in (
        {},
        {"text": "a", "more": 1},
        {"text": 5},
        {"text": "a", "n": True},
        {"text": "a", "n": 1.5},
        {"text": "a", "share": float("nan")},
        {"text": "a", "flags": "x"},
    ):
        with pytest.raises(BadRequest):
            call(look, wrong)


class QuietDesk:
    """What a link asks of a desk."""

    part_names = ("bar", "sample")

    def __init__(self) -> None:
        self.pump = Pump()
        self.value = 0
        self.asked: list[tuple[str, ...]] = []

    def parts(self, names):
        self.asked.append(tuple(names))
        return dict.fromkeys(names, self.value)

    def handle(self, method, params, reply):
        reply(
            UnknownMethod("no", next_step="none") if method == "x" else Reply({"p": dict(params)}, (b"12",))
        )


@pytest.fixture
def quick_pauses(monkeypatch):
    monkeypatch.setattr(views, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def quiet():
    desk = QuietDesk()
    view = View()
    view.link = ViewLink(desk, view.send)
    yield desk, view
    desk.pump.close()


def test_a_view_gets_nothing_before_it_says_hello_and_then_everything(quiet):
    desk, view = quiet
    desk.pump.mark(["bar"])
    assert not view.messages
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    assert set(view.parts[0]["parts"]) == {"bar", "sample"}


def test_a_slow_view_gets_one_message_and_then_only_the_newest_state(quiet):
    desk, view = quiet
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    for value in range(500):
        desk.value = value
        desk.pump.mark(["sample"])
    assert len(view.parts) == 1
    view.ack()
    eventually(lambda: len(view.parts) == 2)
    assert view.parts[1]["parts"] == {"sample": 499}
    view.ack()
    assert len(view.parts) == 2
    assert [message["revision"] for message in view.parts] == [1, 2]


def test_an_acknowledgement_of_another_message_lets_nothing_through(quiet):
    desk, view = quiet
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    desk.pump.mark(["bar"])
    view.link.receive({"kind": "ack", "revision": 99})
    view.link.receive({"kind": "ack", "revision": None})
    view.link.receive({"kind": "nonsense"})
    assert view.link.due(1e9) is None
    view.ack()
    eventually(lambda: len(view.parts) == 2)


def test_a_fast_view_is_not_flooded(quiet):
    desk, view = quiet
    send = view.send

    def acknowledged(message, buffers):
        send(message, buffers)
        view.ack()

    view.link._send = acknowledged
    view.link.receive({"kind": "hello"})
    began, marks = time.monotonic(), 0
    while time.monotonic() < began + 0.5:
        marks += 1
        desk.value = marks
        desk.pump.mark(["sample"])
    eventually(lambda: view.parts and view.parts[-1]["parts"].get("sample") == marks)
    assert marks > len(view.parts)
    assert len(view.parts) <= 2 + 20 * (time.monotonic() - began)


def test_a_view_that_cannot_be_reached_harms_no_other(quiet):
    desk, view = quiet

    def broken(_message, _buffers):
        raise OSError("closed")

    other = ViewLink(desk, broken)
    other.receive({"kind": "hello"})
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)


class FailingDesk(QuietDesk):
    """A desk that cannot make the part ``sample`` the first `failures` times; it never changes by itself."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def parts(self, names):
        made = super().parts(names)
        if "sample" in made and self.failures > 0:
            self.failures -= 1
            del made["sample"]
        return made


def test_a_part_that_could_not_be_made_is_tried_again_although_nothing_changes(quick_pauses):  # noqa: ARG001
    desk, view = FailingDesk(3), View()
    desk.value = {"items": [1, 2]}

    def send(message, buffers):
        view.send(message, buffers)
        view.ack()

    view.link = ViewLink(desk, send)
    try:
        view.link.receive({"kind": "hello"})
        eventually(lambda: any("sample" in message["parts"] for message in view.parts))
        assert [sorted(message["parts"]) for message in view.parts] == [["bar"], [], [], ["sample"]]
        assert view.parts[-1]["parts"]["sample"] == desk.value
        assert desk.asked[1:] == [("sample",)] * 3
        assert view.link.due(time.monotonic()) is None
    finally:
        desk.pump.close()


def test_pauses_between_tries_grow_up_to_half_a_minute():
    again, now, pauses = _Again(), 0.0, []
    for _ in range(9):
        again.note("sample", made=False, now=now)
        assert again.next is not None
        assert again.due(again.next - 0.01) == set()
        pauses.append(again.next - now)
        now = again.next
        assert again.due(now) == {"sample"}
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    again.note("sample", made=True, now=now)
    assert (again.next, again.due(now)) == (None, set())
    again.note("sample", made=False, now=0.0)
    assert again.next == 0.5


def test_a_message_that_could_not_be_sent_is_made_up_for_by_a_whole_one(quick_pauses, quiet):  # noqa: ARG001
    desk, view = quiet
    desk.value = {"items": [1]}
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    send, failures = view.send, iter([OSError("lost"), OSError("lost")])

    def lossy(message, buffers):
        if (error := next(failures, None)) is not None:
            raise error
        send(message, buffers)

    view.link._send = lossy
    desk.value = {"items": [1, 2]}
    view.ack()
    desk.pump.mark(["sample"])
    eventually(lambda: len(view.parts) == 2)
    assert "kept" not in view.parts[1]
    assert view.parts[1]["parts"] == {"bar": desk.value, "sample": desk.value}


def test_replies_carry_results_buffers_and_typed_errors(quiet):
    _desk, view = quiet
    view.link.receive({"kind": "request", "id": 1, "method": "m", "params": {"a": 1}})
    view.link.receive({"kind": "request", "id": 2, "method": "x", "params": {}})
    view.link.receive({"kind": "request", "id": 3, "method": 5, "params": {}})
    first, second, third = view.messages
    assert first == {"kind": "reply", "id": 1, "ok": True, "result": {"p": {"a": 1}}}
    assert view.buffers[0] == [b"12"]
    assert (second["ok"], second["error"]["type"]) == (False, "UnknownMethod")
    assert (third["id"], third["error"]["type"]) == (3, "BadRequest")


def joined(had, message):
    """Return the parts of a view that had `had`, as ``client.ts`` puts them together."""
    now = dict(had)
    for name, sent in message["parts"].items():
        part = dict(sent) if isinstance(sent, dict) else sent
        for field, (skip, head, tail, drop) in message.get("kept", {}).get(name, {}).items():
            old = had[name][field]
            end = len(old) - drop
            part[field] = [*old[skip : skip + head], *part[field], *old[end - tail : end]]
        now[name] = part
    return now


@pytest.mark.parametrize(
    ("lists", "sent"),
    [
        (([1, 2], [1, 2, 3]), [3]),  # operations are appended
        (([2, 1], [3, 2, 1]), [3]),  # runs and decisions come newest first
        (([1, 2, 3], [2, 3, 4]), [4]),  # of turns only the newest are sent
        (([3, 2, 1], [4, 3, 2]), [4]),
        (([1, 2, 3], [1, 7, 3]), [7]),  # the divergence of a splice is known later
        (([1, 2, 3], [1, 2]), []),  # a fork goes back
        (([1, 1, 1], [1, 1]), []),
        (([1], []), []),
        (([], [1]), [1]),
    ],
)
def test_of_a_list_only_what_is_new_is_sent(quiet, lists, sent):
    desk, view = quiet
    desk.value = {"items": list(lists[0]), "n": 0}
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    assert "kept" not in view.parts[0]
    desk.value = {"items": list(lists[1]), "n": 1}
    desk.pump.mark(["sample"])
    view.ack()
    eventually(lambda: len(view.parts) == 2)
    assert view.parts[1]["parts"]["sample"]["items"] == sent
    had = joined({}, view.parts[0])
    assert joined(had, view.parts[1])["sample"] == desk.value


def test_after_a_hello_everything_is_whole_again(quiet):
    desk, view = quiet
    desk.value = {"items": list(range(1000))}
    for count in (1, 2):
        view.link.receive({"kind": "hello"})
        eventually(lambda count=count: len(view.parts) == count)
        assert view.parts[-1]["parts"]["sample"] == desk.value
        assert "kept" not in view.parts[-1]
    view.ack()
    desk.pump.mark(["bar"])
    eventually(lambda: len(view.parts) == 3)
    assert view.parts[2]["kept"] == {"bar": {"items": (0, 1000, 0, 0)}}
    assert view.parts[2]["parts"] == {"bar": {"items": []}}


def test_a_hello_while_parts_are_being_made_is_answered_as_a_whole(quiet):
    desk, view = quiet
    desk.value = {"items": [1]}
    view.link.receive({"kind": "hello"})
    eventually(lambda: view.parts)
    make, during = desk.parts, iter([lambda: view.link.receive({"kind": "hello"})])

    def parts(names):
        next(during, lambda: None)()
        return make(names)

    desk.parts = parts
    view.ack()
    desk.pump.mark(["sample"])
    eventually(lambda: len(view.parts) == 3)
    assert "kept" not in view.parts[2]
    assert view.parts[2]["parts"]["sample"] == {"items": [1]}
