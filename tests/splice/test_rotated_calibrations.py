"""LongRoPE's two rotations: blocks and bounds of one are foreign under the other, and it is said why."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from measured import calibration_of
from tiny_models import Kind, _long_rope, write_kind, write_model

from nexus_lab.bench.calibration import calibrate_agent
from nexus_lab.bench.splice_tools import SpliceCase
from nexus_lab.engine import Engine
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.engine.rope import rope_from_gguf
from nexus_lab.errors import Decline
from nexus_lab.registry import ToolSpec
from nexus_lab.splice import (
    BlockCompiler,
    BlockLibrary,
    BlockRefused,
    Bounded,
    CalibrationError,
    ToolBlock,
    context_hash,
    load_calibration,
    save_calibration,
    splice_block,
)
from nexus_lab.splice.calibration import Calibration, calibrated_rotations
from nexus_lab.splice.splicer import stored_calibration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORIGINAL = 1024
SHORT_CTX, LONG_CTX = 1024, 2048
BLOCK = tuple(range(5, 21))
BEHIND = context_hash(())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with LongRoPE that turns by its long factors beyond 1,024 cells."""
    architecture, kind = _long_rope(ORIGINAL)
    roomy = replace(kind, values={**kind.values, "context_length": 4096})
    return write_model(tmp_path_factory.mktemp("turned") / "model.gguf", architecture, roomy)


@pytest.fixture(scope="module")
def engines(model: Path) -> Iterator[tuple[Engine, Engine]]:
    with (
        Engine.load(model, n_ctx=SHORT_CTX, threads=1) as short,
        Engine.load(model, n_ctx=LONG_CTX, threads=1) as long,
    ):
        yield short, long


def _rotations(engines: tuple[Engine, Engine]) -> list[str]:
    return [engine.info.rope.context_factors for engine in engines]


def test_the_two_rotations_have_names_and_other_models_none(engines: tuple[Engine, Engine], tmp_path: Path):
    short, long = _rotations(engines)
    assert short != long
    assert [len(short), len(long)] == [16, 16]
    for name in ("plain", "yarn", "factors"):
        gguf = read_gguf(write_kind(tmp_path / f"{name}.gguf", name))
        for n_ctx in (64, 4096):
            assert rope_from_gguf(gguf, pairing="norm", n_ctx=n_ctx).context_factors == ""


def test_a_block_of_one_rotation_is_foreign_under_the_other(engines: tuple[Engine, Engine], tmp_path: Path):
    short, long = engines
    assert short.info.fingerprint == long.info.fingerprint
    libraries = [BlockLibrary(engine, tmp_path) for engine in engines]
    assert libraries[0].address(BLOCK) != libraries[1].address(BLOCK)
    BlockCompiler(short).compile(BLOCK, path=tmp_path / "block.atb")
    block = ToolBlock(tmp_path / "block.atb")
    block.check(short)
    with pytest.raises(BlockRefused) as caught:
        block.check(long)
    assert caught.value.field == "rope_factors_hash"


def _measured(engine: Engine, rotation: str) -> Calibration:
    found = calibration_of({0: {0.0: 0.1, 0.25: 0.05}, 256: {0.0: 0.1, 0.25: 0.05}})
    return replace(
        found,
        fingerprint=engine.info.fingerprint,
        context_hash=BEHIND.hex(),
        rotation=rotation,
        n_tokens_min=1,
    )


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.usefixtures("nexus_home")
def test_bounds_of_one_rotation_do_not_hold_under_the_other(
    engines: tuple[Engine, Engine], first: int, tmp_path: Path
):
    own, other = engines[first], engines[1 - first]
    assert stored_calibration(other, BEHIND) is None
    save_calibration(_measured(own, _rotations(engines)[first]))
    assert stored_calibration(own, BEHIND) == _measured(own, _rotations(engines)[first])
    declined = stored_calibration(other, BEHIND)
    assert isinstance(declined, Decline)
    assert declined.code == "other_rotation"
    assert f"--n-ctx {other.n_ctx}" in declined.reason
    outcomes = []
    for engine in (own, other):
        block = BlockLibrary(engine, tmp_path).get_or_compile(BLOCK)
        with engine.scratch_sequence() as seq:
            engine.prefill(seq, list(range(30, 62)), logits="none")
            done = splice_block(engine, seq, block, contract=Bounded(0.2))
            outcomes.append(None if done.declined is None else done.declined.code)
    assert outcomes == [None, "other_rotation"]
    # Both can be there, each for its own.
    save_calibration(_measured(other, _rotations(engines)[1 - first]))
    assert stored_calibration(other, BEHIND).rotation == _rotations(engines)[1 - first]
    assert stored_calibration(own, BEHIND).rotation == _rotations(engines)[first]


@pytest.mark.usefixtures("nexus_home")
def test_bounds_that_say_no_rotation_are_of_no_use_to_a_model_that_has_two(engines: tuple[Engine, Engine]):
    path = save_calibration(_measured(engines[0], ""))
    assert "rotation" not in json.loads(path.read_text())
    declined = [stored_calibration(engine, BEHIND) for engine in engines]
    assert [one.code for one in declined] == ["other_rotation"] * 2
    key = (engines[0].info.fingerprint, BEHIND.hex())
    assert load_calibration(*key, flash_attention=False) == _measured(engines[0], "")
    assert calibrated_rotations(*key, flash_attention=False) == {""}
    assert calibrated_rotations(*key, flash_attention=True) == frozenset()


@pytest.mark.usefixtures("nexus_home")
def test_a_file_under_another_rotations_name_is_refused(engines: tuple[Engine, Engine]):
    short, long = _rotations(engines)
    right = save_calibration(_measured(engines[0], short))
    right.rename(right.with_name(right.name.replace(short, long)))
    declined = stored_calibration(engines[1], BEHIND)
    assert declined.code == "calibration_refused"
    assert "rotation" in declined.reason
    for wrong in ("../elsewhere", "ab", 7):
        values = {**_measured(engines[0], short).to_dict(), "rotation": wrong}
        with pytest.raises(CalibrationError, match="rotation"):
            Calibration.from_dict(values)


@pytest.mark.usefixtures("nexus_home")
def test_calibrating_measures_in_the_context_that_is_named_and_says_its_rotation(
    engines: tuple[Engine, Engine], model: Path, tmp_path: Path
):
    schema = {"type": "object", "properties": {"what": {"type": "string"}}}
    tool = ToolSpec("see", "See what is there, and tell of it.", schema)
    answer = '{"name": "see", "arguments": {"what": "the cat"}}'

    def calibrated(n_ctx: int | None):
        with ThreadPoolExecutor(1) as executor:
            return calibrate_agent(
                model,
                cases=[SpliceCase(tool, "See the cat", answer)],
                context="none",
                depths=(256,),
                budgets=(0.0,),
                prefixes=2,
                quantile=0.5,
                n_ctx=n_ctx,
                executor=executor,
                work=tmp_path,
            ).calibration

    found = [calibrated(None), calibrated(LONG_CTX)]
    assert [one.rotation for one in found] == _rotations(engines)
    assert found[0].cells != found[1].cells
    for calibration, engine in zip(found, engines, strict=True):
        save_calibration(calibration)
        assert stored_calibration(engine, BEHIND) == calibration
    with pytest.raises(CalibrationError, match="a context of 128 tokens"):
        calibrated(128)


def test_a_model_with_one_rotation_keeps_the_files_it_has(tmp_path: Path, nexus_home: Path):
    plain = write_model(tmp_path / "model.gguf", "llama", Kind())
    with Engine.load(plain, n_ctx=256, threads=1) as engine:
        path = save_calibration(_measured(engine, ""))
        assert path.name == f"{engine.info.fingerprint}-{BEHIND.hex()[:16]}-plain.json"
        assert path.is_relative_to(nexus_home)
        assert stored_calibration(engine, BEHIND) == _measured(engine, "")
