"""One sequence of the KV cache as a value: keys, values and positions that can be kept, cut and moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.errors import StateMemoryFull, StateMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab._core import BuddyArena, StateLayout
    from nexus_lab.engine.rope import RopeParameters

__all__ = ["SequenceState", "rotate_keys", "state_buffer"]


def state_buffer(n_bytes: int, arena: BuddyArena | None = None) -> NDArray[np.uint8]:
    """Return uint8 [n_bytes] to hold a state, from `arena` when one is given.

    Raises
    ------
    StateMemoryFull
        When the arena has no room.
    """
    if arena is None:
        return np.empty(n_bytes, np.uint8)
    from nexus_lab import _core

    try:
        # The block speaks the buffer protocol, which type checkers know from Python 3.12 on.
        block: Any = arena.allocate(n_bytes)
    except _core.ArenaFull as error:
        raise StateMemoryFull(
            f"no room for a state of {n_bytes} bytes: {error}",
            next_step="drop states that are no longer needed, or give the arena a larger capacity",
        ) from error
    return np.frombuffer(block, np.uint8, n_bytes)


class SequenceState:
    """Keys and values of some tokens, with the position of each, in llama.cpp's own layout.

    Rows come in cell order, which is not position order; `order` sorts them.

    Parameters
    ----------
    buffer
        uint8 [n], one sequence state. It is kept, not copied; only `rotate` writes it.

    Raises
    ------
    StateMismatch
        When the buffer is not a state this product understands; names the field.
    """

    def __init__(self, buffer: NDArray[np.uint8], *, layout: StateLayout | None = None) -> None:
        from nexus_lab import _core

        self.buffer = buffer
        try:
            self.layout = _core.parse_state(buffer.data) if layout is None else layout
        except ValueError as error:
            raise StateMismatch(
                f"this sequence state cannot be read: {error}", next_step="prefill the tokens instead"
            ) from error
        if self.layout.total_bytes != buffer.nbytes:
            raise StateMismatch(
                f"the layout is of {self.layout.total_bytes} bytes, the buffer has {buffer.nbytes}",
                next_step="prefill the tokens instead",
            )
        self._positions: NDArray[np.int32] = self.layout.positions

    @classmethod
    def from_rows(
        cls,
        template: StateLayout,
        positions: NDArray[np.int32],
        keys: Sequence[NDArray[np.float16]],
        values: Sequence[NDArray[np.float16]],
        *,
        arena: BuddyArena | None = None,
    ) -> SequenceState:
        """Build a state of the template's family.

        Parameters
        ----------
        positions
            int32 [n].
        keys, values
            One float16 [n, width] per layer.
        """
        from nexus_lab import _core

        buffer = state_buffer(template.size_for(len(positions)), arena)
        _core.build_state(
            template,
            np.ascontiguousarray(positions, np.int32),
            [np.ascontiguousarray(rows, np.float16) for rows in keys],
            [np.ascontiguousarray(rows, np.float16) for rows in values],
            buffer.data,
        )
        return cls(buffer)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Position of each row, int32 [n_cells], in cell order."""
        return self._positions

    @property
    def n_cells(self) -> int:
        """Number of rows."""
        return int(self.layout.n_cells)

    @property
    def n_layer(self) -> int:
        """Number of layers; 0 for an empty state."""
        return int(self.layout.n_layer)

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return int(self.buffer.nbytes)

    def __len__(self) -> int:
        return self.n_cells

    def key(self, layer: int) -> NDArray[np.float16]:
        """Key rows of `layer`, float16 [n_cells, n_head_kv * head_dim_k]; a view, not to be written."""
        from nexus_lab import _core

        rows: NDArray[np.float16] = _core.state_key(self.buffer.data, self.layout, layer)
        return rows

    def value(self, layer: int) -> NDArray[np.float16]:
        """Value rows of `layer`, float16 [n_cells, n_head_kv * head_dim_v]."""
        from nexus_lab import _core

        rows: NDArray[np.float16] = _core.state_value(self.buffer.data, self.layout, layer)
        return rows

    def order(self) -> NDArray[np.int64]:
        """Row numbers in rising position order, int64 [n_cells]."""
        return np.argsort(self._positions, kind="stable")

    @classmethod
    def joined(cls, parts: Sequence[SequenceState], *, arena: BuddyArena | None = None) -> SequenceState:
        """Return one state of the rows of several, in their order; all must be of one family."""
        return cls.from_rows(
            parts[0].layout,
            np.concatenate([part.positions for part in parts]),
            [np.concatenate([part.key(layer) for part in parts]) for layer in range(parts[0].n_layer)],
            [np.concatenate([part.value(layer) for part in parts]) for layer in range(parts[0].n_layer)],
            arena=arena,
        )

    def take(self, rows: NDArray[Any], *, arena: BuddyArena | None = None) -> SequenceState:
        """Return a state of some rows, chosen by a boolean mask [n_cells] or row numbers, in that order."""
        indices = np.flatnonzero(rows) if np.asarray(rows).dtype == np.bool_ else np.asarray(rows, np.int64)
        return SequenceState.from_rows(
            self.layout,
            self._positions[indices],
            [self.key(layer)[indices] for layer in range(self.n_layer)],
            [self.value(layer)[indices] for layer in range(self.n_layer)],
            arena=arena,
        )

    def in_order(self) -> SequenceState:
        """Return a state of the same rows, in rising order of position."""
        return self.take(self.order())

    def moved(
        self,
        new_positions: NDArray[np.int32],
        rope: RopeParameters,
        *,
        arena: BuddyArena | None = None,
    ) -> SequenceState:
        """Return the state with row i at ``new_positions[i]``, its keys rotated by the difference.

        Each call rotates once, in float32, from these rows; chain from one canonical state rather than from
        the last result, since every rounding to float16 stays.

        Parameters
        ----------
        new_positions
            int32 [n_cells].
        rope
            Rotation of the model that made the keys.
        """
        from nexus_lab import _core

        target = np.ascontiguousarray(new_positions, np.int32)
        if target.shape != self._positions.shape:
            raise StateMismatch(
                f"{len(target)} positions for a state of {self.n_cells} rows", next_step="give one per row"
            )
        buffer = state_buffer(self.nbytes, arena)
        np.copyto(buffer, self.buffer)
        _core.set_state_positions(buffer.data, self.layout, target)
        moved = SequenceState(buffer)
        deltas = target - self._positions
        if np.any(deltas):
            moved.rotate(deltas, rope)
        return moved

    def rotate(self, deltas: NDArray[np.int32], rope: RopeParameters) -> None:
        """Rotate the keys of row i by ``deltas[i]`` positions in place; positions stay as they are."""
        rotate_keys([self.key(layer) for layer in range(self.n_layer)], deltas, rope)


def rotate_keys(keys: Sequence[NDArray[np.float16]], deltas: NDArray[np.int32], rope: RopeParameters) -> None:
    """Rotate keys in place, float16 [n, width] for each layer, row i by ``deltas[i]`` positions."""
    from nexus_lab import _core

    frequencies = {own: own.inv_freq for own in {rope, *rope.by_layer} if own is not None}
    for layer, rows in enumerate(keys):
        own = rope.of_layer(layer)
        if own is None:
            continue
        _core.rotate_keys(
            rows,
            head_dim=own.head_dim,
            n_rot=own.n_rot,
            pairing=own.pairing,
            deltas=deltas,
            inv_freq=frequencies[own],
        )
