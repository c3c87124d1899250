"""The fold again, slow and obviously right, with a symbolic stand-in for the contents of each KV row.

One Python object per token and one rule per operation, without arrays, without canonical form. The contents
of a row are described by a digest of everything that went into computing it, so that two programs can be
compared by what their caches would hold rather than by which tokens they keep.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexus_lab.cache.ops import Append, CacheOp, Drop, Repair, Repos, Splice
from nexus_lab.cache.state import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ReferenceState", "ReferenceToken", "reference_fold"]


@dataclass(slots=True)
class ReferenceToken:
    """One logical token.

    Attributes
    ----------
    token
        Token id.
    position
        RoPE position; None once dropped.
    origin
        Where the row came from.
    content
        Digest of what the row was computed from: the token, its position then, and the content and position
        of every row it attended to; for a spliced token, the block and the index in it.
    """

    token: int
    position: int | None
    origin: Origin
    content: str


@dataclass(slots=True)
class ReferenceState:
    """The logical sequence, one object per token."""

    tokens: list[ReferenceToken] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        """One past the largest position in use, 0 when there is none."""
        return max((token.position for token in self.tokens if token.position is not None), default=-1) + 1

    def kept(self) -> list[ReferenceToken]:
        """Return the active tokens in logical order."""
        return [token for token in self.tokens if token.position is not None]

    def pack(self) -> None:
        """Put the active tokens at positions 0, 1, ..."""
        for position, token in enumerate(self.kept()):
            token.position = position

    def add(self, token: int, origin: Origin, content: str) -> None:
        """Put a token at the cursor."""
        self.tokens.append(ReferenceToken(token, self.next_position, origin, content))

    def contents(self) -> list[tuple[int, str]]:
        """Return position and content of each row the cache holds, in logical order."""
        return [(token.position, token.content) for token in self.tokens if token.position is not None]


def reference_fold(ops: Iterable[CacheOp]) -> ReferenceState:
    """Return the state after `ops`, which are taken to be valid."""
    state = ReferenceState()
    for op in ops:
        _take(state, op)
    return state


def _take(state: ReferenceState, op: CacheOp) -> None:
    match op:
        case Append(tokens):
            for token in tokens:
                content = _computed(token, state.next_position, state.tokens)
                state.add(token, Origin.COMPUTED, content)
        case Splice(block_id, tokens, _):
            for index, token in enumerate(tokens):
                state.add(token, Origin.SPLICED, f"{block_id}[{index}]")
        case Repair(selection):
            for index in selection:
                item = state.tokens[index]
                item.content = _computed(item.token, item.position, state.tokens[:index])
                item.origin = Origin.REPAIRED
        case Drop(ranges):
            for item in (item for start, stop in ranges for item in state.tokens[start:stop]):
                item.position = None
        case Repos():
            state.pack()


def _computed(token: int, position: int | None, before: list[ReferenceToken]) -> str:
    seen = [(item.position, item.content) for item in before if item.position is not None]
    return hashlib.sha256(repr((token, position, seen)).encode()).hexdigest()[:16]
