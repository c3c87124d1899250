"""Long native calls let other Python threads run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nexus_lab import _core

TRIES = 20


def _ticks_inside(call: Callable[[], object]) -> int:
    """Run `call`; count how often another thread got its turn strictly meanwhile."""
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.01)
    start = time.perf_counter()
    call()
    end = time.perf_counter()
    stop.set()
    thread.join()
    margin = 0.1 * (end - start)
    return sum(start + margin < at < end - margin for at in ticks)


def _scan(_folder: Path) -> Callable[[], object]:
    matrix = _core.Int8Matrix(4096, kernel="scalar")
    matrix.append(np.ones((20000, 4096), dtype=np.int8))
    return lambda: matrix.top_k(np.ones(4096, dtype=np.int8), 3)


def _rotate(_folder: Path) -> Callable[[], object]:
    rows = np.ones((20000, 512), dtype=np.float16)
    options = {
        "head_dim": 64,
        "n_rot": 64,
        "pairing": "norm",
        "deltas": np.full(len(rows), 7, dtype=np.int32),
        "inv_freq": _core.rope_frequencies(n_rot=64, base=1e4),
    }
    return lambda: _core.rotate_keys(rows, kernel="scalar", **options)


def _verify(folder: Path) -> Callable[[], object]:
    rows = [np.ones((6000, 1024), dtype=np.float16)] * 6
    header = _core.BlockHeader(
        n_layer=6,
        k_row_bytes=2048,
        v_row_bytes=2048,
        v_trans=False,
        head_dim=64,
        n_rot=64,
        pairing="norm",
        rope_base=1e4,
        fingerprint=b"0" * 16,
    )
    _core.write_block(folder / "a.atb", header, np.arange(6000, dtype=np.int32), rows, rows)
    return _core.BlockFile(folder / "a.atb").verify


@pytest.mark.parametrize("make", [_scan, _rotate, _verify], ids=["scan", "rotate", "verify"])
def test_other_threads_run_meanwhile(make: Callable[[Path], Callable[[], object]], tmp_path: Path):
    """One that kept the GIL would never let them in; one that lets go does, unless the machine is busy."""
    call = make(tmp_path)
    assert any(_ticks_inside(call) for _ in range(TRIES))


def test_the_measure_sees_a_call_that_keeps_the_gil():
    """A busy machine may stop this thread before the call has begun, and another gets its turn there."""
    text = "a" * 60_000_000
    assert not all(_ticks_inside(lambda: text.count("b" * 3)) for _ in range(TRIES))  # never lets go
