"""Blocks compiled behind several contexts with a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nexus_lab.engine import Engine
from nexus_lab.splice import (
    OWN_TOKENS,
    BlockContext,
    BlockLibrary,
    RepairKind,
    Sensitive,
    TrialCase,
    keep_conversations,
    splice_block,
    typical_context,
)

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def contexts(bundled_engine: Engine) -> BlockContext:
    return typical_context(bundled_engine, n_tokens=256, n_contexts=3)


def _rows(block):
    layers = range(block.header.n_layer)
    return np.stack([block._file.value(layer) for layer in layers]).astype(np.float64)


def test_typical_contexts_are_whole_different_and_the_same_every_time(
    bundled_engine: Engine, contexts: BlockContext
):
    found = (contexts.tokens, *contexts.probes)
    assert len({*found}) == 3
    assert {len(tokens) <= 256 for tokens in found} == {True}
    turn_end = bundled_engine.tokenize("<|im_end|>\n")
    assert all(list(tokens[-len(turn_end) :]) == turn_end for tokens in found)
    assert contexts == typical_context(bundled_engine, n_tokens=256, n_contexts=3)
    other = typical_context(bundled_engine, n_tokens=256, n_contexts=3, system="Be brief.")
    assert other.hash != contexts.hash
    assert not typical_context(bundled_engine, n_tokens=256, n_contexts=1).consensus


@pytest.mark.usefixtures("nexus_home")
def test_real_conversations_are_cut_to_lengths_and_kept_ones_are_the_default(bundled_engine: Engine):
    talks = [
        [
            {"role": role, "content": f"{number} words of {role} {place}. " * 9}
            for place in range(60)
            for role in ("user", "assistant")
        ]
        for number in range(len(OWN_TOKENS) + 1)
    ]
    context = typical_context(bundled_engine, conversations=talks)
    lengths = [len(tokens) for tokens in (context.tokens, *context.probes)]
    for found, most in zip(lengths, (*OWN_TOKENS, OWN_TOKENS[0]), strict=True):
        assert most - 100 < found <= most
    turn_end = bundled_engine.tokenize("<|im_end|>\n")
    assert list(context.tokens[-len(turn_end) :]) == turn_end
    assert context.consensus
    samples = typical_context(bundled_engine)
    keep_conversations(talks)
    assert typical_context(bundled_engine) == context
    assert typical_context(bundled_engine, conversations=()) == samples


def test_a_conversation_whose_first_message_is_too_long_leaves_the_system_prompt(bundled_engine: Engine):
    talk = [{"role": "user", "content": "word " * 5000}]
    context = typical_context(bundled_engine, conversations=[talk, talk])
    assert bundled_engine.detokenize(list(context.tokens)).rstrip().endswith("user did not give.")
    assert context.probes == ()


def test_a_consensus_is_the_mean_and_its_profile_names_what_moves(
    bundled_engine: Engine, library: BlockLibrary, cases: tuple[TrialCase, ...], contexts: BlockContext
):
    tokens = cases[0].block
    mean = library.get_or_compile(tokens, contexts)
    singles = [library.get_or_compile(tokens, c) for c in (contexts.tokens, *contexts.probes)]
    rows = np.stack([_rows(block) for block in singles])
    # Shared contexts are restored from a state: other cells, so equal up to the order of sums.
    np.testing.assert_allclose(_rows(mean), rows.mean(axis=0), atol=0.02)
    assert mean.sensitivity is not None
    assert mean.sensitivity.shape == (len(tokens),)
    moved = np.linalg.norm(rows - rows.mean(axis=0), axis=-1).mean(axis=(0, 1))
    assert np.corrcoef(moved, mean.sensitivity)[0, 1] > 0.5
    assert all(block.sensitivity is None for block in singles)
    seq = bundled_engine.acquire_sequence()
    try:
        bundled_engine.prefill(seq, contexts.tokens, logits="none")
        result = splice_block(
            bundled_engine, seq, mean, strategy=Sensitive(), budget=0.25, preceding=contexts.tokens
        )
        assert (result.plan.kind, result.anchored) == (RepairKind.PROFILE, False)
        wanted = np.sort(np.argsort(-mean.sensitivity, kind="stable")[: result.plan.count])
        assert list(result.plan.recomputed) == wanted.tolist()
    finally:
        bundled_engine.release_sequence(seq)


def test_probes_beside_a_context_leave_its_rows_bit_for_bit_and_anchored(
    bundled_engine: Engine, tmp_path: Path, cases: tuple[TrialCase, ...], contexts: BlockContext
):
    library, tokens = BlockLibrary(bundled_engine, tmp_path / "blocks"), cases[1].block
    probed = BlockContext(contexts.tokens, contexts.probes)
    plain = library.get_or_compile(tokens, contexts.tokens)
    block = library.get_or_compile(tokens, probed)
    assert block.path != plain.path
    np.testing.assert_array_equal(_rows(block), _rows(plain))
    assert block.context_hash == plain.context_hash
    assert library.find(tokens, probed) is block
