"""The five cache operations, as immutable records with one canonical byte encoding."""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias

import numpy as np

from nexus_lab.errors import NexusError

__all__ = [
    "CARRY_MARK",
    "Append",
    "CacheOp",
    "Drop",
    "OpKind",
    "ProgramError",
    "Range",
    "Repair",
    "Repos",
    "Splice",
    "encode_op",
    "merge_ranges",
    "op_from_dict",
    "op_to_dict",
    "ranges_of",
]

Range: TypeAlias = tuple[int, int]
"""Half-open range of logical token indices."""

# Stands before the indices of a repair that carries; no index is negative.
CARRY_MARK = -1
_MAX_INDEX = 2**31 - 1


class ProgramError(NexusError):
    """An operation, or a program of them, that means nothing."""


class OpKind(Enum):
    """The kinds of cache operation; the value is what is written into traces."""

    APPEND = "append"
    SPLICE = "splice"
    REPAIR = "repair"
    DROP = "drop"
    REPOS = "repos"


@dataclass(frozen=True, slots=True)
class Append:
    """Compute the tokens in the context that is active, and append them.

    Attributes
    ----------
    tokens
        Token ids, any iterable of integers; kept as a tuple.
    """

    kind: ClassVar[OpKind] = OpKind.APPEND
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _integers(self.tokens, "append: token"))


@dataclass(frozen=True, slots=True)
class Splice:
    """Append a precompiled block: its keys rotated from `anchor` to the cursor, its values copied.

    Attributes
    ----------
    block_id
        Name of the block's contents, which a ``BlockSource`` resolves.
    tokens
        The block's token ids.
    anchor
        Position of the block's first token when it was compiled.
    """

    kind: ClassVar[OpKind] = OpKind.SPLICE
    block_id: str
    tokens: tuple[int, ...]
    anchor: int

    def __post_init__(self) -> None:
        if not isinstance(self.block_id, str) or not self.block_id:
            raise ProgramError(f"splice: {self.block_id!r} names no block", next_step="pass the block's id")
        object.__setattr__(self, "tokens", _integers(self.tokens, "splice: token"))
        object.__setattr__(self, "anchor", _integer(self.anchor, "splice: anchor"))


@dataclass(frozen=True, slots=True)
class Repair:
    """Recompute the selected active tokens, in logical order, in the context that is active now.

    Each recomputed token attends to every active token before it, those recomputed before it by the same
    operation included. Meant for tokens of a splice; on computed tokens it is a re-prefill, which is the only
    way to undo what dropped tokens did to the tokens after them.

    Attributes
    ----------
    selection
        Logical indices; kept sorted, without repeats.
    carry
        The selection is the head of the splice just made, and the shift that its keys turn out to have in
        common is added to the keys of the splice's other tokens (see `nexus_lab.engine.shift`).
    """

    kind: ClassVar[OpKind] = OpKind.REPAIR
    selection: tuple[int, ...]
    carry: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "selection", tuple(sorted(set(_integers(self.selection, "repair: index")))))
        if not isinstance(self.carry, bool):
            raise ProgramError(f"carry {self.carry!r} is neither true nor false", next_step="pass a bool")


@dataclass(frozen=True, slots=True)
class Drop:
    """Take tokens out of later attention; the logical tokens and all other rows stay as they are.

    Attributes
    ----------
    ranges
        Half-open logical ranges; kept sorted and merged, empty ones removed.
    """

    kind: ClassVar[OpKind] = OpKind.DROP
    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", merge_ranges(_checked_range(item) for item in self.ranges))


@dataclass(frozen=True, slots=True)
class Repos:
    """Re-pack the positions of the active tokens from 0 in logical order; the next position follows."""

    kind: ClassVar[OpKind] = OpKind.REPOS


CacheOp: TypeAlias = Append | Splice | Repair | Drop | Repos


def merge_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the union of half-open `ranges` as sorted, disjoint, non-adjacent ranges."""
    merged: list[Range] = []
    for start, stop in sorted(item for item in ranges if item[0] < item[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def ranges_of(indices: Iterable[int]) -> tuple[Range, ...]:
    """Return the ranges that cover exactly `indices`."""
    return merge_ranges((index, index + 1) for index in indices)


def encode_op(op: CacheOp) -> bytes:
    """Encode `op` so that equal operations, and only those, have equal bytes (the input of a program id)."""
    code = tuple(OpKind).index(op.kind).to_bytes(1, "little")
    match op:
        case Append(tokens):
            return code + _array(tokens)
        case Splice(block_id, tokens, anchor):
            name = block_id.encode()
            return code + struct.pack("<qI", anchor, len(name)) + name + _array(tokens)
        case Repair(selection, carry):
            return code + _array((CARRY_MARK, *selection) if carry else selection)
        case Drop(ranges):
            return code + _array(tuple(bound for item in ranges for bound in item))
        case Repos():
            return code


def op_to_dict(op: CacheOp) -> dict[str, Any]:
    """Return `op` as JSON values."""
    match op:
        case Append(tokens):
            return {"op": op.kind.value, "tokens": list(tokens)}
        case Splice(block_id, tokens, anchor):
            return {"op": op.kind.value, "block_id": block_id, "tokens": list(tokens), "anchor": anchor}
        case Repair(selection, carry):
            carried = {"carry": True} if carry else {}
            return {"op": op.kind.value, "selection": list(selection), **carried}
        case Drop(ranges):
            return {"op": op.kind.value, "ranges": [list(item) for item in ranges]}
        case Repos():
            return {"op": op.kind.value}


def op_from_dict(values: Any) -> CacheOp:
    """Read what `op_to_dict` wrote.

    Raises
    ------
    ProgramError
        When the kind is unknown, or a field is missing, unknown or malformed.
    """
    if not isinstance(values, dict):
        raise ProgramError(f"{values!r} is no operation", next_step="pass an object with the key 'op'")
    fields = {key: value for key, value in values.items() if key != "op"}
    builders: dict[Any, type[Append | Splice | Repair | Drop | Repos]] = {
        "append": Append,
        "splice": Splice,
        "repair": Repair,
        "drop": Drop,
        "repos": Repos,
    }
    name = values.get("op")
    builder = builders.get(name) if isinstance(name, str) else None
    if builder is None:
        raise ProgramError(f"unknown operation {name!r}", next_step="use " + ", ".join(builders))
    try:
        return builder(**fields)
    except TypeError as error:
        raise ProgramError(
            f"{name}: {error}", next_step="compare its fields with those of the class"
        ) from error


def _array(values: tuple[int, ...]) -> bytes:
    return struct.pack("<I", len(values)) + np.asarray(values, dtype="<i4").tobytes()


def _integer(value: Any, what: str) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ProgramError(f"{what} {value!r} is no integer", next_step="pass whole numbers") from error
    if not 0 <= number <= _MAX_INDEX:
        raise ProgramError(f"{what} {number} is out of range", next_step=f"use 0 to {_MAX_INDEX}")
    return number


def _integers(values: Any, what: str) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ProgramError(f"{what}s: {values!r} is no sequence of integers", next_step="pass a tuple")
    items = tuple(values)
    if items and set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= _MAX_INDEX:
        return items  # the checks above run in C; programs hold thousands of tokens
    return tuple(_integer(value, what) for value in items)


def _checked_range(item: Any) -> Range:
    bounds = _integers(item, "drop: bound")
    if len(bounds) != 2 or bounds[0] > bounds[1]:  # noqa: PLR2004 - a range has two ends
        raise ProgramError(f"drop: {item!r} is no range", next_step="pass (start, stop) with start <= stop")
    return bounds[0], bounds[1]
