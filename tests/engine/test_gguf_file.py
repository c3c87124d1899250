from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import HEAD_DIM, KINDS, N_LAYER, write_model

from nexus_lab.engine.errors import ModelNotFound, NotAGguf, TruncatedModel
from nexus_lab.engine.gguf_file import LongArray, read_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_metadata_and_directory_are_read(tiny_path: Callable[[str], Path]):
    gguf = read_gguf(tiny_path("factors"))
    assert gguf.architecture == "llama"
    assert gguf.value("block_count") == N_LAYER
    assert gguf.metadata["tokenizer.ggml.add_bos_token"] is True
    assert gguf.metadata["tokenizer.ggml.tokens"] == LongArray(269)
    factors = gguf.read_f32("rope_freqs.weight")
    np.testing.assert_allclose(factors, np.linspace(1.0, 8.0, HEAD_DIM // 2), rtol=1e-6)
    assert gguf.read_f32("no.such.tensor") is None


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        read_gguf(tmp_path / "nowhere.gguf")


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04 a zip, rather", b"GGUF" + b"\xff" * 60])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "foreign.gguf"
    path.write_bytes(content)
    with pytest.raises(NotAGguf) as caught:
        read_gguf(path)
    assert caught.value.next_step


def test_a_file_cut_anywhere_is_truncated(tmp_path: Path, tiny_path: Callable[[str], Path]):
    whole = tiny_path("plain").read_bytes()
    path = tmp_path / "cut.gguf"
    for kept in (30, 200, 3000, len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:kept])
        with pytest.raises(TruncatedModel):
            read_gguf(path)


def test_a_claim_of_huge_counts_is_refused_without_reading_on(tmp_path: Path):
    path = write_model(tmp_path / "model.gguf", *KINDS["plain"])
    data = bytearray(path.read_bytes())
    data[8:16] = (1 << 60).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(NotAGguf, match="claims"):
        read_gguf(path)
