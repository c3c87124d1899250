"""How fast the op tree finds the longest beginning of a program, beside a radix tree in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile, ResultsError, bootstrap, median_interval
from nexus_lab.bench.radix_peer import RadixPeer
from nexus_lab.cache import CacheProgram, OpTree, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PROGRAMS", "TOKENS", "run"]

PROGRAMS = (100, 1_000, 10_000)
TOKENS = (1_000, 8_000)

_VOCABULARY = 49_152
_TURN = 400
_SHARED_TOKENS = 600
_AGENTS = 20
_KEPT_TURNS = 2
_FOUND = tuple[int, int, int]

Lookup = Callable[[CacheProgram], _FOUND]


@dataclass(frozen=True, slots=True)
class _Case:
    """Programs of one size: those in the tree, and requests that part from one of them somewhere."""

    held: Sequence[CacheProgram]
    requests: Sequence[CacheProgram]


def run(
    *,
    programs: Sequence[int] = PROGRAMS,
    tokens: Sequence[int] = TOKENS,
    requests: int = 400,
    rounds: int = 5,
    seed: int = 0,
) -> ResultFile:
    """Time longest matches, the Python call included, one thread.

    The programs are states of agents' conversations: a few system prompts shared by many, then turns of which
    old ones are dropped, some with a repos behind. A request shares a random part of a cached program, then
    goes on by itself. Every answer is compared with the peer's.

    Parameters
    ----------
    programs
        Programs in the tree.
    tokens
        Most tokens of a program; it has at least a quarter of that.
    requests
        Requests of each case, in an order of its own in each round.

    Returns
    -------
    ``match_us_median`` and ``match_us_p99`` for each case and system (``nexus``, and ``python_radix``, a
    radix tree with the same semantics in Python), ``allocations_per_hit`` that the native tree made,
    ``match_us_ratio`` of ours to the peer, and ``encode_us_median``, what the words of a new program take
    before its first match.

    Raises
    ------
    ResultsError
        When the two differ.
    """
    results: list[Result] = []
    for limit in tokens:
        rng = np.random.default_rng(seed)
        population = _population(rng, max(programs), limit)
        for count in programs:
            held = population[:count]
            case = _Case(held, [_request(rng, held) for _ in range(requests)])
            results += _measured(case, {"programs": count, "tokens": limit}, rounds, rng)
    settings = {"requests": requests, "rounds": rounds, "seed": seed}
    return ResultFile.now("bench tree", results, settings=settings, threads=1)


def _population(rng: np.random.Generator, count: int, limit: int) -> list[CacheProgram]:
    """Return the states of conversations, as they are cached one after another, in random order."""
    held: list[CacheProgram] = []
    while len(held) < count:
        held += [program for program in _conversation(rng, limit) if 4 * len(program.layout) >= limit]
    return [held[i] for i in rng.permutation(len(held))[:count]]


def _conversation(rng: np.random.Generator, limit: int) -> Iterator[CacheProgram]:
    """Yield the states of a conversation: a shared system prompt, then turns; old turns are dropped."""
    agent = int(rng.integers(_AGENTS))
    opening = np.random.default_rng(agent).integers(0, _VOCABULARY, min(_SHARED_TOKENS, limit))
    program = CacheProgram().append(opening.tolist())
    turns: list[tuple[int, int]] = []
    while (start := len(program.layout)) < limit:
        stop = min(limit, start + int(rng.integers(1, 2 * _TURN)))
        program = program.append(rng.integers(0, _VOCABULARY, stop - start).tolist())
        yield program
        turns.append((start, stop))
        if len(turns) > _KEPT_TURNS:
            program = program.drop(turns.pop(0))
            program = program.repos() if agent % 2 else program
            yield program


def _request(rng: np.random.Generator, held: Sequence[CacheProgram]) -> CacheProgram:
    """Return a program that shares a random part of a cached one and then goes on by itself."""
    source = held[int(rng.integers(len(held)))]
    kept = source.prefix(int(rng.integers(1, len(source) + 1)))
    return kept.append(rng.integers(0, _VOCABULARY, 50).tolist())


def _measured(case: _Case, labels: dict[str, int], rounds: int, rng: np.random.Generator) -> list[Result]:
    words = sum(len(program.words) for program in case.held)
    tree, peer = OpTree(words), RadixPeer()
    for program in case.held:
        tree.insert(program, Tier.HOST)
        peer.insert(program)
    encode = [_encode_us(program) for program in case.requests]
    lookups: dict[str, Lookup] = {"nexus": _native(tree), "python_radix": peer.match}
    for program in case.requests:
        if lookups["nexus"](program) != lookups["python_radix"](program):
            raise ResultsError(f"the trees differ about {program!r}", next_step="report this")
    before = tree.counters()["allocations"]
    times: dict[str, list[NDArray[np.float64]]] = {name: [] for name in lookups}
    hits = 0
    for _ in range(rounds):
        order = rng.permutation(len(case.requests))
        for name, lookup in lookups.items():
            times[name].append(_times(lookup, case.requests, order))
        hits += len(order)
    allocated = tree.counters()["allocations"] - before
    return _results(times, encode, labels, allocated / hits)


def _native(tree: OpTree) -> Lookup:
    def lookup(program: CacheProgram) -> _FOUND:
        found = tree.match(program)
        return found.ops, found.op_tokens, found.tokens

    return lookup


def _encode_us(program: CacheProgram) -> float:
    began = time.perf_counter_ns()
    _ = program.words
    return (time.perf_counter_ns() - began) / 1e3


def _times(lookup: Lookup, requests: Sequence[CacheProgram], order: NDArray[Any]) -> NDArray[np.float64]:
    """Microseconds of each request, by its number."""
    clock = time.perf_counter_ns
    times = np.empty(len(requests))
    for number in order.tolist():
        program = requests[number]
        began = clock()
        lookup(program)
        times[number] = clock() - began
    return times / 1e3


def _p99(values: NDArray[Any], axis: int = 0) -> Any:
    return np.quantile(values, 0.99, axis=axis)


def _results(
    times: dict[str, list[NDArray[np.float64]]],
    encode: list[float],
    labels: dict[str, int],
    allocations: float,
) -> list[Result]:
    # A request's median over the rounds is its time: rounds of one request are alike.
    each = {name: np.median(np.stack(rounds), axis=0) for name, rounds in times.items()}
    results = []
    for name, values in each.items():
        case = {**labels, "system": name}
        results.append(median_interval(values, case=case, metric="match_us_median", unit="us"))
        results.append(bootstrap(values, _p99, case=case, metric="match_us_p99", unit="us"))
    own = {**labels, "system": "nexus"}
    ratio = each["nexus"] / each["python_radix"]
    results.append(
        median_interval(ratio, case={**own, "peer": "python_radix"}, metric="match_us_ratio"),
    )
    results.append(Result(case=own, metric="allocations_per_hit", value=allocations, n=len(encode)))
    results.append(median_interval(encode, case=own, metric="encode_us_median", unit="us"))
    return results
