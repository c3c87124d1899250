"""The work of a splice sweep: from one task to its rows, in whatever process it lands."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.splice_cells import Cell
from nexus_lab.bench.splice_grid import SpliceTask, TaskKind, compile_contexts
from nexus_lab.bench.splice_passes import pass_rows
from nexus_lab.bench.splice_proxy import proxy_and_drift
from nexus_lab.bench.worker import worker_engine
from nexus_lab.splice import (
    BlockLibrary,
    NoRepair,
    growing_prefix,
    measure_reference,
    measure_splice,
    splice_block,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nexus_lab.engine import Engine
    from nexus_lab.splice import ToolBlock

__all__ = ["measure"]

Row = dict[str, Any]

_libraries: dict[tuple[Engine, str], BlockLibrary] = {}
_turn = Lock()


def measure(task: SpliceTask) -> list[Row]:
    """Return the rows of a task, JSON values; one task of a process at a time.

    Raises
    ------
    ResultsError
        When the model here is another than the one the task was made with.
    """
    with _turn:
        engine = worker_engine(task.engine)
        engine.clear()
        return list(_WORK[task.kind](engine, task))


def _library(engine: Engine, task: SpliceTask) -> BlockLibrary:
    """Return this process's library, which keeps the states of contexts that many blocks share."""
    if (engine, task.folder) not in _libraries:
        _libraries.clear()
        _libraries[engine, task.folder] = BlockLibrary(engine, Path(task.folder), quota=None)
    return _libraries[engine, task.folder]


def _blocks(engine: Engine, task: SpliceTask) -> dict[str, ToolBlock]:
    """Compile the block behind every context, and leave a context as if nothing had been compiled."""
    library = _library(engine, task)
    blocks = {
        name: library.get_or_compile(task.case.block, compile_contexts(engine, name, task.system, task.own))
        for name in task.contexts
    }
    engine.clear()
    return blocks


def _cells(engine: Engine, task: SpliceTask) -> Iterator[Row]:
    blocks = _blocks(engine, task)
    with growing_prefix(engine, task.prefix, task.ending) as grow:
        for depth in task.depths:
            yield from Cell(engine, grow(depth), task).rows(blocks)


def _anchored(engine: Engine, task: SpliceTask) -> Iterator[Row]:
    """Splice behind the very tokens that the block was compiled behind: D_KL is 0 when all is right."""
    library = _library(engine, task)
    for depth in task.depths:
        prefix = task.prefix[:depth]
        engine.clear()
        block = library.get_or_compile(task.case.block, prefix)
        engine.clear()
        with growing_prefix(engine, prefix) as grow:
            seq = grow(depth)
            reference = measure_reference(engine, seq, task.case)
            trial = measure_splice(
                engine, seq, task.case, block, reference, strategy=NoRepair(), preceding=prefix
            )
        if not trial.result.anchored:
            raise ResultsError(
                "a block behind its own context was not found anchored", next_step="report this"
            )
        block.path.unlink(missing_ok=True)  # nobody asks for it again
        yield {
            **task.common,
            "depth": depth,
            "dkl_mean": trial.fidelity.dkl_mean,
            "top1": trial.fidelity.top1,
        }


def _speed(engine: Engine, task: SpliceTask) -> Iterator[Row]:
    """Wall time until the block stands in the cache, in turns with its prefill; the first round warms up."""
    blocks = _blocks(engine, task)
    context = next(iter(blocks))
    with growing_prefix(engine, task.prefix, task.ending) as grow:
        for depth in task.depths:
            seq = grow(depth)
            for number in range(1 + task.repeats):
                started = perf_counter()
                engine.prefill(seq, task.case.block, logits="none")
                prefill_s = perf_counter() - started
                engine.remove(seq, depth)
                for repair in filter(lambda repair: repair.runs_on(blocks[context]), task.repairs):
                    result = splice_block(
                        engine, seq, blocks[context], strategy=repair.make(), budget=repair.budget
                    )
                    engine.remove(seq, depth)
                    if number:
                        yield {
                            **task.common,
                            "depth": depth,
                            "strategy": repair.strategy,
                            "budget": str(repair.label),
                            "context": context,
                            "prefill_s": prefill_s,
                            "splice_s": result.seconds,
                        }


def _passes(engine: Engine, task: SpliceTask) -> Iterator[Row]:
    if "input_patches" in engine.declines:
        return
    with growing_prefix(engine, task.prefix, task.ending) as grow:
        for depth in task.depths:
            for row in pass_rows(engine, grow(depth), task.case.block, repeats=task.repeats):
                yield {**task.common, **row}


def _proxy(engine: Engine, task: SpliceTask) -> Iterator[Row]:
    blocks = _blocks(engine, task)
    with growing_prefix(engine, task.prefix, task.ending) as grow:
        for depth in task.depths:
            seq = grow(depth)
            for name, block in blocks.items():
                yield {
                    **task.common,
                    "depth": depth,
                    "context": name,
                    **proxy_and_drift(engine, seq, block),
                }


_WORK: Mapping[TaskKind, Callable[[Engine, SpliceTask], Iterator[Row]]] = {
    TaskKind.CELLS: _cells,
    TaskKind.ANCHORED: _anchored,
    TaskKind.SPEED: _speed,
    TaskKind.PASSES: _passes,
    TaskKind.PROXY: _proxy,
}
