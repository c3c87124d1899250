from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from nexus_lab.engine import (
    ContextFull,
    Engine,
    EngineError,
    GrammarError,
    GrammarMask,
    MaskExhausted,
    SamplerSettings,
    StopReason,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


class Script:
    """A mask that allows one token at a time, and stops at the end."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.accepted: list[int] = []

    @property
    def stopped(self) -> bool:
        return len(self.accepted) == len(self.tokens)

    def mask(self, logits: np.ndarray) -> None:
        kept = logits[self.tokens[len(self.accepted)]]
        logits[:] = -np.inf
        logits[self.tokens[len(self.accepted)]] = kept

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def test_greedy_generation_is_the_argmax_step_by_step(tiny: Engine, tiny_tokens: np.ndarray):
    seq, other = tiny.acquire_sequence(), tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    found = tiny.generate(seq, logits, max_tokens=8)
    again = tiny.prefill(other, tiny_tokens[:20])
    expected: list[int] = []
    while len(expected) < 8 and int(again.argmax()) not in tiny.vocabulary.eog:
        expected.append(int(again.argmax()))
        again = tiny.prefill(other, [expected[-1]])
    assert list(found.tokens) == expected
    assert found.stop_reason is (StopReason.MAX_TOKENS if len(expected) == 8 else StopReason.EOG)
    assert (found.cached, tiny.pos_max(seq)) == (len(expected), 19 + len(expected))
    np.testing.assert_allclose(found.logits, again, atol=1e-5)
    assert 0 <= found.ttft_s <= found.ttft_s + found.decode_s


def test_a_mask_decides_and_ends_it(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    untouched = logits.copy()
    wanted = [261, 262, 260]
    mask = Script(wanted)
    found = tiny.generate(seq, logits, max_tokens=50, mask=mask, decode_last=False)
    assert (list(found.tokens), mask.accepted, found.stop_reason) == (wanted, wanted, StopReason.MASK)
    assert (found.cached, tiny.pos_max(seq)) == (2, 21)
    np.testing.assert_array_equal(logits, untouched)
    assert tiny.generate(seq, logits, max_tokens=5, mask=Script([])).tokens == ()


def test_stop_tokens_and_end_tokens_stay_out(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    eos = tiny.eos
    ended = tiny.generate(seq, logits, max_tokens=9, mask=Script([261, eos, 261]))
    assert (ended.tokens, ended.stop_reason) == ((261,), StopReason.EOG)
    stopped = tiny.generate(seq, logits, max_tokens=9, mask=Script([261, 262, 260]), stop_tokens=[262])
    assert (stopped.tokens, stopped.stop_reason) == ((261,), StopReason.STOP_TOKEN)


def test_characters_arrive_whole(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:4])
    byte_tokens = [byte + 3 for byte in "é 🦙".encode()]
    pieces: list[str] = []
    found = tiny.generate(seq, logits, max_tokens=50, mask=Script(byte_tokens), on_token=pieces.append)
    assert pieces == ["é", " ", "🦙"]
    assert found.text == "é 🦙"
    cut = tiny.generate(seq, found.logits, max_tokens=2, mask=Script(byte_tokens[3:]))
    assert cut.text == "\N{REPLACEMENT CHARACTER}"


def test_a_full_context_ends_a_generation_and_says_so(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, np.resize(tiny_tokens, tiny.n_ctx - 3))
    found = tiny.generate(seq, logits, max_tokens=50, mask=Script([261] * 50))
    assert (found.stop_reason, len(found.tokens), found.cached) == (StopReason.CONTEXT_FULL, 4, 3)
    with pytest.raises(ContextFull):
        tiny.prefill(seq, [5])


def test_sampling_repeats_with_its_seed(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    runs = []
    for seed in (1, 1, 2):
        runs.append(
            tiny.generate(
                seq, logits, max_tokens=12, sampler=SamplerSettings(temperature=1.5, seed=seed)
            ).tokens
        )
        tiny.remove(seq, 20)
    assert runs[0] == runs[1] != runs[2]


def test_a_mask_that_breaks_rolls_back(tiny: Engine, tiny_tokens: np.ndarray):
    class Dead(Script):
        def mask(self, logits: np.ndarray) -> None:
            super().mask(logits)
            if self.accepted:
                logits[:] = -np.inf

    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    with pytest.raises(MaskExhausted):
        tiny.generate(seq, logits, max_tokens=9, mask=Dead([261, 262]))
    assert tiny.pos_max(seq) == 19
    with pytest.raises(EngineError):
        tiny.generate(seq, logits, max_tokens=0)


@pytest.mark.model
def test_a_schema_grammar_holds_on_the_bundled_model(smol: Engine):
    from llguidance import LLMatcher

    prompt = smol.render_chat([{"role": "user", "content": "Weather in Rome for three days, as JSON."}])
    seq = smol.acquire_sequence()
    logits = smol.prefill(seq, smol.tokenize(prompt, bos=True))
    for seed in range(3):
        mask = GrammarMask(
            smol, LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
        )
        found = smol.generate(
            seq,
            logits,
            max_tokens=40,
            mask=mask,
            sampler=SamplerSettings(temperature=1.0, seed=seed),
            decode_last=False,
        )
        value = json.loads(found.text)
        assert found.stop_reason in (StopReason.MASK, StopReason.EOG)
        assert set(value) == {"city", "days"}
        assert 1 <= value["days"] <= 9
        assert len(value["city"]) <= 12
        smol.remove(seq, smol.pos_max(seq) + 1 - found.cached)


@pytest.mark.model
def test_a_lark_grammar_chooses_between_words(smol: Engine):
    seq = smol.acquire_sequence()
    logits = smol.prefill(seq, smol.tokenize("The sky is"))
    mask = GrammarMask(smol, 'start: " blue" | " green stone"')
    assert not mask.accepting
    found = smol.generate(seq, logits, max_tokens=9, mask=mask)
    assert found.text in (" blue", " green stone")
    assert mask.accepting


@pytest.mark.model
@pytest.mark.parametrize("grammar", ["start: (", '{"grammars": [{"json_schema": {"type": "no-such-type"}}]}'])
def test_a_grammar_that_is_refused_says_why(smol: Engine, grammar: str):
    with pytest.raises(GrammarError) as caught:
        GrammarMask(smol, grammar)
    assert len(caught.value.problem) > 30


@pytest.mark.model
def test_grammar_and_token_never_disagree(smol: Engine):
    mask = GrammarMask(smol, 'start: "yes"')
    logits = np.zeros(smol.info.n_vocab, np.float32)
    mask.mask(logits)
    allowed = [smol.token_bytes(int(token)) for token in np.flatnonzero(np.isfinite(logits))]
    assert b"yes" in allowed
    assert all(piece and b"yes".startswith(piece) for piece in allowed)
    with pytest.raises(GrammarError):
        mask.accept(smol.tokenize("no")[0])


@pytest.mark.model
def test_the_grammar_tokenizer_is_built_once(smol: Engine):
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(smol.grammar_tokenizer)) for _ in range(2)]
    first = smol.grammar_tokenizer
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(item is first for item in found)
