"""The turns before a request: whole, newest first, with a line in place of each bulky tool result."""

from __future__ import annotations

import json

from nexus_lab.agent.window import BULKY_CHARS, Spoken, recent_window, surrogate


def words(text: str) -> int:
    return len(text.split())


def turn(number: int, said: str = "") -> list[dict]:
    return [
        {"role": "user", "content": f"ask {number}"},
        {"role": "assistant", "content": f"said {number} {said}".strip()},
    ]


def test_what_was_said_stays_as_it_was_oldest_first():
    window = recent_window([*turn(1), *turn(2)], words)
    assert window.messages == (
        Spoken("user", "ask 1"),
        Spoken("assistant", "said 1"),
        Spoken("user", "ask 2"),
        Spoken("assistant", "said 2"),
    )
    assert (window.turns, window.turns_left_out, window.surrogates, window.n_tokens) == (2, 0, 0, 8)


def test_older_turns_are_left_out_whole_by_number_and_by_length():
    history = [message for number in range(5) for message in turn(number)]
    by_number = recent_window(history, words, most_turns=2)
    assert [one.text for one in by_number.messages] == ["ask 3", "said 3", "ask 4", "said 4"]
    assert (by_number.turns, by_number.turns_left_out) == (2, 3)
    by_length = recent_window(history, words, most_tokens=7)
    assert [one.text for one in by_length.messages] == ["ask 4", "said 4"], "8 words would be two turns"
    assert (by_length.n_tokens, by_length.turns_left_out) == (4, 4)


def test_a_turn_that_does_not_fit_ends_the_window_although_older_ones_would():
    window = recent_window([*turn(1), *turn(2, "word " * 50)], words, most_tokens=20)
    assert window.messages == ()
    assert window.turns_left_out == 2
    assert recent_window(turn(1), words, most_turns=0).messages == ()


def test_a_call_stands_as_the_model_writes_it_in_either_form():
    calls = [
        {"name": "issue_read", "arguments": {"issue_number": 7}},
        {"function": {"name": "issue_read", "arguments": '{"issue_number": 7}'}},
    ]
    for call in calls:
        history = [
            {"role": "user", "content": "Look at 7"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "open"},
        ]
        assert recent_window(history, words).messages[1:] == (
            Spoken("assistant", '{"name": "issue_read", "arguments": {"issue_number": 7}}'),
            Spoken("tool", "open"),
        )


def test_what_is_no_turn_is_left_out():
    history = [
        {"role": "system", "content": "Be good"},
        {"role": "assistant", "content": "Welcome"},
        {"role": "user", "content": [{"type": "image"}]},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": ["no call", {"name": 3}]},
    ]
    assert recent_window(history, words).messages == (Spoken("user", "Hello"),)
    assert recent_window([], words).turns == 0


def test_a_bulky_result_becomes_one_line_that_says_what_it_was_about():
    rows = [{"node": "x" * 300, "number": 482, "title": "Slow checkout", "repo": "webshop"}, {"number": 9}]
    bulky = json.dumps(rows, indent=1)
    history = [
        {"role": "user", "content": "List them"},
        {"role": "tool", "content": "a" * BULKY_CHARS},
        {"role": "tool", "content": bulky},
    ]
    window = recent_window(history, words)
    assert window.surrogates == 1
    assert window.messages[1].text == "a" * BULKY_CHARS, "what is not bulky stays"
    assert window.messages[2].text == (
        f"[JSON list of 2, {len(bulky)} characters: "
        f'number 482, title "Slow checkout", repo "webshop", node "{"x" * 46}…]'
    )


def test_json_that_was_cut_off_still_says_what_it_was_about():
    whole = json.dumps({"id": 3, "owner": "acme", "body": "b" * 500})
    assert surrogate(whole[:200]) == '[JSON object, 200 characters: id 3, owner "acme"]'


def test_a_text_is_known_by_the_beginning_of_its_first_line():
    assert surrogate("\n\n  # Setup\nmore" * 3) == "[48 characters of text: # Setup]"
    assert surrogate("{not JSON\n") == "[10 characters of text: {not JSON]"
    assert surrogate("") == "[0 characters of text: ]"
    assert len(surrogate("w" * 5000)) < BULKY_CHARS


def test_a_result_made_to_be_slow_is_not():
    for hostile in ('{"a":"' * 20_000, "{" * 100_000, '[{"a":' + '"\\' * 50_000, '{"' + "a" * 100_000):
        assert len(surrogate(hostile)) <= 2 * BULKY_CHARS
