"""Vectors that were computed once: an embedder with a memory on disk."""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from nexus_lab.paths import atomic_write, cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.routing.base import Embedder

    Floats = NDArray[np.float32]

__all__ = ["EmbeddingStore"]

logger = logging.getLogger(__name__)

_KEY_BYTES = 20
_MOST_VECTORS = 60_000
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, BadZipFile)


class EmbeddingStore:
    """An `Embedder` that remembers the vectors of tools, and of requests when asked to.

    The file is named after the embedder's fingerprint and holds a digest of each text with its vector,
    never a text. A file that cannot be read is made anew; when it grows past 60,000 vectors the oldest go.

    Parameters
    ----------
    embedder
        Whom to ask for vectors that are not known.
    folder
        Where the file is; ``None`` takes the user's cache folder.
    queries
        Remember requests too: for measurements, where the same requests come again.
    """

    def __init__(self, embedder: Embedder, *, folder: Path | None = None, queries: bool = False) -> None:
        self.embedder = embedder
        self.name, self.fingerprint, self.dim = embedder.name, embedder.fingerprint, embedder.dim
        self.query_prefix, self.document_prefix = embedder.query_prefix, embedder.document_prefix
        self._queries = queries
        self._turn = threading.Lock()
        root = folder if folder is not None else cache_dir() / "embeddings"
        self.path = root / f"{hashlib.sha256(embedder.fingerprint.encode()).hexdigest()[:16]}.npz"
        self._rows = self._read()
        self._unsaved = 0

    def __len__(self) -> int:
        return len(self._rows)

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim] of unit norm for requests."""
        if not self._queries:
            return self.embedder.embed_queries(texts)
        return self._remembered("query", self.query_prefix, texts, self.embedder.embed_queries)

    def embed_documents(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim] of unit norm for texts about tools."""
        return self._remembered("document", self.document_prefix, texts, self.embedder.embed_documents)

    def save(self) -> None:
        """Write the file if there is anything new; without a writable folder, only log that."""
        with self._turn:
            if not self._unsaved:
                return
            # Another process may have written meanwhile; what it embedded need not be embedded again.
            self._rows = self._read() | self._rows
            kept = dict(list(self._rows.items())[-_MOST_VECTORS:])
            buffer = io.BytesIO()
            keys = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), _KEY_BYTES)
            np.savez(buffer, keys=keys, rows=np.stack(list(kept.values())))
            try:
                atomic_write(self.path, buffer.getvalue())
            except OSError as error:
                logger.warning("vectors are not kept: %s", error)
            self._unsaved = 0

    def _remembered(
        self, role: str, prefix: str, texts: Sequence[str], embed: Callable[[Sequence[str]], Floats]
    ) -> Floats:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        keys = [
            hashlib.sha1(f"{role}\n{prefix}\n{text}".encode(), usedforsecurity=False).digest()
            for text in texts
        ]
        with self._turn:
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
            if missing:
                self._rows.update(zip(missing, embed(list(missing.values())), strict=True))
                self._unsaved += len(missing)
            return np.stack([self._rows[key] for key in keys])

    def _read(self) -> dict[bytes, Floats]:
        try:
            with ZipFile(self.path) as file:
                keys, rows = (_array(file, name) for name in ("keys", "rows"))
        except FileNotFoundError:
            return {}
        except _UNREADABLE as error:
            logger.warning("the stored vectors in %s cannot be read and are made anew: %s", self.path, error)
            return {}
        size = len(rows) if rows.ndim else 0
        ours = keys.dtype == np.uint8 and keys.shape == (size, _KEY_BYTES)
        fitting = rows.dtype == np.float32 and rows.shape == (size, self.dim)
        if not (ours and fitting and np.isfinite(rows).all()):
            logger.warning("the stored vectors in %s are not this embedder's and are made anew", self.path)
            return {}
        return {key.tobytes(): row for key, row in zip(keys, rows, strict=True)}


def _array(file: ZipFile, name: str) -> NDArray[Any]:
    """Return an array of the file, which is written without compression: what is compressed is not ours."""
    entry = file.getinfo(f"{name}.npy")
    if entry.compress_type != ZIP_STORED:
        raise ValueError(f"its {name} are compressed")
    with file.open(entry) as opened:
        return np.asarray(np.lib.format.read_array(opened, allow_pickle=False))
