"""What makes a block this model's, and a context the one it was compiled behind."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONTEXT_HASH_BYTES", "BlockContext", "block_id", "context_hash"]

CONTEXT_HASH_BYTES = 16
_ID_DIGITS = 40


@dataclass(frozen=True, slots=True)
class BlockContext:
    """What a block is compiled behind.

    Attributes
    ----------
    tokens
        The tokens before it; their number is its anchor.
    probes
        Other contexts that it is computed behind as well: they tell how much each token depends on its own.
    consensus
        Keep the mean of the rows over all contexts, in place of those behind `tokens`. Such a block is of no
        one context, hence never anchored.
    """

    tokens: tuple[int, ...] = ()
    probes: tuple[tuple[int, ...], ...] = ()
    consensus: bool = False

    @classmethod
    def of(cls, context: BlockContext | Sequence[int]) -> BlockContext:
        """Return `context`; tokens stand for themselves, without probes."""
        return context if isinstance(context, BlockContext) else cls(tuple(context))

    @property
    def anchor(self) -> int:
        """Position of the block's first token."""
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest of the contexts."""
        return max(map(len, (self.tokens, *self.probes)))

    @property
    def hash(self) -> bytes:
        """What the block's header holds, 16 bytes: `context_hash`, or for a consensus one of its own."""
        if not self.consensus:
            return context_hash(self.tokens)
        digest = hashlib.sha256(b"nexus-consensus\0")
        for tokens in (self.tokens, *self.probes):
            digest.update(context_hash(tokens))
        return digest.digest()[:CONTEXT_HASH_BYTES]


def context_hash(tokens: Sequence[int]) -> bytes:
    """Hash of the tokens before a block, 16 bytes; two contexts are the same when their hashes are."""
    return hashlib.sha256(b"nexus-context\0" + _bytes(tokens)).digest()[:CONTEXT_HASH_BYTES]


def block_id(*, model: str, tokens: Sequence[int], context: BlockContext | Sequence[int]) -> str:
    """Address of a block by its content, hex.

    Parameters
    ----------
    model
        Text that names the model, its rope parameters and its cache layout.
    tokens, context
        The block's tokens, and what it is compiled behind.
    """
    behind = BlockContext.of(context)
    digest = hashlib.sha256(b"nexus-block\0" + model.encode() + b"\0")
    digest.update(len(tokens).to_bytes(8, "little") + _bytes(tokens) + _bytes(behind.tokens))
    if behind.probes:
        digest.update(b"\0consensus" if behind.consensus else b"\0profile")
        for probe in behind.probes:
            digest.update(context_hash(probe))
    return digest.hexdigest()[:_ID_DIGITS]


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()
