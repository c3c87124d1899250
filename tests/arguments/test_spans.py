"""What a conversation offers, by what it looks like."""

from __future__ import annotations

from typing import Any

import pytest

from nexus_lab.arguments.spans import hear, is_statement


def offered(text: str, kind: str) -> list[Any]:
    _, spans = hear([{"role": "user", "content": text}])
    return [span.value for span in sorted(spans, key=lambda span: span.start) if kind in span.kinds]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("Close acme/webshop#560, globex/infra", "slug", ["acme/webshop", "globex/infra"]),
        ("Close acme/webshop#560", "ticket", [560]),
        ("On call 24/7 and/or 1/2", "slug", []),
        ("See ada@example.com", "email", ["ada@example.com"]),
        ("Ask @rkim and @jlee42", "user", ["rkim", "jlee42"]),
        ("Read https://example.com/a, please", "url", ["https://example.com/a"]),
        ("Show src/main.py in /srv/data", "path", ["src/main.py", "/srv/data"]),
        ("Show the status of .", "path", ["."]),
        ("List ~, then ../docs and ..", "path", ["~", "../docs", ".."]),
        ("Show it. Then stop.", "path", []),
        ("What did 31c0ffee do?", "sha", ["31c0ffee"]),
        ("From release-3.0 to hotfix-7", "code", ["release-3.0", "hotfix-7"]),
        ("It costs 12,000 dollars", "number", [12000]),
        ("Pages 100,200", "split", [100, 200]),
        ("Weighs 70kg", "number", [70]),
        ("Rises by 5%", "share", [0.05]),
        ("About 3 million", "scaled", [3_000_000]),
        ("The ten newest", "number_word", [10]),
        ("Between -5 and 7", "negative", [-5]),
        ("With a=1, b=-3 and x = -2", "number", [1]),
        ("A budget of $5m and 300K users", "scaled", [5_000_000, 300_000]),
        ("For the 2nd, 3rd and 4th floors", "list_ordinal", [[2, 3, 4]]),
        ("in Austria, Canada, and India", "list_capitals", [["Austria", "Canada", "India"]]),
        ("from Austin, TX and Dallas, TX", "list_capitals", [["Austin", "TX", "Dallas", "TX"]]),
        ("Read C:/data/cars.csv and C:\\temp\\x", "path", ["C:/data/cars.csv", "C:\\temp\\x"]),
        ("Films by Ann Lee I can watch", "capitals", ["Films", "Ann Lee"]),
        ("letters to Elizabeth I", "capitals", ["Elizabeth I"]),
        ("The version is 5", "capitals", []),
        ("From British pounds to yen", "currency", ["GBP", "JPY"]),
        ("Canadian dollars, not US dollars", "currency", ["CAD", "USD"]),
        ("From usd into CHF", "currency", ["USD", "CHF"]),
        ("Try all the 5 usd", "currency", ["USD"]),
        ("Put it into French", "language", ["fr"]),
        ("In the UK and South Korea", "country", ["GB", "KR"]),
        ("Take [1, 2, 3]", "bracketed", [[1, 2, 3]]),
        ("Issues 3, 4 and 5", "list_number", [[3, 4, 5]]),
        ('Labels "bug", "p2" and "triage"', "list_quote", [["bug", "p2", "triage"]]),
        ("Weather in San Francisco, CA", "capitals", ["Weather", "San Francisco", "San Francisco, CA", "CA"]),
        ("14:30 in New York", "zone", ["America/New_York"]),
        ("At 9:05 pm", "clock", ["21:05"]),
        ("Add a comment saying I'm on it", "tail", ["I'm on it"]),
    ],
)
def test_parts_are_recognised(text: str, kind: str, values: list[Any]):
    assert offered(text, kind) == values


def test_halves_know_their_slug():
    _, spans = hear([{"role": "user", "content": "From acme/docs to globex/infra"}])
    halves = {span.value: span for span in spans if span.part >= 0}
    assert not halves["acme"].is_apart(halves["docs"])
    assert halves["acme"].is_apart(halves["infra"])


def test_of_earlier_turns_only_plain_values_are_kept():
    turns = [{"role": "user", "content": "Some words about acme/docs"}, {"role": "user", "content": "Go on"}]
    _, spans = hear(turns)
    assert {span.value for span in spans if span.turn == 1} >= {"acme/docs", "acme", "docs"}
    assert "words" not in {span.value for span in spans if span.turn == 1}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SELECT name FROM products", True),
        ("SELECT 1;", True),
        ("SELECT", False),
        ("SELECT please", False),
        ("UPDATE products SET price = 2", True),
        ("select the best", False),
    ],
)
def test_a_statement_is_more_than_its_first_word(text: str, whole: bool):  # noqa: FBT001
    assert is_statement(text) is whole


@pytest.mark.parametrize(
    ("role", "days"), [("system", ["2026-03-03"]), ("user", ["2026-03-03"]), ("assistant", []), ("tool", [])]
)
def test_only_system_and_user_say_which_day_it_is(role: str, days: list[str]):
    _, spans = hear(
        [{"role": role, "content": "Today is 2026-03-02."}, {"role": "user", "content": "Remind me tomorrow"}]
    )
    assert [span.value for span in spans if "iso_date" in span.kinds and not span.turn] == days


def test_a_zone_stands_where_its_whole_name_or_its_city_does():
    text = "Convert 14:30 from Europe/Berlin to America/New_York time, then to Tokyo."
    _, spans = hear([{"role": "user", "content": text}])
    found = {text[one.start : one.stop]: one.value for one in spans if "zone" in one.kinds}
    assert found == {
        "Europe/Berlin": "Europe/Berlin",
        "America/New_York": "America/New_York",
        "Tokyo": "Asia/Tokyo",
    }


def test_runs_that_may_begin_at_every_word_have_an_end():
    # Without an end the lengths of those of a thousand words add up to half a million.
    assert max(len(run) for run in offered("ann, " * 60, "list_word")) <= 24


def test_a_long_request_keeps_its_list():
    numbers = list(range(120))
    text = "Tell me about these. " * 50 + "Add " + ", ".join(map(str, numbers))
    assert offered(text, "list_number") == [numbers]
