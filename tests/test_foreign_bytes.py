"""Readers of files that others wrote: whatever is in them, they are read or refused by a typed error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from foreign_tools import N_CASES, damaged_bytes, damaged_json, hold_to_word
from measured import calibration_of

from nexus_lab import _core
from nexus_lab.engine import SequenceState, catalogue
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.engine.rope import rope_from_gguf
from nexus_lab.errors import NexusError
from nexus_lab.splice import ToolBlock, load_calibration, save_calibration
from nexus_lab.splice.library import MODEL_FILE
from nexus_lab.splice.survey import BlockState, model_label, survey


@pytest.mark.usefixtures("nexus_home")
def test_a_calibration():
    path = save_calibration(calibration_of({256: {0.0: 0.1, 0.25: 0.08}, 1024: {0.0: 0.1, 0.25: 0.08}}))

    def read(_path: Path) -> None:
        found = load_calibration("ab" * 16, "cd" * 16, flash_attention=False)
        assert found is not None
        budget = found.budget_for(0.07, n_tokens=200, n_past=512)
        assert not isinstance(budget, float) or 0 <= budget <= 1
        json.dumps(found.to_dict(), allow_nan=False)

    found = hold_to_word(read, path, damaged_json(json.loads(path.read_text())))
    assert found["CalibrationError"]


def _write_block(path: Path) -> None:
    header = _core.BlockHeader(
        n_layer=2, k_row_bytes=32, v_row_bytes=48, v_trans=True, head_dim=16, n_rot=8, pairing="neox",
        rope_base=10000.0, fingerprint=b"model and tokens", anchor=64,
    )  # fmt: skip
    rows = [[np.full((5, width), 0.5, np.float16)] * 2 for width in (16, 24)]
    _core.write_block(path, header, np.arange(5, dtype=np.int32), *rows)


def test_a_block_and_the_survey_of_its_folder(tmp_path: Path):
    folder = tmp_path / b"model and tokens".hex()
    folder.mkdir()
    path = folder / "block.atb"
    _write_block(path)
    states = set()

    def read(_path: Path) -> None:
        (report,) = survey(tmp_path)
        states.add(report.state)
        block = ToolBlock(path, verify=True)
        assert report.state in {BlockState.WHOLE, BlockState.FOREIGN}
        assert len(block.tokens) == block.header.n_tokens

    hold_to_word(read, path, damaged_bytes(path.read_bytes(), N_CASES // 2, near=180))
    assert BlockState.DAMAGED in states


def test_the_name_of_a_folder_of_blocks(tmp_path: Path):
    path = tmp_path / MODEL_FILE

    def read(_path: Path) -> None:
        assert model_label(tmp_path)

    hold_to_word(read, path, damaged_json({"name": "model", "sha256": "ab" * 32}), refuses=False)


@pytest.mark.parametrize("v_trans", [False, True])
def test_a_sequence_state(tmp_path: Path, *, v_trans: bool):
    n, width = 5, 8
    parts = [
        np.array([0xAF143CD8, 3, 1, n], np.uint32),
        np.array([[7 * i, 1, 3] for i in range(n)], np.uint32),
    ]
    parts.append(np.array([v_trans, 2], np.uint32))
    rows = np.linspace(-1, 1, n * width, dtype=np.float16)
    head = np.array([1, 2 * width, 0], np.uint32)
    parts += [head, rows] * 2
    parts += [np.array([1, 2, width], np.uint32) if v_trans else head, rows] * 2

    def read(path: Path) -> None:
        state = SequenceState(np.frombuffer(path.read_bytes(), np.uint8).copy())
        taken = state.take(state.order())
        assert taken.n_cells == state.n_cells == len(state.positions)
        for layer in range(state.n_layer):
            assert len(state.key(layer)) == len(state.value(layer)) == state.n_cells

    data = b"".join(part.tobytes() for part in parts)
    hold_to_word(read, tmp_path / "state", damaged_bytes(data, 4 * N_CASES))


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    import gguf

    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 5, "context_length": 512, "embedding_length": 64}.items():
        writer.add_uint32(f"llama.{key}", value)
    for key, value in {"attention.head_count": [4] * 5, "attention.head_count_kv": [2] * 5}.items():
        writer.add_array(f"llama.{key}", value)
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_float32("llama.rope.scaling.factor", 4.0)
    writer.add_uint32("llama.rope.scaling.original_context_length", 128)
    writer.add_uint32("general.alignment", 32)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(300)])
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((300, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_a_model_file(tmp_path: Path, model_bytes: bytes):
    def read(path: Path) -> None:
        # As it stands in the list of a folder's models, which one bad file may not break.
        assert catalogue._entry(path, bundled=False).estimate(4096) >= 0
        gguf = read_gguf(path)
        catalogue.check_generates(gguf)
        assert catalogue.memory_estimate(gguf, 4096) > 0
        rope = rope_from_gguf(gguf, pairing="norm", n_ctx=512)
        assert np.isfinite(rope.scale)

    hold_to_word(read, tmp_path / "model.gguf", damaged_bytes(model_bytes, 4 * N_CASES, near=900))


def test_an_array_of_arrays_without_end_is_no_model(tmp_path: Path):
    path = tmp_path / "deep.gguf"
    key = b"deep"
    nested = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")
    path.write_bytes(
        b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
        + len(key).to_bytes(8, "little") + key + (9).to_bytes(4, "little") + nested * 50_000
    )  # fmt: skip
    with pytest.raises(NexusError):
        read_gguf(path)
