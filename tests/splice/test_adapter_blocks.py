"""What a model computed with a LoRA adapter is foreign without it, and the other way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tiny_adapters import write_lora
from tiny_models import write_kind

from nexus_lab.cache import DiskForeign, SnapshotDisk
from nexus_lab.engine import Engine
from nexus_lab.splice import (
    BlockCompiler,
    BlockLibrary,
    BlockRefused,
    Calibration,
    CalibrationSample,
    ToolBlock,
    load_calibration,
    save_calibration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENS = tuple(range(5, 21))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """One model, without and with an adapter."""
    folder = tmp_path_factory.mktemp("adapted")
    model, adapter = write_kind(folder / "model.gguf", "plain"), write_lora(folder / "small.gguf")
    with (
        Engine.load(model, n_ctx=256, threads=1) as plain,
        Engine.load(model, n_ctx=256, threads=1, adapter=adapter) as adapted,
    ):
        yield plain, adapted


@pytest.mark.parametrize("first", [0, 1])
def test_a_block_is_refused_by_the_fingerprint(engines: tuple[Engine, Engine], first: int, tmp_path: Path):
    own, other = engines[first], engines[1 - first]
    BlockCompiler(own).compile(TOKENS, path=tmp_path / "block.atb")
    block = ToolBlock(tmp_path / "block.atb", verify=True)
    block.check(own)
    with pytest.raises(BlockRefused, match="fingerprint") as caught:
        block.check(other)
    assert caught.value.field == "fingerprint"


def test_a_library_has_a_folder_and_addresses_for_each(engines: tuple[Engine, Engine], tmp_path: Path):
    plain, adapted = (BlockLibrary(engine, tmp_path) for engine in engines)
    compiled = plain.get_or_compile(TOKENS)
    assert adapted.find(TOKENS) is None
    assert plain.address(TOKENS) != adapted.address(TOKENS)
    assert plain.folder != adapted.folder
    assert compiled.tokens == TOKENS


@pytest.mark.parametrize("first", [0, 1])
def test_snapshots_on_disk_are_of_one_of_them(engines: tuple[Engine, Engine], first: int, tmp_path: Path):
    own, other = engines[first], engines[1 - first]
    with SnapshotDisk(tmp_path) as disk:
        disk.belong_to(own)
        disk._kept["a snapshot"] = SimpleNamespace(n_bytes=1, rows=())
        disk.belong_to(own)
        with pytest.raises(DiskForeign, match="another model"):
            disk.belong_to(other)


@pytest.mark.parametrize("first", [0, 1])
def test_a_calibration_is_found_by_the_one_it_was_measured_with(
    engines: tuple[Engine, Engine], first: int, nexus_home: Path
):
    own, other = (engine.info.fingerprint for engine in (engines[first], engines[1 - first]))
    samples = [CalibrationSample(256, 150, {0.0: 0.4, 0.5: 0.1})] * 3
    found = Calibration.measured(
        samples,
        quantile=0.75,
        noise_floor=0.01,
        fingerprint=own,
        context_hash="c" * 32,
        flash_attention=False,
        strategy="leading",
    )
    assert save_calibration(found).is_relative_to(nexus_home)
    assert load_calibration(own, "c" * 32, flash_attention=False) == found
    assert load_calibration(other, "c" * 32, flash_attention=False) is None
