"""JSON Lines as text: where a line ends, and what is wrong with one, told in one place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["json_lines", "parse_line", "why_unreadable"]


def json_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of `text` that are not blank, each behind its number, from 1.

    A line ends at a line feed and nowhere else: the strings of JSON may hold U+2028, U+0085 and other
    characters at which `str.splitlines` cuts. A byte order mark at the beginning is left out.
    """
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if line.strip():
            yield number, line


def parse_line(line: str) -> Any:
    """Return what a line says.

    Raises
    ------
    ValueError
        With what is wrong and the column where; which line it is, the reader knows.
    """
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    except RecursionError:
        raise ValueError("it is nested without end") from None


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Return in words why the text of a file could not be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 text ({error.reason})"
    return error.strerror or str(error)
