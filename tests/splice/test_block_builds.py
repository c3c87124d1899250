"""A block of another build of llama.cpp is foreign: by its address, its folder and its header."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

import llama_cpp
import pytest
from measured import calibration_of
from tiny_models import write_kind

from nexus_lab.engine import Engine
from nexus_lab.engine.native import llama_build
from nexus_lab.splice import (
    BlockCompiler,
    BlockLibrary,
    BlockRefused,
    BlockState,
    Calibration,
    Exact,
    SplicePath,
    ToolBlock,
    context_hash,
    save_calibration,
    splice_block,
    survey,
)
from nexus_lab.splice import model as model_module
from nexus_lab.splice.library import MODEL_FILE
from nexus_lab.splice.model import block_fingerprint, model_name
from nexus_lab.splice.splicer import stored_calibration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENS = tuple(range(5, 21))
BEHIND = (30, 31, 32)
OTHER = "llama-cpp-python 0.0.1, ggml 0.1.0 (abc), features 00000000"


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    """One model, under the llama.cpp that is installed, and under what says it is another."""
    model = write_kind(tmp_path / "model.gguf", "plain")
    with Engine.load(model, n_ctx=256, threads=1) as own, Engine.load(model, n_ctx=256, threads=1) as other:
        other.build = OTHER
        yield own, other


def test_a_build_is_named_by_versions_and_features():
    versions, *rest = llama_build().split(", ")
    assert versions == f"llama-cpp-python {llama_cpp.__version__}"
    assert rest[-1].startswith("features ")
    assert len(rest[-1]) == len("features ") + 8
    assert llama_build() == llama_build()


def test_builds_have_addresses_and_folders_of_their_own(engines: tuple[Engine, Engine], tmp_path: Path):
    own, other = engines
    assert own.build == llama_build()
    assert own.info.fingerprint == other.info.fingerprint
    assert block_fingerprint(own) != block_fingerprint(other)
    assert model_name(own) != model_name(other)
    mine, theirs = (BlockLibrary(engine, tmp_path) for engine in engines)
    block = mine.get_or_compile(TOKENS, BEHIND)
    assert theirs.find(TOKENS, BEHIND) is None
    assert mine.find(TOKENS, BEHIND) is not None
    assert mine.address(TOKENS, BEHIND) != theirs.address(TOKENS, BEHIND)
    assert mine.folder.name == bytes(block.header.fingerprint).hex() == block_fingerprint(own)
    assert mine.folder != theirs.folder
    assert json.loads((mine.folder / MODEL_FILE).read_text())["build"] == own.build


@pytest.mark.parametrize("first", [0, 1])
def test_a_block_is_exact_under_its_own_build_and_refused_under_another(
    engines: tuple[Engine, Engine], first: int, tmp_path: Path
):
    compiled, running = engines[first], engines[1 - first]
    block = BlockLibrary(compiled, tmp_path).get_or_compile(TOKENS, BEHIND)
    found = {}
    for engine in (compiled, running):
        with engine.scratch_sequence() as seq:
            engine.prefill(seq, BEHIND, logits="none")
            found[engine] = splice_block(engine, seq, block, contract=Exact(), preceding=BEHIND)
    assert (found[compiled].path, found[compiled].declined) == (SplicePath.SPLICE, None)
    assert found[compiled].anchored
    assert found[running].path is SplicePath.PREFILL
    assert found[running].declined.code == "block_fingerprint"
    with pytest.raises(BlockRefused, match="fingerprint"):
        ToolBlock(block.path).check(running)


def test_a_file_that_is_put_under_the_address_of_another_build_is_compiled_again(
    engines: tuple[Engine, Engine], tmp_path: Path
):
    mine, theirs = (BlockLibrary(engine, tmp_path) for engine in engines)
    foreign = theirs.get_or_compile(TOKENS, BEHIND).path.read_bytes()
    path = mine.path(mine.address(TOKENS, BEHIND))
    path.parent.mkdir(parents=True)
    path.write_bytes(foreign)
    assert mine.find(TOKENS, BEHIND) is None
    block = mine.get_or_compile(TOKENS, BEHIND)
    assert bytes(block.header.fingerprint).hex() == block_fingerprint(engines[0])
    assert path.read_bytes() != foreign


def test_a_survey_says_which_build_a_block_is_of(
    engines: tuple[Engine, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own, other = engines
    root = tmp_path / "blocks"
    whole = BlockLibrary(own, root).get_or_compile(TOKENS).path
    foreign = BlockLibrary(other, root).get_or_compile(TOKENS).path
    # As before builds were told apart: a folder by the model's name, which says nothing of one.
    old = root / own.info.fingerprint / "old.atb"
    with monkeypatch.context() as before:
        before.setattr(model_module, "block_fingerprint", lambda engine: engine.info.fingerprint)
        BlockCompiler(own).compile(TOKENS, path=old)
    (old.parent / MODEL_FILE).write_text(json.dumps({"name": "model", "sha256": own.info.sha256}))
    found = {report.path: report for report in survey(root, engine=own)}
    assert {path: report.state for path, report in found.items()} == {
        whole: BlockState.WHOLE,
        foreign: BlockState.FOREIGN,
        old: BlockState.FOREIGN,
    }
    assert found[foreign].detail == f"fingerprint: it is of {OTHER}, and {own.build} runs"
    assert found[old].detail.startswith(
        "fingerprint: it is of a build of llama.cpp that it does not name, and "
    )
    assert {report.label for report in found.values()} == {"model"}
    tools = {TOKENS: "see"}
    named = {report.path: report.tool for report in survey(root, engine=own, tools=tools)}
    assert named == {whole: "see", foreign: None, old: None}


@pytest.mark.usefixtures("nexus_home")
def test_bounds_go_on_holding_under_another_build(engines: tuple[Engine, Engine]):
    measured = replace(
        calibration_of({0: {0.0: 0.1}, 64: {0.0: 0.1}}),
        fingerprint=engines[0].info.fingerprint,
        context_hash=context_hash(BEHIND).hex(),
    )
    save_calibration(measured)
    assert [stored_calibration(engine, context_hash(BEHIND)) for engine in engines] == [measured] * 2


@pytest.mark.usefixtures("nexus_home")
def test_the_calibration_that_ships_is_found_by_the_bundled_model(bundled_engine: Engine):
    shipped = sorted((files("nexus_lab.splice") / "calibrations").iterdir(), key=lambda path: path.name)
    assert shipped
    for path in shipped:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = stored_calibration(bundled_engine, bytes.fromhex(values["context_hash"]))
        assert found == Calibration.from_dict(values)
