"""A reader for what the engine needs of a GGUF file: metadata, tensor directory, one small tensor."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.errors import ModelNotFound, NotAGguf, TruncatedModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["GgufFile", "TensorEntry", "read_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_ARRAY = 256
_MOST_ENTRIES = 1_000_000
_MOST_DIMENSIONS = 4
_MOST_LEVELS = 4
_MOST_NUMBER = 2**31
_MOST_LAYERS = 4096
# Values of an architecture that are counts, of which some may be one for each layer, and other numbers.
_PER_LAYER = frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"})
_COUNTS = _PER_LAYER | {
    "attention.key_length",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.scaling.original_context_length",
    "vocab_size",
}
_MAY_BE_NEGATIVE = "rope.scaling.yarn_ext_factor"
_NUMBERS = frozenset(
    {
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier",
        _MAY_BE_NEGATIVE,
    }
)
# ggml type: (elements per block, bytes per block), for the check that the file is whole.
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    30: (1, 2),
}
_F32 = 0


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One row of the tensor directory; `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def size_bytes(self) -> int | None:
        """Size of the data, ``None`` for a type this reader does not know."""
        block = _BLOCKS.get(self.type)
        return None if block is None else math.prod(self.shape) // block[0] * block[1]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensor directory of a GGUF file.

    Attributes
    ----------
    metadata
        Values by key; an array longer than 256 entries is replaced by a `LongArray`.
    kinds
        GGUF's number of each value's type, by key: llama.cpp ends the process at a float of the wrong width.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    size_bytes: int
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Value of ``general.architecture``."""
        return str(self.metadata.get("general.architecture", ""))

    def value(self, key: str, default: Any = None) -> Any:
        """Value of ``<architecture>.<key>``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def read_f32(self, name: str) -> NDArray[np.float32] | None:
        """Read a small float32 tensor, flat; ``None`` when there is none of that name and type."""
        entry = self.tensors.get(name)
        if entry is None or entry.type != _F32:
            return None
        with self.path.open("rb") as handle:
            handle.seek(entry.offset)
            return np.frombuffer(handle.read(entry.size_bytes or 0), np.float32).copy()


@dataclass(frozen=True, slots=True)
class LongArray:
    """Stands for an array that was passed over, such as the vocabulary."""

    length: int


class _Cursor:
    """Walks the header; every read past the end is a truncated file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.offset = 0

    def _truncated(self) -> TruncatedModel:
        return TruncatedModel(
            f"{self._path} ends after {len(self._data)} bytes, inside its header",
            next_step="download the file again; the transfer was cut short",
        )

    def take(self, n_bytes: int) -> bytes:
        if self.offset + n_bytes > len(self._data):
            raise self._truncated()
        data = self._data[self.offset : self.offset + n_bytes]
        self.offset += n_bytes
        return data

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.take(size))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        unpack = struct.Struct("<Q").unpack_from
        data, offset = self._data, self.offset
        try:
            for _ in range(count):
                offset += 8 + unpack(data, offset)[0]
        except (struct.error, OverflowError) as error:
            raise self._truncated() from error
        self.offset = offset

    def value(self, kind: int, level: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            if level >= _MOST_LEVELS:
                raise _foreign(self._path, f"arrays lie more than {_MOST_LEVELS} deep in each other")
            return self._array(level + 1)
        if kind not in _SCALARS:
            raise _foreign(self._path, f"value type {kind} is unknown")
        return self.scalar(_SCALARS[kind])

    def _array(self, level: int) -> Any:
        kind, count = self.scalar("I"), self.scalar("Q")
        if count <= _KEPT_ARRAY:
            return [self.value(kind, level) for _ in range(count)]
        if kind == _STRING:
            self.skip_strings(count)
        elif kind in _SCALARS:
            self.take(count * struct.calcsize("<" + _SCALARS[kind]))
        else:
            raise _foreign(self._path, f"array of value type {kind} is unknown")
        return LongArray(count)


def _foreign(path: Path, what: str) -> NotAGguf:
    return NotAGguf(f"{path} is not a GGUF model: {what}", next_step="name a .gguf file")


def read_gguf(path: Path) -> GgufFile:
    """Read header and directory of the GGUF file at `path`, and check that its data is all there.

    Raises
    ------
    ModelNotFound, NotAGguf, TruncatedModel
        With the file and what is wrong with it.
    """
    if not path.is_file():
        raise ModelNotFound(
            f"there is no file {path}",
            next_step="check the path, or run `nexus-lab doctor` for the models found",
        )
    size = path.stat().st_size
    if size < len(_MAGIC):
        raise _foreign(path, f"it has {size} bytes")
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _read(path, _Cursor(data, path), size)


def _read(path: Path, cursor: _Cursor, size: int) -> GgufFile:
    magic = cursor.take(len(_MAGIC))
    if magic != _MAGIC:
        raise _foreign(path, f"it starts with {magic!r} where {_MAGIC!r} is expected")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise _foreign(path, f"version {version} is none of {_VERSIONS}")
    n_tensors, n_values = cursor.scalar("Q"), cursor.scalar("Q")
    if max(n_tensors, n_values) > _MOST_ENTRIES:
        raise _foreign(path, f"it claims {n_tensors} tensors and {n_values} values")
    metadata, kinds = {}, {}
    for _ in range(n_values):
        key, kind = cursor.string(), cursor.scalar("I")
        metadata[key], kinds[key] = cursor.value(kind), kind
    entries = [_tensor(cursor, path) for _ in range(n_tensors)]
    _check_values(path, metadata)
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.offset // alignment) * alignment
    tensors = {
        entry.name: TensorEntry(entry.name, entry.shape, entry.type, entry.offset + start)
        for entry in entries
    }
    _check_whole(path, tensors, size)
    return GgufFile(path, metadata, tensors, size, kinds)


def _check_values(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse values that their readers could not count with, as llama.cpp does."""
    alignment = metadata.get("general.alignment", 32)
    if not _is_count(alignment) or alignment == 0:
        raise _foreign(path, f"general.alignment is {alignment!r:.60}")
    prefix = f"{metadata.get('general.architecture', '')}."
    for key, value in metadata.items():
        if key.startswith(prefix) and not _is_usable(key.removeprefix(prefix), value):
            raise _foreign(path, f"{key} is {value!r:.60}")


def _is_usable(name: str, value: Any) -> bool:
    if name in _PER_LAYER and isinstance(value, list):
        return bool(value) and all(map(_is_count, value))
    if name == "block_count":
        return _is_count(value) and value <= _MOST_LAYERS
    if name in _COUNTS:
        return _is_count(value)
    if name in _NUMBERS:
        return _is_moderate(abs(value) if name == _MAY_BE_NEGATIVE and isinstance(value, float) else value)
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER


def _is_moderate(value: Any) -> bool:
    """Whether it is 0, or a number that can be divided by and into."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value == 0 or 1 / _MOST_NUMBER < value < _MOST_NUMBER)
    )


def _tensor(cursor: _Cursor, path: Path) -> TensorEntry:
    name = cursor.string()
    n_dimensions = cursor.scalar("I")
    if n_dimensions > _MOST_DIMENSIONS:
        raise _foreign(path, f"tensor {name!r} claims {n_dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(n_dimensions))
    return TensorEntry(name, shape, cursor.scalar("I"), cursor.scalar("Q"))


def _check_whole(path: Path, tensors: Mapping[str, TensorEntry], size: int) -> None:
    end = max((entry.offset + (entry.size_bytes or 0) for entry in tensors.values()), default=0)
    if end > size:
        raise TruncatedModel(
            f"{path} has {size} bytes where its tensors need {end}",
            next_step="download the file again; the transfer was cut short",
        )
