"""Requests with what is known about them, from JSON Lines files."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from nexus_lab.json_lines import json_lines, parse_line, why_unreadable
from nexus_lab.registry import neutralise, repair_text
from nexus_lab.routing.base import RoutingError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RowsError", "file_digest", "read_id_lists", "read_rows", "share_of"]


class RowsError(RoutingError):
    """A file of requests cannot be read."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; each has at least a ``query`` (or a ``request``).

    Raises
    ------
    RowsError
        With the line that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RowsError(
            f"{path} cannot be read: {why_unreadable(error)}", next_step="give a JSON Lines file"
        ) from error
    rows = []
    for number, line in json_lines(text):
        try:
            row = parse_line(line)
        except ValueError as error:
            raise RowsError(
                f"line {number} of {path} is not JSON: {error}", next_step="write one object a line"
            ) from error
        if isinstance(row, dict) and "query" not in row:
            row = {**row, "query": row.get("request")}
        if not isinstance(row, dict) or not isinstance(row["query"], str):
            shown = neutralise(line, limit=60)
            raise RowsError(
                f"line {number} of {path} has no text under 'query': {shown}",
                next_step='write objects such as {"query": "List my issues"}',
            )
        context = row.get("context") or []
        if not isinstance(context, list) or not all(isinstance(turn, dict) for turn in context):
            raise RowsError(
                f"line {number} of {path} has a 'context' that is no list of turns",
                next_step='write {"context": [{"role": "user", "content": "Look at acme/docs"}]}',
            )
        rows.append({**row, "query": repair_text(row["query"])})
    return rows


def read_id_lists(path: Path) -> dict[str, list[str]]:
    """Return the lists of ids of a JSON object, by name.

    Raises
    ------
    RowsError
        When the file holds no such object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RowsError(f"{path} cannot be read: {error}", next_step="give a JSON object") from error
    if not isinstance(values, dict) or not all(isinstance(ids, list) for ids in values.values()):
        raise RowsError(f"{path} holds no lists of ids", next_step='write {"core": ["gh-0001"]}')
    return {str(name): [str(one) for one in ids] for name, ids in values.items()}


def share_of(text: str) -> float:
    """Return a fixed number in [0, 1) for `text`, by which a part of a set is kept apart."""
    return int.from_bytes(hashlib.sha256(repair_text(text).encode()).digest()[:8], "big") / 2**64


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, for provenance."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
