"""The sequence-state codec beside a twin made of struct, and against damaged buffers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab import _core

MAGIC = 0xAF143CD8
F16 = 1


def _rows(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    return rng.standard_normal((n, width)).astype(np.float16)


def _pack(
    seq: int, positions: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray], *, v_trans: bool
) -> bytes:
    """Write a state as llama.cpp documents it, field by field."""
    parts = [struct.pack("<IiII", MAGIC, seq, 1, len(positions))]
    parts += [struct.pack("<iIi", position, 1, seq) for position in positions]
    parts.append(struct.pack("<II", v_trans, len(keys)))
    parts += [struct.pack("<iQ", F16, key.shape[1] * 2) + key.tobytes() for key in keys]
    for value in values:
        if v_trans:
            parts.append(struct.pack("<iII", F16, 2, value.shape[1]) + value.T.tobytes())
        else:
            parts.append(struct.pack("<iQ", F16, value.shape[1] * 2) + value.tobytes())
    return b"".join(parts)


@st.composite
def states(draw: st.DrawFn) -> tuple[bytes, np.ndarray, list[np.ndarray], list[np.ndarray], bool]:
    n, n_layer = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    k_width, v_width = 2 * draw(st.integers(1, 20)), 2 * draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    positions = rng.permutation(np.arange(n, dtype=np.int32) * 3)
    keys = [_rows(rng, n, k_width) for _ in range(n_layer)]
    values = [_rows(rng, n, v_width) for _ in range(n_layer)]
    v_trans = draw(st.booleans())
    return _pack(5, positions, keys, values, v_trans=v_trans), positions, keys, values, v_trans


@settings(max_examples=60, deadline=None)
@given(states())
def test_reading_and_building_agree_with_the_twin(state: tuple):
    blob, positions, keys, values, v_trans = state
    layout = _core.parse_state(blob)
    assert (layout.n_cells, layout.n_layer, layout.v_trans, layout.seq_id) == (
        len(positions),
        len(keys),
        v_trans,
        5,
    )
    assert layout.total_bytes == len(blob) == layout.size_for(len(positions))
    assert np.array_equal(layout.positions, positions)
    for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
        assert np.array_equal(_core.state_key(blob, layout, layer), key)
        assert np.array_equal(_core.state_value(blob, layout, layer), value)
    assert bytes(_core.build_state(layout, positions, keys, values)) == blob


@settings(max_examples=40, deadline=None)
@given(states(), st.integers(0, 50))
def test_another_number_of_cells_in_the_same_family(state: tuple, n: int):
    blob, _, keys, values, v_trans = state
    layout = _core.parse_state(blob)
    rng = np.random.default_rng(n)
    positions = np.arange(n, dtype=np.int32)
    new_keys = [_rows(rng, n, key.shape[1]) for key in keys]
    new_values = [_rows(rng, n, value.shape[1]) for value in values]
    out = bytearray(layout.size_for(n) + 10)
    assert _core.build_state(layout, positions, new_keys, new_values, out) is out
    wanted = _pack(5, positions, new_keys, new_values, v_trans=v_trans) if n else out[:16]
    assert out[: layout.size_for(n)] == wanted
    assert not any(out[layout.size_for(n) :])


@settings(max_examples=60, deadline=None)
@given(states(), st.data())
def test_a_truncated_buffer_is_refused(state: tuple, data: st.DataObject):
    blob = state[0]
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(_core.FormatError) as caught:
        _core.parse_state(blob[:cut])
    assert caught.value.field
    with pytest.raises(_core.FormatError, match="sections"):
        _core.parse_state(blob + b"\0" * (cut + 1))


def _parsed_or_refused(blob: bytearray) -> _core.StateLayout | None:
    try:
        return _core.parse_state(blob)
    except _core.FormatError as error:
        refusal = error
    assert refusal.field
    assert str(refusal) == f"{refusal.field}: expected {refusal.expected}, found {refusal.found}"
    return None


@settings(max_examples=150, deadline=None)
@given(states(), st.data())
def test_a_mutated_buffer_never_crashes(state: tuple, data: st.DataObject):
    blob = bytearray(state[0])
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, min(len(blob), 600) - 1))] = data.draw(st.integers(0, 255))
    layout = _parsed_or_refused(blob)
    if layout is None:
        return
    for layer in range(layout.n_layer):
        assert _core.state_key(blob, layout, layer).shape == (layout.n_cells, layout.layers[layer].n_embd_k)
        assert _core.state_value(blob, layout, layer).shape == (layout.n_cells, layout.layers[layer].n_embd_v)


def _small(*, v_trans: bool = False) -> bytes:
    rng = np.random.default_rng(0)
    keys, values = [_rows(rng, 3, 4)] * 2, [_rows(rng, 3, 6)] * 2
    return _pack(0, np.array([2, 0, 1], dtype=np.int32), keys, values, v_trans=v_trans)


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, 1, "magic"),
        (8, 2, "n_stream"),
        (12, 2**31, "cell_count"),
        (20, 2, "n_seq_id"),
        (24, 1, "cell_seq_id"),
        (52, 3, "v_trans"),
        (56, 2**31, "n_layer"),
        (60, 8, "k_type of layer 0"),
        (64, 7, "k_row_bytes of layer 0"),
    ],
)
def test_what_is_not_known_is_named(offset: int, value: int, field: str):
    blob = bytearray(_small())
    struct.pack_into("<I", blob, offset, value)
    with pytest.raises(_core.FormatError) as caught:
        _core.parse_state(blob)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


def test_cell_extensions_and_third_sections_are_refused():
    with pytest.raises(_core.FormatError, match="n_pos_per_embd"):
        _core.parse_state(_small(), n_pos_per_embd=4)
    blob = _small()
    with pytest.raises(_core.FormatError, match="sections"):
        _core.parse_state(blob + blob[8:] + blob[8:])


@pytest.mark.parametrize("v_trans", [False, True])
def test_the_sections_of_a_sliding_window_model_are_one_state(v_trans: bool):  # noqa: FBT001 - a parameter
    rng = np.random.default_rng(4)
    positions, turned = np.array([4, 9, 2], np.int32), np.array([9, 2, 4], np.int32)
    keys, values = ([_rows(rng, 3, 4), _rows(rng, 3, 8)] for _ in range(2))
    order = [2, 0, 1]  # row of `turned` at each place of `positions`
    full, sliding, shuffled = (
        _pack(0, *part, v_trans=v_trans)
        for part in (
            (positions, keys[:1], values[:1]),
            (positions, keys[1:], values[1:]),
            (turned, [keys[1][np.argsort(order)]], [values[1][np.argsort(order)]]),
        )
    )
    whole, blob = full + sliding[8:], bytearray(full + shuffled[8:])
    with pytest.raises(_core.FormatError, match="cells of the second section"):
        _core.parse_state(blob)
    _core.align_state(blob)
    assert blob == whole
    layout = _core.parse_state(blob)
    assert (layout.n_layer, layout.section_layers, layout.positions.tolist()) == (2, [1, 1], [4, 9, 2])
    assert bytes(_core.build_state(layout, positions, keys, values)) == whole
    _core.set_state_positions(blob, layout, np.array([5, 10, 3], np.int32))
    assert _core.parse_state(blob).positions.tolist() == [5, 10, 3]
    with pytest.raises(_core.FormatError, match="cells of the second section"):
        _core.align_state(
            bytearray(full + _pack(0, positions[:2], keys[:1], values[:1], v_trans=v_trans)[8:])
        )


def test_views_write_through_and_keep_the_buffer_alive():
    blob = bytearray(_small())
    layout = _core.parse_state(blob)
    key = _core.state_key(blob, layout, 1)
    key[:] = 7
    assert np.all(_core.state_key(bytes(blob), layout, 1) == 7)
    del blob
    assert np.all(key == 7)
    assert not _core.state_key(_small(), layout, 1).flags.writeable


def test_a_transposed_value_is_a_copy():
    blob = bytearray(_small(v_trans=True))
    layout = _core.parse_state(blob)
    value = _core.state_value(blob, layout, 0)
    before = value.copy()
    blob[layout.layers[0].v_offset :] = b"\0" * (len(blob) - layout.layers[0].v_offset)
    assert np.array_equal(value, before)


def test_positions_are_set_in_place():
    blob = bytearray(_small())
    layout = _core.parse_state(blob)
    _core.set_state_positions(blob, layout, np.array([9, 8, 7], dtype=np.int32))
    assert _core.parse_state(blob).positions.tolist() == [9, 8, 7]
    with pytest.raises(BufferError):
        _core.set_state_positions(bytes(blob), layout, np.array([9, 8, 7], dtype=np.int32))


def test_a_layout_of_another_buffer_is_refused():
    layout = _core.parse_state(_small())
    with pytest.raises(_core.FormatError, match="total_bytes"):
        _core.state_key(_small()[:-1], layout, 0)
    with pytest.raises(IndexError):
        _core.state_key(_small(), layout, 2)


def test_building_checks_shapes():
    layout = _core.parse_state(_small())
    keys, values = [np.zeros((2, 4), np.float16)] * 2, [np.zeros((2, 6), np.float16)] * 2
    positions = np.arange(2, dtype=np.int32)
    with pytest.raises(ValueError, match=r"keys of layer 0 must be \[3, 4\]"):
        _core.build_state(layout, np.arange(3, dtype=np.int32), keys, values)
    with pytest.raises(ValueError, match="one array per layer"):
        _core.build_state(layout, positions, keys[:1], values)
    with pytest.raises(ValueError, match="too small"):
        _core.build_state(layout, positions, keys, values, bytearray(layout.size_for(2) - 1))
    with pytest.raises(TypeError):
        _core.build_state(layout, positions, [key.astype(np.float32) for key in keys], values)


def test_an_empty_sequence():
    blob = struct.pack("<IiII", MAGIC, 3, 1, 0)
    layout = _core.parse_state(blob)
    assert (layout.n_cells, layout.n_layer) == (0, 0)
    with pytest.raises(ValueError, match="empty sequence"):
        _core.build_state(layout, np.array([0], dtype=np.int32), [], [])
