"""How much faster missing state is restored at once than segment by segment, and whether it is the same."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import ResultsError, median_interval, proportion
from nexus_lab.cache import Append, CacheProgram, Drop, ProgramRunner, Repos
from nexus_lab.splice import kl_divergence, prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab.bench.base import Result
    from nexus_lab.cache import RunResult
    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.errors import Decline

__all__ = ["SEGMENTS", "RestoreDeclined", "measure_restore", "program_with_drops"]

SEGMENTS = (2, 4, 8, 16)
"""Tokens of a segment."""
_TAKEN = 5
_NEEDED = ("splice", "input_patches")


class RestoreDeclined(ResultsError):
    """An engine that cannot restore at once.

    Attributes
    ----------
    declined
        Why.
    """

    def __init__(self, declined: Decline) -> None:
        super().__init__(f"not restored at once: {declined.reason}", next_step="choose an engine that can")
        self.declined = declined


def measure_restore(
    engine: Engine,
    *,
    drops: int = 10,
    segments: Sequence[int] = SEGMENTS,
    repos_every: Sequence[int] = (0, 5),
    rounds: int = 7,
    tokens: Sequence[int] | None = None,
) -> list[Result]:
    """Restore programs of segments with a drop before each but the first, in both ways by turns.

    Parameters
    ----------
    engine
        Whose cells are all free; what it does for others meanwhile would be timed too.
    drops
        Drops of a program; each takes the older half of a segment.
    segments
        Tokens of a segment, one case each.
    repos_every
        After how many drops there is a repos, one case each; 0 for none at all.
    rounds
        Programs of each case; each is restored in both ways.
    tokens
        What the programs are made of; a sample conversation by default.

    Returns
    -------
    For each case ``restore_speedup``, segment by segment over at once, in wall time without the keeping of
    snapshots, and ``restore_s``. ``restore_exact`` is the share of restores whose rows and logits are, bit
    for bit, those of the same steps where no cell is used twice; a repos moves rows to cells of its own, so
    that there it is not expected. ``restore_dkl`` is that of the logits against segment by segment as it goes
    by itself, and ``noise_dkl`` what the same steps differ by in other cells or other batches: the largest of
    two placements and of one token at a time.

    Raises
    ------
    ResultsError
        When cells are in use, or they are too few.
    RestoreDeclined
        When this engine declines to restore at once.
    """
    for feature in _NEEDED:
        if feature in engine.declines:
            raise RestoreDeclined(engine.declines[feature])
    if engine.used_cells():
        raise ResultsError(f"{engine.used_cells()} cells are in use", next_step="give an engine of its own")
    needed = (drops + 1) * max(segments) + rounds
    if needed > engine.n_ctx:
        raise ResultsError(f"{needed} tokens in {engine.n_ctx} cells", next_step="load with a larger n_ctx")
    text = prompt_tokens(engine, needed, seed=0) if tokens is None else list(tokens)
    results = []
    for size in segments:
        for every in repos_every:
            # Each round has a text of its own, so that what is compared is not one program over and over.
            programs = [
                program_with_drops(text[turn:], drops=drops, size=size, repos_every=every)
                for turn in range(rounds)
            ]
            case = {"drops": drops, "segment_tokens": size, "repos_every": every}
            results += _case(engine, programs, case)
    return results


def program_with_drops(text: Sequence[int], *, drops: int, size: int, repos_every: int = 0) -> CacheProgram:
    """Return segments of `size` tokens of `text`, half of each dropped before the next."""
    words = [text[i % len(text)] for i in range((drops + 1) * size)]
    program = CacheProgram().append(words[:size])
    for number in range(1, drops + 1):
        start = (number - 1) * size
        program = program.drop((start + size // 4, start + 3 * size // 4))
        if repos_every and number % repos_every == 0:
            program = program.repos()
        program = program.append(words[number * size : (number + 1) * size])
    return program


def _case(engine: Engine, programs: Sequence[CacheProgram], case: dict[str, int]) -> list[Result]:
    times: dict[str, list[float]] = {"by_segment": [], "at_once": []}
    exact, far, noise = [], [], []
    for program in programs:
        wanted = _apart(engine, program)
        with _restored(engine, program, at_once=False) as stepwise:
            times["by_segment"].append(_seconds(stepwise))
        with _restored(engine, program, at_once=True) as result:
            _insist(result)
            times["at_once"].append(_seconds(result))
            exact.append(_same((engine.save_state(result.seq), result.logits), wanted))
        far.append(_dkl(stepwise.logits, result.logits))
        others = (wanted[1], _shifted(engine, program), _by_token(engine, program))
        noise.append(max(_dkl(stepwise.logits, other) for other in others))
    own = {**case, "system": "full"}
    return [
        *_timed(times, case),
        proportion(sum(exact), len(exact), case=own, metric="restore_exact"),
        median_interval(far, case=own, metric="restore_dkl", unit="nat"),
        median_interval(noise, case=own, metric="noise_dkl", unit="nat"),
    ]


def _insist(result: RunResult) -> None:
    restored = result.restored
    if restored is not None and restored.declined is not None:
        raise RestoreDeclined(restored.declined)
    if restored is None or not restored.passes:
        raise ResultsError(f"not restored at once: {restored}", next_step="report this")


def _timed(times: dict[str, list[float]], case: dict[str, int]) -> list[Result]:
    speedup = np.array(times["by_segment"]) / np.array(times["at_once"])
    compared = {**case, "system": "full", "peer": "by_segment"}
    return [
        median_interval(speedup, case=compared, metric="restore_speedup", unit="x"),
        *(
            median_interval(seconds, case={**case, "system": name}, metric="restore_s", unit="s")
            for name, seconds in times.items()
        ),
    ]


@contextmanager
def _restored(engine: Engine, program: CacheProgram, *, at_once: bool) -> Iterator[RunResult]:
    """Restore into an empty cache, from nothing."""
    engine.clear()
    with ProgramRunner(engine) as runner:
        yield runner.run(program, at_once=at_once)


def _seconds(result: RunResult) -> float:
    return sum(record.seconds for record in result.records)


def _shifted(engine: Engine, program: CacheProgram) -> NDArray[np.float32] | None:
    """Go segment by segment behind cells that are taken; returns the logits."""
    engine.clear()
    seq = engine.acquire_sequence()
    try:
        engine.prefill(seq, program.layout.tokens[:_TAKEN], logits="none")
        with ProgramRunner(engine) as runner:
            return runner.run(program).logits
    finally:
        engine.release_sequence(seq)


def _by_token(engine: Engine, program: CacheProgram) -> NDArray[np.float32] | None:
    """Go token by token, which sums in another order than a batch; returns the logits."""
    engine.clear()
    with ProgramRunner(engine) as runner:
        for op in program.ops:
            parts = [Append((token,)) for token in op.tokens] if isinstance(op, Append) else [op]
            for part in parts:
                result = runner.step(part)
        return result.logits


def _dkl(one: NDArray[np.float32] | None, two: NDArray[np.float32] | None) -> float:
    if one is None or two is None:
        raise ResultsError("a restore ended without logits", next_step="report this")
    return float(kl_divergence(one, two)[0])


def _apart(engine: Engine, program: CacheProgram) -> tuple[SequenceState, NDArray[np.float32] | None]:
    """Go segment by segment while others keep the dropped cells: rows stand where one pass puts them."""
    engine.clear()
    holders = [engine.acquire_sequence()]
    try:
        with ProgramRunner(engine) as runner:
            for op in program.ops:
                if isinstance(op, Drop) and runner.seq is not None:
                    places = runner.snapshot.state.positions
                    for first, last in op.ranges:
                        engine.copy_sequence(
                            runner.seq, holders[-1], int(places[first]), int(places[last - 1]) + 1
                        )
                elif isinstance(op, Repos):  # from here on positions are in use that the holder has
                    holders.append(engine.acquire_sequence())
                result = runner.step(op)
            return engine.save_state(result.seq), result.logits
    finally:
        for holder in holders:
            engine.release_sequence(holder)


def _same(one: tuple[SequenceState, Any], two: tuple[SequenceState, Any]) -> bool:
    (left, left_logits), (right, right_logits) = one, two
    a, b = left.order(), right.order()
    return (
        np.array_equal(left_logits, right_logits)
        and np.array_equal(left.positions[a], right.positions[b])
        and all(
            np.array_equal(left.key(layer)[a], right.key(layer)[b])
            and np.array_equal(left.value(layer)[a], right.value(layer)[b])
            for layer in range(left.n_layer)
        )
    )
