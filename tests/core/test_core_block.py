"""Tool block files: round trips, and files that are truncated, foreign, damaged or for another model."""

from __future__ import annotations

import gc
import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexus_lab import _core

MODEL = {
    "n_layer": 2,
    "k_row_bytes": 32,
    "v_row_bytes": 48,
    "v_trans": True,
    "head_dim": 16,
    "n_rot": 8,
    "pairing": "neox",
    "rope_base": 10000.0,
    "rope_scale": 0.5,
    "ext_factor": 0.25,
    "attn_factor": 1.5,
    "n_ctx_orig": 2048,
    "rope_factors_hash": b"factors!",
    "fingerprint": b"model and tokens",
}


def _write(path: Path, *, n: int = 5, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50000, n, dtype=np.int32)
    keys = [rng.standard_normal((n, 16)).astype(np.float16) for _ in range(2)]
    values = [rng.standard_normal((n, 24)).astype(np.float16) for _ in range(2)]
    header = _core.BlockHeader(**MODEL, anchor=64, context_hash=b"context of block")
    _core.write_block(path, header, tokens, keys, values)
    return tokens, keys, values


def _field(path: Path) -> str:
    with pytest.raises(_core.FormatError) as caught:
        _core.BlockFile(path)
    return caught.value.field


@pytest.mark.parametrize("n", [1, 5, 300])
def test_round_trip(tmp_path: Path, n: int):
    path = tmp_path / "büro.atb"
    tokens, keys, values = _write(path, n=n)
    block = _core.BlockFile(path)
    block.verify()
    header = block.header
    assert (header.anchor, header.n_tokens, header.k_type, header.v_type) == (64, n, 1, 1)
    assert header.context_hash == b"context of block"
    for name, value in MODEL.items():
        assert getattr(header, name) == value
    assert np.array_equal(block.tokens, tokens)
    for layer in range(2):
        assert np.array_equal(block.key(layer), keys[layer])
        assert np.array_equal(block.value(layer), values[layer])
    payload = tokens.tobytes() + b"".join(rows.tobytes() for rows in keys + values)
    assert header.payload_hash == hashlib.sha256(payload).digest()[:16]
    assert path.stat().st_size == header.file_bytes
    assert [entry.name for entry in tmp_path.iterdir()] == ["büro.atb"]


def test_the_header_is_as_documented(tmp_path: Path):
    _write(tmp_path / "a.atb")
    raw = (tmp_path / "a.atb").read_bytes()
    fields = struct.unpack_from("<8sIIIIIIHHBBHIIffff8s16s16s16s8s", raw)
    assert struct.calcsize("<8sIIIIIIHHBBHIIffff8s16s16s16s8s") == 128
    assert fields[:14] == (b"NEXUSATB", 1, 64, 5, 2, 32, 48, 1, 1, 1, 1, 8, 16, 2048)
    assert fields[14:18] == (10000.0, 0.5, 0.25, 1.5)
    assert fields[18:21] == (b"factors!", b"model and tokens", b"context of block")
    assert fields[22] == hashlib.sha256(raw[:120]).digest()[:8]
    aligned = 2 << 20
    assert raw[aligned : aligned + 32] == _core.BlockFile(tmp_path / "a.atb").key(0)[0].tobytes()
    assert raw[2 * aligned : 2 * aligned + 48] == _core.BlockFile(tmp_path / "a.atb").value(0)[0].tobytes()


def test_holes_take_no_space(tmp_path: Path):
    _write(tmp_path / "a.atb")
    status = (tmp_path / "a.atb").stat()
    assert status.st_size > 4 << 20
    assert status.st_blocks * 512 < 1 << 20


def test_views_are_read_only_and_keep_the_mapping_alive(tmp_path: Path):
    _, keys, _ = _write(tmp_path / "a.atb")
    view = _core.BlockFile(tmp_path / "a.atb").key(1)
    (tmp_path / "a.atb").unlink()
    gc.collect()
    assert np.array_equal(view, keys[1])
    assert not view.flags.writeable


def test_replacing_a_file_leaves_its_readers_alone(tmp_path: Path):
    _, keys, _ = _write(tmp_path / "a.atb")
    block = _core.BlockFile(tmp_path / "a.atb")
    _write(tmp_path / "a.atb", n=9, seed=1)
    block.verify()
    assert np.array_equal(block.key(0), keys[0])
    assert _core.BlockFile(tmp_path / "a.atb").header.n_tokens == 9


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_files(tmp_path: Path, data: st.DataObject):
    path, cut = tmp_path / "a.atb", tmp_path / "cut.atb"
    if not path.exists():
        _write(path)
    raw = path.read_bytes()
    n = data.draw(st.one_of(st.integers(0, 200), st.integers(0, len(raw) - 1)))
    cut.write_bytes(raw[:n])
    assert _field(cut) == ("magic" if n < 8 else "file_bytes")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_header_is_refused_or_fits_the_file(tmp_path: Path, data: st.DataObject):
    path, other = tmp_path / "a.atb", tmp_path / "other.atb"
    if not path.exists():
        _write(path)
    raw = bytearray(path.read_bytes())
    before = bytes(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 119))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # with a matching hash, the checks behind it are on their own
        raw[120:128] = hashlib.sha256(raw[:120]).digest()[:8]
    other.write_bytes(raw)
    try:
        block = _core.BlockFile(other)
    except _core.FormatError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.field
        return
    assert block.header.file_bytes == len(before)
    for layer in range(block.header.n_layer):
        assert block.key(layer).shape[0] == block.value(layer).shape[0] == block.header.n_tokens


def test_a_changed_payload_is_found(tmp_path: Path):
    path = tmp_path / "a.atb"
    _write(path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(_core.FormatError, match="payload_hash"):
        _core.BlockFile(path).verify()


def test_foreign_files(tmp_path: Path):
    for name, content in (("gguf", b"GGUF" + b"\0" * 500), ("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        assert _field(tmp_path / name) == "magic"
    with pytest.raises(FileNotFoundError):
        _core.BlockFile(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        _core.BlockFile(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_layer", 3),
        ("k_row_bytes", 64),
        ("v_trans", False),
        ("pairing", "norm"),
        ("n_rot", 16),
        ("rope_base", 10001.0),
        ("rope_scale", 1.0),
        ("ext_factor", 0.0),
        ("attn_factor", 1.0),
        ("n_ctx_orig", 4096),
        ("rope_factors_hash", None),
        ("fingerprint", b"another model..."),
    ],
)
def test_another_model_is_named_by_the_field_that_differs(tmp_path: Path, field: str, value: object):
    _write(tmp_path / "a.atb")
    header = _core.BlockFile(tmp_path / "a.atb").header
    header.check_model(_core.BlockHeader(**MODEL))
    with pytest.raises(_core.FormatError) as caught:
        header.check_model(_core.BlockHeader(**{**MODEL, field: value}))
    assert caught.value.field == field


def test_nothing_is_written_when_something_is_wrong(tmp_path: Path):
    tokens, keys, values = _write(tmp_path / "a.atb")
    before = (tmp_path / "a.atb").read_bytes()
    header = _core.BlockHeader(**MODEL)
    with pytest.raises(ValueError, match="keys"):
        _core.write_block(tmp_path / "a.atb", header, tokens, keys[:1], values)
    with pytest.raises(ValueError, match="values"):
        _core.write_block(tmp_path / "a.atb", header, tokens, keys, [value[:4] for value in values])
    with pytest.raises(_core.FormatError, match="n_rot"):
        _core.write_block(
            tmp_path / "a.atb", _core.BlockHeader(**{**MODEL, "n_rot": 7}), tokens, keys, values
        )
    with pytest.raises(ValueError, match="fingerprint"):
        _core.BlockHeader(**{**MODEL, "fingerprint": b"short"})
    with pytest.raises(FileNotFoundError):
        _core.write_block(tmp_path / "no" / "a.atb", header, tokens, keys, values)
    assert (tmp_path / "a.atb").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.atb"]


def test_names_of_frequency_factors():
    factors = np.array([1, 2, 3], dtype=np.float32)
    assert _core.rope_factors_hash(None) == b"\0" * 8
    assert _core.rope_factors_hash(factors) == hashlib.sha256(factors.tobytes()).digest()[:8]


def test_a_file_of_version_1_is_read_as_ever(tmp_path: Path):
    path = tmp_path / "old.atb"
    fixture = Path(__file__).parent / "fixtures" / "block_v1.atb.gz"
    path.write_bytes(gzip.decompress(fixture.read_bytes()))
    block = _core.BlockFile(path)
    block.verify()
    header = block.header
    assert (header.anchor, header.n_tokens, header.n_layer, header.v_trans) == (64, 3, 2, True)
    assert (header.pairing, header.n_rot, header.head_dim, header.n_ctx_orig) == ("norm", 4, 8, 8192)
    assert (header.rope_base, header.rope_scale) == (100000.0, 0.5)
    assert (header.ext_factor, header.attn_factor) == (0.25, 1.5)
    assert header.rope_factors_hash == bytes(range(1, 9))
    assert (header.fingerprint, header.context_hash) == (bytes(range(16)), bytes(range(16, 32)))
    assert block.tokens.tolist() == [11, 22, 33]
    steps = np.arange(24, dtype=np.float32).reshape(3, 8) / 8
    assert np.array_equal(block.key(1), steps + 2)
    assert np.array_equal(block.value(0), steps.ravel()[:12].reshape(3, 4) - 1)
