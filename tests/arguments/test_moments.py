"""Dates and times as they are said."""

from __future__ import annotations

import datetime as dt

import pytest

from nexus_lab.arguments.moments import dates_in, times_in, today_in

TODAY = dt.date(2026, 3, 2)  # a Monday


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("on the 10th of march 2023", [("the 10th of march 2023", "2023-03-10")]),
        (
            "April 15, 2023 and 2023 April 16th",
            [("April 15, 2023", "2023-04-15"), ("2023 April 16th", "2023-04-16")],
        ),
        ("2026-02-01 until 2026-02-28", [("2026-02-01", "2026-02-01"), ("2026-02-28", "2026-02-28")]),
        (
            "3/4/2024 or 31.12.2024 or 2023.10.1",
            [("3/4/2024", "2024-03-04"), ("31.12.2024", "2024-12-31"), ("2023.10.1", "2023-10-01")],
        ),
        ("tomorrow", [("tomorrow", "2026-03-03")]),
        ("the day before yesterday", [("the day before yesterday", "2026-02-28")]),
        ("3 days ago", [("3 days ago", "2026-02-27")]),
        ("next friday", [("next friday", "2026-03-06")]),
        ("last friday", [("last friday", "2026-02-27")]),
        ("on Monday", [("Monday", "2026-03-09")]),
        ("May 5", [("May 5", "2026-05-05")]),
        ("February 30, 2026", [("February 30, 2026", "")]),
        ("2026-02-30", [("2026-02-30", "")]),
        ("2026-02-01T25:00", [("2026-02-01T25:00", "")]),
        ("may I ask in 2023", []),
    ],
)
def test_dates(text: str, found: list[tuple[str, str]]):
    assert [(text[one.start : one.stop], one.iso) for one in dates_in(text, TODAY)] == found


def test_a_relative_date_needs_a_today():
    assert [one.iso for one in dates_in("tomorrow, or May 5")] == ["", ""]


def test_there_is_no_day_after_the_last():
    assert [one.iso for one in dates_in("tomorrow", dt.date.max)] == [""]
    assert [one.iso for one in dates_in(f"{'9' * 5000} days ago", TODAY)] == [""]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("at 4:30 in the afternoon", [("4:30 in the afternoon", "16:30")]),
        ("5pm, 12 am or 17:00:15", [("5pm", "17:00"), ("12 am", "00:00"), ("17:00:15", "17:00:15")]),
        ("9 o'clock", [("9 o'clock", "09:00")]),
        ("24/7 for 3.50 on v2.14 with 30 people", []),
    ],
)
def test_times(text: str, found: list[tuple[str, str]]):
    assert [(text[one.start : one.stop], one.iso) for one in times_in(text)] == found


@pytest.mark.parametrize(
    ("text", "today"),
    [
        ("Today is Monday, 2026-03-02.", TODAY),
        ("The current date: March 2, 2026", TODAY),
        ("It is due on 2026-03-02", None),
        ("Set the due date 2026-03-02", None),
        ("Start now: 2026-03-02", None),
        ("Today is 2026-02-30", None),
    ],
)
def test_today_is_what_is_given_as_such(text: str, today: dt.date | None):
    assert today_in(text) == today
