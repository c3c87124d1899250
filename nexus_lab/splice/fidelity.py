"""Fidelity of a splice against the full prefill, beside the model's own noise floor.

The comparison prefill is a run of its own, on its own sequence, and part of no reported time to first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal, cast
from weakref import WeakKeyDictionary

import numpy as np

from nexus_lab.engine.errors import ContextFull
from nexus_lab.errors import Decline, NexusError
from nexus_lab.splice.drift import KVDrift, key_value_drift
from nexus_lab.splice.measures import Fidelity, compare_logits
from nexus_lab.splice.samples import SYSTEM_PROMPT, sample_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine
    from nexus_lab.splice.base import SpliceResult

__all__ = ["NoiseFloor", "Shadow", "logits_of", "no_room", "noise_floor", "prompt_tokens", "shadow_prefill"]

# The floor has a heavy tail and differs between texts by a factor of three, so one text is not enough.
_FLOOR_TEXTS, _FLOOR_CONTEXT, _FLOOR_PROBE = 3, 256, 64
_SPLIT = 96
_SEED = 20_001

_floors: WeakKeyDictionary[Engine, NoiseFloor] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """D_KL between exact computations of the same tokens, which differ only in the order of their sums.

    Attributes
    ----------
    permuted
        The context's rows lie in other cells.
    batch_split
        The tokens are cut into other decode calls.
    n_context
        Tokens of context it was measured behind.
    """

    permuted: Fidelity
    batch_split: Fidelity
    n_context: int

    @property
    def dkl(self) -> float:
        """The larger mean of the two, in nats."""
        return max(self.permuted.dkl_mean, self.batch_split.dkl_mean)

    @property
    def dkl_p95(self) -> float:
        """The larger 95th percentile of the two, in nats."""
        return max(self.permuted.dkl_p95, self.batch_split.dkl_p95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A full prefill beside a splice.

    Attributes
    ----------
    fidelity
        Of the next token after block and rest; ``None`` when the shadow was declined.
    drift
        Of the block's K and V rows, per layer and head; ``None`` unless it was asked for.
    seconds
        What the shadow took, apart from every time to first token.
    declined
        Why there is none.
    """

    fidelity: Fidelity | None
    drift: KVDrift | None
    seconds: float
    declined: Decline | None = None


def prompt_tokens(engine: Engine, n_tokens: int, *, seed: int, system: str = SYSTEM_PROMPT) -> list[int]:
    """Return `n_tokens` tokens of a sample conversation under the model's own chat template."""
    return sample_tokens(
        n_tokens,
        seed=seed,
        render=lambda messages: engine.render_chat(messages, add_generation_prompt=False),
        tokenize=engine.tokenize,
        system=system,
    )


def shadow_prefill(
    engine: Engine,
    seq: int,
    result: SpliceResult,
    tokens: Sequence[int],
    rest: Sequence[int],
    *,
    floor: NoiseFloor | None = None,
    drift: bool = False,
) -> Shadow:
    """Prefill the block as text behind the same live tokens, and compare what the model says.

    Parameters
    ----------
    engine, seq
        The sequence that was spliced; it is read, and stays as it is.
    result
        What `splice_block` returned for it, with logits.
    tokens, rest
        The block's tokens, and those that followed it.
    floor
        Noise floor to stand beside the result.
    drift
        Compare the block's K and V rows as well.

    Notes
    -----
    The shadow's cells are others than the splice's, so even a perfect splice shows the noise floor here.
    """
    if result.logits is None:
        raise NexusError(
            "the splice gave no logits to compare", next_step="splice with the rest of the prompt"
        )
    started = perf_counter()
    stop = result.n_past + result.n_tokens
    needed = len(tokens) + len(rest)
    with engine.turn(), engine.scratch_sequence() as scratch:
        try:
            engine.make_room(needed)
        except ContextFull as error:
            return Shadow(
                fidelity=None,
                drift=None,
                seconds=perf_counter() - started,
                declined=no_room(error),
            )
        if result.n_past:
            engine.copy_sequence(seq, scratch, 0, result.n_past)
        engine.prefill(scratch, tokens, start=result.n_past, logits="none")
        logits = logits_of(engine, scratch, rest, "last")
        rows = _block_drift(engine, scratch, seq, result.n_past, stop) if drift else None
    fidelity = compare_logits(logits, result.logits, noise_floor=None if floor is None else floor.dkl)
    return Shadow(fidelity=fidelity, drift=rows, seconds=perf_counter() - started)


def no_room(error: ContextFull) -> Decline:
    """Return the decline of a comparison for which the cells are missing."""
    reason = f"the comparison needs {error.needed} cells beside the conversation, and {error.free} are free"
    return Decline("shadow_no_room", reason, "no fidelity for this splice")


def _block_drift(engine: Engine, reference: int, spliced: int, start: int, stop: int) -> KVDrift:
    states = [engine.save_state(seq, start=start, stop=stop) for seq in (reference, spliced)]
    return key_value_drift(*states, n_head_kv=engine.info.n_head_kv, start=start, stop=stop)


def noise_floor(engine: Engine) -> NoiseFloor:
    """Measure the model's noise floor, or return what was measured for this engine before.

    The first time takes about 350 free cells and the prefill of some 1,500 tokens.
    """
    found = _floors.get(engine)
    if found is None:
        found = _floors[engine] = _measure_floor(engine)
    return found


def _measure_floor(engine: Engine) -> NoiseFloor:
    pairs = [_permuted(engine, number) for number in range(_FLOOR_TEXTS)]
    context, probe = _floor_tokens(engine, 0)
    with engine.turn(), engine.scratch_sequence() as seq:
        for first in range(0, len(context), _SPLIT):
            engine.prefill(seq, context[first : first + _SPLIT], logits="none")
        split = logits_of(engine, seq, probe, "all")
    reference, other = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
    return NoiseFloor(
        permuted=compare_logits(reference, other),
        batch_split=compare_logits(pairs[0][0], split),
        n_context=len(context),
    )


def _permuted(engine: Engine, number: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits over one text, with the rows of its context in order, and in cells drawn at random."""
    context, probe = _floor_tokens(engine, number)
    with engine.turn():
        with engine.scratch_sequence() as seq:
            engine.prefill(seq, context, start=0, logits="none")
            state = engine.save_state(seq)
            reference = logits_of(engine, seq, probe, "all")
        with engine.scratch_sequence() as seq:
            order = np.random.default_rng(number).permutation(state.n_cells)
            engine.restore_state(state.take(order), seq)
            return reference, logits_of(engine, seq, probe, "all")


def _floor_tokens(engine: Engine, number: int) -> tuple[list[int], list[int]]:
    tokens = prompt_tokens(engine, _FLOOR_CONTEXT + _FLOOR_PROBE, seed=_SEED + number)
    return tokens[:_FLOOR_CONTEXT], tokens[_FLOOR_CONTEXT:]


def logits_of(
    engine: Engine, seq: int, tokens: Sequence[int], which: Literal["last", "all"]
) -> NDArray[np.float32]:
    """Append `tokens` and return their logits, float32 [n_vocab] or [n_tokens, n_vocab]."""
    return cast("NDArray[np.float32]", engine.prefill(seq, tokens, logits=which))
