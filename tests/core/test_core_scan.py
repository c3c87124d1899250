"""The INT8 scan: every kernel of this processor beside a numpy twin."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nexus_lab import _core

KERNELS = _core.scan_kernels()
rows_of = st.integers(1, 40).flatmap(
    lambda dim: st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            arrays(np.int8, (n, dim), elements=st.integers(-127, 127)),
            arrays(np.int8, dim, elements=st.integers(-128, 127)),
        )
    )
)


def _twin(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    return rows.astype(np.int32) @ query.astype(np.int32)


def _twin_top_k(dots: np.ndarray, k: int) -> tuple[list[int], list[int], int]:
    order = np.argsort(-dots.astype(np.int64), kind="stable")
    margin = int(dots[order[0]]) - int(dots[order[1]]) if len(dots) > 1 else 0
    return order[:k].tolist(), dots[order[:k]].tolist(), margin


def _as_lists(found: tuple[np.ndarray, np.ndarray, int]) -> tuple[list[int], list[int], int]:
    ids, dots, margin = found
    assert ids.dtype == np.int64
    assert dots.dtype == np.int32
    return ids.tolist(), dots.tolist(), margin


def _matrix(rows: np.ndarray, kernel: str = "auto") -> _core.Int8Matrix:
    matrix = _core.Int8Matrix(rows.shape[1], kernel=kernel)
    matrix.append(rows)
    return matrix


def test_the_kernels_are_those_of_the_processor():
    features = _core.cpu_features()
    expected = [name for name in ("avx512vnni", "avx2", "neon_dotprod", "neon") if features[name]]
    assert [*expected, "scalar"] == KERNELS
    assert _core.Int8Matrix(4).kernel == KERNELS[0]
    with pytest.raises(ValueError, match="sse9"):
        _core.Int8Matrix(4, kernel="sse9")


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=60, deadline=None)
@given(case=rows_of, k=st.integers(0, 70))
def test_a_kernel_is_exact(kernel: str, case: tuple[np.ndarray, np.ndarray], k: int):
    rows, query = case
    matrix = _matrix(rows, kernel)
    dots = _twin(rows, query)
    assert matrix.dots(query).tolist() == dots.tolist()
    assert _as_lists(matrix.top_k(query, k)) == _twin_top_k(dots, k)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dim", [64, 383, 384, 768, 1024])
@pytest.mark.parametrize("n", [250, 5000])
def test_extreme_values_do_not_saturate(kernel: str, dim: int, n: int):
    rng = np.random.default_rng(dim + n)
    rows = rng.choice(np.array([-127, 127], dtype=np.int8), (n, dim))
    matrix = _matrix(rows, kernel)
    for query in (rows[0], -rows[0], np.full(dim, -128, dtype=np.int8), np.zeros(dim, dtype=np.int8)):
        dots = _twin(rows, query)
        assert np.array_equal(matrix.dots(query), dots)
        assert _as_lists(matrix.top_k(query, 3)) == _twin_top_k(dots, 3)


@settings(max_examples=60, deadline=None)
@given(case=rows_of, k=st.integers(0, 20), data=st.data())
def test_pooling_takes_each_groups_best_row(case: tuple[np.ndarray, np.ndarray], k: int, data: st.DataObject):
    rows, query = case
    n_groups = data.draw(st.integers(1, 12))
    groups = data.draw(arrays(np.int32, len(rows), elements=st.integers(0, n_groups - 1)))
    dots = _twin(rows, query)
    present = np.unique(groups)
    best = np.array([dots[groups == group].max() for group in present])
    order, scores, margin = _twin_top_k(best, k)
    found = _as_lists(_matrix(rows).top_k_pooled(query, groups, n_groups, k))
    assert found == (present[order].tolist(), scores, margin)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_changing_rows(data: st.DataObject):
    dim = data.draw(st.integers(1, 70))
    row = arrays(np.int8, dim, elements=st.integers(-127, 127))
    matrix, twin = _core.Int8Matrix(dim), np.empty((0, dim), dtype=np.int8)
    query = data.draw(row)
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["append", "set", "remove"])) if len(twin) else "append"
        if action == "append":
            new = np.stack(data.draw(st.lists(row, min_size=1, max_size=9)))
            matrix.append(new)
            twin = np.concatenate([twin, new])
        else:
            index = data.draw(st.integers(0, len(twin) - 1))
            if action == "set":
                twin[index] = data.draw(row)
                matrix.set_row(index, twin[index].copy())
            else:
                matrix.remove_row(index)
                twin = np.delete(twin, index, axis=0)
        assert len(matrix) == len(twin)
        assert np.array_equal(matrix.rows(), twin)
        assert np.array_equal(matrix.dots(query), _twin(twin, query))


def test_empty_and_single():
    matrix = _core.Int8Matrix(3)
    assert _as_lists(matrix.top_k(np.ones(3, dtype=np.int8), 5)) == ([], [], 0)
    matrix.append(np.ones(3, dtype=np.int8))
    assert _as_lists(matrix.top_k(np.ones(3, dtype=np.int8), 5)) == ([0], [3], 0)


@pytest.mark.parametrize(
    "query",
    [
        np.ones(4, dtype=np.int16),
        np.ones(4, dtype=np.uint8),
        np.ones(8, dtype=np.int8)[::2],
        [1, 1, 1, 1],
        None,
    ],
    ids=["int16", "uint8", "strided", "list", "None"],
)
def test_a_query_of_another_type_is_refused(query: object):
    matrix = _matrix(np.ones((2, 4), dtype=np.int8))
    with pytest.raises(TypeError):
        matrix.top_k(query, 1)  # type: ignore[arg-type]


def test_wrong_sizes_and_values_are_refused():
    matrix = _matrix(np.ones((2, 4), dtype=np.int8))
    with pytest.raises(ValueError, match="dim"):
        matrix.top_k(np.ones(5, dtype=np.int8), 1)
    with pytest.raises(ValueError, match="one dimension"):
        matrix.top_k(np.ones((1, 4), dtype=np.int8), 1)
    with pytest.raises(ValueError, match="-128"):
        matrix.append(np.full((1, 4), -128, dtype=np.int8))
    with pytest.raises(IndexError):
        matrix.remove_row(2)
    with pytest.raises(ValueError, match="groups"):
        matrix.top_k_pooled(np.ones(4, dtype=np.int8), np.array([0, 2], dtype=np.int32), 2, 1)


def test_results_do_not_share_memory():
    matrix = _matrix(np.eye(8, 64, dtype=np.int8))
    first = matrix.top_k(np.eye(8, 64, dtype=np.int8)[0].copy(), 2)
    copy = first[0].copy()
    second = matrix.top_k(np.eye(8, 64, dtype=np.int8)[5].copy(), 2)
    gc.collect()
    assert np.array_equal(first[0], copy)
    assert second[0][0] == 5


def test_searching_while_rows_are_added():
    """Scans of a large matrix run without the GIL: a writer waits for them, and no answer is torn."""
    rows = np.random.default_rng(1).integers(-127, 128, (4000, 384), dtype=np.int8)
    matrix = _matrix(rows)
    top = matrix.top_k(rows[7].copy(), 1)
    wrong: list[object] = []
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            ids, dots, _ = matrix.top_k(rows[7].copy(), 1)
            if ids[0] != 7 or dots[0] != top[1][0]:
                wrong.append((ids, dots))
            if matrix.dots(rows[7].copy())[7] != top[1][0]:
                wrong.append("dots")

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        matrix.append(np.zeros((400, 384), dtype=np.int8))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(matrix) == 20000


@settings(max_examples=80, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 30)),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
def test_quantization(rows: np.ndarray):
    codes, scales = _core.quantize_rows(rows)
    largest = np.abs(rows).max(axis=1)
    assert np.array_equal(scales, (largest / np.float32(127)).astype(np.float32))
    for row, code, bound in zip(rows, codes, largest, strict=True):
        if bound == 0:
            assert not code.any()
            continue
        assert np.abs(code.astype(int)).max() == 127
        step = float(bound) / 127
        assert np.all(np.abs(code * step - row.astype(np.float64)) <= step / 2 * (1 + 1e-6))


def test_quantization_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="finite"):
        _core.quantize_rows(np.array([[1.0, np.nan]], dtype=np.float32))
