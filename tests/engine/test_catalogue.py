from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tiny_models import write_metadata_only

from nexus_lab.engine import (
    Engine,
    ModelLoadFailed,
    ModelNotFound,
    ModelUnavailable,
    NotAGguf,
    TruncatedModel,
    UnsupportedModel,
    catalogue,
    find_models,
    resolve_model,
)
from nexus_lab.engine.gguf_file import read_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_bundled_model_is_found_and_checked():
    path = resolve_model("bundled")
    assert path.name == catalogue.BUNDLED_FILE
    assert catalogue.file_sha256(path) == catalogue.BUNDLED_SHA256


def test_a_bundled_file_of_other_content_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "BUNDLED_SHA256", "0" * 64)
    with pytest.raises(NotAGguf, match="sha256"):
        resolve_model("bundled")


def test_a_digest_is_remembered_until_the_file_changes(nexus_home: Path, tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = catalogue.file_sha256(path)
    assert (nexus_home / "cache" / "sha256.json").exists()
    assert catalogue.file_sha256(path) == first
    path.write_bytes(b"three")
    assert catalogue.file_sha256(path) != first


@pytest.mark.parametrize("spec", ["/no/such/model.gguf", "hf:only-a-name", "hf:owner/repository/file.bin"])
def test_what_names_no_file_is_not_found(spec: str):
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(spec)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, and it was not fetched before"),
        ({"HF_ENDPOINT": "https://hub.invalid"}, "hub.invalid cannot be found from here, and it was not"),
    ],
)
def test_the_hub_without_a_network_is_a_typed_error_and_nothing_else(
    tmp_path: Path, asked: dict[str, str], why: str
):
    code = (
        "from nexus_lab.engine import resolve_model, ModelUnavailable\n"
        "try: resolve_model('hf:some-owner/some-repository/model.gguf')\n"
        "except ModelUnavailable as error: print('typed:', error.problem, error.next_step)\n"
    )
    environment = {**asked, "HF_HOME": str(tmp_path), "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(
        "typed: hf:some-owner/some-repository/model.gguf cannot be fetched: " + why
    )
    assert "go online once" in found.stdout
    assert found.stderr == ""


def test_embedding_models_and_adapters_are_refused_before_loading(tmp_path: Path):
    bert = write_metadata_only(tmp_path / "bert.gguf", "bert", block_count=2)
    pooled = write_metadata_only(tmp_path / "pooled.gguf", "qwen3", pooling_type=3)
    for path in (bert, pooled):
        with pytest.raises(UnsupportedModel, match="embedding model"):
            Engine.load(path, threads=1)


def test_broken_files_are_typed_when_loaded(tmp_path: Path, tiny_path: Callable[[str], Path]):
    zipped = tmp_path / "zip.gguf"
    zipped.write_bytes(b"PK\x03\x04" * 8)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path("plain").read_bytes()[:-4096])
    for path, error in ((zipped, NotAGguf), (cut, TruncatedModel)):
        with pytest.raises(error):
            Engine.load(path, threads=1)


def test_what_llama_cpp_refuses_carries_its_words_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = write_metadata_only(tmp_path / "odd.gguf", "no-such-architecture", block_count=2)
    with pytest.raises(ModelLoadFailed, match="no-such-architecture"):
        Engine.load(path, threads=1)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


def test_the_listing_declines_what_cannot_be_loaded(tmp_path: Path, tiny_path: Callable[[str], Path]):
    (tmp_path / "foreign.gguf").write_bytes(b"something else entirely")
    write_metadata_only(tmp_path / "bert.gguf", "bert", block_count=2)
    tiny_path("plain")
    entries = {entry.name: entry for entry in find_models([tmp_path, tiny_path("plain").parent])}
    assert entries["bundled"].bundled
    assert entries["bundled"].decline is None
    assert entries["foreign.gguf"].decline.code == "not_gguf"
    assert entries["bert.gguf"].decline.code == "unsupported"
    assert entries["plain.gguf"].decline is None


def test_a_model_larger_than_the_machine_is_declined_and_listed(tiny_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "memory_bytes", lambda: 1 << 20)
    entries = {entry.name: entry for entry in find_models([tiny_path("plain").parent])}
    assert entries["plain.gguf"].decline.code == "memory"
    assert entries["plain.gguf"].memory_estimate_bytes(4096) > 1 << 20


def test_the_memory_estimate_grows_by_the_kv_cache():
    gguf = read_gguf(resolve_model("bundled"))
    small, large = (catalogue.memory_estimate(gguf, n_ctx) for n_ctx in (1024, 4096))
    per_cell = 30 * 3 * (64 + 64) * 2
    assert large - small >= 3072 * per_cell
    assert small > gguf.size_bytes + 1024 * per_cell


@pytest.mark.model
def test_the_memory_estimate_is_near_what_llama_cpp_takes():
    import re

    code = (
        "import logging; logging.basicConfig(level=logging.DEBUG)\n"
        "from nexus_lab.engine import Engine\n"
        "Engine.load(n_ctx=2048, threads=1).close()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sizes = re.findall(
        r"(?:KV|compute|output|model) buffer size = *([0-9.]+) MiB", found.stderr, re.IGNORECASE
    )
    taken = sum(map(float, sizes)) * 2**20
    estimate = catalogue.memory_estimate(read_gguf(resolve_model("bundled")), 2048)
    assert len(sizes) >= 3
    assert 0.8 < estimate / taken < 1.6


def test_an_unavailable_bundled_model_is_a_declined_entry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "_BUNDLED_PACKAGE", "no_such_package_of_models")
    with pytest.raises(ModelNotFound, match="not installed"):
        resolve_model("bundled")
    assert find_models()[0].decline.code == "unavailable"


def test_unavailable_is_no_kind_of_not_found():
    assert not issubclass(ModelUnavailable, ModelNotFound)
