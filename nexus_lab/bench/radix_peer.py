"""A radix tree of programs in plain Python: what the native tree is timed beside.

It is built as serving engines build theirs: children by dictionary, from the first token or the whole
operation; edges of tuples that split where programs part. It holds programs and finds the longest beginning,
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexus_lab.cache import Append

if TYPE_CHECKING:
    from nexus_lab.cache import CacheOp, CacheProgram

__all__ = ["RadixPeer"]


@dataclass(slots=True)
class _Node:
    tokens: tuple[int, ...] = ()
    children: dict[object, _Node] = field(default_factory=dict)


class RadixPeer:
    """Programs by common beginnings."""

    def __init__(self) -> None:
        self._root = _Node()

    def insert(self, program: CacheProgram) -> None:
        """Add a program."""
        node = self._root
        for op in program.canonical_ops:
            if isinstance(op, Append):
                node = _grown(node, op.tokens)
            else:
                node = node.children.setdefault(op, _Node())

    def match(self, program: CacheProgram) -> tuple[int, int, int]:
        """Return whole operations, tokens of the append after them, and tokens in all that are there."""
        node, tokens = self._root, 0
        for number, op in enumerate(program.canonical_ops):
            if isinstance(op, Append):
                common, end = _walked(node, op.tokens)
                tokens += common
                if common < len(op.tokens):
                    return number, common, tokens
                if end is None:  # within an edge: only an append goes on from there
                    return number + 1, 0, tokens
                node = end
            else:
                child = node.children.get(op)
                if child is None:
                    return number, 0, tokens
                tokens += _brings(op)
                node = child
        return len(program.canonical_ops), 0, tokens


def _brings(op: CacheOp) -> int:
    return len(getattr(op, "tokens", ()))


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    n = min(len(left), len(right))
    if left[:n] == right[:n]:
        return n
    return next(i for i in range(n) if left[i] != right[i])


def _walked(node: _Node, tokens: tuple[int, ...]) -> tuple[int, _Node | None]:
    """Follow edges along `tokens`; returns how many matched, and the node they end at, if at one."""
    done = 0
    while done < len(tokens):
        child = node.children.get(tokens[done])
        if child is None:
            return done, node
        common = _common(child.tokens, tokens[done:])
        done += common
        if common < len(child.tokens):
            return done, None
        node = child
    return done, node


def _grown(node: _Node, tokens: tuple[int, ...]) -> _Node:
    while tokens:
        child = node.children.get(tokens[0])
        if child is None:
            node.children[tokens[0]] = made = _Node(tokens)
            return made
        common = _common(child.tokens, tokens)
        if common < len(child.tokens):
            upper = _Node(child.tokens[:common], {child.tokens[common]: child})
            child.tokens = child.tokens[common:]
            node.children[tokens[0]] = child = upper
        node, tokens = child, tokens[common:]
    return node
