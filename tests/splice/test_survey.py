"""The survey of a library: what each file is, by name and by the field that differs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from nexus_lab import _core
from nexus_lab.engine import Engine
from nexus_lab.splice import BlockLibrary, BlockReport, BlockState, TrialCase, model_header, survey
from nexus_lab.splice.model import block_fingerprint
from nexus_lab.splice.shelf import entries, touch

pytestmark = pytest.mark.model

OTHER_MODEL = "ab" * 16


def _by_name(reports: tuple[BlockReport, ...]) -> dict[str, BlockReport]:
    return {f"{report.model[:2]}/{report.path.name}": report for report in reports}


def _turned_otherwise(engine: Engine, path: Path) -> None:
    """Write a whole block of this model under another rotation."""
    found = model_header(engine)
    names = (
        "n_layer",
        "k_row_bytes",
        "v_row_bytes",
        "v_trans",
        "head_dim",
        "n_rot",
        "pairing",
        "fingerprint",
        "n_ctx_orig",
    )
    header = _core.BlockHeader(**{name: getattr(found, name) for name in names}, rope_base=4321.0)
    widths = header.k_row_bytes // 2, header.v_row_bytes // 2
    rows = [[np.ones((3, width), np.float16)] * header.n_layer for width in widths]
    _core.write_block(path, header, np.arange(3, dtype=np.int32), *rows)


@pytest.fixture
def tokens(cases: tuple[TrialCase, ...]) -> tuple[int, ...]:
    return cases[0].block[:6]


def test_every_file_is_named_for_what_it_is(
    bundled_engine: Engine, library: BlockLibrary, tokens: tuple[int, ...]
):
    whole = library.get_or_compile(tokens, [1, 2]).path
    name, here = whole.name, block_fingerprint(bundled_engine)[:2]
    data = whole.read_bytes()
    (library.folder / "flipped.atb").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (library.folder / "short.atb").write_bytes(data[:-1])
    (library.folder / "text.atb").write_bytes(b"not a block at all, but long enough to be read" * 9)
    _turned_otherwise(bundled_engine, library.folder / "turned.atb")
    (library.root / OTHER_MODEL).mkdir()
    shutil.copy(whole, library.root / OTHER_MODEL / "moved.atb")
    left = library.folder / "half.atb.7.0.tmp"
    left.touch()
    os.utime(left, (time.time() - 3600,) * 2)

    found = _by_name(survey(library.root, engine=bundled_engine))
    states = {key: report.state for key, report in found.items()}
    assert states == {
        f"{here}/{name}": BlockState.WHOLE,
        f"{here}/flipped.atb": BlockState.DAMAGED,
        f"{here}/short.atb": BlockState.DAMAGED,
        f"{here}/text.atb": BlockState.DAMAGED,
        f"{here}/turned.atb": BlockState.FOREIGN,
        "ab/moved.atb": BlockState.FOREIGN,
        f"{here}/half.atb.7.0.tmp": BlockState.UNFINISHED,
    }
    assert "payload_hash" in found[f"{here}/flipped.atb"].detail
    assert "file_bytes" in found[f"{here}/short.atb"].detail
    assert "rope_base is 4321" in found[f"{here}/turned.atb"].detail
    assert "fingerprint" in found["ab/moved.atb"].detail
    good = found[f"{here}/{name}"]
    assert (good.n_tokens, good.anchor, good.nbytes) == (len(tokens), 2, len(data))
    assert (good.label, good.tool, good.detail) == (bundled_engine.info.name, None, "")
    assert found["ab/moved.atb"].label == OTHER_MODEL

    # Without a model a block is compared with its folder alone; without the hash a flipped bit passes.
    alone = {key: report.state for key, report in _by_name(survey(library.root, verify=False)).items()}
    assert alone == {
        **states,
        f"{here}/turned.atb": BlockState.WHOLE,
        f"{here}/flipped.atb": BlockState.WHOLE,
    }


def test_blocks_are_told_by_their_tokens_and_are_stale_when_no_tool_has_them(
    bundled_engine: Engine, library: BlockLibrary, tokens: tuple[int, ...]
):
    for context in ((), (1, 2, 3)):
        library.get_or_compile(tokens, context)
    library.get_or_compile(tokens[:-1])
    reports = survey(library.root, engine=bundled_engine, tools={tokens: "book_table"})
    assert sorted((report.state, report.tool, report.anchor) for report in reports if report.tool) == [
        (BlockState.WHOLE, "book_table", 0),
        (BlockState.WHOLE, "book_table", 3),
    ]
    (stale,) = [report for report in reports if report.state is BlockState.STALE]
    assert (stale.tool, stale.n_tokens) == (None, len(tokens) - 1)


def test_a_survey_counts_as_no_use_and_passes_over_what_vanishes(
    library: BlockLibrary, tokens: tuple[int, ...]
):
    blocks = [library.get_or_compile(tokens[:length]) for length in (4, 5)]
    moments = {blocks[0].path: 10**18, blocks[1].path: 2 * 10**18}
    for path, moment in moments.items():
        touch(path, used_ns=moment)
    steps = []

    def meanwhile(done: int, total: int) -> None:
        steps.append((done, total))
        blocks[1].path.unlink(missing_ok=True)

    (report,) = survey(library.root, on_progress=meanwhile)
    assert report.path == blocks[0].path
    assert steps == [(1, 2), (2, 2)]
    assert [(entry.path, entry.used_ns) for entry in entries(library.root)] == [(blocks[0].path, 10**18)]
