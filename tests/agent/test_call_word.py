"""The model's word on whole calls: the likelihood of each at the cursor, and nothing without an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_adapters import write_lora
from tiny_models import write_kind

from nexus_lab.agent.call_word import likelihoods, word_of
from nexus_lab.agent.calling import tool_block
from nexus_lab.arguments.scoring import Scoring
from nexus_lab.bench.argument_scoring import CallScorer
from nexus_lab.bench.argument_writing import Writer
from nexus_lab.engine import Engine
from nexus_lab.registry import ToolSpec
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOOL = ToolSpec("see", "See it.", {"type": "object", "properties": {"n": {"type": "integer"}}})
TEXTS = ['{"n":7}', '{"n":12}', "{}"]
SCORING = Scoring(evidence=1.0, likelihood=0.5, length=0.0, lead=3.0, most=6)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("word")
    header = {f"nexus_lab.{name}": value for name, value in SCORING.to_facts().items()}
    adapter = write_lora(folder / "a.gguf", header=header)
    model = write_kind(folder / "model.gguf", "plain")
    with Engine.load(model, n_ctx=2048, threads=1, adapter=adapter) as engine:
        yield engine


def test_the_likelihood_is_that_of_each_token_behind_those_before(adapted: Engine):
    prompt = list(range(5, 40))
    with adapted.scratch_sequence() as stem:
        found = likelihoods(adapted, stem, prompt, TEXTS)
    for text, likely in zip(TEXTS, found, strict=True):
        tokens = adapted.tokenize(text, special=False)
        with adapted.scratch_sequence() as seq:
            logits = np.asarray(adapted.prefill(seq, [*prompt, *tokens], logits="all"), np.float64)
        chances = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = range(len(prompt) - 1, len(prompt) + len(tokens) - 1)
        expected = sum(chances[row, token] for row, token in zip(rows, tokens, strict=True))
        assert likely == pytest.approx(expected, abs=0.02)
    assert adapted.used_cells() == 0


def test_at_the_cursor_it_is_what_the_same_prompt_gives(adapted: Engine, tmp_path: Path):
    writer = Writer(adapted, Profile(), blocks=tmp_path)
    conversation = writer._conversation()
    try:
        conversation.open()
        conversation.append("user", conversation.transcript.user(tool_block(TOOL, "signature"), "the 7"))
        before, used = conversation.tokens, adapted.used_cells()
        scorer, scoring = word_of(adapted, conversation)
        assert scoring == SCORING
        assert scorer is not None
        found = scorer(TOOL, "the 7", [], TEXTS)
        assert (conversation.tokens, adapted.used_cells()) == (before, used)
        alone = CallScorer(adapted)(TOOL, "the 7", [], TEXTS)
        np.testing.assert_allclose(found, alone, atol=0.02)
    finally:
        conversation.close()
        writer.close()


def test_without_an_adapter_that_says_how_it_counts_nothing_does(tmp_path: Path):
    model = write_kind(tmp_path / "model.gguf", "plain")
    for adapter in (None, write_lora(tmp_path / "a.gguf")):
        with Engine.load(model, n_ctx=512, threads=1, adapter=adapter) as engine:
            writer = Writer(engine, Profile(), blocks=tmp_path)
            conversation = writer._conversation()
            conversation.open()
            assert word_of(engine, conversation) == (None, None)
            conversation.close()
            writer.close()
