"""The word lists: each word stands by itself."""

from __future__ import annotations

from nexus_lab.arguments.lexicon import CALLED, LEADS, NEGATIONS, NUMBERS, ROLES

COMPOUNDS = {"datetime", "filename", "percentage", "timezone", "username"}


def test_no_word_is_two_that_lost_their_blank():
    words = frozenset().union(*CALLED.values(), ROLES, LEADS, NEGATIONS, NUMBERS)
    joined = {word for word in words for cut in range(1, len(word)) if {word[:cut], word[cut:]} <= words}
    assert joined <= COMPOUNDS


def test_the_numbers_up_to_twenty_have_a_word():
    assert set(NUMBERS.values()) >= set(range(21))
    assert (NUMBERS["nineteen"], NUMBERS["twenty"]) == (19, 20)
