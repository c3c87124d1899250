"""How fast is the scan of the INT8 lookaside buffer, beside faiss and numkong on the same codes?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab import _core
from nexus_lab.bench.base import Result, ResultFile, ResultsError, median_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["DIMS", "ROWS", "SYSTEMS", "Hits", "run"]

ROWS = (250, 1_000, 10_000, 100_000)
DIMS = (384, 768)
_N_QUERIES = 16
_BURST_SECONDS = 0.004
_MAX_BURST = 64


@dataclass(frozen=True, slots=True)
class Hits:
    """What one search found: the best rows, best first, and by how much the first leads."""

    ids: NDArray[Any]
    dots: NDArray[Any]
    margin: int


# Searches with the query of a number; each system has its queries in the form it likes best.
Search = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class _System:
    """One contestant on one matrix; `read` turns what `search` returns into hits, outside of the timing."""

    search: Search
    read: Callable[[Any], Hits]
    form: str


@dataclass(frozen=True, slots=True)
class _Plan:
    systems: tuple[str, ...]
    k: int
    rounds: int
    seconds: float
    seed: int


def run(
    *,
    rows: Sequence[int] = ROWS,
    dims: Sequence[int] = DIMS,
    systems: Sequence[str] | None = None,
    k: int = 3,
    rounds: int = 15,
    seconds: float = 0.5,
    seed: int = 0,
) -> ResultFile:
    """Time scan, top-k and margin, the Python call included, one thread each.

    The systems search the same codes with the same queries. A round gives each a burst of calls, the first
    of which is not counted, so that drifts of the machine meet all alike and every burst finds its own
    matrix in the caches that hold it.

    Parameters
    ----------
    systems
        Names out of `SYSTEMS`; all by default.
    rounds, seconds
        A case ends when it has had this many rounds and, for each system, this much time.

    Returns
    -------
    ``median_us`` and ``exact`` (share of queries answered as the int32 reference does) per case and system;
    ``median_us_ratio`` of ours to each peer, round by round; ``gb_per_s`` that our scan reads, and
    ``copy_gb_per_s``: bytes read plus bytes written by a copy of the same codes.

    Raises
    ------
    ResultsError
        When a peer is not installed, or our own scan differs from the reference.
    """
    plan = _Plan(tuple(systems if systems is not None else SYSTEMS), k, rounds, seconds, seed)
    _check(plan.systems)
    results: list[Result] = []
    forms: dict[str, str] = {}
    with _one_thread(plan.systems):
        for dim in dims:
            for n in rows:
                results += _measure_case(n, dim, plan, forms)
    settings = {
        "k": k,
        "rounds": rounds,
        "seconds": seconds,
        "seed": seed,
        "queries": _N_QUERIES,
        "kernel": _core.Int8Matrix(1).kernel,
        "forms": forms,
    }
    return ResultFile.now("bench slb", results, settings=settings, threads=1)


def _check(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise ResultsError(f"no system {unknown[0]!r}", next_step=f"choose among {', '.join(SYSTEMS)}")
    for name, module in (("faiss_sq8", "faiss"), ("numkong", "numkong")):
        if name in names:
            try:
                __import__(module)
            except ImportError as error:
                raise ResultsError(
                    f"{module} is not installed", next_step="pip install 'nexus_lab[bench]'"
                ) from error


@contextmanager
def _one_thread(names: Sequence[str]) -> Iterator[None]:
    """Hold faiss to one thread; the others have one anyway."""
    if "faiss_sq8" not in names:
        yield
        return
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _codes(n: int, dim: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Quantized rows of a normal distribution, int8 [n, dim]."""
    codes = np.empty((n, dim), dtype=np.int8)
    for start in range(0, n, 4096):
        values = rng.standard_normal((min(4096, n - start), dim), dtype=np.float32)
        codes[start : start + 4096] = _core.quantize_rows(values)[0]
    return codes


def _measure_case(n: int, dim: int, plan: _Plan, forms: dict[str, str]) -> list[Result]:
    """Measure one matrix; `forms` is told how each system searched it."""
    rng = np.random.default_rng(plan.seed)
    rows, queries = _codes(n, dim, rng), _codes(_N_QUERIES, dim, rng)
    contestants = {name: SYSTEMS[name](rows, queries, plan.k) for name in plan.systems}
    results = []
    for name, system in contestants.items():
        forms[f"{name} {n}x{dim}"] = system.form
        exact = _share_exact(system, rows, queries, plan.k)
        case = {"rows": n, "dim": dim, "system": name}
        if name == "nexus" and exact != 1.0:
            raise ResultsError(f"the scan of {n} x {dim} is right for {exact:.0%} of the queries only")
        results.append(Result(case=case, metric="exact", value=exact, n=_N_QUERIES))
    searches = {name: system.search for name, system in contestants.items()}
    times = _time_rounds({**searches, "copy": _copier(rows)}, plan)
    return results + _figures(times, n, dim)


def _figures(times: Mapping[str, list[NDArray[np.float64]]], n: int, dim: int) -> list[Result]:
    """Medians, ratios and bandwidths of one case, from each system's bursts in microseconds."""
    medians = {name: np.array([np.median(burst) for burst in bursts]) for name, bursts in times.items()}
    copy = medians.pop("copy")
    case = {"rows": n, "dim": dim}
    # Calls of one burst are alike, so that bursts are what an interval may count.
    results = [
        median_interval(bursts, case={**case, "system": name}, metric="median_us", unit="us")
        for name, bursts in medians.items()
    ]
    kilobytes = n * dim / 1e3  # over microseconds: GB/s
    results.append(
        median_interval(2 * kilobytes / copy, case=case, metric="copy_gb_per_s", unit="GB/s"),
    )
    if "nexus" in medians:
        ours = medians.pop("nexus")
        own_case = {**case, "system": "nexus"}
        results.append(median_interval(kilobytes / ours, case=own_case, metric="gb_per_s", unit="GB/s"))
        results += [
            median_interval(ours / theirs, case={**own_case, "peer": peer}, metric="median_us_ratio")
            for peer, theirs in medians.items()
        ]
    return results


def _time_rounds(calls: Mapping[str, Search], plan: _Plan) -> dict[str, list[NDArray[np.float64]]]:
    """Bursts of call times in microseconds, interleaved."""
    bursts = {name: _burst_length(call) for name, call in calls.items()}
    times: dict[str, list[NDArray[np.float64]]] = {name: [] for name in calls}
    order = list(calls)
    deadline = time.perf_counter() + plan.seconds * len(calls)
    done = 0
    while done < plan.rounds or time.perf_counter() < deadline:
        for name in order:
            times[name].append(_burst(calls[name], bursts[name]))
        order.append(order.pop(0))  # nobody always follows the same neighbour
        done += 1
    return times


def _burst_length(call: Search) -> int:
    call(0)
    start = time.perf_counter()
    call(1)
    return int(np.clip(_BURST_SECONDS / (time.perf_counter() - start), 2, _MAX_BURST))


def _burst(call: Search, n: int) -> NDArray[np.float64]:
    clock = time.perf_counter_ns
    call(0)
    times = np.empty(n)
    for i in range(n):
        query = i % _N_QUERIES
        start = clock()
        call(query)
        times[i] = clock() - start
    return times / 1e3


def _copier(rows: NDArray[np.int8]) -> Search:
    target = np.empty_like(rows)
    return lambda _query: np.copyto(target, rows)


def _share_exact(system: _System, rows: NDArray[np.int8], queries: NDArray[np.int8], k: int) -> float:
    """Share of queries whose dot products and margin are the reference's, and whose ids have those dots."""
    right = 0
    for i, query in enumerate(queries):
        reference = _reference_dots(rows, query)
        best = np.sort(reference)[::-1][: max(k, 2)]
        hits = system.read(system.search(i))
        right += (
            np.array_equal(hits.dots, best[:k])
            and np.array_equal(reference[hits.ids], hits.dots)
            and hits.margin == int(best[0] - best[1])
        )
    return right / len(queries)


def _reference_dots(rows: NDArray[np.int8], query: NDArray[np.int8]) -> NDArray[np.int32]:
    wide = query.astype(np.int32)
    blocks = [rows[i : i + 8192].astype(np.int32) @ wide for i in range(0, len(rows), 8192)]
    return np.concatenate(blocks)


def _nexus(rows: NDArray[np.int8], queries: NDArray[np.int8], k: int) -> _System:
    matrix = _core.Int8Matrix(rows.shape[1])
    matrix.append(rows)
    each = list(queries)
    return _System(lambda i: matrix.top_k(each[i], k), lambda found: Hits(*found), "Int8Matrix.top_k")


def _faiss(rows: NDArray[np.int8], queries: NDArray[np.int8], k: int) -> _System:
    import faiss

    quantizer = faiss.ScalarQuantizer.QT_8bit_direct_signed
    index = faiss.IndexScalarQuantizer(rows.shape[1], quantizer, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(rows), 8192):
        index.add(rows[start : start + 8192].astype(np.float32))
    each = [query[None].astype(np.float32) for query in queries]
    wanted = max(k, 2)

    def search(i: int) -> tuple[NDArray[np.float32], NDArray[np.int64], float]:
        dots, ids = index.search(each[i], wanted)
        return dots[0], ids[0], dots[0, 0] - dots[0, 1]

    def read(found: tuple[NDArray[np.float32], NDArray[np.int64], float]) -> Hits:
        dots, ids, margin = found
        return Hits(ids[:k], dots[:k].astype(np.int64), int(margin))

    return _System(search, read, "IndexScalarQuantizer(QT_8bit_direct_signed).search")


def _numkong(rows: NDArray[np.int8], queries: NDArray[np.int8], k: int) -> _System:
    """Whichever of its two ways to many dot products is the faster for this matrix, then a partition."""
    import numkong

    packed = numkong.dots_pack(rows)
    each = [query[None] for query in queries]
    ways: dict[str, Search] = {
        "cdist": lambda i: numkong.cdist(each[i], rows, metric="dot"),
        "dots_packed": lambda i: numkong.dots_packed(each[i], packed),
    }
    form = min(ways, key=lambda name: min(_burst(ways[name], 5)))
    dots_of, wanted = ways[form], max(k, 2)

    def search(i: int) -> tuple[NDArray[np.int64], NDArray[Any], float]:
        dots = np.asarray(dots_of(i))[0]
        ids = np.argpartition(dots, len(dots) - wanted)[len(dots) - wanted :]
        ids = ids[np.argsort(-dots[ids])]
        best = dots[ids]
        return ids, best, best[0] - best[1]

    def read(found: tuple[NDArray[np.int64], NDArray[Any], float]) -> Hits:
        ids, dots, margin = found
        return Hits(ids[:k], dots[:k].astype(np.int64), int(margin))

    return _System(search, read, f"{form}, argpartition")


SYSTEMS: Mapping[str, Callable[[NDArray[np.int8], NDArray[np.int8], int], _System]] = {
    "nexus": _nexus,
    "faiss_sq8": _faiss,
    "numkong": _numkong,
}
