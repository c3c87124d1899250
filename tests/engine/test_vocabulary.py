from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.engine.vocab import TextStream

if TYPE_CHECKING:
    from nexus_lab.engine import Engine


@pytest.mark.model
# The vocabulary lacks the bytes of some control characters and of planes that hold no characters.
@given(text=st.text(st.characters(exclude_categories=["Cc", "Cn", "Co", "Cs"]), max_size=60))
def test_text_comes_back(smol_session: Engine, text: str):
    tokens = smol_session.tokenize(text, special=False)
    assert smol_session.detokenize(tokens) == text
    assert b"".join(map(smol_session.token_bytes, tokens)).decode() == text
    stream = TextStream(smol_session.vocabulary)
    assert "".join([*map(stream.push, tokens), stream.finish()]) == text


@pytest.mark.model
def test_half_a_surrogate_pair_is_no_error(smol: Engine):
    assert smol.detokenize(smol.tokenize("a\ud800b", special=False)) == "a?b"


def test_markup_is_control_only_when_asked(smol: Engine):
    marked = smol.tokenize("<|im_start|>user", special=True)
    plain = smol.tokenize("<|im_start|>user", special=False)
    assert len(marked) < len(plain)
    assert smol.vocabulary.is_control(marked[0])
    assert not any(map(smol.vocabulary.is_control, plain))
    assert smol.detokenize(plain) == "<|im_start|>user"
    assert smol.detokenize(marked) == "user"
    assert smol.detokenize(marked, special=True) == "<|im_start|>user"
    assert smol.token_bytes(marked[0]) == b""
    assert smol.vocabulary.token_text(marked[0]) == "<|im_start|>"


def test_a_bos_is_never_doubled(tiny: Engine):
    assert tiny.tokenize("the", bos=True)[0] == tiny.bos
    assert tiny.tokenize("<s>the", bos=True).count(tiny.bos) == 1
    assert tiny.bos not in tiny.tokenize("the")


@pytest.mark.model
def test_a_model_without_bos_gets_none(smol: Engine):
    assert smol.tokenize("the", bos=True) == smol.tokenize("the")


@pytest.mark.model
def test_the_models_own_template_is_used(smol: Engine):
    text = smol.render_chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}]
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    )
    assert not smol.chat.is_fallback


def test_a_model_without_a_template_falls_back(tiny: Engine):
    assert tiny.chat.is_fallback
    assert "<|im_start|>user\nHi" in tiny.render_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.model
def test_end_tokens_and_pieces_cover_the_vocabulary(smol: Engine):
    assert smol.eos in smol.vocabulary.eog
    pieces = smol.vocabulary.all_token_bytes
    assert len(pieces) == smol.info.n_vocab
    assert pieces[smol.tokenize(" harbour")[0]] == smol.token_bytes(smol.tokenize(" harbour")[0])
