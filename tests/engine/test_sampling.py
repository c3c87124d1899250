from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.engine import EngineError, MaskExhausted, SamplerSettings
from nexus_lab.engine.sampling import Sampler

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def draw(n: int = 400, logits: np.ndarray = LOGITS, **settings: float) -> list[int]:
    sampler = Sampler(SamplerSettings(**settings))
    return [sampler.choose(logits) for _ in range(n)]


def test_temperature_zero_takes_the_first_of_the_best():
    assert draw(3, np.array([1, 5, 5, 2], np.float32)) == [1, 1, 1]


def test_a_seed_repeats_and_another_differs():
    assert draw(temperature=1.0, seed=4) == draw(temperature=1.0, seed=4) != draw(temperature=1.0, seed=5)


def test_frequencies_follow_the_probabilities():
    counts = np.bincount(draw(4000, temperature=1.0), minlength=5) / 4000
    np.testing.assert_allclose(counts, np.exp(LOGITS), atol=0.03)


def test_top_k_and_top_p_cut_the_tail():
    assert set(draw(temperature=2.0, top_k=2)) == {1, 3}
    assert set(draw(temperature=1.0, top_p=0.6)) == {1, 3}
    assert set(draw(temperature=1.0, top_p=0.01)) == {1}


@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12), st.floats(0.1, 3), st.integers(0, 5))
def test_forbidden_tokens_are_never_chosen(values: list[float], temperature: float, top_k: int):
    logits = np.array(values, np.float32)
    logits[::2] = -np.inf
    chosen = draw(20, logits, temperature=temperature, top_k=top_k, top_p=0.95)
    assert all(token % 2 for token in chosen)


def test_nothing_allowed_is_a_typed_error():
    with pytest.raises(MaskExhausted):
        Sampler(SamplerSettings()).choose(np.full(4, -np.inf, np.float32))


@pytest.mark.parametrize(
    "settings", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"temperature": np.nan}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float]):
    with pytest.raises(EngineError):
        Sampler(SamplerSettings(**settings))
