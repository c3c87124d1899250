"""K/V drift of states, against a plain loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from nexus_lab.splice.drift import DriftError, key_value_drift

HEADS, DIM = 3, 4


@dataclass
class _State:
    positions: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    @property
    def n_layer(self) -> int:
        return len(self.keys)

    def key(self, layer: int) -> np.ndarray:
        return self.keys[layer]

    def value(self, layer: int) -> np.ndarray:
        return self.values[layer]


def _state(seed: int, positions: np.ndarray) -> _State:
    rng = np.random.default_rng(seed)
    shape = (2, len(positions), HEADS * DIM)
    return _State(
        positions, rng.normal(size=shape).astype(np.float16), rng.normal(size=shape).astype(np.float16)
    )


def test_drift_agrees_with_a_plain_loop_over_tokens_in_any_cell_order():
    first = _state(0, np.array([5, 3, 4, 9, 6]))
    second = _state(1, np.array([3, 4, 5, 6, 7]))
    drift = key_value_drift(first, second, n_head_kv=HEADS, start=3, stop=6)
    layer, head = 1, 2
    distances, norms = [], []
    for position in (3, 4, 5):
        rows = [
            state.key(layer)[list(state.positions).index(position)]
            .astype(np.float64)
            .reshape(HEADS, DIM)[head]
            for state in (first, second)
        ]
        distances.append(np.sqrt(((rows[0] - rows[1]) ** 2).sum()))
        norms.append(np.sqrt((rows[0] ** 2).sum()))
    assert drift.k_absolute[layer, head] == pytest.approx(np.mean(distances))
    assert drift.k_relative[layer, head] == pytest.approx(np.mean(distances) / np.mean(norms))
    assert drift.k_absolute.shape == drift.v_relative.shape == (2, HEADS)
    assert drift.n_tokens == 3
    assert not drift.is_zero
    assert len(list(drift.rows())) == 2 * HEADS


def test_the_same_rows_in_other_cells_do_not_drift():
    state = _state(0, np.arange(8))
    order = np.array([4, 2, 7, 1, 0, 3, 6, 5])
    shuffled = _State(state.positions[order], state.keys[:, order], state.values[:, order])
    assert key_value_drift(state, shuffled, n_head_kv=HEADS, start=0, stop=8).is_zero


def test_a_head_of_zeros_gives_a_finite_drift():
    state, other = _state(0, np.arange(2)), _state(1, np.arange(2))
    state.keys[:] = 0
    drift = key_value_drift(state, other, n_head_kv=HEADS, start=0, stop=2)
    assert np.isfinite(drift.k_relative).all()


def test_states_that_do_not_match_are_refused():
    state = _state(0, np.arange(4))
    with pytest.raises(DriftError, match="each position"):
        key_value_drift(state, state, n_head_kv=HEADS, start=2, stop=6)
    with pytest.raises(DriftError, match="each position"):
        key_value_drift(state, _state(0, np.array([0, 1, 1, 2])), n_head_kv=HEADS, start=0, stop=3)
    one_layer = _State(state.positions, state.keys[:1], state.values[:1])
    with pytest.raises(DriftError, match="layers"):
        key_value_drift(state, one_layer, n_head_kv=HEADS, start=0, stop=4)
