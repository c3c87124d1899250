"""Programs as words of 32 bits: what the native tree compares, and reads in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache.ops import CARRY_MARK, Append, CacheOp, Drop, OpKind, Repair, Repos, Splice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from nexus_lab.cache.program import CacheProgram

__all__ = ["decode_words", "encode_words", "n_operands"]

_WORD = 4
_KINDS = tuple(OpKind)


def encode_words(ops: Iterable[CacheOp], tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32 words of canonical `ops`: for each its kind, the number of its words, and these.

    Parameters
    ----------
    tokens
        int32[n], the logical tokens that the operations bring, in order; spares a walk over Python integers.
    """
    parts: list[NDArray[np.int32]] = []
    at = 0
    for op in ops:
        words = _operands(op, tokens[at:])
        parts += [np.array([_KINDS.index(op.kind), len(words)], np.int32), words]
        at += len(op.tokens) if isinstance(op, Append | Splice) else 0
    return np.ascontiguousarray(np.concatenate(parts)) if parts else np.zeros(0, np.int32)


def n_operands(program: CacheProgram) -> int:
    """Return the words that `program` takes in a tree of its own."""
    return len(program.words) - 2 * len(program.canonical_ops)


def decode_words(words: NDArray[np.int32]) -> tuple[CacheOp, ...]:
    """Return the operations that `words` say."""
    return tuple(_decoded(words))


def _decoded(words: NDArray[np.int32]) -> Iterator[CacheOp]:
    at = 0
    while at < len(words):
        kind, count = _KINDS[words[at]], int(words[at + 1])
        yield _operation(kind, words[at + 2 : at + 2 + count])
        at += 2 + count


def _operands(op: CacheOp, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    match op:
        case Append():
            return tokens[: len(op.tokens)]
        case Splice(block_id, _, anchor):
            name = block_id.encode()
            head = np.array([anchor, len(name)], np.int32)
            padded = np.frombuffer(name + bytes(-len(name) % _WORD), "<i4").astype(np.int32)
            return np.concatenate([head, padded, tokens[: len(op.tokens)]])
        case Repair(selection, carry):
            return np.array((CARRY_MARK, *selection) if carry else selection, np.int32)
        case Drop(ranges):
            return np.array(ranges, np.int32).reshape(-1)
        case Repos():
            return np.zeros(0, np.int32)


def _operation(kind: OpKind, operands: NDArray[np.int32]) -> CacheOp:
    match kind:
        case OpKind.APPEND:
            return Append(tuple(operands.tolist()))
        case OpKind.SPLICE:
            anchor, size = operands[:2].tolist()
            n_words = -(-size // _WORD)
            name = operands[2 : 2 + n_words].astype("<i4").tobytes()[:size].decode()
            return Splice(name, tuple(operands[2 + n_words :].tolist()), anchor)
        case OpKind.REPAIR:
            carry = operands[0] == CARRY_MARK
            return Repair(tuple(operands[int(carry) :].tolist()), carry=bool(carry))
        case OpKind.DROP:
            return Drop(tuple((start, stop) for start, stop in operands.reshape(-1, 2).tolist()))
        case OpKind.REPOS:
            return Repos()
