"""BM25 beside its formula."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_tools import tool

from nexus_lab.routing.lexical import LexicalIndex, tool_words, words

WORDS = ["alpha", "beta", "gamma", "delta"]
DOCUMENTS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from(WORDS), max_size=6), min_size=1
)


def naive(documents: dict[str, list[str]], query: list[str]) -> list[float]:
    """BM25 with k1 = 1.5, b = 0.75 and Lucene's idf, halfway at 8."""
    filled = [found or [""] for found in documents.values()]
    mean = sum(map(len, filled)) / len(filled)
    scores = []
    for document in filled:
        counts = Counter(document)
        total = 0.0
        for word in query:
            holders = sum(word in other for other in filled)
            rarity = math.log(1 + (len(filled) - holders + 0.5) / (holders + 0.5))
            norm = 1.5 * (1 - 0.75 + 0.75 * len(document) / mean)
            total += rarity * counts[word] / (counts[word] + norm)
        scores.append(total / (total + 8))
    return scores


@settings(deadline=None)
@given(
    documents=DOCUMENTS,
    query=st.lists(st.sampled_from([*WORDS, "omega"]), max_size=4),
    gone=st.sampled_from("abcdef"),
)
def test_scores_are_those_of_the_formula(documents: dict[str, list[str]], query: list[str], gone: str):
    index = LexicalIndex()
    for name, document in documents.items():
        index.put(name, document)
    np.testing.assert_allclose(index.scores(" ".join(query)), naive(documents, query), rtol=1e-4, atol=1e-6)
    if gone in documents:
        index.remove(gone)
        rest = {name: document for name, document in documents.items() if name != gone}
        expected = naive(rest, query) if rest else []
        np.testing.assert_allclose(index.scores(" ".join(query)), expected, rtol=1e-4, atol=1e-6)


def test_a_replaced_tool_goes_last():
    index = LexicalIndex()
    index.put("a", ["alpha"])
    index.put("b", ["beta"])
    index.put("a", ["gamma"])
    assert index.names == ("b", "a")
    assert index.scores("gamma").argmax() == 1


@pytest.mark.parametrize("documents", [{}, {"a": []}])
def test_tools_without_words_have_no_score(documents: dict[str, list[str]]):
    index = LexicalIndex()
    for name, document in documents.items():
        index.put(name, document)
    assert index.scores("alpha").tolist() == [0.0] * len(documents)


def test_the_words_of_a_tool_are_its_name_description_arguments_and_values():
    found = tool_words(
        tool("listIssues", "List the open tickets.", orderBy={"enum": ["CREATED_AT", 3]}, odd=True)
    )
    assert Counter(found) == Counter(
        ["list"] * 4 + ["issues"] * 3 + ["open", "tickets", "order", "created", "odd"]
    )


def test_words_without_meaning_are_left_out():
    assert words("Show me the issues of the getPullRequest") == ["issues", "pull", "request"]
