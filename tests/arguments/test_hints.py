"""What descriptions say of values, and what calls make of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nexus_lab.arguments import ground
from nexus_lab.arguments.codes import code_kind, codes_listed, codes_said
from nexus_lab.arguments.evidence import Candidate
from nexus_lab.arguments.hints import date_form, examples_in, written_date
from nexus_lab.arguments.ranking import scores
from nexus_lab.registry import ToolSpec


def values(
    properties: dict[str, Any], request: str, *, name: str = "work", what: str = "Do it."
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return dict(ground(ToolSpec(name, what, schema), request).values)


@pytest.mark.parametrize(
    ("description", "examples"),
    [
        ("Mode, e.g. 'static' or 'dynamic'. Default is 'static'.", ("static", "dynamic")),
        ("The category (e.g., total, veterans, women)", ("total", "veterans", "women")),
        (
            "Type of the work. E.g., painting, sculpture, installation.",
            ("painting", "sculpture", "installation"),
        ),
        ("Supports 'teaspoon', 'tablespoon', 'cup', etc.", ("teaspoon", "tablespoon", "cup")),
        ("Who likes such as these words that run on and on", ()),
        ("A name.", ()),
        ("Path, e.g. src/main.py", ("src/main.py",)),
        ("The city and state, e.g. San Francisco, CA", ()),
        ("Whether the repository supports issues", ()),
    ],
)
def test_examples_are_read(description: str, examples: tuple[str, ...]):
    assert examples_in(description) == examples


@pytest.mark.parametrize(
    ("description", "form", "written"),
    [
        ("In the format MM/DD/YYYY.", "%m/%d/%Y", "04/25/2026"),
        ("As 'dd.mm.yyyy'", "%d.%m.%Y", "25.04.2026"),
        ("YYYY-MM-DD", "%Y-%m-%d", "2026-04-25"),
        ("DD MMM YYYY", "%d %b %Y", "25 Apr 2026"),
        ("M/D/YYYY", "%-m/%-d/%Y", "4/25/2026"),
        ("MM/DD/YYYY HH:mm", "", ""),
        # With a time of day, of the same part twice, or as a part of something else it is no form of a day.
        ("YYYY-MM-DDTHH:MM:SSZ", "", ""),
        ("MM/MM/YYYY", "", ""),
        ("The date.", "", ""),
    ],
)
def test_the_form_of_dates_is_read(description: str, form: str, written: str):
    assert date_form(description) == form
    if form:
        assert written_date("2026-04-25", form) == written


def test_what_is_no_day_stays_as_it_is():
    assert written_date("2026-04-25T10:00", "%m/%d/%Y") == "2026-04-25T10:00"
    assert written_date("March 14th", "%m/%d/%Y") == "March 14th"


def test_a_date_is_written_as_the_description_says():
    day = {"day": {"type": "string", "description": "Day of departure, formatted as MM/DD/YYYY."}}
    assert values(day, "Find me a bus on April 25, 2026") == {"day": "04/25/2026"}
    assert values(day, "Find me a bus on 2026-04-25") == {"day": "04/25/2026"}


def test_an_example_that_is_said_is_taken_as_it_is_spelt():
    kind = {"type": {"type": "string", "description": "Type of the work, e.g. 'painting', 'sculpture'."}}
    assert values(kind, "Search for famous sculptures in New York") == {"type": "sculpture"}


@pytest.mark.parametrize(
    ("words", "description", "kind"),
    [
        (["base", "currency"], "The base currency.", "currency"),
        (["from"], "Code of the source currency, such as USD", "currency"),
        (["amount"], "Amount in the currency USD", ""),
        (["language"], "ISO 639-1 code of the language", "language"),
        (["language"], "The language of the text", ""),
        (["country", "code"], "Where it is", "country"),
        (["country"], "Name of the country", ""),
        (["name"], "Its name", ""),
        (["date"], "Date of the currency rates", ""),
        (["country", "code"], "Country code; prices are in its currency", "country"),
        (["language"], "Programming language of the code", ""),
    ],
)
def test_what_takes_a_code(words: list[str], description: str, kind: str):
    assert code_kind(words, description) == kind


def test_lists_of_codes_are_known():
    assert codes_listed(["USD", "EUR"], ["in"], "") == "currency"
    assert codes_listed(["EN", "FR"], ["lang"], "") == "language"
    assert codes_listed(["US", "GB"], ["market"], "The country") == "country"
    assert (
        codes_listed(["USD", "none"], [], "")
        == codes_listed(["USD"], [], "")
        == codes_listed([], [], "")
        == ""
    )
    for others in (["AM", "PM"], ["cm", "mm"], ["kg", "lb"], ["km", "mi"]):
        assert codes_listed(others, ["unit"], "What it is in") == ""


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("What is the value of 100 USD in EUR", ["USD", "EUR"]),
        ("the real rate of USD to EUR", ["USD", "EUR"]),
        ("I want to try converting 100 USD to all", ["USD"]),
        ("1000 XAF in Brazilian reals", ["XAF", "BRL"]),
    ],
)
def test_words_are_no_currencies(text: str, codes: list[str]):
    words = [(found.start(), found.end()) for found in re.finditer(r"\w+", text)]
    assert [code for _, _, code, kind in codes_said(text, words) if kind == "currency"] == codes


def test_who_is_told_is_no_country():
    code = {"country": {"type": "string", "description": "Country code, e.g. 'US', 'DE'"}}
    assert values(code, "Tell us the holidays in Germany") == {"country": "DE"}
    assert values(code, "The holidays in the US") == {"country": "US"}


def test_a_description_of_blanks_or_of_leads_is_read_at_once():
    assert examples_in("e.g. x" + " " * 1_000_000 + "y") == ("x",)
    assert examples_in("such as " * 200_000) == ()


def test_currencies_become_their_codes():
    money = {
        "from": {"type": "string", "description": "Code of the source currency, such as USD"},
        "to": {"type": "string", "description": "Code of the target currency, such as EUR"},
    }
    assert values(money, "Convert from British pounds to Japanese yen") == {"from": "GBP", "to": "JPY"}


def test_what_leads_to_a_currency_tells_which_it_is():
    money = {
        "from": {"type": "string", "description": "Source currency"},
        "to": {"type": "string", "description": "Target currency"},
    }
    assert values(money, "How much is 100 euros in dollars?") == {"from": "EUR", "to": "USD"}


def test_several_currencies_are_a_list_of_codes():
    free = {
        "symbols": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Currency codes, such as USD",
        }
    }
    listed = {"symbols": {"type": "array", "items": {"enum": ["USD", "EUR", "JPY", "CHF"]}}}
    assert values(free, "Rates for dollars, euros and yen") == {"symbols": ["USD", "EUR", "JPY"]}
    assert values(listed, "Rates for dollars and euros") == {"symbols": ["USD", "EUR"]}


def test_a_description_that_names_currencies_by_words_takes_words():
    word = {"currency": {"type": "string", "description": 'Currency, e.g. "dollar"'}}
    assert values(word, "The price in dollars") == {"currency": "dollar"}


def test_a_listed_code_is_found_by_its_name():
    listed = {"currency": {"type": "string", "enum": ["USD", "EUR", "JPY"]}}
    assert values(listed, "What is the price in yen?") == {"currency": "JPY"}


def test_a_language_is_a_code_only_where_one_is_asked_for():
    code = {"language": {"type": "string", "description": "ISO 639-1 code of the target language"}}
    name = {"language": {"type": "string", "description": "The target language"}}
    assert values(code, "Translate this into French") == {"language": "fr"}
    assert values(name, "Translate this into French") == {"language": "French"}


def test_numbers_are_taken_in_the_measure_that_is_asked_for():
    body = {
        "height_m": {"type": "number", "description": "Height in meters."},
        "weight_kg": {"type": "number", "description": "Weight in kilograms."},
    }
    assert values(body, "Someone of weight 70kg and height 1.75m") == {"height_m": 1.75, "weight_kg": 70}
    wait = {"delay": {"type": "integer", "description": "Delay in minutes"}}
    assert values(wait, "Remind me in 5m") == {"delay": 5}
    heat = {"temperature": {"type": "number", "description": "The temperature in Kelvin."}}
    assert values(heat, "At a temperature of 300K") == {"temperature": 300}
    percent = {"rate": {"type": "number", "description": "Interest rate in percent."}}
    share = {"rate": {"type": "number", "description": "Interest rate as a fraction of one."}}
    assert values(percent, "With an interest rate of 5%") == {"rate": 5}
    assert values(share, "With an interest rate of 5%") == {"rate": 0.05}


def test_a_score_does_not_depend_on_the_order_of_its_evidence():
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": -0.6}
    found = [Candidate("x", (), dict.fromkeys(order, 1.0)) for order in ("abcd", "dcba", "bdac")]
    assert len(set(scores(found, weights).tolist())) == 1
