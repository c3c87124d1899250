from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import HEAD_DIM

from nexus_lab.engine import RopeParameters
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.engine.rope import rope_from_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def parameters(tiny_path: Callable[[str], Path], name: str, n_ctx: int = 256) -> RopeParameters:
    return rope_from_gguf(read_gguf(tiny_path(name)), pairing="norm", n_ctx=n_ctx)


def test_plain_frequencies(tiny_path: Callable[[str], Path]):
    rope = parameters(tiny_path, "plain")
    assert (rope.head_dim, rope.n_rot, rope.scale, rope.factors) == (HEAD_DIM, HEAD_DIM, 1.0, None)
    np.testing.assert_allclose(rope.inv_freq, [10000.0 ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)])
    assert rope.factors_hash == "0" * 16


def test_linear_scaling_divides_every_frequency(tiny_path: Callable[[str], Path]):
    plain, linear = parameters(tiny_path, "plain"), parameters(tiny_path, "linear")
    np.testing.assert_allclose(linear.inv_freq, plain.inv_freq / 2)


def test_factors_divide_each_their_own(tiny_path: Callable[[str], Path]):
    plain, factored = parameters(tiny_path, "plain"), parameters(tiny_path, "factors")
    np.testing.assert_allclose(
        factored.inv_freq, plain.inv_freq / np.linspace(1.0, 8.0, HEAD_DIM // 2), rtol=1e-6
    )
    assert factored.factors_hash != plain.factors_hash


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones(tiny_path: Callable[[str], Path]):
    plain, yarn = parameters(tiny_path, "plain"), parameters(tiny_path, "yarn")
    ratio = yarn.inv_freq / plain.inv_freq
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(0.25)
    assert np.all(np.diff(ratio) <= 1e-12)
    assert yarn.attn_factor == pytest.approx(1 + 0.1 * math.log(4.0))


def test_a_rotation_there_and_back_keeps_norms_under_yarn(tiny_path: Callable[[str], Path]):
    from nexus_lab import _core

    rope = parameters(tiny_path, "yarn")
    rows = np.random.default_rng(1).normal(size=(20, 2 * HEAD_DIM)).astype(np.float16)
    turned = rows.copy()
    for sign in (1, -1):
        _core.rotate_keys(
            turned,
            head_dim=rope.head_dim,
            n_rot=rope.n_rot,
            pairing=rope.pairing,
            deltas=np.full(20, sign * 1234, np.int32),
            inv_freq=rope.inv_freq,
        )
        norms = np.linalg.norm(turned.astype(np.float64), axis=1) / np.linalg.norm(
            rows.astype(np.float64), axis=1
        )
        np.testing.assert_allclose(norms, 1.0, atol=2e-3)
    np.testing.assert_allclose(turned.astype(np.float32), rows.astype(np.float32), atol=8e-3)
