"""What of a request is matched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.routing import SpanKind, normalise, split_identifiers


@pytest.mark.parametrize(
    ("request_", "text", "kinds"),
    [
        ('Rename PR 18 in acme/docs to "Links".', "Rename PR in to.", ["number", "path", "quote"]),
        ("What does ticket 482 in acme/webshop say?", "What does ticket in say?", ["number", "path"]),
        ("Mark acme/webshop#560 as done", "Mark as done", ["path"]),
        ("Show commit c0ffee42 of a-b/c.d", "Show commit of", ["hash", "path"]),
        ("Since 2026-01-31, please", "Since, please", ["date"]),
        ("Fetch https://example.com/a?b=1 now", "Fetch now", ["url"]),
        ("Read ~/notes/todo.txt and /etc/hosts", "Read and", ["path", "path"]),
        ("Don't close the user's issues", "Don't close the user's issues", []),
        ("Find 'login fails' here", "Find here", ["quote"]),
        ("Run the CI/CD and/or I/O checks", "Run the CI/CD and/or I/O checks", []),
        ("Open a pull request (#12)", "Open a pull request", ["number"]),
    ],
)
def test_names_numbers_and_quotes_are_masked(request_: str, text: str, kinds: list[str]):
    found = normalise(request_)
    assert found.text == text
    assert [span.kind.value for span in found.spans] == kinds


@pytest.mark.parametrize("request_", ["482", '"Links"', "acme/docs", "2026-01-31"])
def test_a_request_of_which_nothing_is_left_is_matched_as_it_is(request_: str):
    assert normalise(request_).text == request_


def test_spans_point_into_the_request():
    request = 'Rename PR 18 in acme/docs to "Links"'
    spans = {span.kind: request[span.start : span.stop] for span in normalise(request).spans}
    assert spans == {SpanKind.NUMBER: "18", SpanKind.PATH: "acme/docs", SpanKind.QUOTE: '"Links"'}


@given(st.text(max_size=200))
def test_any_text_can_be_normalised(request_: str):
    found = normalise(request_)
    stops = [0] + [span.stop for span in found.spans]
    assert all(stop <= span.start < span.stop for stop, span in zip(stops, found.spans, strict=False))
    assert found.text == found.text.strip()
    assert bool(found.text) or not request_.strip()


def test_only_the_beginning_of_a_long_request_is_matched():
    assert len(normalise("word " * 100_000).text) <= 4_000


@pytest.mark.parametrize("tail", ["/a/b/c/d/e", "2024-05-01", " and/or more", "word"])
def test_no_word_is_cut_where_the_matched_part_ends(tail: str):
    for length in range(3_985, 4_001):
        found = normalise("x" * 9 + " " + "y " * ((length - 10) // 2) + " " * (length % 2) + tail)
        assert all(found.request[span.stop : span.stop + 1].strip() == "" for span in found.spans)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("list_issues", "list issues"),
        ("getPullRequest", "get pull request"),
        ("HTTPServerError", "http server error"),
        ("API-post-page", "api post page"),
        ("genetics.calculateSimilarity2", "genetics calculate similarity2"),
        ("über_Straße", "über straße"),
        ("__", ""),
    ],
)
def test_identifiers_are_taken_apart(text: str, split: str):
    assert split_identifiers(text) == split
