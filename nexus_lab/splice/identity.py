"""What makes a block this model's, and a context the one it was compiled behind."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONTEXT_HASH_BYTES", "block_id", "context_hash"]

CONTEXT_HASH_BYTES = 16
_ID_DIGITS = 40


def context_hash(tokens: Sequence[int]) -> bytes:
    """Hash of the tokens before a block, 16 bytes; two contexts are the same when their hashes are."""
    return hashlib.sha256(b"nexus-context\0" + _bytes(tokens)).digest()[:CONTEXT_HASH_BYTES]


def block_id(*, model: str, tokens: Sequence[int], context: Sequence[int]) -> str:
    """Address of a block by its content, hex.

    Parameters
    ----------
    model
        Text that names the model, its rope parameters and its cache layout.
    tokens, context
        The block's tokens, and those it is compiled behind.
    """
    digest = hashlib.sha256(b"nexus-block\0" + model.encode() + b"\0")
    digest.update(len(tokens).to_bytes(8, "little") + _bytes(tokens) + _bytes(context))
    return digest.hexdigest()[:_ID_DIGITS]


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()
