"""LoRA adapters: which files are run, which are refused, and that what one changed is no one else's."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_adapters import RANK, pairs, write_lora

from nexus_lab.engine import (
    AdapterMismatch,
    Engine,
    ModelNotFound,
    NotAGguf,
    TruncatedModel,
    UnsupportedAdapter,
    UnsupportedModel,
)
from nexus_lab.engine.adapter import model_fingerprint, read_adapter
from nexus_lab.engine.gguf_file import read_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUERY = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(tmp_path_factory.mktemp("adapters") / "small.gguf")


@pytest.fixture(scope="module")
def adapted(tiny_path: Callable[[str], Path], lora: Path) -> Iterator[Engine]:
    with Engine.load(tiny_path("plain"), n_ctx=512, n_ubatch=64, threads=1, adapter=lora) as engine:
        yield engine


def logits(engine: Engine, tokens: np.ndarray) -> np.ndarray:
    with engine.scratch_sequence() as seq:
        return np.asarray(engine.prefill(seq, tokens, logits="all"))


def test_what_is_known_of_an_adapter(adapted: Engine, lora: Path):
    adapter = adapted.info.adapter
    assert adapter is not None
    assert (adapter.rank, adapter.alpha, len(adapter.targets)) == (RANK, 6.0, 35)
    assert adapter.sha256 == hashlib.sha256(lora.read_bytes()).hexdigest()
    facts = json.loads(json.dumps(adapted.info.to_dict()))
    assert facts["adapter"]["sha256"] == adapter.sha256
    assert facts["adapter"]["targets"] == 35


def test_without_an_adapter_nothing_is_told_of_one(tiny: Engine):
    assert tiny.info.adapter is None
    assert "adapter" not in tiny.info.to_dict()
    known = hashlib.sha256(b"nexus model\0" + tiny.info.sha256.encode()).hexdigest()[:32]
    assert tiny.info.fingerprint == known


def test_an_adapter_that_is_nothing_changes_nothing(
    tiny: Engine, tiny_path: Callable[[str], Path], tiny_tokens: np.ndarray, tmp_path: Path
):
    nothing = {name: values * (not name.endswith("lora_b")) for name, values in pairs().items()}
    path = write_lora(tmp_path / "nothing.gguf", nothing)
    with Engine.load(tiny_path("plain"), n_ctx=512, n_ubatch=64, threads=1, adapter=path) as engine:
        np.testing.assert_array_equal(logits(engine, tiny_tokens), logits(tiny, tiny_tokens))
        assert engine.info.fingerprint != tiny.info.fingerprint


def test_an_adapter_is_the_sum_of_the_matrix_and_its_pair(
    tiny_path: Callable[[str], Path], tiny_tokens: np.ndarray, tmp_path: Path, adapted: Engine
):
    merged = bytearray(tiny_path("plain").read_bytes())
    gguf, found = read_gguf(tiny_path("plain")), pairs()
    for name in {key.rsplit(".", 1)[0] for key in found}:
        entry = gguf.tensors[name]
        whole = gguf.read_f32(name).reshape(entry.shape[::-1])
        whole = whole + 6.0 / RANK * found[f"{name}.lora_b"] @ found[f"{name}.lora_a"]
        merged[entry.offset : entry.offset + entry.size_bytes] = whole.astype(np.float32).tobytes()
    path = tmp_path / "merged.gguf"
    path.write_bytes(merged)
    with Engine.load(path, n_ctx=512, n_ubatch=64, threads=1) as engine:
        expected, ours = logits(engine, tiny_tokens), logits(adapted, tiny_tokens)
    assert np.abs(expected - ours).max() < 2e-3 * np.abs(expected).max()


def test_what_the_engine_can_do_it_can_do_with_an_adapter(adapted: Engine, tiny: Engine):
    assert dict(adapted.declines) == dict(tiny.declines) == {}


@pytest.mark.parametrize("header", [{"general.type": "model"}, {"general.type": None}, {"adapter.type": "x"}])
def test_what_is_no_lora_adapter_is_refused(
    header: dict[str, Any], tiny_path: Callable[[str], Path], tmp_path: Path
):
    path = write_lora(tmp_path / "other.gguf", header=header)
    with pytest.raises(UnsupportedAdapter, match="no LoRA adapter"):
        read_adapter(path, read_gguf(tiny_path("plain")))


@pytest.mark.parametrize("alpha", [np.float64(6.0), "6", float("nan"), float("inf")])
def test_an_alpha_at_which_llama_cpp_would_end_is_refused(
    alpha: object, tiny_path: Callable[[str], Path], tmp_path: Path
):
    path = write_lora(tmp_path / "alpha.gguf", header={"adapter.lora.alpha": alpha})
    with pytest.raises(UnsupportedAdapter, match="finite float32"):
        read_adapter(path, read_gguf(tiny_path("plain")))


def test_an_activated_lora_is_refused(tiny_path: Callable[[str], Path], tmp_path: Path):
    path = write_lora(tmp_path / "alora.gguf", header={"adapter.alora.invocation_tokens": [1, 2]})
    with pytest.raises(UnsupportedAdapter, match="activated"):
        read_adapter(path, read_gguf(tiny_path("plain")))


def test_another_architecture_is_refused(tiny_path: Callable[[str], Path], tmp_path: Path):
    path = write_lora(tmp_path / "qwen.gguf", architecture="qwen2")
    with pytest.raises(AdapterMismatch, match="qwen2"):
        Engine.load(tiny_path("plain"), n_ctx=128, threads=1, adapter=path)


def test_other_shapes_are_refused_with_both(tiny_path: Callable[[str], Path], tmp_path: Path):
    path = write_lora(tmp_path / "small.gguf")
    with pytest.raises(AdapterMismatch, match=r"\(64, 128\)") as caught:
        Engine.load(tiny_path("wide"), n_ctx=128, threads=1, adapter=path)
    assert "train" in caught.value.next_step


def test_an_adapter_of_ours_is_for_its_model_file_alone(tiny_path: Callable[[str], Path], tmp_path: Path):
    path = write_lora(tmp_path / "ours.gguf", header={"nexus_lab.base_sha256": "0" * 64})
    with pytest.raises(AdapterMismatch, match="trained on a model with sha256 '0000"):
        read_adapter(path, read_gguf(tiny_path("plain")))
    own = hashlib.sha256(tiny_path("plain").read_bytes()).hexdigest()
    path = write_lora(tmp_path / "right.gguf", header={"nexus_lab.base_sha256": own})
    assert read_adapter(path, read_gguf(tiny_path("plain"))).rank == RANK


def one(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {
        f"{name}.lora_a": np.zeros(a, np.float32),
        f"{name}.lora_b": np.zeros(b, np.float32),
    }


@pytest.mark.parametrize(
    ("tensors", "error", "said"),
    [
        ({}, UnsupportedAdapter, "no tensors"),
        ({f"{QUERY}.lora_a": np.zeros((3, 64), np.float32)}, UnsupportedAdapter, "one half"),
        ({QUERY: np.zeros((64, 64), np.float32)}, UnsupportedAdapter, "no part of a LoRA pair"),
        (one("blk.9.attn_q.weight", (3, 64), (64, 3)), AdapterMismatch, "has not"),
        (one(QUERY, (3, 64), (64, 4)), AdapterMismatch, "which is"),
        (one(QUERY, (64, 3), (3, 64)), AdapterMismatch, "which is"),
        (one("token_embd.weight", (3, 64), (269, 3)), UnsupportedAdapter, "matrices"),
        (one("blk.0.attn_norm.weight", (3, 64), (1, 3)), UnsupportedAdapter, "matrices"),
        ({name: values.astype(np.int8) for name, values in pairs().items()}, UnsupportedAdapter, "ggml type"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(
    tensors: dict[str, np.ndarray],
    error: type[Exception],
    said: str,
    tiny_path: Callable[[str], Path],
    tmp_path: Path,
):
    path = write_lora(tmp_path / "pairs.gguf", tensors)
    with pytest.raises(error, match=said):
        Engine.load(tiny_path("plain"), n_ctx=128, threads=1, adapter=path)


def test_a_file_cut_anywhere_or_of_another_kind_is_refused(
    lora: Path, tiny_path: Callable[[str], Path], tmp_path: Path
):
    model, whole, path = read_gguf(tiny_path("plain")), lora.read_bytes(), tmp_path / "cut.gguf"
    for kept in (30, 200, 3000, len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:kept])
        with pytest.raises(TruncatedModel):
            read_adapter(path, model)
    path.write_bytes(b"PK\x03\x04 a zip, rather")
    with pytest.raises(NotAGguf):
        read_adapter(path, model)
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        read_adapter(tmp_path / "nowhere.gguf", model)


def test_an_adapter_is_no_model_and_a_model_no_adapter(lora: Path, tiny_path: Callable[[str], Path]):
    with pytest.raises(UnsupportedModel, match="adapter"):
        Engine.load(lora, n_ctx=128)
    with pytest.raises(UnsupportedAdapter, match="no LoRA adapter"):
        Engine.load(tiny_path("plain"), n_ctx=128, adapter=tiny_path("plain"))


def test_fingerprints_tell_adapters_apart(lora: Path, tiny_path: Callable[[str], Path], tmp_path: Path):
    model = read_gguf(tiny_path("plain"))
    ours = read_adapter(lora, model)
    same = read_adapter(write_lora(tmp_path / "same.gguf"), model)
    other = read_adapter(write_lora(tmp_path / "other.gguf", pairs(seed=6)), model)
    names = [model_fingerprint("ab", one) for one in (None, ours, same, other)]
    assert names[1] == names[2]
    assert len({*names}) == 3
