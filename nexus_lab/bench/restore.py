"""How much faster missing state is restored at once than segment by segment, and whether it is the same."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultsError, median_interval, proportion
from nexus_lab.cache import Append, CacheProgram, ProgramRunner
from nexus_lab.splice import kl_divergence, prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from nexus_lab.cache import RunResult
    from nexus_lab.engine import Engine, SequenceState

__all__ = ["SEGMENTS", "measure_restore", "program_with_drops"]

SEGMENTS = (2, 4, 8, 16, 32)
"""Tokens of a segment."""


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
        Restores in each way.
    tokens
        What the programs are made of; a sample conversation by default.

    Returns
    -------
    For each case ``restore_speedup``, segment by segment over at once, in wall time without the keeping of
    snapshots, and ``restore_s``. Without a repos ``restore_exact``, the share of restores whose rows and
    logits are, bit for bit, those of the same steps in the same cells. With one, which moves cells,
    ``restore_dkl`` of the logits against segment by segment, beside ``noise_dkl``: that of segment by segment
    in other cells.

    Raises
    ------
    ResultsError
        When cells are in use, they are too few, or this engine declines to restore at once.
    """
    if engine.used_cells():
        raise ResultsError(f"{engine.used_cells()} cells are in use", next_step="give an engine of its own")
    needed = (drops + 1) * max(segments)
    text = prompt_tokens(engine, needed, seed=0) if tokens is None else list(tokens)
    results = []
    for size in segments:
        for every in repos_every:
            program = program_with_drops(text, drops=drops, size=size, repos_every=every)
            case = {"drops": drops, "segment_tokens": size, "repos_every": every}
            results += _case(engine, program, case, rounds)
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


def _case(engine: Engine, program: CacheProgram, case: dict[str, int], rounds: int) -> list[Result]:
    if len(program.layout) > engine.n_ctx:
        raise ResultsError(
            f"{len(program.layout)} tokens in {engine.n_ctx} cells", next_step="load with a larger n_ctx"
        )
    each = {"at_once": [], "by_segment": []}  # type: dict[str, list[float]]
    exact, far = [], []
    wanted = None if case["repos_every"] else _by_hand(engine, program)
    for _ in range(rounds):
        with _restored(engine, program, at_once=False) as stepwise:
            each["by_segment"].append(_seconds(stepwise))
            behind = stepwise.logits
        with _restored(engine, program, at_once=True) as result:
            if result.restored is None or result.restored.declined is not None:
                raise ResultsError(f"not restored at once: {result.restored}")
            each["at_once"].append(_seconds(result))
            far.append(_dkl(behind, result.logits))
            if wanted is not None:
                exact.append(_same((engine.save_state(result.seq), result.logits), wanted))
    speedup = np.array(each["by_segment"]) / np.array(each["at_once"])
    results = [
        median_interval(
            speedup, case={**case, "system": "full", "peer": "by_segment"}, metric="restore_speedup", unit="x"
        ),
        *(
            median_interval(seconds, case={**case, "system": name}, metric="restore_s", unit="s")
            for name, seconds in each.items()
        ),
    ]
    own = {**case, "system": "full"}
    if exact:
        return [*results, proportion(sum(exact), len(exact), case=own, metric="restore_exact")]
    noise = _noise(engine, program)
    return [
        *results,
        median_interval(far, case=own, metric="restore_dkl", unit="nat"),
        Result(case=own, metric="noise_dkl", value=noise, n=1, unit="nat"),
    ]


@contextmanager
def _restored(engine: Engine, program: CacheProgram, *, at_once: bool) -> Iterator[RunResult]:
    """Restore into an empty cache, from nothing."""
    engine.clear()
    with ProgramRunner(engine) as runner:
        yield runner.run(program, at_once=at_once)


def _seconds(result: RunResult) -> float:
    return sum(record.seconds for record in result.records)


def _noise(engine: Engine, program: CacheProgram) -> float:
    """D_KL between two restores segment by segment that stand in other cells."""
    with _restored(engine, program, at_once=False) as one, ProgramRunner(engine) as beside:
        return _dkl(one.logits, beside.run(program).logits)


def _dkl(one: NDArray[np.float32] | None, two: NDArray[np.float32] | None) -> float:
    if one is None or two is None:
        raise ResultsError("a restore ended without logits", next_step="report this")
    return float(kl_divergence(one, two)[0])


def _by_hand(engine: Engine, program: CacheProgram) -> tuple[SequenceState, NDArray[np.float32] | None]:
    """Do appends and drops one by one, while another sequence keeps dropped cells from being taken again."""
    engine.clear()
    logits = None
    before = CacheProgram().layout
    with engine.scratch_sequence() as seq, engine.scratch_sequence() as holder:
        for prefix in list(program.prefixes())[1:]:
            after, op = prefix.layout, prefix.ops[-1]
            if isinstance(op, Append):
                logits = engine.prefill(seq, op.tokens, start=before.next_position)
            else:
                lost = before.positions[: len(after)][before.active & ~after.active]
                engine.copy_sequence(seq, holder, int(lost[0]), int(lost[-1]) + 1)
                engine.remove(seq, int(lost[0]), int(lost[-1]) + 1)
            before = after
        return engine.save_state(seq), logits


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
