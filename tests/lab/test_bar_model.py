"""The bar tells the model and, once, how it is quantised."""

from __future__ import annotations

import pytest

from nexus_lab.lab.bar import _without


@pytest.mark.parametrize(
    ("name", "quantisation", "shown"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1", "SmolLM2-135M-Instruct"),
        ("qwen2.5-0.5b-Q8_0", "Q8_0", "qwen2.5-0.5b"),
        ("Qwen2.5 14B Instruct", "Q4_K_M", "Qwen2.5 14B Instruct"),
        ("Q4_1", "Q4_1", "Q4_1"),
        ("tiny", None, "tiny"),
        (None, None, None),
    ],
)
def test_the_quantisation_is_not_told_twice(name, quantisation, shown):
    assert _without(name, quantisation) == shown
