"""Conversations of the user's own, kept for compiling."""

from __future__ import annotations

import pytest

from nexus_lab.splice import (
    ConversationsError,
    for_compiling,
    forget_conversations,
    keep_conversations,
    kept_conversations,
    kept_path,
)

pytestmark = pytest.mark.usefixtures("nexus_home")

TALK = (
    {"role": "user", "content": "Wo ist Gepäck 7?\u2028\ud800"},
    {"role": "assistant", "content": "In Oslo."},
)


def test_every_other_conversation_is_compiled_behind_and_at_most_nine():
    assert for_compiling(range(5)) == [0, 2, 4]
    assert for_compiling(range(100)) == list(range(0, 18, 2))
    assert for_compiling([]) == []


def test_what_is_kept_comes_back_until_it_is_forgotten():
    assert kept_conversations() == ()
    keep_conversations([TALK[:1]])
    keep_conversations([TALK, (), TALK[1:]])
    assert kept_conversations() == (TALK, TALK[1:])
    forget_conversations()
    forget_conversations()
    assert kept_conversations() == ()


@pytest.mark.parametrize(
    "text", ["{", '[{"role": "user"}]\n', '[{"role": "user", "content": 4}]\n', "4\n", "[[]]"]
)
def test_a_damaged_file_is_told_and_says_what_to_do(text: str):
    keep_conversations([TALK])
    kept_path().write_text(text)
    with pytest.raises(ConversationsError, match=r"conversations\.jsonl") as error:
        kept_conversations()
    assert "--conversations" in error.value.next_step
