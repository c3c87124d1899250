"""A cache program: the immutable list of operations that says what is in the KV cache, and why."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache.ops import (
    Append,
    CacheOp,
    Drop,
    ProgramError,
    Range,
    Repair,
    Repos,
    Splice,
    encode_op,
    op_from_dict,
    op_to_dict,
    ranges_of,
)
from nexus_lab.cache.state import EMPTY_STATE, CacheState, advance
from nexus_lab.cache.words import encode_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["CacheProgram"]

_MAGIC = b"nexus-cache-program/1\0"
_FORMAT = "nexus-cache-program"
_VERSION = 1


class CacheProgram:
    """Operations on one KV cache, as they were issued, with a canonical form that defines equality.

    The canonical form is built from left to right, and extending a program changes at most its last
    canonical operation:

    - adjacent appends merge (how tokens were batched is a decode schedule, recorded apart);
    - a drop names exactly the tokens it takes out, as sorted disjoint ranges; adjacent drops merge;
    - adjacent repairs merge where the second cannot change what the first computed;
    - operations without effect vanish: empty ones, drops of dropped tokens, repos of packed positions.

    Two programs are equal when their canonical operations are. Equal programs have equal states; programs
    that keep the same tokens but dropped the others at another time are not equal.

    Parameters
    ----------
    ops
        Operations in order.

    Raises
    ------
    ProgramError
        When an operation names tokens that do not exist at its point in the program.
    """

    def __init__(self, ops: Iterable[CacheOp] = ()) -> None:
        self._ops: tuple[CacheOp, ...] = ()
        self._canonical: tuple[CacheOp, ...] = ()
        self._layout = EMPTY_STATE
        self._digest = hashlib.sha256(
            _MAGIC
        )  # of all canonical operations but the last, which may still grow
        for op in ops:
            self._take(op)

    def _take(self, op: CacheOp) -> None:
        """Add `op`; only called while the object is being built."""
        layout = advance(self._layout, op)
        canonical = _joined(self._canonical, self._layout, op)
        if len(canonical) > len(self._canonical) > 0:
            self._digest = self._digest.copy()
            self._digest.update(encode_op(self._canonical[-1]))
        self._canonical = canonical
        self._ops = (*self._ops, op)
        self._layout = layout

    def then(self, *ops: CacheOp) -> CacheProgram:
        """Return the program followed by `ops`."""
        program = CacheProgram()
        program._ops, program._canonical = self._ops, self._canonical
        program._layout, program._digest = self._layout, self._digest
        for op in ops:
            program._take(op)
        return program

    def append(self, tokens: Iterable[int]) -> CacheProgram:
        """Return the program followed by an append of `tokens`."""
        return self.then(Append(tuple(tokens)))

    def splice(self, block_id: str, tokens: Iterable[int], *, anchor: int) -> CacheProgram:
        """Return the program followed by a splice of the block `block_id`, compiled at position `anchor`."""
        return self.then(Splice(block_id, tuple(tokens), anchor))

    def repair(self, selection: Iterable[int], *, carry: bool = False) -> CacheProgram:
        """Return the program followed by a repair of the logical indices `selection`; see `Repair`."""
        return self.then(Repair(tuple(selection), carry=carry))

    def drop(self, *ranges: Range) -> CacheProgram:
        """Return the program followed by a drop of half-open logical `ranges`."""
        return self.then(Drop(ranges))

    def repos(self) -> CacheProgram:
        """Return the program followed by a repos."""
        return self.then(Repos())

    @property
    def ops(self) -> tuple[CacheOp, ...]:
        """The operations as they were issued: the steps of the debugger."""
        return self._ops

    @property
    def layout(self) -> CacheState:
        """The fold of the program, without its history id (see `fold`)."""
        return self._layout

    def canonical(self) -> CacheProgram:
        """Return the equal program whose operations are in canonical form."""
        return CacheProgram(self._canonical)

    @property
    def canonical_ops(self) -> tuple[CacheOp, ...]:
        """The operations in canonical form."""
        return self._canonical

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over the canonical operations; equal exactly for equal programs."""
        digest = self._digest.copy()
        for op in self._canonical[-1:]:
            digest.update(encode_op(op))
        return digest.hexdigest()

    @cached_property
    def words(self) -> NDArray[np.int32]:
        """The canonical operations as int32 words, what the tree of programs compares."""
        words = encode_words(self._canonical, self._layout.tokens)
        words.flags.writeable = False
        return words

    def prefix(self, n: int) -> CacheProgram:
        """Return the first `n` operations, as issued.

        Raises
        ------
        ProgramError
            When the program has fewer than `n`.
        """
        if not 0 <= n <= len(self._ops):
            raise ProgramError(f"no prefix of {n} operations", next_step=f"choose 0 to {len(self._ops)}")
        return self if n == len(self._ops) else CacheProgram(self._ops[:n])

    def prefixes(self) -> Iterator[CacheProgram]:
        """Yield the prefixes of 0, 1, ... operations, up to the program itself."""
        program = CacheProgram()
        yield program
        for op in self._ops:
            program = program.then(op)
            yield program

    def remainder(self, prefix: CacheProgram) -> tuple[CacheOp, ...] | None:
        """Return operations that lead from `prefix` to an equal of this program; None when none do.

        The last canonical operation of `prefix` may be the beginning of a longer one here, such as an append
        of the first tokens of a longer append.
        """
        mine, theirs = self._canonical, prefix.canonical_ops
        n = len(theirs)
        if mine[:n] == theirs:
            return mine[n:]
        if len(mine) < n or mine[: n - 1] != theirs[:-1]:
            return None
        rest = _difference(mine[n - 1], theirs[-1])
        if rest is None or prefix.then(rest).canonical_ops != mine[:n]:
            return None
        return (rest, *mine[n:])

    def plain_tokens(self) -> tuple[int, ...]:
        """Return the tokens that the program appends before it does anything else."""
        first = self._canonical[0] if self._canonical else None
        return first.tokens if isinstance(first, Append) else ()

    def to_json(self) -> str:
        """Return the operations as issued, as a JSON document."""
        values = {"format": _FORMAT, "version": _VERSION, "ops": [op_to_dict(op) for op in self._ops]}
        return json.dumps(values, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> CacheProgram:
        """Read what `to_json` wrote.

        Raises
        ------
        ProgramError
            When `text` is no JSON, another format or version, or no valid program.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProgramError(f"no JSON: {error}", next_step="pass what to_json wrote") from error
        return CacheProgram(op_from_dict(item) for item in _checked_ops(values))

    def __len__(self) -> int:
        return len(self._ops)

    def __eq__(self, other: object) -> bool:
        return self._canonical == other._canonical if isinstance(other, CacheProgram) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        kinds = ", ".join(op.kind.value for op in self._ops[:8])
        more = f", ... {len(self._ops) - 8} more" if len(self._ops) > 8 else ""  # noqa: PLR2004 - display only
        return f"CacheProgram({kinds}{more}; {len(self._layout)} tokens, {self._layout.n_active} active)"


def _checked_ops(values: Any) -> list[Any]:
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise ProgramError("the document is no cache program", next_step=f"expected format {_FORMAT!r}")
    if values.get("version") != _VERSION:
        raise ProgramError(
            f"cache program version {values.get('version')!r}", next_step=f"this reader knows {_VERSION}"
        )
    if not isinstance(values.get("ops"), list):
        raise ProgramError("the document has no list of operations", next_step="pass what to_json wrote")
    return list(values["ops"])


def _joined(ops: tuple[CacheOp, ...], layout: CacheState, op: CacheOp) -> tuple[CacheOp, ...]:
    """Return canonical `ops` (which lead to `layout`) followed by `op`, canonical again."""
    effective = _effective(layout, op)
    if effective is None:
        return ops
    merged = _merged(ops[-1], effective) if ops else None
    return (*ops, effective) if merged is None else (*ops[:-1], merged)


def _effective(layout: CacheState, op: CacheOp) -> CacheOp | None:
    """Return what `op` really does in `layout`; None when that is nothing."""
    match op:
        case Append(tokens) | Splice(_, tokens, _):
            return op if tokens else None
        case Repair(selection):
            return op if selection else None
        case Drop(ranges):
            taken = Drop(ranges_of(_taken(layout, ranges)))
            return taken if taken.ranges else None
        case Repos():
            return op if layout.next_position != layout.n_active else None


def _taken(layout: CacheState, ranges: tuple[Range, ...]) -> list[int]:
    indices = [start + np.flatnonzero(layout.active[start:stop]) for start, stop in ranges]
    return np.concatenate(indices).tolist() if indices else []


def _merged(last: CacheOp, op: CacheOp) -> CacheOp | None:
    """Return one operation that does what `last` then `op` do; None when they stay two."""
    match last, op:
        case Append(first), Append(second):
            return Append(first + second)
        case Drop(first_ranges), Drop(second_ranges):
            return Drop(first_ranges + second_ranges)
        case Repair(first, False), Repair(second, False) if (
            max(set(first) - set(second), default=-1) < second[0]
        ):
            # Tokens only the first one computed lie before all of the second, so they see the same rows.
            return Repair(first + second)
        case _:
            return None


def _difference(longer: CacheOp, shorter: CacheOp) -> CacheOp | None:
    """Return an operation that could extend `shorter` to `longer`; the caller checks that it does."""
    match longer, shorter:
        case Append(all_tokens), Append(tokens) if all_tokens[: len(tokens)] == tokens:
            return Append(all_tokens[len(tokens) :])
        case Drop(all_ranges), Drop(ranges):
            return Drop(ranges_of(_members(all_ranges) - _members(ranges)))
        case Repair(all_indices, False), Repair(indices, False):
            return Repair(tuple(set(all_indices) - set(indices)))
        case _:
            return None


def _members(ranges: tuple[Range, ...]) -> set[int]:
    return {index for start, stop in ranges for index in range(start, stop)}
