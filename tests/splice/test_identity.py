"""Hashes that name contexts and blocks, and the conversations measured with."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.splice.identity import CONTEXT_HASH_BYTES, block_id, context_hash
from nexus_lab.splice.samples import SYSTEM_PROMPT, sample_tokens

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=12)


@given(tokens, tokens)
def test_contexts_share_a_hash_only_when_they_are_equal(first: list[int], second: list[int]):
    assert len(context_hash(first)) == CONTEXT_HASH_BYTES
    assert (context_hash(first) == context_hash(second)) == (first == second)


@given(tokens, tokens)
def test_a_block_s_address_tells_its_tokens_from_its_context(block: list[int], context: list[int]):
    address = block_id(model="m", tokens=block, context=context)
    assert address == block_id(model="m", tokens=tuple(block), context=tuple(context))
    assert address != block_id(model="n", tokens=block, context=context)
    if block:
        moved = block_id(model="m", tokens=block[:-1], context=[block[-1], *context])
        assert address != moved


def _words(n_tokens: int, seed: int) -> list[int]:
    return sample_tokens(
        n_tokens,
        seed=seed,
        render=lambda messages: "\n".join(message["content"] for message in messages),
        tokenize=lambda text: [crc32(word.encode()) for word in text.split()],
    )


def test_a_sample_has_the_length_asked_for_and_starts_with_the_system_prompt():
    opening = [crc32(word.encode()) for word in SYSTEM_PROMPT.split()]
    for length in (5, 64, 700, 3000):
        sample = _words(length, seed=1)
        assert len(sample) == length
        assert sample[: len(opening)] == opening[:length]
    assert _words(700, seed=1) == _words(3000, seed=1)[:700]
    assert _words(700, seed=1) != _words(700, seed=2)
