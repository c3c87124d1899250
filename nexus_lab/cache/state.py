"""What a cache program amounts to: the logical tokens, which are active, where, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nexus_lab.cache.ops import Append, CacheOp, Drop, ProgramError, Range, Repair, Repos, Splice, ranges_of
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from nexus_lab.cache.program import CacheProgram

__all__ = ["EMPTY_STATE", "CacheState", "IntegrityError", "Origin", "PositionRun", "advance", "fold"]

Int32Array: TypeAlias = NDArray[np.int32]


class IntegrityError(NexusError):
    """A structure of the cache contradicts itself: a bug in this program, not in its input."""


class Origin(IntEnum):
    """Where the KV rows of a token came from."""

    COMPUTED = 0
    SPLICED = 1
    REPAIRED = 2


@dataclass(frozen=True, slots=True)
class PositionRun:
    """Active tokens that are neighbours both logically and in position.

    Attributes
    ----------
    start
        Logical index of the first token.
    count
        Number of tokens.
    position
        Position of the first token.
    """

    start: int
    count: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class CacheState:
    """The fold of a program; its arrays are read-only and as long as the logical sequence.

    Positions of active tokens rise strictly in logical order, and the next position is always the largest of
    them plus one (0 when none is active). That is what llama.cpp accepts as the start of a batch, and it
    settles a drop that reaches the newest token: the cursor falls back behind the newest token still active.

    Attributes
    ----------
    tokens
        int32[n], token ids; dropped tokens stay in the sequence.
    active
        bool[n], whether later tokens attend to the token.
    positions
        int32[n], RoPE position of an active token; -1 for a dropped one.
    origin
        uint8[n], an `Origin` per token; a dropped token keeps its last.
    next_position
        Position that the next appended token gets.
    history_id
        Id of the program: the same kept tokens at the same positions can hold other rows, so arrays alone do
        not identify a state.
    """

    tokens: Int32Array
    active: NDArray[np.bool_]
    positions: Int32Array
    origin: NDArray[np.uint8]
    next_position: int
    history_id: str

    def __post_init__(self) -> None:
        for array in (self.tokens, self.active, self.positions, self.origin):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CacheState):
            return NotImplemented
        return self.history_id == other.history_id and self.same_layout(other)

    def __hash__(self) -> int:
        return hash((self.history_id, len(self), self.next_position))

    @property
    def n_active(self) -> int:
        """Number of active tokens: the KV cells the state occupies."""
        return int(np.count_nonzero(self.active))

    def same_layout(self, other: CacheState) -> bool:
        """Whether both hold the same tokens, activity, positions and origins, whatever their histories."""
        return self.next_position == other.next_position and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("tokens", "active", "positions", "origin")
        )

    def active_indices(self) -> NDArray[np.int64]:
        """Return the logical indices of the active tokens, ascending."""
        return np.flatnonzero(self.active)

    def plain_length(self) -> int:
        """Count the leading tokens whose rows equal those of an ordinary prefill of the same tokens.

        These are the leading tokens that are active, were computed, and sit at their logical index: whatever
        happened later in the sequence cannot have touched them.
        """
        plain = self.active & (self.origin == Origin.COMPUTED)
        plain &= self.positions == np.arange(len(self), dtype=np.int32)
        return len(self) if plain.all() else int(np.argmin(plain))

    def runs(self) -> tuple[PositionRun, ...]:
        """Return the active tokens as runs of neighbours, in logical order."""
        indices = self.active_indices()
        if indices.size == 0:
            return ()
        positions = self.positions[indices]
        cuts = np.flatnonzero((np.diff(indices) != 1) | (np.diff(positions) != 1)) + 1
        bounds = [0, *cuts.tolist(), indices.size]
        return tuple(
            PositionRun(start=int(indices[a]), count=b - a, position=int(positions[a]))
            for a, b in pairwise(bounds)
        )

    def dropped(self) -> tuple[Range, ...]:
        """Return the logical ranges of the dropped tokens."""
        return ranges_of(np.flatnonzero(~self.active).tolist())

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when an invariant stated by the class does not hold."""
        shapes = {array.shape for array in (self.tokens, self.active, self.positions, self.origin)}
        _require(len(shapes) == 1 and self.tokens.ndim == 1, f"arrays differ in shape: {shapes}")
        positions = self.positions[self.active]
        _require(bool(np.all(self.positions[~self.active] == -1)), "a dropped token has a position")
        _require(bool(np.all(positions >= 0)), "an active token has no position")
        _require(bool(np.all(np.diff(positions) > 0)), "positions do not rise in logical order")
        _require(self.next_position == _after(positions), "next position is not behind the active tokens")
        known = np.isin(self.origin, [int(item) for item in Origin])
        _require(bool(known.all()), "a token has an unknown origin")


def _require(condition: bool, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise IntegrityError(f"cache state: {problem}", next_step="report this with the program as JSON")


def _after(positions: Int32Array) -> int:
    return int(positions.max()) + 1 if positions.size else 0


EMPTY_STATE = CacheState(
    tokens=np.zeros(0, np.int32),
    active=np.zeros(0, np.bool_),
    positions=np.zeros(0, np.int32),
    origin=np.zeros(0, np.uint8),
    next_position=0,
    history_id="",
)
"""No tokens at all, before it is given the id of the empty program."""


def fold(program: CacheProgram) -> CacheState:
    """Return the state that `program` leads to, with the program's id as its history."""
    return replace(program.layout, history_id=program.id)


def advance(state: CacheState, op: CacheOp, *, history_id: str = "") -> CacheState:
    """Return the state after `op`.

    Raises
    ------
    ProgramError
        When the operation names tokens that do not exist, or repairs dropped ones.
    """
    match op:
        case Append(tokens):
            return _extended(state, tokens, Origin.COMPUTED, history_id)
        case Splice(_, tokens, _):
            return _extended(state, tokens, Origin.SPLICED, history_id)
        case Repair(selection):
            return _repaired(state, selection, history_id)
        case Drop(ranges):
            return _dropped(state, ranges, history_id)
        case Repos():
            return _repositioned(state, history_id)


def _extended(state: CacheState, tokens: tuple[int, ...], origin: Origin, history_id: str) -> CacheState:
    n = len(tokens)
    start = state.next_position
    return CacheState(
        tokens=_joined(state.tokens, np.asarray(tokens, dtype=np.int32)),
        active=_joined(state.active, np.ones(n, np.bool_)),
        positions=_joined(state.positions, np.arange(start, start + n, dtype=np.int32)),
        origin=_joined(state.origin, np.full(n, int(origin), np.uint8)),
        next_position=start + n,
        history_id=history_id,
    )


def _joined(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([left, right])


def _repaired(state: CacheState, selection: tuple[int, ...], history_id: str) -> CacheState:
    indices = np.asarray(selection, dtype=np.int64)
    _check_bound(state, int(indices[-1]) + 1 if indices.size else 0, "repair")
    lost = indices[~state.active[indices]]
    if lost.size:
        raise ProgramError(
            f"repair: token {int(lost[0])} has been dropped", next_step="select active tokens only"
        )
    origin = state.origin.copy()
    origin[indices] = Origin.REPAIRED
    return replace(state, origin=origin, history_id=history_id)


def _dropped(state: CacheState, ranges: tuple[Range, ...], history_id: str) -> CacheState:
    _check_bound(state, ranges[-1][1] if ranges else 0, "drop")
    active = state.active.copy()
    for start, stop in ranges:
        active[start:stop] = False
    positions = np.where(active, state.positions, np.int32(-1))
    return replace(
        state,
        active=active,
        positions=positions,
        next_position=_after(positions[active]),
        history_id=history_id,
    )


def _repositioned(state: CacheState, history_id: str) -> CacheState:
    positions = np.full(len(state), -1, np.int32)
    positions[state.active] = np.arange(state.n_active, dtype=np.int32)
    return replace(state, positions=positions, next_position=state.n_active, history_id=history_id)


def _check_bound(state: CacheState, bound: int, what: str) -> None:
    if bound > len(state):
        raise ProgramError(
            f"{what}: token {bound - 1} does not exist, the sequence has {len(state)}",
            next_step="name logical indices below the length of the sequence",
        )
