"""RoPE rotation beside a numpy twin in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab import _core

KERNELS = _core.rope_kernels()


def _twin(
    rows: np.ndarray, *, head_dim: int, n_rot: int, pairing: str, deltas: np.ndarray, inv_freq: np.ndarray
) -> np.ndarray:
    heads = rows.astype(np.float64).reshape(len(rows), -1, head_dim)
    if pairing == "norm":
        first, second = np.arange(0, n_rot, 2), np.arange(1, n_rot, 2)
    else:
        first, second = np.arange(n_rot // 2), np.arange(n_rot // 2, n_rot)
    angle = (deltas[:, None] * inv_freq[None])[:, None, :]
    x, y = heads[..., first], heads[..., second]
    turned = heads.copy()
    turned[..., first] = x * np.cos(angle) - y * np.sin(angle)
    turned[..., second] = x * np.sin(angle) + y * np.cos(angle)
    return turned.reshape(rows.shape)


@st.composite
def rotations(draw: st.DrawFn) -> dict[str, object]:
    n_rot = 2 * draw(st.integers(1, 40))
    head_dim = n_rot + draw(st.integers(0, 9))
    n_head = draw(st.integers(1, 3))
    deltas = draw(st.lists(st.integers(-9000, 9000), min_size=1, max_size=6))
    return {
        "n_head": n_head,
        "head_dim": head_dim,
        "n_rot": n_rot,
        "pairing": draw(st.sampled_from(["norm", "neox"])),
        "deltas": np.array(deltas, dtype=np.int32),
        "inv_freq": _core.rope_frequencies(n_rot=n_rot, base=draw(st.sampled_from([1e4, 1e5, 5e5]))),
        "seed": draw(st.integers(0, 1000)),
    }


def _rows(case: dict[str, object]) -> np.ndarray:
    rng = np.random.default_rng(case.pop("seed"))
    shape = (len(case["deltas"]), case.pop("n_head") * case["head_dim"])
    return (rng.standard_normal(shape) * 3).astype(np.float16)


@settings(max_examples=120, deadline=None)
@given(rotations())
def test_kernels_agree_with_the_twin_and_each_other(case: dict[str, object]):
    rows = _rows(case)
    turned = {}
    for kernel in KERNELS:
        turned[kernel] = rows.copy()
        _core.rotate_keys(turned[kernel], kernel=kernel, **case)
    wanted = _twin(rows, **case)
    for result in turned.values():
        assert np.array_equal(result.view(np.uint16), turned[KERNELS[0]].view(np.uint16))
        # Half a step of the 11-bit fraction, and what float products of both numbers of a pair add to it.
        assert np.all(np.abs(result - wanted) <= np.abs(wanted) * 2.0**-11 + 2.0**-20)


@settings(max_examples=40, deadline=None)
@given(rotations())
def test_there_and_back_keeps_norms(case: dict[str, object]):
    rows = _rows(case)
    turned = rows.copy()
    _core.rotate_keys(turned, **case)
    _core.rotate_keys(turned, **{**case, "deltas": -case["deltas"]})
    still = case["deltas"] == 0
    assert np.array_equal(turned[still].view(np.uint16), rows[still].view(np.uint16))
    before = np.linalg.norm(rows.astype(np.float64), axis=1)
    after = np.linalg.norm(turned.astype(np.float64), axis=1)
    assert np.allclose(after, before, rtol=2e-3, atol=1e-6)


def test_frequencies_with_scale_and_factors():
    factors = np.array([1, 2, 4, 8], dtype=np.float32)
    found = _core.rope_frequencies(n_rot=8, base=500000.0, scale=0.25, factors=factors)
    assert np.allclose(found, 0.25 * 500000.0 ** (-np.arange(4) / 4) / factors, rtol=1e-15)


def test_yarn_frequencies_follow_their_definition():
    n_rot, base, scale, n_ctx = 128, 10000.0, 0.25, 4096
    found = _core.rope_frequencies(n_rot=n_rot, base=base, scale=scale, ext_factor=1.0, n_ctx_orig=n_ctx)
    plain = base ** (-np.arange(n_rot // 2) * 2 / n_rot)

    def dim(turns: float) -> float:
        return n_rot * np.log(n_ctx / (turns * 2 * np.pi)) / (2 * np.log(base))

    low, high = max(0, np.floor(dim(32))), min(n_rot - 1, np.ceil(dim(1)))
    kept = 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    assert np.allclose(found, plain * (scale * (1 - kept) + kept), rtol=1e-14)
    assert found[0] == plain[0]


def test_the_array_itself_is_turned_or_refused():
    options = {
        "head_dim": 4,
        "n_rot": 4,
        "pairing": "norm",
        "deltas": np.array([1], dtype=np.int32),
        "inv_freq": np.array([1.0, 0.1]),
    }
    with pytest.raises(TypeError):
        _core.rotate_keys(np.ones((1, 4), dtype=np.float32), **options)
    with pytest.raises(TypeError):
        _core.rotate_keys(np.ones((1, 8), dtype=np.float16)[:, ::2], **options)
    frozen = np.ones((1, 4), dtype=np.float16)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        _core.rotate_keys(frozen, **options)
    assert np.array_equal(frozen, np.ones((1, 4)))
    with pytest.raises(ValueError, match="gptj"):
        _core.rotate_keys(np.ones((1, 4), dtype=np.float16), **{**options, "pairing": "gptj"})
    with pytest.raises(ValueError, match="deltas"):
        _core.rotate_keys(np.ones((2, 4), dtype=np.float16), **options)
