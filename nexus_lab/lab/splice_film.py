"""A splice step by step: header, rotate, write, invalidate, redecode, carry; with the drift after each step.

The film runs on a sequence of its own. It takes other roads than the splice of a turn only in that the repair
is cut into pieces and rows are read between the steps; reading is not part of any step's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.shift import add_shift
from nexus_lab.splice import RepairKind, row_drift
from nexus_lab.splice.carry import head_shift
from nexus_lab.trace.text import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.splice import RepairPlan, ToolBlock

__all__ = ["MEASURES", "BlockRows", "FilmStep", "play"]

MEASURES = ("absolute", "relative", "signed")
_PIECES = 4


@dataclass(frozen=True, slots=True)
class FilmStep:
    """One step of a splice: its name, a few words, and milliseconds."""

    name: str
    detail: str
    ms: float


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """K and V rows of a block in token order, one float16 [n_tokens, width] per layer."""

    keys: tuple[NDArray[np.float16], ...]
    values: tuple[NDArray[np.float16], ...]

    @classmethod
    def of(cls, state: SequenceState) -> BlockRows:
        """Copy the rows of `state`, in position order."""
        order, layers = state.order(), range(state.n_layer)
        return cls(
            tuple(state.key(layer)[order] for layer in layers),
            tuple(state.value(layer)[order] for layer in layers),
        )

    def drift(self, states: Sequence[SequenceState], *, first: int, n_head_kv: int) -> NDArray[np.float32]:
        """Compare with the rows in `states`, which may lack tokens.

        Parameters
        ----------
        states
            Parts of the block; together they hold each token at most once.
        first
            Position of the block's first token in them.

        Returns
        -------
        numpy.ndarray
            float32 [2, 3, n_layer, n_head_kv]: K and V by `MEASURES`; NaN where no token is left.
        """
        held = [state for state in states if state.n_cells]
        out = np.full((2, len(MEASURES), len(self.keys), n_head_kv), np.nan, np.float32)
        if not held:
            return out
        index = np.concatenate([state.positions for state in held]) - first
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            found = np.concatenate([state.key(layer) for state in held])
            out[0, :, layer] = row_drift(keys[index], found, n_head_kv=n_head_kv)
            found = np.concatenate([state.value(layer) for state in held])
            out[1, :, layer] = row_drift(values[index], found, n_head_kv=n_head_kv)
        return out


@dataclass(slots=True)
class _Film:
    """The sequence, the block, and what was filmed so far."""

    engine: Engine
    seq: int
    parked: int
    block: ToolBlock
    plan: RepairPlan
    n_past: int
    reference: BlockRows | None
    watch: Callable[[str], None]
    steps: list[FilmStep]
    frames: list[NDArray[np.float32]]

    @property
    def end(self) -> int:
        return self.n_past + self.block.n_tokens

    def take(
        self,
        name: str,
        detail: str,
        seconds: float,
        states: list[SequenceState] | None = None,
        first: int = 0,
    ) -> None:
        """Note a step, and the drift after it; `states` stand in for the cache where nothing is in it yet."""
        self.steps.append(FilmStep(name, detail, seconds * 1e3))
        if self.reference is not None:
            heads = self.engine.info.n_head_kv
            if states is None:
                states, first = self._cached(), self.n_past
            self.frames.append(self.reference.drift(states, first=first, n_head_kv=heads))
        self.watch(name)

    def _cached(self) -> list[SequenceState]:
        spans = [(self.seq, self.n_past), (self.parked, self.n_past)]
        return [
            self.engine.save_state(seq, start=start, stop=self.end)
            for seq, start in spans
            if self.engine.pos_max(seq) >= start
        ]


def play(
    engine: Engine,
    seq: int,
    block: ToolBlock,
    plan: RepairPlan,
    *,
    n_past: int,
    one_pass: bool = False,
    reference: BlockRows | None = None,
    watch: Callable[[str], None] = lambda _step: None,
) -> tuple[tuple[FilmStep, ...], NDArray[np.float32] | None]:
    """Splice `block` onto `seq`, which holds `n_past` tokens, and film it; the caller holds the turn.

    Parameters
    ----------
    one_pass
        Repair over the rows as they stand; by default they are taken out, and computed stretch by stretch.
    reference
        Rows of the prefilled block; without them there are no frames.
    watch
        Called after each step with its name.

    Returns
    -------
    tuple
        The steps, and float32 [n_steps, 2, 3, n_layer, n_head_kv] or ``None``.
    """
    with engine.scratch_sequence() as parked:
        film = _Film(engine, seq, parked, block, plan, n_past, reference, watch, [], [])
        _write(film)
        if one_pass:
            _repair_over(film)
        elif plan.count:
            _repair(film)
    return tuple(film.steps), np.stack(film.frames) if film.frames else None


def _write(film: _Film) -> None:
    engine, block = film.engine, film.block
    began = perf_counter()
    block.check(engine)
    seconds = perf_counter() - began
    as_compiled = [block.rows_at(engine, block.anchor)] if film.reference is not None else []
    film.take("header", "fits the model", seconds, as_compiled, block.anchor)
    began = perf_counter()
    rows = block.rows_at(engine, film.n_past)
    shift = film.n_past - block.anchor
    turned = f"{'+' if shift > 0 else '−'}{count(abs(shift))} positions" if shift else "at its anchor"
    film.take("rotate", turned, perf_counter() - began, [rows], film.n_past)
    began = perf_counter()
    engine.restore_state(rows, film.seq, append=True)
    film.take("write", size(rows.nbytes), perf_counter() - began)


def _repair_over(film: _Film) -> None:
    """Compute the plan's tokens in the places they have, piece by piece.

    A token sees those before it alone, so the pieces together give what one pass gives.
    """
    pieces = [piece for piece in np.array_split(film.plan.recomputed, _PIECES) if piece.size]
    for number, piece in enumerate(pieces, start=1):
        began = perf_counter()
        tokens = [film.block.tokens[index] for index in piece]
        film.engine.recompute(film.seq, tokens, film.n_past + piece)
        _redecoded(film, number, len(pieces), len(tokens), perf_counter() - began)


def _repair(film: _Film) -> None:
    """Take the rows from the first to be recomputed on out, then bring them back stretch by stretch.

    What follows the last of them is parked, and what lies between two comes from the block again.
    """
    engine, plan = film.engine, film.plan
    start, stop = plan.recomputed[0], plan.recomputed[-1] + 1
    tail = film.n_past + stop
    began = perf_counter()
    if tail < film.end:
        engine.copy_sequence(film.seq, film.parked, tail, -1)
    engine.remove(film.seq, film.n_past + start, -1)
    film.take("invalidate", plural(plan.count, "token"), perf_counter() - began)
    pieces = [piece for piece in np.array_split(plan.recomputed, _PIECES) if piece.size]
    for number, piece in enumerate(pieces, start=1):
        began = perf_counter()
        _decode(film, set(piece.tolist()), int(piece[-1]) + 1)
        if number == len(pieces) and tail < film.end:
            engine.copy_sequence(film.parked, film.seq, tail, -1)
            engine.remove(film.parked)
        _redecoded(film, number, len(pieces), len(piece), perf_counter() - began)
    if plan.kind is RepairKind.CARRIED:
        _carry(film, tail)


def _carry(film: _Film, tail: int) -> None:
    """Add the shift that the head's keys have in common to the keys from position `tail` on."""
    engine, began = film.engine, perf_counter()
    shift = head_shift(engine, film.seq, film.block, n_past=film.n_past, n_head=film.plan.count)
    if shift is None:
        return
    rows = engine.save_state(film.seq, start=tail).in_order()
    add_shift(rows, shift, engine.info.rope)
    engine.remove(film.seq, tail, -1)
    engine.restore_state(rows, film.seq, append=True)
    film.take("carry", f"keys of {plural(rows.n_cells, 'token')}", perf_counter() - began)


def _decode(film: _Film, chosen: set[int], stop: int) -> None:
    """Bring the sequence up to token `stop` of the block: those chosen by a prefill, the others as rows."""
    engine, block, n_past = film.engine, film.block, film.n_past
    rest = range(engine.pos_max(film.seq) + 1 - n_past, stop)
    for computed, stretch in groupby(rest, key=chosen.__contains__):
        indices = list(stretch)
        first, last = indices[0], indices[-1] + 1
        if computed:
            engine.prefill(film.seq, block.tokens[first:last], logits="none")
        else:
            engine.restore_state(block.rows_at(engine, n_past, start=first, stop=last), film.seq, append=True)


def _redecoded(film: _Film, number: int, of: int, n_tokens: int, seconds: float) -> None:
    film.take("redecode", f"{number}/{of}, {plural(n_tokens, 'token')}", seconds)
