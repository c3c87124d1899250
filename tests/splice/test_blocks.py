"""Block files and the library: what fits, what is refused and by which field, what is compiled again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nexus_lab import _core
from nexus_lab.engine import Engine
from nexus_lab.splice import (
    BlockCompiler,
    BlockLibrary,
    BlockRefused,
    BlockUnknown,
    CompileError,
    Exact,
    SplicePath,
    ToolBlock,
    TrialCase,
    model_header,
    splice_block,
)

pytestmark = pytest.mark.model

TOKENS = np.arange(5, 13, dtype=np.int32)


def _header(engine: Engine, **changes: object) -> _core.BlockHeader:
    found = model_header(engine)
    names = (
        "n_layer k_row_bytes v_row_bytes v_trans head_dim n_rot pairing rope_base rope_scale ext_factor "
        "attn_factor n_ctx_orig rope_factors_hash fingerprint"
    )
    values = {name: getattr(found, name) for name in names.split()}
    return _core.BlockHeader(**{**values, **changes})


def _write(path: Path, header: _core.BlockHeader) -> Path:
    rng = np.random.default_rng(0)
    widths = header.k_row_bytes // 2, header.v_row_bytes // 2
    rows = [
        [rng.normal(size=(len(TOKENS), width)).astype(np.float16) for _ in range(header.n_layer)]
        for width in widths
    ]
    _core.write_block(path, header, TOKENS, *rows)
    return path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", bytes(16)),
        ("n_layer", 29),
        ("k_row_bytes", 128),
        ("v_row_bytes", 128),
        ("head_dim", 96),
        ("n_rot", 32),
        ("pairing", "neox"),
        ("rope_base", 5000.0),
        ("rope_scale", 0.5),
        ("ext_factor", 1.0),
        ("attn_factor", 1.25),
        ("n_ctx_orig", 4096),
        ("rope_factors_hash", b"12345678"),
    ],
)
def test_a_header_that_differs_in_one_field_is_refused_by_its_name(
    bundled_engine: Engine, tmp_path: Path, field: str, value: object
):
    assert getattr(model_header(bundled_engine), field) != value
    block = ToolBlock(_write(tmp_path / "block.atb", _header(bundled_engine, **{field: value})), verify=True)
    with pytest.raises(BlockRefused, match=field) as caught:
        block.check(bundled_engine)
    assert caught.value.field == field
    assert caught.value.next_step
    seq = bundled_engine.acquire_sequence()
    try:
        result = splice_block(bundled_engine, seq, block)
        assert result.path is SplicePath.PREFILL
        assert result.declined is not None
        assert result.declined.code == f"block_{field}"
        assert result.repaired == bundled_engine.pos_max(seq) + 1 == len(TOKENS)
    finally:
        bundled_engine.release_sequence(seq)


def test_a_block_that_fits_is_accepted_under_either_layout_of_v(bundled_engine: Engine, tmp_path: Path):
    for v_trans in (True, False):
        block = ToolBlock(
            _write(tmp_path / "block.atb", _header(bundled_engine, v_trans=v_trans)), verify=True
        )
        block.check(bundled_engine)
        assert block.same_kernel(bundled_engine) == v_trans
        assert block.tokens == tuple(TOKENS.tolist())


def test_a_file_that_is_no_whole_block_is_refused(bundled_engine: Engine, tmp_path: Path):
    whole = _write(tmp_path / "block.atb", _header(bundled_engine)).read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    bad = {
        "empty": b"",
        "half_a_header": whole[:64],
        "header_only": whole[:128],
        "truncated": whole[:-1],
        "longer": whole + b"\0",
        "foreign": b"GGUF" + whole[4:],
        "text": b"{}" * 500,
        "flipped": bytes(flipped),
    }
    for name, data in bad.items():
        path = tmp_path / f"{name}.atb"
        path.write_bytes(data)
        with pytest.raises(BlockRefused) as caught:
            ToolBlock(path, verify=True)
        assert caught.value.field, name
        assert str(path) in caught.value.problem


def test_the_library_compiles_once_and_again_when_the_file_is_bad(
    bundled_engine: Engine, library: BlockLibrary, cases: tuple[TrialCase, ...]
):
    tokens, context = cases[0].block[:12], cases[1].block[:6]
    assert library.find(tokens, context) is None
    first = library.get_or_compile(tokens, context)
    assert (first.tokens, first.anchor) == (tokens, len(context))
    assert library.get_or_compile(tokens, context) is first
    assert library.addresses() == [library.address(tokens, context)]
    good = first.path.read_bytes()
    for bad in (good[:-5], b"not a block", good[:-1] + b"\xff"):
        first.path.unlink()
        first.path.write_bytes(bad)
        again = library.get_or_compile(tokens, context)
        assert again is not first
        ToolBlock(again.path, verify=True).check(bundled_engine)
        # The rows are the same: the file differs only where the bad one did.
        assert again.path.read_bytes() == good
    first.path.unlink()
    assert library.get(library.address(tokens, context)).tokens == tokens


def test_a_whole_file_under_the_wrong_address_is_not_believed(
    library: BlockLibrary, cases: tuple[TrialCase, ...]
):
    tokens, context = cases[0].block[:9], cases[1].block[:4]
    right = library.get_or_compile(tokens, context)
    for other_tokens, other_context in (
        (tokens[:-1], context),
        (tokens, context[:-1]),
        (tokens, context[::-1]),
    ):
        other = library.get_or_compile(other_tokens, other_context)
        right.path.unlink()
        right.path.write_bytes(other.path.read_bytes())
        found = library.get_or_compile(tokens, context)
        assert (found.tokens, found.anchor, found.context_hash) == (tokens, len(context), right.context_hash)


def test_blocks_of_other_tokens_contexts_and_layouts_have_other_addresses(
    flash_engine: Engine, library: BlockLibrary, tmp_path: Path
):
    addresses = {
        library.address([1, 2], [3]),
        library.address([1, 2], []),
        library.address([1], [3]),
        BlockLibrary(flash_engine, tmp_path).address([1, 2], [3]),
    }
    assert len(addresses) == 4


def test_a_block_of_other_decode_calls_is_another(
    library: BlockLibrary, cases: tuple[TrialCase, ...], history: tuple[int, ...]
):
    block, context = cases[0].block, history[:40]
    library.get_or_compile(block, context)
    # A last call of a single token has another kernel.
    with Engine.load(n_ctx=256, threads=1, n_batch=len(block) - 1) as engine:
        own = BlockLibrary(engine, library.root)
        assert own.find(block, context) is None
        found, rest = own.get_or_compile(block, context), cases[0].rest
        engine.clear()
        with engine.scratch_sequence() as seq:
            engine.prefill(seq, context, logits="none")
            engine.prefill(seq, block, logits="none")
            logits = engine.prefill(seq, rest)
            engine.remove(seq, len(context), -1)
            result = splice_block(engine, seq, found, contract=Exact(), preceding=context, rest=rest)
        assert result.path is SplicePath.SPLICE
        assert np.array_equal(result.logits, logits)


def test_an_unknown_address_and_an_empty_block_are_refused(library: BlockLibrary, bundled_engine: Engine):
    with pytest.raises(BlockUnknown):
        library.get("00" * 20)
    with pytest.raises(CompileError):
        library.get_or_compile([])
    seq = bundled_engine.acquire_sequence()
    try:
        bundled_engine.prefill(seq, [1, 2, 3])
        with pytest.raises(CompileError, match="fewer"):
            library.capture(seq, [2, 3, 4], [1])
    finally:
        bundled_engine.release_sequence(seq)


def test_captured_rows_are_those_of_the_live_sequence(
    bundled_engine: Engine, library: BlockLibrary, cases: tuple[TrialCase, ...]
):
    context, tokens = cases[1].block[:10], cases[0].block[:10]
    seq = bundled_engine.acquire_sequence()
    try:
        bundled_engine.prefill(seq, context + tokens)
        block = library.capture(seq, tokens, context)
        state = bundled_engine.save_state(seq, start=len(context))
    finally:
        bundled_engine.release_sequence(seq)
    assert library.find(tokens, context) is block
    rows = block.rows_at(bundled_engine, block.anchor)
    for layer in (0, state.n_layer - 1):
        np.testing.assert_array_equal(rows.key(layer), state.key(layer)[state.order()])
        np.testing.assert_array_equal(rows.value(layer), state.value(layer)[state.order()])


def test_a_folder_that_cannot_be_written_is_a_typed_error(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], tmp_path: Path
):
    (tmp_path / "blocks").write_text("a file where the folder should be")
    with pytest.raises(CompileError, match="cannot be written") as caught:
        BlockLibrary(bundled_engine, tmp_path / "blocks").get_or_compile(cases[0].block[:4])
    assert "NEXUS_LAB_HOME" in caught.value.next_step


def test_a_path_that_cannot_be_read_as_a_file_is_refused(library: BlockLibrary, cases: tuple[TrialCase, ...]):
    tokens = cases[0].block[:4]
    path = library.path(library.address(tokens))
    path.mkdir(parents=True)
    with pytest.raises(BlockRefused):
        library.get(library.address(tokens))


WRITER = """
import sys, numpy as np
from nexus_lab import _core
path, seed = sys.argv[1], int(sys.argv[2])
header = _core.BlockHeader(n_layer=2, k_row_bytes=256, v_row_bytes=256, v_trans=False, head_dim=64, n_rot=64,
                           pairing="norm", rope_base=1e4, fingerprint=bytes(16))
rows = [np.full((400, 128), seed, np.float16)] * 2
for _ in range(60):
    _core.write_block(path, header, np.full(400, seed, np.int32), rows, rows)
"""


LEFT = """
import os, sys
from pathlib import Path
import numpy as np
from nexus_lab import _core
from nexus_lab.splice.compiler import write_new
from nexus_lab.splice.spread import BlockRows

path = Path(sys.argv[1])
header = _core.BlockHeader(n_layer=1, k_row_bytes=32, v_row_bytes=32, v_trans=False, head_dim=16, n_rot=16,
                           pairing="norm", rope_base=1e4, fingerprint=bytes(16))
for number in range(3):
    path.with_name(f".{path.name}.{os.getpid()}.{number}.tmp").touch()
rows = [np.zeros((4, 16), np.float16)]
write_new(path, header, np.arange(4, dtype=np.int32), BlockRows(rows, rows))
"""


def test_what_a_killed_writer_of_the_same_number_left_stops_no_other(tmp_path: Path):
    path = tmp_path / "block.atb"
    subprocess.run([sys.executable, "-c", LEFT, str(path)], check=True)
    assert ToolBlock(path, verify=True).tokens == (0, 1, 2, 3)
    assert len(list(tmp_path.glob(".block.atb.*.tmp"))) == 3


def test_two_processes_may_write_one_file_while_a_third_reads_it(tmp_path: Path):
    path = tmp_path / "block.atb"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(seed)]) for seed in (1, 2)]
    seen = set()
    while any(writer.poll() is None for writer in writers) or not seen:
        if path.exists():
            block = ToolBlock(path, verify=True)
            seen.add(block.tokens[0])
            assert set(block.tokens) == {block.tokens[0]}
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {1, 2}
    assert [item.name for item in tmp_path.iterdir()] == ["block.atb"]


def test_a_compile_leaves_the_context_empty_and_writes_nothing_when_it_does_not_fit(
    bundled_engine: Engine, tmp_path: Path
):
    from nexus_lab.engine import ContextFull

    used = bundled_engine.used_cells()
    with pytest.raises(ContextFull):
        BlockCompiler(bundled_engine).compile([1] * 2000, [2] * 100, path=tmp_path / "big.atb")
    assert bundled_engine.used_cells() == used
    assert not list(tmp_path.glob("*.atb"))
