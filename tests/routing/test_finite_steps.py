"""A loss or a weight that is no number changes nothing and is written nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nexus_lab.routing.tuning_rate import finite_step
from nexus_lab.routing.weights import WeightsError, write_weights


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_without_a_number_leaves_the_parameters(bad: float):
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    assert not finite_step(optimiser, (weight * bad).sum(), [weight])
    assert weight.item() == 2.0
    # A finite loss can have a gradient that is none.
    assert not finite_step(optimiser, torch.sqrt((weight - 2.0).abs()).sum(), [weight])
    assert weight.item() == 2.0
    assert finite_step(optimiser, weight.sum(), [weight])
    assert weight.item() == pytest.approx(1.9)


def test_weights_that_are_no_numbers_are_not_written(tmp_path: Path):
    whole = {"a": np.ones((2, 2), np.float32), "b": np.array([1.0, np.nan], np.float32)}
    with pytest.raises(WeightsError, match="b of the reader"):
        write_weights(tmp_path, "reader", whole, {})
    assert not list(tmp_path.iterdir())
