"""An embedder without a model, and tools in one line."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.registry import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class WordEmbedder:
    """Sums a fixed random vector for each word: texts that share words are near each other."""

    name = "words"
    fingerprint = "words-1"
    dim = 384
    query_prefix = document_prefix = ""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embed(texts)

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embed(texts)

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded += texts
        return (
            np.stack([self._vector(text) for text in texts]) if texts else np.zeros((0, self.dim), np.float32)
        )

    def _vector(self, text: str) -> NDArray[np.float32]:
        total = np.full(self.dim, 1e-3)
        for word in re.findall(r"\w+", text.lower()):
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            total += np.random.default_rng(seed).standard_normal(self.dim)
        return (total / np.linalg.norm(total)).astype(np.float32)


def tool(name: str, description: str = "", *, server: str | None = None, **properties: object) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties}, server=server)
