"""A byte stream cut into lines, with bounds that hold whatever a server writes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Line", "LineSplitter", "OutputTail"]

_HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes
    ----------
    data
        The line without its line feed; of one that is too long, the first 256 bytes.
    size
        Its whole size in bytes.
    whole
        Whether `data` is all of it.
    """

    data: bytes
    size: int
    whole: bool = True


class LineSplitter:
    """Cuts chunks into lines, never holding more than `limit` bytes.

    Parameters
    ----------
    limit
        Longest line that is kept whole, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._dropped = 0

    @property
    def pending(self) -> int:
        """Bytes of the line that is not finished yet."""
        return self._dropped + len(self._buffer)

    @property
    def head(self) -> bytes:
        """First bytes of the line that is not finished yet."""
        return bytes(self._buffer[:_HEAD_BYTES])

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that `chunk` finishes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._take(end)
            yield self._finish()
        self._take(rest)

    def finish(self) -> Iterator[Line]:
        """Yield what is left when the stream ends without a line feed."""
        if self.pending:
            yield self._finish()

    def _take(self, part: bytes) -> None:
        self._buffer += part
        if len(self._buffer) > (_HEAD_BYTES if self._dropped else self._limit):
            self._dropped += len(self._buffer) - _HEAD_BYTES
            del self._buffer[_HEAD_BYTES:]

    def _finish(self) -> Line:
        line = Line(bytes(self._buffer).rstrip(b"\r"), self.pending, whole=not self._dropped)
        self._buffer.clear()
        self._dropped = 0
        return line


class OutputTail:
    """The last lines that a server wrote, harmless to show and without its secrets.

    Parameters
    ----------
    mask
        Removes secrets from a line.
    lines, width
        How many lines are kept, and how many characters of each.
    """

    def __init__(self, mask: Callable[[str], str], *, lines: int = 40, width: int = 400) -> None:
        self._mask = mask
        self._width = width
        self._splitter = LineSplitter(64 * 1024)
        self._lines: deque[str] = deque(maxlen=lines)

    def feed(self, chunk: bytes) -> None:
        """Take what was written."""
        for line in self._splitter.feed(chunk):
            self.add(line.data)

    def finish(self) -> None:
        """Take the rest when the stream ends without a line feed."""
        for line in self._splitter.finish():
            self.add(line.data)

    def add(self, data: bytes) -> None:
        """Take one line."""
        text = self._mask(data.decode(errors="replace").strip())
        if text:
            self._lines.append(neutralise(text, limit=self._width))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, oldest first."""
        return tuple(self._lines)
