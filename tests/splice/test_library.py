"""The library as several use it at once: its quota, its locks, and files that vanish."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import meanwhile

from nexus_lab.cache import Append, CacheProgram, ProgramRunner, Splice
from nexus_lab.engine import Engine
from nexus_lab.splice import (
    BlockContext,
    BlockLibrary,
    BlockRecipe,
    LibraryBlocks,
    QuotaTooSmall,
    ToolBlock,
    TrialCase,
    build_blocks,
)
from nexus_lab.splice import library as library_module
from nexus_lab.splice.building import file_bytes
from nexus_lab.splice.shelf import compiling, entries, leftovers, touch, trim

pytestmark = pytest.mark.model


def _there(library: BlockLibrary, *blocks: tuple[int, ...]) -> list[bool]:
    return [library.path(library.address(tokens)).exists() for tokens in blocks]


@pytest.fixture
def words(cases: tuple[TrialCase, ...]) -> list[tuple[int, ...]]:
    """Blocks of equal length, so that each takes as much room."""
    tokens = cases[0].block
    return [tokens[start : start + 6] for start in range(4)]


@pytest.fixture
def narrow(library: BlockLibrary, words: list[tuple[int, ...]]) -> BlockLibrary:
    """A library with room for two of the blocks, and none in it."""
    block = library.get_or_compile(words[0])
    block.path.unlink()
    return BlockLibrary(library.engine, library.root, quota=2 * block.nbytes)


def test_the_quota_evicts_what_was_used_longest_ago(narrow: BlockLibrary, words: list[tuple[int, ...]]):
    for tokens in (words[0], words[1], words[0]):
        narrow.get_or_compile(tokens)
    narrow.get_or_compile(words[2])
    assert _there(narrow, *words) == [True, False, True, False]
    # The order is kept on disk: another library, as another process has, goes on with it.
    other = BlockLibrary(narrow.engine, narrow.root, quota=narrow.quota)
    assert other.find(words[0]) is not None
    other.get_or_compile(words[3])
    assert _there(narrow, *words) == [True, False, False, True]


def test_the_quota_spares_what_this_process_has_open(narrow: BlockLibrary, words: list[tuple[int, ...]]):
    held = BlockLibrary(narrow.engine, narrow.root).get_or_compile(words[0])
    narrow.get_or_compile(words[1])
    narrow.get_or_compile(words[2])
    assert _there(narrow, *words) == [True, False, True, False]
    again = narrow.get_or_compile(words[0])
    assert again.tokens == held.tokens == words[0]
    del held, again
    narrow.get_or_compile(words[2])
    narrow.get_or_compile(words[3])
    assert _there(narrow, *words) == [False, False, True, True]


def test_a_block_larger_than_the_quota_serves_whoever_asked_for_it(
    bundled_engine: Engine, words: list[tuple[int, ...]], tmp_path: Path
):
    library = BlockLibrary(bundled_engine, tmp_path, quota=1)
    block = library.get_or_compile(words[0])
    assert block.tokens == words[0]
    assert block.rows_at(bundled_engine, 3).n_cells == len(words[0])
    with pytest.raises(QuotaTooSmall) as caught:
        build_blocks(library, [BlockRecipe("tool", words[1])])
    assert caught.value.next_step
    assert _there(library, words[1]) == [False]
    assert BlockLibrary(bundled_engine, tmp_path, quota=None).trim() == ()


def test_blocks_that_would_evict_each_other_are_not_built(
    library: BlockLibrary, words: list[tuple[int, ...]], history: tuple[int, ...]
):
    contexts = (BlockContext(), BlockContext(history[:4], (history[:6],), consensus=True))
    recipes = [BlockRecipe(str(place), words[place], context) for place, context in enumerate(contexts)]
    lengths = [library.get_or_compile(each.tokens, each.context).nbytes for each in recipes]
    assert [file_bytes(library.engine, each) for each in recipes] == lengths
    needed = sum(lengths)
    with pytest.raises(QuotaTooSmall, match=f"2 blocks take {needed} bytes"):
        build_blocks(BlockLibrary(library.engine, library.root, quota=needed - 1), recipes)
    report = build_blocks(BlockLibrary(library.engine, library.root, quota=needed), [*recipes, recipes[0]])
    assert report.found == ("0", "1", "0")


def test_a_file_counts_once_when_two_trim_at_once(library: BlockLibrary, words: list[tuple[int, ...]]):
    sizes = [library.get_or_compile(tokens).nbytes for tokens in words]
    library.path(library.address(words[0])).unlink()
    gone = trim(library.root, sum(sizes[2:]))
    assert [entry.path for entry in gone] == [library.path(library.address(words[1]))]


def test_what_cannot_be_removed_stops_no_compile(narrow: BlockLibrary, words: list[tuple[int, ...]]):
    stuck = narrow.folder / "stuck.atb"
    stuck.mkdir()
    (stuck / "file").write_bytes(b"x")
    touch(stuck, used_ns=1)
    for tokens in words[:3]:
        assert narrow.get_or_compile(tokens).tokens == tokens
    assert stuck.exists()
    assert _there(narrow, *words) == [False, False, True, False]


def test_using_a_block_leaves_its_modification_time(library: BlockLibrary, words: list[tuple[int, ...]]):
    block = library.get_or_compile(words[0])
    touch(block.path, used_ns=10**18)
    before = entries(library.root)[0]
    assert before.used_ns == 10**18
    assert library.get_or_compile(words[0]) is block
    after = entries(library.root)[0]
    assert (after.modified_ns, after.identity) == (before.modified_ns, before.identity)
    assert after.used_ns > before.used_ns


def test_a_file_that_vanishes_between_listing_and_opening_is_compiled_again(
    library: BlockLibrary, words: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    path = library.get_or_compile(words[0]).path
    taken = []

    def vanishing(path: Path, **options: bool) -> ToolBlock:
        if not taken:
            taken.append(path)
            path.unlink()
        return ToolBlock(path, **options)

    fresh = BlockLibrary(library.engine, library.root)
    monkeypatch.setattr(library_module, "ToolBlock", vanishing)
    block = fresh.get_or_compile(words[0])
    assert taken == [path]
    assert block.tokens == words[0]
    assert path.exists()


def test_a_file_that_vanishes_as_soon_as_it_is_written_is_an_error_in_the_end(
    library: BlockLibrary, words: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    def gone(*_arguments: object, **_options: object) -> ToolBlock:
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(library._compiler, "compile", gone)
    with pytest.raises(library_module.CompileError, match="removed") as caught:
        library.get_or_compile(words[0])
    assert "quota" in caught.value.next_step


class Vanishing(LibraryBlocks):
    """Loses the file between the two readings of a splice."""

    def __init__(self, library: BlockLibrary) -> None:
        super().__init__(library)
        self.paths: list[Path] = []

    def tokens(self, block_id: str):
        found = super().tokens(block_id)
        self.paths.append(self._library.path(block_id))
        self.paths[-1].unlink()
        return found


class Unreadable(LibraryBlocks):
    def state_at(self, block_id: str, position: int):
        raise FileNotFoundError(2, f"gone before it stood at {position}", block_id)


def test_a_splice_outlives_its_file(
    bundled_engine: Engine, library: BlockLibrary, words: list[tuple[int, ...]]
):
    library.get_or_compile(words[0])
    program = CacheProgram((Append(words[1]), Splice(library.address(words[0]), words[0], 0)))
    vanishing = Vanishing(library)
    with ProgramRunner(bundled_engine, blocks=vanishing) as runner:
        result = runner.run(program)
        assert not result.declined
        assert result.program == program
    assert vanishing.paths[0].exists()
    with ProgramRunner(bundled_engine, blocks=Unreadable(library)) as runner:
        result = runner.run(program)
        assert [declined.code for declined in result.declined] == ["block_unreadable"]
        assert result.state.tokens.tolist() == [*words[1], *words[0]]


BUILDER = """
import json, sys, time
from pathlib import Path
from nexus_lab.engine import Engine
from nexus_lab.splice import BlockCompiler, BlockLibrary, BlockRecipe, build_blocks

root, blocks, me = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
compile, count = BlockCompiler.compile, 0
def counted(self, *arguments, **options):
    global count
    count += 1
    return compile(self, *arguments, **options)
BlockCompiler.compile = counted
with Engine.load(n_ctx=512, threads=1) as engine:
    library = BlockLibrary(engine, root / "blocks")
    (root / f"ready{me}").touch()
    while not (root / "go").exists():
        time.sleep(0.005)
    report = build_blocks(library, [BlockRecipe(str(i), tuple(b)) for i, b in enumerate(blocks)])
print(json.dumps({"compiled": len(report.compiled), "count": count, "found": len(report.found)}))
"""


def test_two_processes_that_build_at_once_compile_each_block_once(
    bundled_engine: Engine, cases: tuple[TrialCase, ...], tmp_path: Path
):
    tokens = cases[0].block + cases[1].block
    blocks = [tokens[start : start + 30] for start in range(8)]
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(tmp_path), json.dumps(blocks), me],
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in "ab"
    ]
    while not all((tmp_path / f"ready{me}").exists() for me in "ab"):
        assert all(builder.poll() is None for builder in builders)
        time.sleep(0.02)
    (tmp_path / "go").touch()
    said = [json.loads(builder.communicate(timeout=240)[0]) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert sum(one["count"] for one in said) == len(blocks)
    library = BlockLibrary(bundled_engine, tmp_path / "blocks")
    assert len(library.addresses()) == len(blocks)
    for block in blocks:
        assert ToolBlock(library.path(library.address(block)), verify=True).tokens == block
    assert sorted({path.suffix for path in library.folder.iterdir()}) == [".atb", ".json"]


def test_who_waits_for_a_compile_can_be_stopped_and_does_not_wait_forever(tmp_path: Path):
    path = tmp_path / "block.atb"

    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with compiling(path), pytest.raises(Stopped), compiling(path, check=stop):
        pytest.fail("two held the lock")
    with compiling(path), compiling(path, patience_s=0):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with compiling(tmp_path / "file" / "block.atb"):
        pass  # the compile itself will say what is wrong with the folder


def test_the_lock_goes_to_one_after_the_other(tmp_path: Path):
    path, inside, most = tmp_path / "block.atb", [], []

    def work() -> None:
        for _ in range(10):
            with compiling(path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), len(most)) == (1, 40)


def test_a_compile_that_waits_for_another_process_stops_with_the_turn(
    library: BlockLibrary, words: list[tuple[int, ...]]
):
    from nexus_lab.errors import Cancelled

    path, engine = library.path(library.address(words[0])), library.engine
    with compiling(path), meanwhile(engine.cancel), pytest.raises(Cancelled):
        library.get_or_compile(words[0])
    assert library.get_or_compile(words[0]).tokens == words[0]


def test_what_a_killed_writer_left_is_found_once_it_is_old(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    old, fresh = folder / "aa.atb.12.0.tmp", folder / "bb.atb.12.1.tmp"
    for path in (old, fresh, folder / "cc.atb"):
        path.touch()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    os.utime(folder / "cc.atb", (hour_ago, hour_ago))
    assert leftovers(tmp_path) == [old]
    assert [entry.path.name for entry in entries(tmp_path)] == ["cc.atb"]
