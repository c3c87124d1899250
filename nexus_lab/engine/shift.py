"""What the keys of a block have in common when they move, seen on its head and carried over to the rest.

Keys depend on what stands before them, and those of one block move in part together: by a shift that all its
tokens have in common once their rotation is undone. The head, computed in its true context, shows that shift.
Values have less in common: adding their shift as well did not help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.state import rotate_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine.rope import RopeParameters
    from nexus_lab.engine.state import SequenceState

__all__ = ["LEAST_HEAD", "KeyShift", "add_shift", "common_shift", "seen_shift"]

LEAST_HEAD = 16
"""Tokens of a head below which it says too little, and nothing is carried."""

KeyShift = list["NDArray[np.float32]"]
"""For each layer float32 [width], without rotation."""

# The first tokens behind a message's end are drawn to it more than any other.
_SKIPPED = 4


def seen_shift(live: SequenceState, compiled: SequenceState, rope: RopeParameters | None) -> KeyShift | None:
    """Return how far the keys of a head lie from the compiled ones in common.

    Parameters
    ----------
    live, compiled
        The head's rows as they were computed and as they would have been spliced, at the same positions, in
        their order.

    Returns
    -------
    KeyShift or None
        As `common_shift` shrinks it; ``None`` for a short head.
    """
    if live.n_cells < LEAST_HEAD:
        return None
    moved = [live.key(layer) - compiled.key(layer) for layer in range(live.n_layer)]
    if rope is not None:
        rotate_keys(moved, -live.positions, rope)
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
