"""Carrying the shift of a block's recomputed head over to the keys of the tokens that are spliced.

Keys depend on what stands before them, and those of one block move in part together: by a shift that all its
tokens have in common once their rotation is undone. The head, which the leading repair computes in its true
context anyway, shows that shift. Values have less in common: adding their shift as well did not help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine import rotate_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.engine.rope import RopeParameters
    from nexus_lab.splice.blocks import ToolBlock

__all__ = ["LEAST_HEAD", "add_shift", "common_shift", "head_shift"]

LEAST_HEAD = 16
"""Tokens of a head below which it says too little, and nothing is carried."""

# The first tokens behind a message's end are drawn to it more than any other.
_SKIPPED = 4


def head_shift(
    engine: Engine, seq: int, block: ToolBlock, *, n_past: int, n_head: int
) -> list[NDArray[np.float32]] | None:
    """Return how far the keys of a recomputed head lie from the compiled ones in common.

    Parameters
    ----------
    seq
        Sequence that holds the first `n_head` tokens of the block, computed there, from position `n_past` on.

    Returns
    -------
    list of float32 [width] or None
        For each layer, without rotation, as `common_shift` shrinks it; ``None`` for a short head.
    """
    if n_head < LEAST_HEAD:
        return None
    live = engine.save_state(seq, start=n_past, stop=n_past + n_head)
    live = live.take(live.order())
    compiled = block.rows_at(engine, n_past, stop=n_head)
    moved = [live.key(layer) - compiled.key(layer) for layer in range(live.n_layer)]
    if engine.info.rope is not None:
        rotate_keys(moved, -live.positions, engine.info.rope)
    return [common_shift(rows[_SKIPPED:]) for rows in moved]


def common_shift(moved: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return what the rows have in common, as far as their first half foretells their second.

    Parameters
    ----------
    moved
        float [n, width]: how far each row moved.

    Returns
    -------
    float32 [width]
        The mean, times the coefficient, between 0 and 1, of the regression of the second half's mean on the
        first's; rows that move each for itself have about 0.
    """
    rows = np.asarray(moved, np.float32)
    half = len(rows) // 2
    first, second = rows[:half].mean(axis=0), rows[half:].mean(axis=0)
    power = float(first @ first)
    share = min(max(float(first @ second) / power, 0.0), 1.0) if power > 0 else 0.0
    shift: NDArray[np.float32] = share * rows.mean(axis=0)
    return shift


def add_shift(rows: SequenceState, shift: Sequence[NDArray[np.float32]], rope: RopeParameters | None) -> None:
    """Add an unrotated shift, float32 [width] for each layer, to the keys of `rows` where they stand."""
    turned = [np.tile(layer.astype(np.float16), (rows.n_cells, 1)) for layer in shift]
    if rope is not None:
        rotate_keys(turned, rows.positions, rope)
    for layer, added in enumerate(turned):
        keys = rows.key(layer)
        keys += added
