"""From which evidence on a value is taken, and what is asked for or left to the model below it."""

from __future__ import annotations

from typing import Any

import pytest

from nexus_lab.arguments import ground, plan_call
from nexus_lab.arguments.grounding import plan_grounded
from nexus_lab.arguments.minimum import Minimum, fit_minimum, least_of
from nexus_lab.registry import ToolSpec


def tool(required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    return ToolSpec("tool", "", {"type": "object", "properties": properties, "required": list(required)})


ZONE = {"type": "string", "description": "IANA timezone name, such as 'America/New_York'"}
CONVERT = tool(("text", "timezone"), text={"type": "string", "description": "Text"}, timezone=ZONE)
NEVER = Minimum({"one": -9.0}, 0.5)


def test_the_curve_tells_right_from_wrong():
    rows = [({"one": 1.0, "score": float(n)}, n > 0) for n in range(-5, 6) for _ in range(9)]
    curve = fit_minimum(rows)
    found = Minimum(curve)
    assert found.probability({"one": 1.0, "score": 5.0}) > 0.95
    assert found.probability({"one": 1.0, "score": -5.0}) < 0.05


def test_the_minimum_loses_no_more_right_values_than_it_may():
    rows = [(n / 100, True) for n in range(100)] + [(0.005, False)] * 50
    least = least_of(rows, lost=0.02)
    assert least == 0.02
    assert sum(likely < least for likely, is_right in rows if is_right) == 2


def test_without_a_right_value_nothing_is_refused():
    assert least_of([(0.3, False)], lost=0.02) == 0.0


def test_no_minimum_takes_all():
    assert Minimum({"one": -30.0}).allows({"one": 1.0})
    assert not Minimum({"one": -30.0}, 0.01).allows({"one": 1.0})


def test_below_the_minimum_a_name_is_asked_for_and_a_text_is_left_to_the_model():
    spec = tool(
        ("owner", "body", "method"),
        owner={"type": "string", "description": "Repository owner"},
        body={"type": "string", "description": "Text of the comment"},
        method={"enum": ["get", "list"]},
    )
    found = ground(spec, "Get the comments of acme", minimum=NEVER)
    assert found.missing == ("owner",)
    assert found.open == ("body",)
    assert dict(found.values) == {"method": "get"}


def test_what_has_a_default_is_neither_asked_for_nor_written():
    spec = tool(("owner",), owner={"type": "string", "default": "acme", "description": "Owner"})
    assert dict(ground(spec, "Go on", minimum=NEVER).values) == {"owner": "acme"}


def test_optional_values_need_no_minimum():
    spec = tool((), labels={"type": "array", "items": {"type": "string"}, "description": "Labels"})
    assert dict(ground(spec, 'With the label "bug"', minimum=NEVER).values) == {"labels": ["bug"]}


@pytest.mark.parametrize("request_", ["Translate 'hello' into German", "Translate this"])
def test_a_word_is_no_time_zone(request_: str):
    assert "timezone" in ground(CONVERT, request_).missing
    assert "timezone" in plan_call(CONVERT, request_).missing


def test_a_city_is_a_time_zone():
    spec = tool(("timezone",), timezone=ZONE)
    found = ground(spec, "What time is it in Tokyo?")
    assert (dict(found.values), found.missing) == ({"timezone": "Asia/Tokyo"}, ())


def test_a_text_that_nobody_said_is_marked_as_the_models():
    spec = tool(("title", "body"), title={"type": "string", "description": "Title"}, body={"type": "object"})
    plan = plan_grounded(spec, ground(spec, "Go on", minimum=NEVER))
    assert plan.missing == ()
    assert plan.free == ("title", "body")
    assert plan.settled is None


def test_a_zone_that_the_database_does_not_know_is_none():
    spec = tool(("timezone",), timezone=ZONE)
    assert ground(spec, "What time is it in UTC?").values["timezone"] == "UTC"
    assert ground(spec, "What time is it in 'Middle Earth'?").missing == ("timezone",)


def test_what_a_description_names_for_nothing_said_is_taken():
    told = {**ZONE, "description": "IANA timezone name. Use 'UTC' as local timezone if no timezone provided."}
    spec = tool(("timezone",), timezone=told)
    assert dict(ground(spec, "What time is it?").values) == {"timezone": "UTC"}
    assert dict(ground(spec, "What time is it in Tokyo?").values) == {"timezone": "Asia/Tokyo"}


SOURCE = {
    "type": "string",
    "description": "Source IANA timezone name (e.g., 'America/New_York', 'Europe/London'). Use 'UTC' as "
    "local timezone if no source timezone provided by the user.",
}
TARGET = {
    "type": "string",
    "description": "Target IANA timezone name (e.g., 'Asia/Tokyo', 'America/San_Francisco'). Use 'UTC' as "
    "local timezone if no target timezone provided by the user.",
}
TIME = {"type": "string", "description": "Time to convert in 24-hour format (HH:MM)"}


@pytest.mark.parametrize("before", ["Tokyo", "New York", "Paris"])
@pytest.mark.parametrize(
    ("request_", "source", "target"),
    [
        ("Convert 14:30 from Europe/Berlin to America/New_York time.", "Europe/Berlin", "America/New_York"),
        ("Convert 14:30 from Europe/London to Asia/Tokyo", "Europe/London", "Asia/Tokyo"),
        ("What is 14:30 in Berlin for someone in Chicago?", "Europe/Berlin", "America/Chicago"),
    ],
)
def test_a_zone_that_was_said_now_is_not_replaced_by_one_that_a_description_names(
    before: str, request_: str, source: str, target: str
):
    names = ("source_timezone", "time", "target_timezone")
    spec = tool(names, source_timezone=SOURCE, time=TIME, target_timezone=TARGET)
    context = [{"role": "user", "content": f"What time is it in {before} right now?"}]
    found = ground(spec, request_, context)
    assert dict(found.values) == {"source_timezone": source, "time": "14:30", "target_timezone": target}
